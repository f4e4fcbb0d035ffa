"""Reading many records at a time gives the same as reading one by one, however a file is cut into chunks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from millpond.checkpoint.bulk import stream as chunks
from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.files.codecs import decompress
from millpond.checkpoint.files.records import Record
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.storage import open_storage
from spark_files.checkpoint import WrittenCheckpoint, lz4_file

pytestmark = pytest.mark.usefixtures("either_way")


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    """Rows of many sizes, put and deleted again, after a snapshot."""
    made, random_ = WrittenCheckpoint(tmp_path), random.Random(7)
    for snapshot in (True, False):
        changes = [
            ("k" * random_.randint(1, 90) + str(random_.randrange(3000)), None if random_.random() < 0.2 else i)
            for i in range(9000)
        ]
        made.plan(changes, snapshot=snapshot)
        made.commit()
    return made


def records_of(rows: RowChunk | Iterable[Record]) -> list[Record]:
    return list(rows.records() if isinstance(rows, RowChunk) else rows)


@pytest.mark.parametrize("window_bytes", [1, 100_000, 1 << 30])
def test_a_state_and_a_batch_are_the_records_one_by_one(
    job: WrittenCheckpoint, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "_WINDOW_BYTES", window_bytes)
    storage = open_storage(job.path)
    reader, batch = StateReader(storage), read_batch(storage, Batch(1))
    ((store,), _) = read_stores(storage, Batch(1))
    for partition in (0, 1):
        found = list(chunks.iter_state(reader, batch, store, partition))
        assert [r for rows in found for r in records_of(rows)] == list(reader.iter_state(batch, store, partition))
        rows, tells_all = chunks.read_changes(reader, batch, store, partition)
        assert records_of(rows) == list(reader.iter_changes(batch, store, partition))
        assert tells_all


def test_damage_in_the_middle_is_told_as_it_is_record_by_record(job: WrittenCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_WINDOW_BYTES", 50_000)
    storage, random_ = open_storage(job.path), random.Random(8)
    reader, batch = StateReader(storage), read_batch(storage, Batch(1))
    ((store,), _) = read_stores(storage, Batch(1))
    path = job.path / "state/0/0/2.delta"
    whole = decompress("lz4", path.read_bytes())
    conditions = set()
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[random_.randrange(len(whole))] ^= 1 << random_.randrange(8)
        path.write_bytes(lz4_file(bytes(damaged[: random_.choice([len(whole), random_.randrange(len(whole))])])))
        ends: list[object] = []
        for read in (
            lambda: list(reader.iter_state(batch, store, 0)),
            lambda: [r for rows in chunks.iter_state(reader, batch, store, 0) for r in records_of(rows)],
        ):
            try:
                ends.append(read())
            except CheckpointError as error:
                ends.append((error.condition, error.message))
                conditions.add(error.condition)
        assert ends[0] == ends[1]
    assert "CORRUPT_FILE" in conditions
