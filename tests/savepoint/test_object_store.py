"""Savepoints of and on a real S3 server: made in the bucket, restored there and to a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.delete import plan_delete_savepoint
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from millpond.tables.diff.read import read_diff
from savepoint.test_golden_cells import rows_of
from servers.s3 import BUCKET, moto_server, upload, use


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    use(monkeypatch, moto_server())
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.mark.long
@pytest.mark.parametrize("cell", ["spark-4.3/transform-state-rocksdb-changelog", "counts-hdfs"])
def test_a_savepoint_in_a_bucket(golden, bucket: str, tmp_path: Path, cell: str) -> None:
    local = golden(cell).checkpoint
    upload(local, f"{bucket}/ck")
    made = plan_savepoint(f"{bucket}/ck", "one").run()
    batch = made.manifest.batch
    expected = rows_of(local, batch)
    assert verify_savepoint(made).problems == ()
    for target in (f"{bucket}/restored", str(tmp_path / "restored")):
        plan_restore(f"{bucket}/ck", "one", target).run()
        assert rows_of(target, batch) == expected
        assert read_diff(f"{bucket}/ck", "one", against=target).is_same
        metadata = open_storage(target).names("state/0/_metadata/v2")
        for name in metadata:
            text = open_storage(target).read(f"state/0/_metadata/v2/{name}", 1 << 20).decode()
            assert text.count("/_stateSchema/") == text.count(f"{target.replace('s3://', 's3a://')}/state/0/_stateSchema/")
    with pytest.raises(MillpondError) as caught:
        plan_restore(f"{bucket}/ck", "one", f"{bucket}/restored")
    assert caught.value.condition == "TARGET_NOT_EMPTY"
    export_savepoint(made, tmp_path / "one.tar")
    imported = import_savepoint(f"{bucket}/pond", tmp_path / "one.tar", name="two")
    assert verify_savepoint(imported).is_whole
    second = plan_savepoint(f"{bucket}/ck", "again").run()
    assert (second.manifest.shares_with == "one") == ("rocksdb" in cell)
    plan_delete_savepoint(f"{bucket}/ck", "one").run()
    assert verify_savepoint(second).is_whole
    assert [found.manifest.name for found in list_savepoints(f"{bucket}/ck").found] == ["again"]


def test_a_name_that_is_taken_in_a_bucket(golden, bucket: str) -> None:
    upload(golden("keyless-hdfs").checkpoint, f"{bucket}/ck")
    plans = [plan_savepoint(f"{bucket}/ck", "one") for _ in range(2)]
    plans[0].run()
    with pytest.raises(MillpondError) as caught:
        plans[1].run()
    assert caught.value.condition == "SAVEPOINT_EXISTS"
