"""Operators that only have a name: which tables get it, and the error if none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millpond
from millpond.catalogue import JobFolder, create_beside
from millpond.errors import MillpondError
from millpond.replica.record import make_stores_record
from millpond.schema.definition.operator_name import Entry, NamedOperator
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, atomic, struct_of
from millpond.storage import open_storage
from millpond.tables.cold.report import inspect_job
from millpond.tables.default_tables import stored_tables

LONG, STRING, TIMESTAMP = atomic("long"), atomic("string"), atomic("timestamp")


def store(name: str, family: str = "", **more: Any) -> StoreSchema:
    """A store with one key column and one number."""
    fields: dict[str, Any] = {"operator": 0, "store": "default", "index": 0, "single": False}
    fields |= {"key": (Field("user", STRING),), "value": (Field("n", LONG),)}
    return StoreSchema(operator_name=name, family=family, **(fields | more))


def tables(stores: list[StoreSchema], *entries: Entry) -> dict[str, Any]:
    """The tables that show these stores."""
    record = make_stores_record("id", "file:///checkpoint", stores, [])
    folder = JobFolder("job", open_storage("/nowhere"), "file:///checkpoint")
    return {d.table: d for d, _ in stored_tables(folder, record, list(entries))}


def named(operator_name: str, operator: int = 0) -> NamedOperator:
    return NamedOperator(table="orders", operator=operator, operator_name=operator_name)


def test_both_sides_of_a_join_bear_its_name() -> None:
    join = "symmetricHashJoin"
    key = (Field("field0", STRING), Field("index", LONG))
    stores = [store(join, key=key, store=f"{side}-keyWithIndexToValue") for side in ("left", "right")]
    assert list(tables(stores)) == ["job.join_0_left", "job.join_0_right"]
    shown = tables(stores, named(join))
    assert list(shown) == ["orders_left", "orders_right"]
    assert all(d.derived and not d.warnings and all(c.raw is None for c in d.values) for d in shown.values())
    assert shown["orders_left"].columns == ("key", "index", "n")


def test_every_variable_and_the_timers_bear_the_name_of_their_operator() -> None:
    transform = "transformWithStateInPySparkExec"
    key = (Field("key", struct_of((Field("user", STRING),))), Field("expires_at", TIMESTAMP))
    stores = [
        store(transform, "$procTimers_keyToTimestamp", key=key, variable="timer"),
        store(transform, "seen", variable="value"),
        # A user's variable may have the name of the table of timers.
        store(transform, "timers", variable="value"),
        store("dedupe", operator=1),
    ]
    shown = tables(stores, named(transform))
    assert list(shown) == ["orders_timers", "orders_seen", "orders_timers_2", "job.dedupe_1"]
    assert shown["orders_timers"].columns == ("user", "expires_at")
    assert not shown["job.dedupe_1"].derived


def test_a_name_for_another_kind_of_operator_names_nothing() -> None:
    assert list(tables([store("applyInPandasWithState")], named("symmetricHashJoin"))) == ["job.apply_0"]
    assert list(tables([store("applyInPandasWithState")], named("applyInPandasWithState"))) == ["orders"]


@pytest.fixture
def chained(golden: Callable[[str], Any]) -> Any:
    """Two aggregations over dropDuplicates, which is operator 2."""
    return golden("spark-4.3/chained-hdfs")


def test_a_named_table_is_read_as_any_other(chained: Any) -> None:
    folder = create_beside(chained.checkpoint)
    with millpond.open(chained.checkpoint, replica_dir="memory://") as pond:
        (undefined,) = [name for name in pond.tables() if ".dedupe_2" in name]
        assert not pond[undefined].definition.derived
        rows = [dict(row) for row in pond[undefined].scan()]
    folder.write_definition(named("dedupe", 2))
    with millpond.open(chained.checkpoint, replica_dir="memory://") as pond:
        assert undefined not in pond.tables()
        assert "orders" in pond.tables()
        assert pond["orders"].definition.derived
        assert [dict(row) for row in pond["orders"].scan()] == rows
        assert rows
    (report,) = [s for s in inspect_job(folder).stores if s.operator == 2]
    assert report.tables == ("orders",)


@pytest.mark.parametrize("entry", [named("symmetricHashJoin", 2), named("dedupe", 7)])
def test_a_name_that_fits_no_operator_says_so_and_hides_nothing(chained: Any, entry: NamedOperator) -> None:
    create_beside(chained.checkpoint).write_definition(entry)
    with millpond.open(chained.checkpoint, replica_dir="memory://") as pond:
        for name in ("orders", "orders_left"):
            with pytest.raises(MillpondError) as refused:
                pond[name]
            assert refused.value.condition == "DEFINITION_MISMATCH"
        assert len(pond.tables()) == 3
        shown = pond.tables()
    report = inspect_job(create_beside(chained.checkpoint))
    (unread,) = [each for each in report.unread if each.part != "state"]  # which an operator of that number would have
    assert (unread.part, unread.condition) == ("table orders", "DEFINITION_MISMATCH")
    assert entry.operator_name in unread.message
    assert sorted(name for store in report.stores for name in store.tables) == shown


def test_before_the_first_batch_a_name_says_that_there_is_none(chained: Any) -> None:
    create_beside(chained.checkpoint).write_definition(named("dedupe", 2))
    chained.uncommit()
    with millpond.open(chained.checkpoint, replica_dir="memory://", wait_seconds=0) as pond:
        with pytest.raises(MillpondError) as early:
            pond["orders"]
        assert early.value.condition in ("NO_COMMITTED_BATCH", "REPLICA_BUILDING")
        with pytest.raises(MillpondError) as unknown:
            pond["ordered"]
        assert unknown.value.condition == "UNKNOWN_TABLE"


def test_a_table_in_hand_follows_the_schema_of_its_variable(golden: Callable[[str], Any]) -> None:
    copy = golden("spark-4.3/transform-evolution-avro-rocksdb-changelog")
    create_beside(copy.checkpoint).write_definition(named("transformWithStateInPandasExec"))
    copy.uncommit()
    with millpond.open(copy.checkpoint, replica_dir="memory://", wait_seconds=0) as pond:
        copy.commit(0)
        pond.catch_up(60)
        assert pond.tables() == ["orders_list", "orders_map", "orders_value"]
        value = pond["orders_value"]
        assert value.columns == ("user", "n", "item")
        assert value.scan()
        for batch in range(1, copy.last + 1):
            copy.commit(batch)
        pond.catch_up(60)
        rows = value.scan()
        assert rows.batch == copy.last
        assert value.columns == pond["orders_value"].columns == ("user", "n", "item", "city")
        assert {row["city"] for row in rows} >= {"Ærø"}


def test_variables_that_come_and_go_are_tables_that_come_and_go(golden: Callable[[str], Any]) -> None:
    copy = golden("spark-4.3/transform-variables-rocksdb-changelog")
    create_beside(copy.checkpoint).write_definition(named("transformWithStateInPandasExec"))
    copy.uncommit()
    shown = []
    with millpond.open(copy.checkpoint, replica_dir="memory://", wait_seconds=0) as pond:
        for batch in range(copy.last + 1):
            copy.commit(batch)
            pond.catch_up(60)
            if pond.tables() not in shown:
                shown.append(pond.tables())
    assert shown == [["orders_gone", "orders_kept"], ["orders_added", "orders_kept", "orders_more"]]


@pytest.mark.parametrize("cell", ["join-full-hdfs", "join-full-format3-rocksdb-changelog", "join-full-format4-rocksdb-changelog"])
def test_both_sides_are_read_in_every_format_of_a_join(golden: Callable[[str], Any], cell: str) -> None:
    copy = golden(f"spark-4.3/{cell}")
    create_beside(copy.checkpoint).write_definition(named("symmetricHashJoin"))
    with millpond.open(copy.checkpoint, replica_dir="memory://") as pond:
        assert pond.tables() == ["orders_left", "orders_right"]
        state = copy.read("state")
        for side in ("left", "right"):
            (rows,) = [found[str(copy.last)] for store, found in state.items() if f"/{side}-" in store]
            # In format 4 a key has a list of rows.
            count = sum(len(value) for _, value, _ in rows) if "format4" in cell else len(rows)
            assert len(pond[f"orders_{side}"].scan()) == count > 0
