"""Savepoints of what real Spark wrote: every operator, provider, codec, format and version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.checkpoint.log import read_batch
from millpond.checkpoint.operators import read_each_operator
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from spark_files.golden import CELLS
from suite.sizes import a_few


def rows_of(checkpoint: Path, number: int) -> dict[str, dict[tuple[int, bytes], bytes]]:
    """Every row of a batch: store -> (partition, key) -> value."""
    storage = open_storage(checkpoint)
    batch, reader = read_batch(storage, Batch(number)), StateReader(storage)
    found: dict[str, dict[tuple[int, bytes], bytes]] = {}
    for store in read_each_operator(storage, batch.batch)[0]:
        rows = found.setdefault(store.id, {})
        for partition in partitions_of(batch, store):
            for kind, key, value in reader.iter_state(batch, store, partition):
                if kind == 0x10:
                    rows.pop((partition, key), None)
                else:
                    rows[partition, key] = value if kind == 0x01 else rows.get((partition, key), b"") + value
    return found


@pytest.mark.parametrize("cell", a_few(CELLS, 6))
def test_a_savepoint_of_any_batch_has_its_rows_and_nothing_else(golden: Callable, tmp_path: Path, cell: str) -> None:
    checkpoint = golden(cell).checkpoint
    batches = sorted(int(path.name) for path in (checkpoint / "commits").iterdir())
    for number in sorted({batches[len(batches) // 2], batches[-1]}):
        try:
            expected = rows_of(checkpoint, number)
        except Exception:  # noqa: BLE001 - Spark has cleaned the older batch up
            assert number != batches[-1]
            continue
        made = plan_savepoint(checkpoint, f"at-{number}", batch=number).run()
        assert made.manifest.batch == number
        assert verify_savepoint(made).problems == ()
        assert sum(map(len, expected.values())) == made.manifest.rows
        export_savepoint(made, tmp_path / f"{number}.tar")
        read = import_savepoint(tmp_path / "elsewhere", tmp_path / f"{number}.tar")
        assert read.manifest == made.manifest
        assert verify_savepoint(read).problems == ()
        for place, target in ((checkpoint, f"restored-{number}"), (tmp_path / "elsewhere", f"imported-{number}")):
            plan_restore(place, f"at-{number}", tmp_path / target).run()
            assert rows_of(tmp_path / target, number) == expected
            assert [path.name for path in (tmp_path / target / "commits").iterdir()] == [str(number)]


def test_a_file_source_that_has_read_nothing_yet_keeps_its_log(golden: Callable, tmp_path: Path) -> None:
    """The log's entries after the batch's offset stay behind, those before its newest compaction too."""
    checkpoint = golden("counts-hdfs").checkpoint
    made = plan_savepoint(checkpoint, "four", batch=4).run()
    logs = [file.path for file in made.manifest.files if file.path.startswith("sources/")]
    assert logs == [f"sources/0/{number}" for number in range(5)]
    newest = plan_savepoint(checkpoint, "eleven", batch=11).run()
    logs = [file.path for file in newest.manifest.files if file.path.startswith("sources/")]
    assert sorted(logs) == ["sources/0/10", "sources/0/11", "sources/0/9.compact"]
