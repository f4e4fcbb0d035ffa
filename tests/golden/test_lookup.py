"""Looking up one key in a cold checkpoint gives the row that the whole state has; every row lies in its key's partition."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.files.records import MERGE, PUT
from millpond.checkpoint.log import CommittedBatch, committed_batches, read_batch
from millpond.checkpoint.lookup import find_row
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.partition import partition_of_key
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.errors import CheckpointError
from millpond.schema.murmur import partition_of
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, SparkType, atomic
from millpond.storage import Storage, open_storage
from spark_files.golden import GOLDEN
from suite.sizes import a_few

pytestmark = pytest.mark.usefixtures("either_way")
CHECKPOINTS = sorted({p.parent.relative_to(GOLDEN) for p in GOLDEN.rglob("checkpoint/metadata")})
State = dict[tuple[Any, ...], tuple[Any, ...]]


def read_partitions(storage: Storage, batch: CommittedBatch, store: StoreSchema) -> dict[int, list[tuple[bytes, Any]]]:
    """partition -> (key row, value in stored form) of each row."""
    value_of, found = decoder(store.value), {}
    decode = (lambda rows: tuple(map(value_of, iter_elements(rows)))) if store.many else value_of
    for partition in partitions_of(batch, store):
        rows: dict[bytes, bytes] = {}
        for kind, key, value in StateReader(storage).iter_state(batch, store, partition):
            if kind == PUT:
                rows[key] = value
            elif kind == MERGE:
                rows[key] = rows.get(key, b"") + value
            else:
                rows.pop(key, None)
        found[partition] = [(key, decode(value)) for key, value in rows.items()]
    return found


def _grouping(store: StoreSchema, key: tuple[Any, ...]) -> tuple[Any, ...]:
    return key[0] if store.variable in ("map", "timer") else key


@pytest.mark.parametrize("checkpoint", a_few(CHECKPOINTS, 150), ids=str)
def test_every_row_lies_in_the_partition_that_its_key_says(checkpoint: Path) -> None:
    storage = open_storage(GOLDEN / checkpoint)
    batch = read_batch(storage, committed_batches(storage)[-1])
    compared = 0
    for store in read_stores(storage, batch.batch)[0]:
        decode = decoder(store.key)
        for partition, rows in read_partitions(storage, batch, store).items():
            for key, _ in rows:
                if store.operator_name == "transformWithStateInPandasExec" and None in _grouping(store, decode(key)):
                    continue  # a NULL makes pandas turn a chunk's whole numbers into floats, for which Spark stores NULL
                assert store.single or partition_of_key(store, decode(key), batch.settings.partitions) == partition
                compared += 1
    assert compared > 0


# All keys of all batches if the lookup goes by the key's bytes; only two batches if it reads the whole state.
NEWEST = [str(p.parent.relative_to(GOLDEN)) for p in GOLDEN.glob("spark-4.3/*/state.json")]


@pytest.mark.parametrize("cell", a_few([*sorted(p.parent.name for p in GOLDEN.glob("*/state.json")), *sorted(NEWEST)], 5))
def test_each_key_of_each_batch_is_found_and_no_other(cell: str) -> None:
    storage = open_storage(GOLDEN / cell / "checkpoint")
    batches = [read_batch(storage, number) for number in committed_batches(storage)]
    if "/" in cell:
        batches = [batches[len(batches) // 2], batches[-1]]
    found = absent = 0
    for store in read_stores(storage, batches[-1].batch)[0]:
        decode = decoder(store.key)
        states: list[State] = [
            {decode(key): value for rows in read_partitions(storage, batch, store).values() for key, value in rows}
            for batch in batches
        ]
        every = {key for state in states for key in state}
        for batch, state in zip(batches, states, strict=True):
            for key in every:
                if store.operator_name == "transformWithStateInPandasExec" and None in _grouping(store, key):
                    with pytest.raises(CheckpointError) as refused:
                        find_row(storage, batch, store, key)
                    assert refused.value.condition == "UNSUPPORTED"
                    continue
                assert find_row(storage, batch, store, key) == state.get(key)
                found, absent = found + (key in state), absent + (key not in state)
    assert found > 0
    assert absent > 0 or "/" in cell or cell.startswith("keyless")


def test_keys_of_every_type_are_found(types_pond: Path) -> None:
    found = refused = 0
    for checkpoint in sorted(p.parent for p in types_pond.rglob("checkpoint/metadata")):
        storage = open_storage(checkpoint)
        batch = read_batch(storage, committed_batches(storage)[-1])
        for store in read_stores(storage, batch.batch)[0]:
            decode = decoder(store.key)
            for rows in read_partitions(storage, batch, store).values():
                for row, value in rows:
                    try:
                        assert repr(find_row(storage, batch, store, decode(row))) == repr(value)  # NaN doesn't equal itself
                        found += 1
                    except CheckpointError as error:
                        assert error.condition == "UNSUPPORTED"
                        assert decode(row) == (None,)
                        refused += 1
    assert found > 50
    assert refused < 10


def test_a_lookup_reads_one_partition_only(golden: Callable[[str], Any]) -> None:
    copy = golden("counts-rocksdb-changelog")
    storage = open_storage(copy.checkpoint)
    batch = read_batch(storage, committed_batches(storage)[-1])
    (store,), _ = read_stores(storage, batch.batch)
    decode = decoder(store.key)
    state = read_partitions(storage, batch, store)
    shutil.rmtree(copy.checkpoint / store.folder(1))
    for row, value in state[0]:
        assert find_row(storage, batch, store, decode(row)) == value
    for row, _ in state[1]:
        with pytest.raises(CheckpointError) as raised:
            find_row(storage, batch, store, decode(row))
        assert raised.value.condition == "FILE_GONE"


def test_a_batch_that_was_replaced_meanwhile_gives_no_answer(golden: Callable[[str], Any]) -> None:
    copy = golden("counts-hdfs")
    storage = open_storage(copy.checkpoint)
    batch = read_batch(storage, committed_batches(storage)[-1])
    (store,), _ = read_stores(storage, batch.batch)
    row, _ = read_partitions(storage, batch, store)[0][0]
    (copy.checkpoint / "commits" / str(batch.batch)).unlink()
    with pytest.raises(CheckpointError) as raised:
        find_row(storage, batch, store, decoder(store.key)(row))
    assert raised.value.condition == "FILE_GONE"


def test_the_hash_is_the_one_of_sparks_manual() -> None:
    # SELECT hash('Spark', array(123), 2);  -1321691492
    fields = (Field("a", atomic("string")), Field("b", SparkType("array", "array", element=atomic("integer"))))
    fields += (Field("c", atomic("integer")),)
    assert partition_of(fields, ("Spark", [123], 2), 1 << 31) == -1321691492 % (1 << 31)
