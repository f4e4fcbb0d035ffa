"""Queries whose state is the same whether their rows come at once or batch by batch, and random rows for them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from inputs.event_file import write_event_file
from millpond.spark.past.write import WriteStatePlan, plan_write_state
from millpond.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "k int, item string, t timestamp, v int, price decimal(9,2), flag boolean"
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FAR_MS = 3_600_000
OUTPUT = "k int, n long"
DAY_MS = 86_400_000


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    """Events a second or so apart, none of them later than 8 seconds; some NULLs, some twice."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    for n in range(count):
        at = BEGIN + dt.timedelta(seconds=n - draw.randrange(8), microseconds=draw.randrange(10**6))
        row = {
            "k": draw.choice([None, *range(6)]),
            "item": draw.choice([None, "", "ü/ß", *"abc"]),
            "t": at.isoformat(),
            "v": None if draw.random() < 0.1 else draw.randrange(-1000, 1000),
            "price": f"{draw.randrange(10**6) / 100:.2f}",
            "flag": draw.random() < 0.5,
        }
        found += [row] * (2 if draw.random() < 0.2 else 1)
    return found


def plan_small_past(folder: str, target: str) -> WriteStatePlan:
    """300 rows in a file, in a session of its own; where Spark puts its own files isn't in the folder."""
    if not Path(folder).exists():
        Path(folder).mkdir()
        write_event_file(Path(folder), 0, rows(1, 300))
    own = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.local.dir": "/tmp"}
    spark = session("a past", **own)
    spark.sparkContext.setLogLevel("OFF")
    past, source = spark.read.schema(SCHEMA).json(folder), spark.readStream.schema(SCHEMA).json(folder)
    return plan_write_state(target, aggregate, past=past, source=source, partitions=2)


def aggregate(events: DataFrame) -> DataFrame:
    return events.groupBy("k", "item").agg(
        F.count("*").alias("n"),
        F.count("v").alias("values"),
        F.sum("v").alias("total"),
        F.avg("v").alias("mean"),
        F.sum("price").alias("revenue"),
        F.min("t").alias("first_at"),
        F.max("t").alias("last_at"),
        F.max(F.struct("t", "v")).alias("last"),
        F.bit_xor("v").alias("bits"),
        F.bool_or("flag").alias("any"),
        F.count_if("flag").alias("flags"),
        F.approx_count_distinct("v").alias("distinct"),
    )


def keyless(events: DataFrame) -> DataFrame:
    return events.agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def windows(events: DataFrame) -> DataFrame:
    late = events.withWatermark("t", "10 seconds")
    return late.groupBy(F.window("t", "20 seconds", "10 seconds"), "k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def sessions(events: DataFrame) -> DataFrame:
    late = events.withWatermark("t", "10 seconds")
    return late.groupBy(F.session_window("t", "7 seconds"), "k").agg(F.count("*").alias("n"))


def dedupe(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["k", "v"])


def dedupe_times(events: DataFrame) -> DataFrame:
    return events.withWatermark("t", "10 seconds").dropDuplicates(["k", "t"])


def dedupe_within(events: DataFrame) -> DataFrame:
    """Of the events that come twice, both have one time, and no key comes back."""
    return events.withWatermark("t", "10 seconds").dropDuplicatesWithinWatermark(["t", "v"])


def chained(events: DataFrame) -> DataFrame:
    distinct = events.withWatermark("t", "10 seconds").dropDuplicates(["k", "t"])
    return distinct.groupBy(F.window("t", "20 seconds"), "k").agg(F.count("*").alias("n"))


def _remember(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        state.remove()
        return
    n, total = state.get if state.exists else (0, 0)
    for frame in frames:
        n, total = n + len(frame), total + int(frame["v"].fillna(0).sum())
    state.update((n, total))
    yield pd.DataFrame({"k": [key[0]], "n": [n]}).astype({"k": "Int32"})


def apply(events: DataFrame) -> DataFrame:
    return events.groupBy("k").applyInPandasWithState(_remember, OUTPUT, "n long, total long", "update", "NoTimeout")


class Remember(StatefulProcessor):
    """A count, the values in their order, and a count for each item."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n long, total long")
        self.seen = handle.getListState("seen", "v int")
        self.items = handle.getMapState("items", "item string", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N803
        n, total = self.total.get() if self.total.exists() else (0, 0)
        seen = [v for (v,) in self.seen.get()]
        for frame in rows:
            n, total = n + len(frame), total + int(frame["v"].fillna(0).sum())
            seen += [int(v) for v in frame["v"].dropna()]
            for item in frame["item"]:
                name = ("none" if item is None else item,)
                self.items.updateValue(name, ((self.items.getValue(name)[0] if self.items.containsKey(name) else 0) + 1,))
        self.total.update((n, total))
        if seen:  # Spark refuses an empty list
            self.seen.put([(v,) for v in sorted(seen)])
        yield pd.DataFrame({"k": [key[0]], "n": [n]}).astype({"k": "Int32"})

    def close(self) -> None:
        pass


class Timed(Remember):
    """The same, with a timer at the latest time of the key and an hour."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N803
        frames = list(rows)
        latest = max(int(frame["t"].max().timestamp() * 1000) for frame in frames) + FAR_MS
        due = list(self.handle.listTimers())
        for at in due:
            self.handle.deleteTimer(at)
        self.handle.registerTimer(max([latest, *due]))
        yield from super().handleInputRows(key, iter(frames), timerValues)


class Expiring(StatefulProcessor):
    """A value and a map that live for a day."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n long", DAY_MS)
        self.items = handle.getMapState("items", "item string", "n long", DAY_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N803
        n = self.total.get()[0] if self.total.exists() else 0
        for frame in rows:
            n += len(frame)
            for item in frame["item"]:
                name = ("none" if item is None else item,)
                self.items.updateValue(name, ((self.items.getValue(name)[0] if self.items.containsKey(name) else 0) + 1,))
        self.total.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]}).astype({"k": "Int32"})

    def close(self) -> None:
        pass


def transform(processor: Callable[[], StatefulProcessor], time_mode: str) -> Callable[[DataFrame], DataFrame]:
    def query(events: DataFrame) -> DataFrame:
        events = events.where("k is not null")  # Spark's Python worker takes a NULL key for 0
        if time_mode == "eventTime":
            events = events.withWatermark("t", "10 seconds")
        return events.groupBy("k").transformWithStateInPandas(processor(), OUTPUT, "update", time_mode)

    return query


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "aggregate": (aggregate, "update"),
    "aggregate-complete": (aggregate, "complete"),
    "keyless": (keyless, "update"),
    "windows": (windows, "append"),
    "windows-update": (windows, "update"),
    "sessions": (sessions, "append"),
    "dedupe": (dedupe, "append"),
    "dedupe-times": (dedupe_times, "append"),
    "dedupe-within": (dedupe_within, "append"),
    "chained": (chained, "append"),
    "apply": (apply, "update"),
    "transform": (transform(Remember, "none"), "update"),
    "transform-timers": (transform(Timed, "eventTime"), "update"),
}
"""name -> query, output mode"""
