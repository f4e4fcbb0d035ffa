"""One key erased everywhere: nothing of it is left, and all else is as it was, to the bit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import find_job
from millpond.checkpoint.log import committed_batches, read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.partition import hashed_columns
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole_store import read_whole_stores
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.rewrite.hdfs_state import HdfsState
from millpond.savepoint.rewrite.rocksdb_state import RocksDbState
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from millpond.tables.diff.sides import Source
from spark_files.golden import CELLS
from suite.sizes import a_few

Row = tuple[str, bytes, bytes]
# Without a key, or without any rows; Spark's own reader can't read them either.
KEYLESS = ("keyless", "limit")
ERASABLE = [cell for cell in CELLS if not any(word in cell for word in KEYLESS)]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for member in value:
            yield from leaves(member)
    else:
        yield value


def whole(place: Path, number: int) -> list[tuple[Row, set[Any]]]:
    """All rows of a state, also those that only Spark needs: store, key, value; and what is in the key."""
    storage, found = open_storage(place), []
    batch = read_batch(storage, Batch(number))
    for operator in read_operator_files(storage, batch.batch):
        for store in read_whole_stores(storage, operator):
            hdfs = batch.settings.provider == "hdfs"
            state = HdfsState(storage, batch, store) if hdfs else RocksDbState(storage, batch, store)
            names = {n.to_bytes(2, "little"): name for name, n in state.numbers.items()}
            for partition in partitions_of(batch, store.files):
                for key, value in state.iter_rows(partition):
                    family = store.families[names[key[:2]] if store.has_families else store.name]
                    if hdfs:
                        from millpond.checkpoint.rows.unsaferow import decoder

                        columns = decoder(family.key)(key)
                    else:
                        avro = batch.settings.encoding == "avro"
                        columns = store.key_reader(family, avro=avro)(key[2:] if store.has_families else key)
                    found.append(((f"{operator.operator}/{store.name}/{partition}", key, value), set(map(repr, leaves(columns)))))
    return found


def a_key(place: Path, some: random.Random) -> tuple[str, dict[str, Any], list[Any]] | None:
    """A table, a key of one of its rows, and the stored values of this key; texts and numbers only."""
    side = Source(find_job(place, None)).open(time.time_ns() // 1_000_000)
    tables = [table for table in side.tables.values() if table.key]
    some.shuffle(tables)
    for table in tables:
        rows = millpond.read_arrow(place, table.table).to_pylist()
        if not rows:
            continue
        (operator,) = read_operator_files(side.storage, side.batch.batch, only=table.operator)
        store = next(s for s in read_whole_stores(side.storage, operator) if s.name == table.store)
        family = store.families[table.family or store.name]
        fields, _ = hashed_columns(operator.name, family, store.families)
        names = {f.name for f in fields if f.type.kind in ("string", "long", "integer")}
        row = some.choice(rows)
        columns = [c.name for c in table.key if (c.path[-1] if c.path else c.name) in names]
        key = {name: row[name] for name in columns if row[name] is not None}
        if key:
            return table.table, key, list(key.values())
    return None


@pytest.mark.parametrize("cell", a_few(ERASABLE, 14))
def test_one_key_goes_and_all_other_rows_stay_to_the_bit(golden: Callable, tmp_path: Path, cell: str) -> None:
    """In each batch of the checkpoint, in each savepoint, and in an export."""
    checkpoint, some = golden(cell).checkpoint, random.Random(cell)
    found = a_key(checkpoint, some)
    if found is None:
        pytest.skip("no row has a key of a text or a number")
    table, key, values = found
    batches = [int(batch) for batch in committed_batches(open_storage(checkpoint))]
    states: dict[tuple[str, int], list[tuple[Row, set[Any]]]] = {}
    for number in batches:
        try:
            states["job", number] = whole(checkpoint, number)
        except MillpondError:  # Spark has cleaned it up
            assert number != batches[-1]
    saved = []
    for number in {some.choice([number for _, number in states]), batches[-1]}:
        made = plan_savepoint(checkpoint, f"at-{number}", batch=number).run()
        states[made.manifest.name, number] = whole(made.checkpoint.local_path(), number)
        saved.append(made)
    export_savepoint(saved[-1], tmp_path / "one.tar")
    operator = Source(find_job(checkpoint, None)).open(0).tables[table].operator
    plan = millpond.plan_erase(checkpoint, table, key, exports=[tmp_path / "one.tar"])
    assert plan.records > 0, plan.describe()
    receipt = plan.run().data
    assert sum(place["records"] for place in receipt["places"]) == plan.records
    marks = {repr(value) for value in values}

    def expected(name: str, number: int) -> list[Row]:
        return sorted(row for row, inside in states[name, number] if not (row[0].startswith(f"{operator}/") and marks <= inside))

    removed = 0
    for name, number in states:
        place = (
            checkpoint
            if name == "job"
            else list(list_savepoints(checkpoint).found[0].storage.local_path().parent.glob(name))[0] / "checkpoint"
        )
        after = sorted(row for row, _ in whole(place, number))
        assert after == expected(name, number), (name, number)
        removed += len(states[name, number]) - len(after)
    assert removed > 0
    for savepoint in list_savepoints(checkpoint).found:
        assert verify_savepoint(savepoint).problems == ()
    read = import_savepoint(tmp_path / "elsewhere", tmp_path / "one.tar")
    assert verify_savepoint(read).problems == ()
    number = read.manifest.batch
    assert sorted(row for row, _ in whole(read.checkpoint.local_path(), number)) == expected(f"at-{number}", number)
    plan_restore(checkpoint, saved[-1].manifest.name, tmp_path / "restored").run()
    again = millpond.plan_erase(checkpoint, table, key, exports=[tmp_path / "one.tar"])
    assert again.records == 0
    assert "none" in again.describe()
