"""`check_upgrade` against Spark: each old query is really followed by each new one, on a copy of the checkpoint.

Spark refuses, with an error class; or it goes on, and its answer equals that of the new query over all input, or not.  The
verdict must say which of the three.  Cases are drawn from a seed.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA = "page string, host string, a long, b long, x double, time timestamp"
SEED = int(os.environ.get("MILLPOND_SEED", "20261123"))
AGGREGATES = (
    "count(1)",
    "count(host)",
    "sum(a)",
    "sum(b)",
    "max(a)",
    "max(b)",
    "min(b)",
    "avg(a)",
    "avg(b)",
    "sum(x)",
    "max(host)",
)
KEYS = (("page",), ("host",), ("page", "host"), ("host", "page"), ("page", "a"), ())
WINDOWS = (None, "1 minute", "2 minutes")
DELAYS = (None, "10 seconds", "1 hour")


@dataclass(frozen=True)
class Aggregation:
    """A query that Spark refuses to go on from, or not, for its keys and aggregates in their order."""

    keys: tuple[str, ...]
    aggregates: tuple[str, ...]
    window: str | None = None
    delay: str | None = None
    names: str = "c"
    distinct: bool = False

    def __call__(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        if self.delay is not None:
            rows = rows.withWatermark("time", self.delay)
        if self.distinct:
            rows = rows.dropDuplicates(["page", "host", "a", "b"])
        grouping: list[Column] = [sf.col(key).alias(f"{self.names}_{n}") for n, key in enumerate(self.keys)]
        if self.window is not None:
            grouping.insert(0, sf.window("time", self.window))
        aggregates = [sf.expr(text).alias(f"{self.names}{n}") for n, text in enumerate(self.aggregates)]
        return rows.groupBy(*grouping).agg(*aggregates)


def draw(random_: random.Random) -> Aggregation:
    aggregates = tuple(random_.sample(AGGREGATES, random_.randint(1, 4)))
    window = random_.choice(WINDOWS)
    return Aggregation(random_.choice(KEYS), aggregates, window, random_.choice(DELAYS))


def change(old: Aggregation, random_: random.Random) -> Aggregation:
    """Another query: one or two changes of the first."""
    new = old
    for _ in range(random_.choice((1, 1, 2))):
        match random_.choice(
            ("same", "order", "order", "replace", "replace", "add", "remove", "names", "keys", "window", "delay", "operator")
        ):
            case "order":
                new = replace(new, aggregates=tuple(random_.sample(new.aggregates, len(new.aggregates))))
            case "replace":
                place = random_.randrange(len(new.aggregates))
                left = [text for text in AGGREGATES if text not in new.aggregates]
                other = (*new.aggregates[:place], random_.choice(left), *new.aggregates[place + 1 :])
                new = replace(new, aggregates=other)
            case "add":
                left = [text for text in AGGREGATES if text not in new.aggregates]
                place = random_.randrange(len(new.aggregates) + 1)
                new = replace(new, aggregates=(*new.aggregates[:place], random_.choice(left), *new.aggregates[place:]))
            case "remove" if len(new.aggregates) > 1:
                new = replace(new, aggregates=new.aggregates[:-1])
            case "names":
                new = replace(new, names="d")
            case "keys":
                new = replace(new, keys=random_.choice(KEYS))
            case "window":
                new = replace(new, window=random_.choice(WINDOWS))
            case "delay":
                new = replace(new, delay=random_.choice(DELAYS))
            case "operator":
                new = replace(new, distinct=True)
    return new


def rows_of(batch: int) -> list[dict[str, Any]]:
    made = random.Random(batch)
    hosts = ("h1", "/0", "/1", None)
    return [
        {
            "page": f"/{made.randrange(3)}",
            "host": made.choice(hosts),
            "a": made.randrange(100),
            "b": made.randrange(1000, 2000),
            "x": made.randrange(50) / 4,
            "time": f"2026-01-01T00:{batch * 3 + n % 3:02d}:{n % 60:02d}Z",
        }
        for n in range(40)
    ]


class Place:
    """The input of a job, and its checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.inputs = folder / "in"
        self.inputs.mkdir(parents=True)
        self._runs = 0

    def feed(self, batch: int) -> None:
        write_event_file(self.inputs, batch, rows_of(batch))

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).json(str(self.inputs))

    def run(self, df: DataFrame, checkpoint: Path, mode: str = "complete") -> list[Any]:
        """The rows of the last batch; of several keys, in any order."""
        self._runs += 1
        name = f"run_{self.folder.name.replace('-', '_')}_{self._runs}"
        writer = df.writeStream.format("memory").queryName(name).outputMode(mode)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return self.spark.table(name).collect()


def error_of(failed: Exception) -> str:
    """The error class of Spark's error beneath the query's own, or the class of an exception without one."""
    from py4j.protocol import Py4JError

    origin: Any = getattr(failed, "_origin", None) or getattr(failed, "java_exception", None)
    assert origin is not None, failed
    while origin is not None:
        try:
            name = origin.getCondition()
        except Py4JError:  # it has no such method
            name = None
        if name not in (None, "STREAM_FAILED"):
            return str(name)
        last, origin = origin, origin.getCause()
    return str(last.getClass().getName())


def what_spark_does(place: Place, new: Callable[[DataFrame], DataFrame], checkpoint: Path) -> tuple[str, str | None]:
    from pyspark.errors import PySparkException

    try:
        rows = place.run(new(place.stream()), checkpoint)
    except PySparkException as failed:
        return "refused", error_of(failed)
    expected = new(place.spark.read.schema(SCHEMA).json(str(place.inputs))).collect()
    is_right = sorted(map(repr, rows)) == sorted(map(repr, expected))
    return "compatible" if is_right else "silently_wrong", None


def check(place: Place, old: Aggregation, news: list[Aggregation]) -> list[str]:
    """Follow one query by each of others; returns where the verdict was another than Spark's."""
    checkpoint = place.folder / "ck"
    place.feed(0)
    place.run(old(place.stream()), checkpoint)
    place.feed(1)
    wrong = []
    for number, new in enumerate(news):
        found = millpond.check_upgrade(new(place.stream()), checkpoint, output_mode="complete", old=old(place.stream()))
        copy = place.folder / f"ck-{number}"
        shutil.copytree(checkpoint, copy)
        does, error = what_spark_does(place, new, copy)
        says = {"fixable": "refused"}.get(found.verdict, found.verdict)
        errors = {finding.spark_error for finding in found.findings}
        if says != does or (error is not None and error not in errors):
            wrong.append(f"{old}\n  {new}\n  Spark: {does} {error}\n  {found.describe()}")
    return wrong


def test_a_few_queries_after_one(spark: SparkSession, tmp_path: Path) -> None:
    old = Aggregation(("page",), ("sum(a)", "sum(b)"))
    news = [
        replace(old, names="d"),
        replace(old, aggregates=("sum(b)", "sum(a)")),
        replace(old, aggregates=("sum(a)", "sum(b)", "count(1)")),
    ]
    assert check(Place(spark, tmp_path), old, news) == []


@pytest.mark.long
def test_definitions_say_what_the_state_meant(spark: SparkSession, tmp_path: Path) -> None:
    """Those of a few tables that `start` wrote; without them nothing says it."""
    place, pond = Place(spark, tmp_path), tmp_path / "pond"
    place.feed(0)
    old = Aggregation(("page",), ("sum(a)", "sum(b)"))
    swapped = replace(old, aggregates=("sum(b)", "sum(a)"))
    with millpond.start(old(place.stream()), table="sums", pond=pond, trigger="available-now", partitions=2) as job:
        job.query.awaitTermination()
    says = {name: millpond.check_upgrade(query(place.stream()), pond) for name, query in (("old", old), ("swapped", swapped))}
    assert {name: found.verdict for name, found in says.items()} == {"old": "compatible", "swapped": "silently_wrong"}
    bare = pond / "jobs/sums/checkpoint"
    assert millpond.check_upgrade(swapped(place.stream()), bare).verdict == "unknown"
    assert millpond.check_upgrade(swapped(place.stream()), bare, old=old(place.stream())).verdict == "silently_wrong"
    assert (
        millpond.check_upgrade(old(place.stream()), bare, settings={"spark.sql.shuffle.partitions": "9"}).findings[0].kind
        == "noted"
    )


@pytest.mark.long
@pytest.mark.parametrize("number", range(12))
def test_random_queries_after_random_queries(spark: SparkSession, tmp_path: Path, number: int) -> None:
    made = random.Random(SEED * 1000 + number)
    old = draw(made)
    wrong = check(Place(spark, tmp_path), old, [change(old, made) for _ in range(8)])
    assert wrong == [], "\n".join(wrong)
