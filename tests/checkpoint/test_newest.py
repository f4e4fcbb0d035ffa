"""Reading a partition in one pass gives the same as applying its records one by one; what it can't read, the slow way reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.checkpoint.bulk.newest import read_newest
from millpond.checkpoint.bulk.partition import read_chunks
from millpond.checkpoint.files.records import PUT
from millpond.checkpoint.log import CommittedBatch, committed_batches, read_batch
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.errors import CheckpointError
from millpond.native import library
from millpond.native.memory import Memory
from millpond.schema.store import StoreSchema
from millpond.storage import open_storage
from spark_files.checkpoint import WrittenCheckpoint, lz4_file

pytestmark = pytest.mark.skipif(library.library() is None, reason="the compiled library isn't built: python hatch_build.py")

# One cell for each layout of a partition's files, and how many of its stores can be read in one pass.
CELLS = {
    "counts-hdfs": 1,
    "counts-rocksdb-changelog": 1,
    "counts-rocksdb-format2": 1,
    "counts-rocksdb-snapshots": 1,
    "counts-hdfs-zstd": 0,
    "spark-4.3/counts-checksum-hdfs": 0,
    "spark-4.3/join-inner-hdfs": 2,
    "spark-4.3/join-inner-rocksdb-snapshots": 2,
    "spark-4.3/join-inner-format3-rocksdb-changelog": 2,
    "spark-4.3/keyless-rocksdb-snapshots": 1,
}


def read_at_once(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int
) -> list[tuple[bytes, bytes]] | None:
    parts = read_newest(reader, batch, store, partition, Memory())
    return None if parts is None else [pair for p in parts for pair in zip(p.keys.tolist(), p.values.tolist(), strict=True)]


@pytest.mark.parametrize("cell", CELLS)
def test_a_partition_in_one_pass_is_its_records_one_by_one(golden: Callable[[str], Any], cell: str) -> None:
    storage = open_storage(golden(cell).checkpoint)
    last = committed_batches(storage)[-1]
    at_once = set()
    for number in {Batch(0), Batch(last // 2), last}:
        batch = read_batch(storage, number)
        reader = StateReader(storage)
        for store in read_stores(storage, number)[0]:
            for partition in partitions_of(batch, store):
                try:
                    records = list(reader.iter_state(batch, store, partition))
                except CheckpointError as gone:  # the job cleaned them up
                    assert gone.condition == "FILE_GONE"
                    assert read_at_once(reader, batch, store, partition) is None
                    continue
                rows: dict[bytes, bytes] = {}
                for kind, key, value in records:
                    rows.pop(key, None)
                    if kind == PUT:
                        rows[key] = value
                found = read_at_once(reader, batch, store, partition)
                if found is not None:
                    at_once.add((store.store, store.family))
                    assert len(found) == len(rows)
                    assert dict(found) == rows
    assert len(at_once) == CELLS[cell]


def test_rows_that_are_put_and_deleted_again_and_again_come_out_once(tmp_path: Path) -> None:
    made, random_ = WrittenCheckpoint(tmp_path), random.Random(11)
    for snapshot in (True, False, False):
        names = ["k" * random_.randint(1, 90) + str(random_.randrange(900)) for _ in range(9000)]
        made.plan([(name, None if random_.random() < 0.3 else i) for i, name in enumerate(names)], snapshot=snapshot)
        made.commit()
    storage = open_storage(made.path)
    reader, batch = StateReader(storage), read_batch(storage, Batch(2))
    ((store,), _) = read_stores(storage, Batch(2))
    for partition in (0, 1):
        rows: dict[bytes, bytes] = {}
        for kind, key, value in reader.iter_state(batch, store, partition):
            rows.pop(key, None)
            if kind == PUT:
                rows[key] = value
        found = read_at_once(reader, batch, store, partition)
        assert found is not None
        assert len(found) == len(rows) > 500
        assert dict(found) == rows


def test_a_damaged_file_is_left_to_who_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    made = WrittenCheckpoint(tmp_path)
    made.plan([(f"key {i}", i) for i in range(500)], snapshot=False)
    made.commit()
    storage = open_storage(made.path)
    batch = read_batch(storage, Batch(0))
    ((store,), _) = read_stores(storage, Batch(0))
    path = tmp_path / f"{store.folder(0)}/1.delta"
    whole = path.read_bytes()
    assert read_at_once(StateReader(storage), batch, store, 0)
    for damaged, condition in (
        (whole[:-30], "INCOMPLETE_FILE"),
        (whole[:100] + b"?" + whole[101:], "CORRUPT_FILE"),
        (lz4_file(b"\0\0\0\x08too long"), "CORRUPT_FILE"),
        (None, "FILE_GONE"),
    ):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        assert read_at_once(StateReader(storage), batch, store, 0) is None
        with pytest.raises(CheckpointError) as refused:
            read_chunks(StateReader(storage), batch, store, 0)
        assert refused.value.condition == condition
        assert "1.delta" in str(refused.value.context["path"])
