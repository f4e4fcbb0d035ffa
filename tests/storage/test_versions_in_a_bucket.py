"""Versions of an aggregate in a bucket: a cut-over is seen by a pond that is open, and of two at once one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import millpond
from millpond.catalogue import create_job
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.errors import MillpondError
from millpond.schema.definition.default_table import undefined_table
from millpond.storage import open_storage
from millpond.versions import begin_name
from servers.s3 import QUICK
from spark_files.checkpoint import UploadedCheckpoint
from suite.waiting import wait_until


@pytest.mark.long
def test_a_cut_over_in_a_bucket(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path))
    pond = place.removesuffix("/ck") + "/pond"
    for version in (1, 2):
        folder = create_job(pond, f"views.v{version}")
        job = UploadedCheckpoint(open_storage(folder.checkpoint))
        job.batch([("a", version)])
        (store,), _ = read_stores(job.storage, Batch(0))
        folder.write_definition(undefined_table(folder.job, store, None))
        begin_name(pond, "views", version)
    with millpond.open(pond, settings=QUICK) as opened:
        table = opened["views"]
        assert (table.get(k="a")["v"], opened.tables()) == (1, ["views", "views.v1", "views.v2"])
        one, other = (millpond.plan_cut_over(pond, "views", to=2, force=True) for _ in range(2))
        one.run()
        with pytest.raises(MillpondError) as error:
            other.run()
        assert error.value.condition == "CUTOVER_TAKEN"
        wait_until(lambda: table.get(k="a")["v"] != 1, "the second version")
        assert table.get(k="a")["v"] == 2
    assert millpond.plan_retire(pond, "views", 1).run()
    assert [version.version for version in millpond.list_versions(pond)] == [2]
    assert open_storage(pond).names("jobs") == ["views.v2"]
