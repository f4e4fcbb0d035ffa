"""Edited joins in use: the job goes on with the rows that a function made, as a recomputation says."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from spark.savepoint.test_edit import PROVIDER, PROVIDERS
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

StateRow = millpond.StateRow
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NEAR = dt.timedelta(seconds=20)
END = BEGIN + dt.timedelta(days=30)
Click = tuple[str, dt.datetime, int]
CASES = [
    ("left_outer", "hdfs", 2),
    ("inner", "rocksdb", 2),
    ("left_outer", "rocksdb", 4),
    ("left_outer", "rocksdb", 3),
    ("inner", "hdfs", 2),
    ("inner", "rocksdb", 4),
]


class Join:
    """A job that joins two streams of events with names: at most twenty seconds apart."""

    def __init__(self, spark: SparkSession, folder: Path, how: str, provider: str, version: int) -> None:
        self.spark, self.folder, self.how, self.files = spark.newSession(), folder, how, 0
        self.spark.conf.set(PROVIDER, PROVIDERS[provider])
        self.spark.conf.set("spark.sql.streaming.join.stateFormatVersion", str(version))
        self.spark.conf.set("spark.sql.shuffle.partitions", "2")
        for side in ("left", "right"):
            (folder / side).mkdir()

    def feed(self, left: list[Click], right: list[Click]) -> None:
        for side, events in (("left", left), ("right", right)):
            write_event_file(self.folder / side, self.files, [{"k": k, "t": t.isoformat(), "n": n} for k, t, n in events])
        self.files += 1

    def run(self, checkpoint: Path) -> list[tuple[Click, Click | None]]:
        """What the sink gets, until all files are read."""
        from pyspark.sql import functions as sf

        def stream(side: str, *names: str) -> DataFrame:
            df = self.spark.readStream.schema("k string, t timestamp, n long").option("maxFilesPerTrigger", 1)
            return df.json(str(self.folder / side)).toDF(*names).withWatermark(names[1], "1 hour")

        near = "k = who and at between t and t + interval 20 seconds"
        joined = stream("left", "k", "t", "n").join(stream("right", "who", "at", "m"), sf.expr(near), self.how)
        found: list[tuple[Click, Click | None]] = []

        def keep(batch: DataFrame, _: int) -> None:
            for k, t, n, who, at, m in batch.selectExpr("k", "cast(t as double)", "n", "who", "cast(at as double)", "m").collect():
                found.append(((k, moment(t), n), None if who is None else (who, moment(at), m)))

        query = joined.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(keep).start()
        query.processAllAvailable()
        query.stop()
        return found


def moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def clicks(some: random.Random, count: int, first: int) -> list[Click]:
    names = ["a", "A", "b", "B", "c", "d", "D"]
    return [(some.choice(names), BEGIN + dt.timedelta(seconds=some.randint(0, 400)), first + n) for n in range(count)]


def pairs(left: list[Click], right: list[Click]) -> set[tuple[Click, Click]]:
    return {(one, other) for one in left for other in right if one[0] == other[0] and one[1] <= other[1] <= one[1] + NEAR}


def edited_click(side: str, click: Click) -> Click | None:
    """What the edit makes of a row: other keys, values and times; some rows go."""
    name, time, n = click
    if n % 7 == 0:
        return None
    if side == "left":
        return name.lower(), time + dt.timedelta(seconds=n % 3), n
    return name.lower(), time, n + 1_000_000 * (n % 2)


def edit(row: StateRow) -> StateRow | None:
    side = "left" if "left" in row.table else "right"
    columns = ("k", "t", "n") if side == "left" else ("who", "at", "m")
    after = edited_click(side, tuple(row.value[name] for name in columns))  # type: ignore[arg-type]
    if after is None:
        return None
    (key,) = row.key
    return StateRow(row.table, {key: after[0]}, row.value | dict(zip(columns, after, strict=True)))


def became(side: str, before: list[Click]) -> dict[Click, Click]:
    return {click: after for click in before if (after := edited_click(side, click)) is not None}


@pytest.mark.parametrize(("how", "provider", "version"), a_few(CASES, 1, long=2))
def test_an_edited_join_goes_on_as_recomputed(spark: SparkSession, tmp_path: Path, how: str, provider: str, version: int) -> None:
    some = random.Random(f"{how} {provider} {version}")
    join = Join(spark, tmp_path, how, provider, version)
    left, right = clicks(some, 60, 0), clicks(some, 60, 1000)
    for begin in (0, 30):
        join.feed(left[begin : begin + 30], right[begin : begin + 30])
    assert {pair for pair in join.run(tmp_path / "job") if pair[1] is not None} == pairs(left, right)
    plan_savepoint(tmp_path / "job", "first").run()
    made = millpond.plan_edit_savepoint(tmp_path / "job", "first", "other", edit=edit).run()
    assert verify_savepoint(made).problems == ()
    plan_restore(tmp_path / "job", "other", tmp_path / "other").run()

    new_left, new_right = clicks(some, 40, 2000), clicks(some, 40, 3000)
    join.feed(new_left, new_right)
    for n in range(2):  # the watermark passes every row, which goes in the batch after that
        join.feed([("end", END, 5000 + n)], [("END", END, 5000 + n)])
    found = join.run(tmp_path / "other")

    old_left, old_right = became("left", left), became("right", right)
    matched = {old_left[one] for one, _ in pairs(left, right) if one in old_left}  # the flags stay
    every_left, every_right = [*old_left.values(), *new_left], [*old_right.values(), *new_right]
    expected: set[Any] = pairs(every_left, every_right) - pairs(list(old_left.values()), list(old_right.values()))
    assert len(expected) > 10
    assert expected != pairs([*left, *new_left], [*right, *new_right]) - pairs(left, right)
    if how == "left_outer":
        alone = set(every_left) - matched - {one for one, _ in expected}
        assert len(alone) > 10
        expected |= {(one, None) for one in alone}
    assert len(found) == len(set(found))
    assert set(found) == expected
