"""What is said of rows equals what Spark's files have, row by row, for every operator and provider."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.files.records import DELETE, PUT
from millpond.checkpoint.log import CommittedBatch, newest_committed, read_batch
from millpond.checkpoint.operators import read_each_operator
from millpond.checkpoint.partition import hashed_fields
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.native.memory import Memory
from millpond.operate.doctor.rows import bytes_of_key, read_rows, shown_key
from millpond.schema.store import StoreSchema
from millpond.storage import open_storage
from millpond.tables.cold.table_batch import iter_partition
from spark_files.golden import GOLDEN

# One of each operator and form; every checkpoint is read by the long one.
SOME = (
    "counts-hdfs", "spark-4.3/join-full-hdfs", "spark-4.3/join-inner-format4-rocksdb-changelog",
    "spark-4.3/sessions-two-keys-hdfs", "spark-4.3/transform-variables-rocksdb-changelog",
    "spark-4.3/transform-append-rocksdb-changelog", "spark-4.3/apply-hdfs",
)  # fmt: skip


def one_by_one(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    for kind, key, value in reader.iter_state(batch, store, partition):
        if kind == DELETE:
            rows.pop(key, None)
        else:
            rows[key] = value if kind == PUT else rows.get(key, b"") + value
    return rows


def check(path: Path) -> int:
    """Returns how many rows there are."""
    storage = open_storage(path)
    reader, batch = StateReader(storage), read_batch(storage, newest_committed(storage))
    stores, _ = read_each_operator(storage, batch.batch)
    total = 0
    for store in stores:
        found = read_rows(reader, batch, store, time.monotonic() + 60)
        assert found.is_whole
        rows = row_bytes = 0
        weights: Counter[str] = Counter()
        decode, hashed = decoder(store.key), hashed_fields(store)
        for partition in partitions_of(batch, store):
            for key, value in one_by_one(reader, batch, store, partition).items():
                elements = list(iter_elements(value)) if store.many else [value]
                rows += len(elements)
                weight = len(key) + sum(map(len, elements))
                row_bytes += weight
                weights[repr(decode(key)[:hashed])] += weight
        assert (found.rows, found.row_bytes) == (rows, row_bytes), (path, store.id)
        if rows:
            assert found.heaviest is not None
            heaviest = found.heaviest
            assert heaviest.bytes == max(weights.values())
            assert weights[repr(decode(heaviest.row)[:hashed])] == heaviest.bytes
            chunks = iter_partition(reader, batch, store, heaviest.partition, Memory())
            assert bytes_of_key(store, chunks, heaviest.key) == heaviest.bytes
            assert shown_key(store, heaviest.row).startswith("{")
        total += rows
    return total


def test_rows_of_each_operator(either_way: str) -> None:
    assert all(check(GOLDEN / name / "checkpoint") for name in SOME)


@pytest.mark.long
def test_rows_of_every_golden_checkpoint() -> None:
    assert sum(check(path.parent) for path in sorted(GOLDEN.rglob("spark-4.3/*/checkpoint/commits"))) > 1000
