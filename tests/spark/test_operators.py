"""Live jobs of every stateful operator have the user's names: through start, publish and define.

The oracle of a table is a recomputation, or Spark's own state reader.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import open_jobs
from millpond.errors import DefinitionError
from millpond.schema.definition.operator_name import NamedOperator
from millpond.spark import define, derive, publish, start

MINUTE = dt.timedelta(minutes=1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
# (user, n, time): duplicates, a NULL key, users that come once
EVENTS = [("abca☃"[i % 5] if i % 7 else None, i % 6, START + dt.timedelta(seconds=i // 2)) for i in range(30)]


@pytest.fixture(scope="module")
def folders(spark, tmp_path_factory):
    """Two files of events, one for each batch."""
    folder = str(tmp_path_factory.mktemp("events"))
    for rows in (EVENTS[:15], EVENTS[15:]):
        spark.createDataFrame(rows, "user string, n long, t timestamp").coalesce(1).write.mode("append").parquet(folder)
    return folder


@pytest.fixture
def events(spark, folders):
    stream = spark.readStream.schema("user string, n long, t timestamp").option("maxFilesPerTrigger", 1)
    return stream.parquet(folders).withWatermark("t", "1 minute")


def run(frame, pond, **options: Any):
    """Start it as orders, and run it to the end of its input."""
    with start(frame, table="orders", pond=pond, trigger="available-now", output_mode="append", partitions=2, **options) as job:
        assert job.wait_for_end(200)
    return job


def plain_query(frame, checkpoint, mode: str = "append"):
    """A query that Millpond doesn't know, at the end of its input."""
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    return query


def shown(path, *names: str) -> list[list[tuple[Any, ...]]]:
    """The rows of these tables, sorted; each table must have a definition."""
    with millpond.open(path, replica_dir="memory://") as pond:
        out = []
        for name in names:
            definition = pond[name].definition
            assert definition.derived
            assert definition.warnings == ()
            assert all(column.raw is None for column in definition.values)
            out.append(sorted((tuple(row.values()) for row in pond[name].scan()), key=repr))
        return out


def in_spark(spark, checkpoint, *columns: str, operator: int = 0, **options: str) -> list[tuple[Any, ...]]:
    """The rows that Spark's own reader finds, sorted; times are in UTC."""
    reader = spark.read.format("statestore").option("operatorId", operator).options(**options)
    rows = reader.load(str(checkpoint)).selectExpr(*columns).collect()
    utc = [tuple(v.astimezone(dt.UTC) if isinstance(v, dt.datetime) else v for v in row) for row in rows]
    return sorted(utc, key=repr)


def ids(checkpoint: str) -> dict[int, str]:
    """Operator id -> Spark's name, from the checkpoint."""
    found = {}
    for folder in Path(checkpoint.removeprefix("file://"), "state").iterdir():
        single, many = folder / "_metadata" / "metadata", folder / "_metadata" / "v2"
        file = max(many.iterdir(), key=lambda p: int(p.name) if p.name.isdigit() else -1) if many.exists() else single
        found[int(folder.name)] = json.loads(file.read_text().split("\n")[1])["operatorInfo"]["operatorName"]
    return found


def other_side(events):
    """The same events as the other side of a join."""
    return events.toDF("who", "m", "at")


NEAR = "user = who AND at BETWEEN t AND t + interval 1 minute"


def test_both_sides_of_a_join_over_drop_duplicates(spark, events, tmp_path):
    from pyspark.sql import functions as F

    once = events.dropDuplicates(["user", "n", "t"])
    job = run(once.join(other_side(events), F.expr(NEAR), "left_outer"), tmp_path)
    assert replace(job.definition, meaning=None) == NamedOperator(table="orders", operator=0, operator_name="symmetricHashJoin")
    assert job.statistics()["table"] == "orders"
    assert ids(job.checkpoint) == {0: "symmetricHashJoin", 1: "dedupe"}
    left, right = shown(tmp_path, "orders_left", "orders_right")
    row = ("key.field0", "key.index", "value.user", "value.n", "value.t")
    assert [r[:5] for r in left] == in_spark(spark, job.checkpoint, *row, storeName="left-keyWithIndexToValue")
    row = ("key.field0", "key.index", "value.who", "value.m", "value.at")
    assert [r[:5] for r in right] == in_spark(spark, job.checkpoint, *row, storeName="right-keyWithIndexToValue")
    # All events lie within one minute: every row with a key other than NULL has met itself.
    assert {r[5] for r in left if r[0] is not None} == {True}
    assert len({r[2:5] for r in left}) == len({e for e in EVENTS if e[0] is not None} | {r[2:5] for r in left if r[0] is None})
    with millpond.open(tmp_path, replica_dir="memory://") as pond:
        assert pond.tables() == ["orders.dedupe_1", "orders_left", "orders_right"]
    changed = once.groupBy("user").applyInPandasWithState(remember, "user string", "n long", "append", "NoTimeout")
    with pytest.raises(DefinitionError) as refused:
        start(changed, table="orders", pond=tmp_path, output_mode="append")
    assert refused.value.condition == "DEFINITION_CHANGED"
    assert "symmetricHashJoin" in refused.value.message
    define(once.join(other_side(events), F.expr(NEAR)), job.checkpoint, table="purchases", pond=None)
    with pytest.raises(DefinitionError) as refused:
        define(once.join(other_side(events), F.expr(NEAR)), job.checkpoint, table="sales", pond=None)
    assert refused.value.condition == "DEFINITION_CHANGED"
    assert "'purchases'" in refused.value.hint


@pytest.mark.long
def test_an_aggregation_over_a_join_is_the_table_and_the_join_keeps_its_number(events, tmp_path):
    from pyspark.sql import functions as F

    frame = events.join(other_side(events), F.expr(NEAR)).groupBy(F.window("t", "1 minute"), "user").count()
    checkpoint = tmp_path / "checkpoint"
    plain_query(frame, checkpoint)
    assert ids(str(checkpoint)) == {0: "stateStoreSave", 1: "symmetricHashJoin"}
    assert define(frame, checkpoint, table="pairs", strict=True).columns == ("window_start", "window_end", "user", "count")
    pairs = [(e[0], o[2] - e[2]) for e in EVENTS for o in EVENTS if e[0] == o[0] is not None]
    met = [user for user, later in pairs if dt.timedelta() <= later <= MINUTE]
    (rows,) = shown(checkpoint, "pairs")
    assert rows == sorted(((START, START + MINUTE, user, met.count(user)) for user in set(met)), key=repr)
    with millpond.open(checkpoint, replica_dir="memory://") as pond:
        assert pond.tables() == ["checkpoint.join_1_left", "checkpoint.join_1_right", "pairs"]


def remember(key, frames, state):
    """How many events a user had, and the largest number."""
    import pandas as pd

    old, most = state.get if state.exists else (0, -1)
    found = [int(n) for frame in frames for n in frame["n"]]
    state.update((old + len(found), max(most, *found)))
    if key[0] == "a":
        state.setTimeoutTimestamp(1_893_456_000_000)
    yield pd.DataFrame({"user": [key[0]]})


def test_apply_in_pandas_with_state_published(events, tmp_path):
    state = "events long, most long"
    frame = events.groupBy("user").applyInPandasWithState(remember, "user string", state, "append", "EventTimeTimeout")
    checkpoint = tmp_path / "checkpoint"
    query = plain_query(frame, checkpoint)
    entry = publish(query, table="users", pond=tmp_path / "pond", strict=True)
    assert replace(entry, meaning=None) == NamedOperator(table="users", operator=0, operator_name="applyInPandasWithState")
    assert ids(str(checkpoint)) == {0: "applyInPandasWithState"}
    never, late = None, dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    numbers = {user: [n for u, n, _ in EVENTS if u == user] for user, _, _ in EVENTS}
    wanted = [(user, len(ns), max(ns), late if user == "a" else never) for user, ns in numbers.items()]
    (rows,) = shown(tmp_path / "pond", "users")
    assert rows == sorted(wanted, key=repr)


def processors():
    """Two versions of a job: the second has one variable more."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class First(StatefulProcessor):
        def init(self, handle):
            self.handle = handle
            self.last = handle.getValueState("last", "n long, t timestamp")
            self.all = handle.getListState("all", "n long")
            self.counts = handle.getMapState("counts", "n long", "times int")

        def handleInputRows(self, key, rows, timerValues):  # noqa: N803
            found = sorted((row.t, row.n) for row in rows)
            self.last.update((found[-1][1], found[-1][0]))
            self.all.appendList([(n,) for _, n in found])
            for _, n in found:
                times = self.counts.getValue((n,))[0] if self.counts.containsKey((n,)) else 0
                self.counts.updateValue((n,), (times + 1,))
            self.handle.registerTimer(1_893_456_000_000)
            yield Row(user=key[0])

        def close(self):
            pass

    class Second(First):
        def init(self, handle):
            super().init(handle)
            self.kept = handle.getValueState("kept", "n int")

        def handleInputRows(self, key, rows, timerValues):  # noqa: N803
            self.kept.update((7,))
            yield from super().handleInputRows(key, rows, timerValues)

    return First(), Second()


def test_every_variable_of_transform_with_state_and_those_that_come_later(spark, folders, tmp_path):
    first, second = processors()
    folder = str(shutil.copytree(folders, tmp_path / "events"))
    events = spark.readStream.schema("user string, n long, t timestamp").parquet(folder)
    once = events.withWatermark("t", "1 minute").dropDuplicates(["user", "n", "t"]).groupBy("user")
    checkpoint = tmp_path / "checkpoint"
    from live_jobs.rocksdb_state import rocksdb  # not above: workers import this module for its functions, and don't find that one

    with rocksdb(spark):
        plain_query(once.transformWithState(first, "user string", "append", "eventTime"), checkpoint)
    entry = define(once.transformWithState(first, "user string", "append", "eventTime"), checkpoint, table="users")
    assert replace(entry, meaning=None) == NamedOperator(table="users", operator=0, operator_name="transformWithStateInPySparkExec")
    assert ids(str(checkpoint)) == {0: "transformWithStateInPySparkExec", 1: "dedupe"}
    of = {user: sorted((t, n) for t, n in {(t, n) for u, n, t in EVENTS if u == user}) for user, _, _ in EVENTS}
    last, counts, timers = shown(checkpoint, "users_last", "users_counts", "users_timers")
    assert last == sorted(((user, found[-1][1], found[-1][0]) for user, found in of.items()), key=repr)
    numbers = {user: [n for _, n in found] for user, found in of.items()}
    assert counts == sorted(((user, n, ns.count(n)) for user, ns in numbers.items() for n in set(ns)), key=repr)
    assert timers == sorted(((user, dt.datetime(2030, 1, 1, tzinfo=dt.UTC)) for user in of), key=repr)
    (elements,) = shown(checkpoint, "users_all")
    whole = in_spark(spark, checkpoint, "key.user", "list_element.n", stateVarName="all")
    assert sorted(((user, n) for user, _, n in elements), key=repr) == whole
    assert sorted(n for _, n in whole) == sorted(n for ns in numbers.values() for n in ns)
    assert [place for user, place, _ in elements if user == "a"] == list(range(len(of["a"])))

    with millpond.open(checkpoint, replica_dir="memory://") as pond:
        before = pond.tables()
        assert before == ["checkpoint.dedupe_1", "users_all", "users_counts", "users_last", "users_timers"]
        spark.createDataFrame([("new", 1, START)], "user string, n long, t timestamp").write.mode("append").parquet(folder)
        with rocksdb(spark):
            plain_query(once.transformWithState(second, "user string", "append", "eventTime"), checkpoint)
        pond.catch_up(60)
        assert pond.tables() == sorted([*before, "users_kept"])
        assert dict(pond["users_kept"].get(user="new")) == {"user": "new", "n": 7}
        assert pond["users_last"].get(user="new")["n"] == 1
        assert pond["users_last"].get(user="a")["n"] == of["a"][-1][1]
    (found,) = open_jobs(checkpoint)
    assert found.entries() == [entry]


def test_drop_duplicates_and_limit_under_the_users_names(spark, events, tmp_path):
    run(events.dropDuplicates(["user", "n"]), tmp_path / "keys", strict=True)
    (rows,) = shown(tmp_path / "keys", "orders")
    assert rows == sorted({(user, n) for user, n, _ in EVENTS}, key=repr)

    within = run(events.dropDuplicatesWithinWatermark(["user"]), tmp_path / "within", strict=True)
    assert within.definition.columns == ("user", "expires_at")
    firsts = {user: t for user, _, t in reversed(EVENTS)}
    (rows,) = shown(tmp_path / "within", "orders")
    assert rows == sorted(((user, t + MINUTE) for user, t in firsts.items()), key=repr)

    limited = run(events.dropDuplicates(["user", "n"]).limit(20), tmp_path / "limit", strict=True)
    assert limited.definition.columns == ("rows_so_far",)
    assert ids(limited.checkpoint) == {0: "globalLimit", 1: "dedupe"}
    assert shown(tmp_path / "limit", "orders") == [[(min(20, len({e[:2] for e in EVENTS})),)]]


def test_which_operator_gets_the_name_and_its_number(events):
    from pyspark.sql import functions as F

    join = events.join(other_side(events), F.expr(NEAR))
    counts = events.groupBy("user").count()
    windows = events.groupBy(F.window("t", "1 minute"), "user").count()
    other = windows.select(F.col("window").alias("minute"), F.col("user").alias("who"), F.col("count").alias("m"))
    for frame, append, expected in (
        (join, True, (0, "symmetricHashJoin")),
        (join.select("user", "n").dropDuplicates(), True, (0, "dedupe")),
        (windows.join(other, F.expr("window = minute AND user = who")), True, (0, "symmetricHashJoin")),
        # An operator that only remembers which rows have passed gives way to an aggregation.
        (windows.limit(3), True, (1, "aggregation")),
        (counts.limit(3), False, (0, "aggregation")),
        (events.limit(3).groupBy("user").count(), False, (0, "aggregation")),
        (events.limit(3), False, (0, "limit")),
    ):
        entry = quiet(frame, "append" if append else "complete")
        kind = entry.operator_name if isinstance(entry, NamedOperator) else _kind(entry)
        assert (entry.operator, kind) == expected


def quiet(frame, mode):
    """The derived definition, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return derive(frame, table="t", output_mode=mode)


def _kind(definition) -> str:
    if {"count", "stored_count"} & set(definition.columns):
        return "aggregation"
    return "limit" if "rows_so_far" in definition.columns else "dedupe"
