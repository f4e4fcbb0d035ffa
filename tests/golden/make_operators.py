"""Writes golden checkpoints of every stateful operator with the installed Spark, and the content that its own reader finds.

    python tests/golden/make_operators.py [--into FOLDER] [CELL …]
    python tests/golden/make_operators.py --refused

A cell is a folder `spark-<version>/<operator>-<provider>`:

    checkpoint/   as Spark left it (without its hidden .crc files)
    state.json    {store: {batch: [[key, value, partition], …]}} in stored form, as make_golden.py has it
    about.json    Spark, settings, number of batches, and under "oracle" the stores that Spark's reader doesn't read

A store is named `<operator>/<store>`, or `<operator>/default/<column family>` where the store has column families. Key and
value are the rows of the store's schema: a map state's key is [grouping key, user key], a list state's value is the list of
its elements. The script runs without Millpond, so that it also runs with other versions of Spark: see make_versions.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from cells import CHANGELOG, DEFAULTS, SNAPSHOTS, STORE, stored, write_json
from packing import MADE, made, pack
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

HERE = Path(__file__).parent
VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
PROVIDERS: dict[str, dict[str, str]] = {"hdfs": {}, "rocksdb-changelog": CHANGELOG, "rocksdb-snapshots": SNAPSHOTS}
ROCKS = ["rocksdb-changelog", "rocksdb-snapshots"]
SCHEMA = "user string, kind int, item string, time timestamp, amount long, price decimal(9,2), flag boolean"
USERS = ["a", "ü/ß ☃", "a\u0000b", "", None, "/x" * 70, "𝄞", "b", "c"]


def events(batch: int, side: int = 0) -> list[dict[str, Any]]:
    """The input of a batch, a minute: users that pause and come back, NULLs, text that isn't ASCII, a long key, duplicates."""
    rows = []
    for i in range(12):
        n = batch * 12 + i
        who = (n * 5 + side * 3) % len(USERS)
        if (batch // 2 + who) % 3 == 0:
            continue
        rows.append(
            {
                "user": USERS[who],
                "kind": None if who == 3 else who % 2,
                "item": None if n % 17 == 0 else f"i{n % (5 + side)}",
                "time": f"2026-01-01T00:{batch:02d}:{i * 4 + side:02d}.{n:06d}Z",
                "amount": None if n % 11 == 0 else n * 1_000_003,
                "price": f"{n}.{n % 100:02d}",
                "flag": n % 5 == 0,
            }
        )
    return rows + rows[:1]


class OperatorJob:
    """A cell in the making: its inputs, one file a batch, and its checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: Path, inputs: Path) -> None:
        self.spark = spark
        self.checkpoint = checkpoint
        self._inputs = inputs
        self._fed = 0

    def feed(self, batches: int) -> None:
        """Write the input of the next batches, for both sources."""
        for batch in range(self._fed, self._fed + batches):
            for side in (0, 1):
                folder = self._inputs / str(side)
                folder.mkdir(parents=True, exist_ok=True)
                text = "\n".join(json.dumps(row) for row in events(batch, side))
                (folder / f".{batch:03d}").write_text(text)
                at = STARTED + batch  # Spark takes files in the order of their times
                os.utime(folder / f".{batch:03d}", (at, at))
                (folder / f".{batch:03d}").rename(folder / f"in-{batch:03d}.json")
        self._fed += batches

    def source(self, side: int = 0) -> DataFrame:
        """The input as a stream, one file a batch."""
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return stream.json(str(self._inputs / str(side)))

    def start(self, df: DataFrame, mode: str, raise_at: int = -1, **trigger: Any) -> Any:
        """Start a query.  Its sink takes all rows, waits for the maintenance thread, and fails in one batch if asked to."""

        def sink(rows: DataFrame, batch: int) -> None:
            rows.write.format("noop").mode("overwrite").save()
            time.sleep(0.35)
            if batch == raise_at:
                raise RuntimeError("a sink that fails once")

        writer = df.writeStream.outputMode(mode).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).foreachBatch(sink).start()

    def finish(self, df: DataFrame, mode: str, **options: Any) -> None:
        """Run all batches of the present input."""
        self.start(df, mode, availableNow=True, **options).awaitTermination()

    def live(self, df: DataFrame, mode: str, batches: int) -> None:
        """Run one batch a second, since processing-time timers and TTL go by the clock."""
        query = self.start(df, mode, processingTime="1 second")
        deadline = time.monotonic() + 120
        while not (self.checkpoint / "commits" / str(batches - 1)).exists():
            if query.exception() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no batch {batches - 1}: {query.exception()}")
            time.sleep(0.02)
        query.stop()


@dataclass(frozen=True)
class Cell:
    """How to write a cell, with which settings, and which parts of its content Spark's reader doesn't give."""

    write: Callable[[OperatorJob], None]
    conf: dict[str, str] = field(default_factory=dict)
    oracle: str = ""
    also: tuple[int, ...] = ()
    since: tuple[int, int] = (3, 5)


STARTED = int(time.time()) - 1000
CELLS: dict[str, Cell] = {}


def cells(
    operator: str,
    write: Callable[[OperatorJob], None],
    providers: Iterable[str] = PROVIDERS,
    since: tuple[int, int] = (3, 5),
    also: tuple[int, ...] = (),
    **conf: str,
) -> None:
    """One cell for each provider."""
    for provider in providers:
        CELLS[f"{operator}-{provider}"] = Cell(write, {**PROVIDERS[provider], **conf}, also=also, since=since)


def plain(make: Callable[[DataFrame], DataFrame], mode: str = "append", batches: int = 10) -> Callable[[OperatorJob], None]:
    """A query over one source, all batches in one run."""

    def write(run: OperatorJob) -> None:
        run.feed(batches)
        run.finish(make(run.source()), mode)

    return write


# --- aggregation, windows, sessions, duplicates, limit


def counts(df: DataFrame) -> DataFrame:
    return df.groupBy("user").agg(F.count("*").alias("n"), F.sum("price").alias("revenue"), F.max("time").alias("last"))


def keyless(df: DataFrame) -> DataFrame:
    return df.agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))


def windows(df: DataFrame) -> DataFrame:
    late = df.withWatermark("time", "1 minute")
    return late.groupBy(F.window("time", "2 minutes", "1 minute"), "user").agg(
        F.count("*").alias("n"), F.avg("amount").alias("mean")
    )


def sessions(*keys: str) -> Callable[[DataFrame], DataFrame]:
    def make(df: DataFrame) -> DataFrame:
        late = df.withWatermark("time", "1 minute")
        return late.groupBy(F.session_window("time", "70 seconds"), *keys).agg(
            F.count("*").alias("n"), F.sum("amount").alias("amount")
        )

    return make


def dedupe(df: DataFrame) -> DataFrame:
    return df.withWatermark("time", "1 minute").dropDuplicates(["user", "item", "time"])


def dedupe_within_watermark(df: DataFrame) -> DataFrame:
    return df.withWatermark("time", "1 minute").dropDuplicatesWithinWatermark(["user", "item"])


def chained(df: DataFrame) -> DataFrame:
    distinct = df.withWatermark("time", "1 minute").dropDuplicates(["user", "item", "time"])
    minutes = distinct.groupBy(F.window("time", "1 minute"), "user").agg(F.count("*").alias("n"))
    longer = F.window(F.window_time("window"), "3 minutes")
    return minutes.groupBy(longer, "user").agg(F.count("*").alias("minutes"), F.sum("n").alias("n"))


SHORT = 7  # these batches are in the cells without a change log, in which each batch is a snapshot


def both(operator: str, make: Callable[[DataFrame], DataFrame], batches: int = 10, short: int = SHORT) -> None:
    """One cell with change logs, and one with snapshots only."""
    cells(operator, plain(make, batches=batches), ["hdfs", "rocksdb-changelog"])
    cells(operator, plain(make, batches=short), ["rocksdb-snapshots"])


cells("counts", plain(counts, "update"))
cells("keyless", plain(keyless, "update", batches=SHORT), ROCKS)
both("windows", windows)
both("sessions", sessions("user"))
both("sessions-two-keys", sessions("user", "kind"))
cells("sessions-complete", plain(sessions("user"), "complete"), ["hdfs"])
cells("sessions-complete", plain(sessions("user"), "complete", batches=SHORT), ROCKS)
both("dedupe", dedupe)
both("dedupe-within-watermark", dedupe_within_watermark)
cells("limit", plain(lambda df: df.limit(45)))
both("chained", chained, short=6)


# --- joins


def join(how: str, batches: int = 8) -> Callable[[OperatorJob], None]:
    """A join of two sources by two keys, one of which may be NULL; the watermark removes rows."""

    def write(run: OperatorJob) -> None:
        run.feed(batches)
        left = run.source(0).withWatermark("time", "30 seconds").select("user", "kind", "time", "amount")
        right = run.source(1).withWatermark("time", "30 seconds")
        right = right.select(F.col("user").alias("who"), F.col("kind").alias("sort"), F.col("time").alias("at"), "item", "flag")
        # A wide range gives matches in a later batch; a narrow one leaves rows without a match.
        apart = "interval 20 seconds" if how in ("full_outer", "left_semi") else "interval 1 minute"
        near = f"user = who and kind = sort and at between time - {apart} and time + {apart}"
        run.finish(left.join(right, F.expr(near), how), "append")

    return write


def join_windows(batches: int = 8) -> Callable[[OperatorJob], None]:
    """A join by equal windows and users."""

    def write(run: OperatorJob) -> None:
        run.feed(batches)
        left = run.source(0).withWatermark("time", "30 seconds")
        left = left.select(F.window("time", "1 minute").alias("minute"), "user", "amount")
        right = run.source(1).withWatermark("time", "30 seconds")
        right = right.select(F.window("time", "1 minute").alias("span"), F.col("user").alias("who"), "price")
        run.finish(left.join(right, F.expr("minute = span and user = who"), "left_outer"), "append")

    return write


JOINS = {"inner": "inner", "left": "left_outer", "right": "right_outer", "full": "full_outer", "semi": "left_semi"}
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
for short, how in JOINS.items():
    cells(f"join-{short}", join(how), ["hdfs"])
    cells(f"join-{short}", join(how, batches=6), ["rocksdb-changelog"])
    cells(f"join-{short}", join(how, batches=4), ["rocksdb-snapshots"])
# 4.2 refuses format 4: "State format version 4 is under development."
for short in ("inner", "full"):
    for version, since in (("3", (4, 1)), ("4", (4, 3))):
        cells(f"join-{short}-format{version}", join(JOINS[short], batches=7), ROCKS[:1], since, **{JOIN_FORMAT: version})
cells("join-full-format3", join("full_outer", batches=5), ROCKS[1:], (4, 1), **{JOIN_FORMAT: "3"})
cells("join-full-format4", join("full_outer", batches=5), ROCKS[1:], (4, 3), **{JOIN_FORMAT: "4"})
cells("join-semi-format4", join("left_semi", batches=7), ROCKS[:1], (4, 3), **{JOIN_FORMAT: "4"})
cells("join-inner-format4", join("inner", batches=3), ["hdfs"], (4, 3), **{JOIN_FORMAT: "4"})  # Spark silently writes format 2
cells("join-windows", join_windows(), ["hdfs", "rocksdb-changelog"])
cells("join-windows", join_windows(batches=4), ["rocksdb-snapshots"])
cells("join-windows-format4", join_windows(), ROCKS[:1], (4, 3), **{JOIN_FORMAT: "4"})


# --- applyInPandasWithState


def apply(timeout: str) -> Callable[[OperatorJob], None]:
    """State of several types for each user; a time-out or the function removes it, and it comes back."""

    def remember(key: Any, frames: Any, state: Any) -> Any:
        import datetime as dt

        import pandas as pd

        user = key[0]
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"user": [user], "n": [-1]})
            return
        rows = [row for frame in frames for row in frame.to_dict("records")]
        n, spent = (state.get[0], state.get[2]) if state.exists else (0, 0.5)
        last = max(row["time"] for row in rows)
        n += len(rows)
        if n > 9:
            state.remove()
        else:
            state.update((n, None if n % 4 == 0 else f"{user}!", spent * n, dt.date(2026, 1, 1 + n), n % 2 == 0))
            if timeout == "EventTimeTimeout":
                state.setTimeoutTimestamp(int(last.timestamp() * 1000) + 60_000)
            elif timeout == "ProcessingTimeTimeout" and user != "a":
                state.setTimeoutDuration(1500)
        yield pd.DataFrame({"user": [user], "n": [n]})

    def write(run: OperatorJob) -> None:
        run.feed(10)
        df = run.source().withWatermark("time", "30 seconds").groupBy("user")
        df = df.applyInPandasWithState(
            remember, "user string, n long", "n long, last string, spent double, day date, even boolean", "update", timeout
        )
        if timeout == "ProcessingTimeTimeout":
            run.live(df, "update", 10)
        else:
            run.finish(df, "update")

    return write


cells("apply", apply("NoTimeout"))
cells("apply-event-timeout", apply("EventTimeTimeout"))
cells("apply-processing-timeout", apply("ProcessingTimeTimeout"))


# --- transformWithState

OUTPUT = "user string, n long"
PROFILE = "visits long, last string, spent decimal(12,2), home struct<city:string,zip:int>, seen timestamp, tags array<string>"
try:
    from pyspark.sql.streaming import StatefulProcessor
except ImportError:  # Spark 3.5 has no such module
    StatefulProcessor = object


class Processor(StatefulProcessor):
    """Shared by the processors: one code for pandas frames and for rows."""

    def __init__(self, rows: bool = False) -> None:
        self.rows = rows

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.open(handle)

    def open(self, handle: Any) -> None:
        raise NotImplementedError

    def take(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        raise NotImplementedError

    def fired(self, at_ms: int) -> None:
        raise NotImplementedError

    def out(self, key: Any, n: int) -> Any:
        if self.rows:
            from pyspark.sql import Row

            return Row(user=key[0], n=n)
        import pandas as pd

        return pd.DataFrame({"user": [key[0]], "n": [n]})

    def now(self, timers: Any) -> int:
        return int(timers.getCurrentProcessingTimeInMs())

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803
        found = [row.asDict() for row in rows] if self.rows else [row for frame in rows for row in frame.to_dict("records")]
        found.sort(key=lambda row: (str(row["time"]), str(row["item"])))
        yield self.out(key, self.take(found, self.now(timerValues)))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: N803
        self.fired(int(expiredTimerInfo.getExpiryTimeInMs()))
        yield self.out(key, -1)

    def close(self) -> None:
        pass


class Remember(Processor):
    """A value, a list and a map: written, appended to, replaced, cleared, removed."""

    def open(self, handle: Any) -> None:
        self.profile = handle.getValueState("profile", PROFILE)
        self.items = handle.getListState("items", "item string, amount long")
        self.by_item = handle.getMapState("by_item", "item string", "n long, score double")

    def take(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        import datetime as dt
        from decimal import Decimal

        visits = (self.profile.get()[0] if self.profile.exists() else 0) + len(rows)
        if visits > 9:
            self.profile.clear()
            self.items.clear()
            self.by_item.clear()
            return 0
        last = rows[-1]["item"]
        home = None if visits % 3 == 0 else ("Köln", visits * 100)
        tags = ["x"] * (visits % 3)
        self.profile.update((visits, last, Decimal(visits) / 4, home, dt.datetime(2026, 1, 1, 0, visits), tags))
        none = -1 if VERSION == (4, 0) else None  # 4.0 can't put a NULL long into a list: pandas makes it NaN
        amounts = [row["amount"] for row in rows]
        amounts = [none if amount is None or amount != amount else int(amount) for amount in amounts]
        elements = [(row["item"], amount) for row, amount in zip(rows, amounts, strict=True)]
        if visits % 4 == 3:
            self.items.put(elements)
        elif len(elements) > 1:
            self.items.appendList(elements)
        else:
            self.items.appendValue(elements[0])
        for row in rows:
            item = (row["item"],)
            if self.by_item.containsKey(item) and visits % 3 == 0:
                self.by_item.removeKey(item)
            else:
                self.by_item.updateValue(item, (visits, visits / 7))
        return visits


class Append(Processor):
    """A list that is only appended to: gives merge records, and unresolved operands in SST files."""

    def open(self, handle: Any) -> None:
        self.items = handle.getListState("items", "item string, amount long")
        self.log = handle.getListState("log", "line string")

    def take(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        for row in rows:
            self.items.appendValue((row["item"], len(row["item"] or "") * 44))  # 44 is a comma: merge operator 1's delimiter
        self.log.appendList([(f"{row['user']},{row['item']}",) for row in rows])
        return len(rows)


class EventTimers(Processor):
    """A timer for each user, which each visit moves; when it fires, the value is removed."""

    def open(self, handle: Any) -> None:
        self.visits = handle.getValueState("visits", "n long, due long")

    def delay_ms(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        return int(rows[-1]["time"].timestamp() * 1000) + 80_000

    def take(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        n, due = self.visits.get() if self.visits.exists() else (0, None)
        n += len(rows)
        if due is not None and n % 3 != 0:
            self.handle.deleteTimer(due)
        due = self.delay_ms(rows, now_ms)
        self.handle.registerTimer(due)
        if n % 2 == 0:
            self.handle.registerTimer(due + 3_600_000)
        self.visits.update((n, due))
        return n

    def fired(self, at_ms: int) -> None:
        self.visits.clear()


class ProcessingTimers(EventTimers):
    """The same with timers that go by the clock."""

    def delay_ms(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        return now_ms + 2_000


class Expire(Processor):
    """TTL on a value, a list and a map: some entries expire within the run, some long after it."""

    def open(self, handle: Any) -> None:
        self.short = handle.getValueState("short", "n long", 2_500)
        self.value = handle.getValueState("value", "n long, item string", 86_400_000)
        self.list = handle.getListState("list", "item string", 4_000)
        self.map = handle.getMapState("map", "item string", "n long", 3_000)

    def take(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        self.short.update((len(rows),))
        self.value.update((len(rows), rows[0]["item"]))
        self.list.appendList([(row["item"],) for row in rows])
        for row in rows:
            self.map.updateValue((row["item"],), (len(rows),))
        return len(rows)


class Before(Processor):
    """The first of two runs: it has variables that the second removes or keeps."""

    def open(self, handle: Any) -> None:
        self.gone = handle.getValueState("gone", "n long")
        self.kept = handle.getListState("kept", "item string")

    def take(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        self.gone.update((len(rows),))
        self.kept.appendValue((rows[0]["item"],))
        return 1


class After(Processor):
    """The second of two runs: it has one variable less, and two new ones."""

    def open(self, handle: Any) -> None:
        self.kept = handle.getListState("kept", "item string")
        self.added = handle.getMapState("added", "item string", "n long")
        self.more = handle.getValueState("more", "text string")

    def take(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        self.kept.appendValue((rows[0]["item"],))
        self.more.update((rows[0]["user"],))
        for row in rows:
            self.added.updateValue((row["item"],), (len(rows),))
        return 2


class Narrow(Processor):
    """The first of two runs: a narrow schema."""

    def open(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n int, item string")
        self.list = handle.getListState("list", "n int")
        self.map = handle.getMapState("map", "item string", "n int")

    def values(self, n: int, row: dict[str, Any]) -> Any:
        return (n, row["item"]), (n,), (n,)

    def take(self, rows: list[dict[str, Any]], now_ms: int) -> int:
        for n, row in enumerate(rows):
            value, element, entry = self.values(n, row)
            self.value.update(value)
            self.list.appendValue(element)
            self.map.updateValue((row["item"],), entry)
        return len(rows)


class Wide(Narrow):
    """The second of two runs: int became long, and there are new fields."""

    def open(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n long, item string, city string")
        self.list = handle.getListState("list", "n long, why string")
        self.map = handle.getMapState("map", "item string", "n double, last timestamp")

    def values(self, n: int, row: dict[str, Any]) -> Any:
        return (n + 2**40, row["item"], "Ærø"), (n + 2**40, None), (n + 0.5, None)


def transform(
    *processors: type[Processor], rows: bool = False, time_mode: str = "none", keys: tuple[str, ...] = ("user",), batches: int = 10
) -> Callable[[OperatorJob], None]:
    """One run of each processor, over its share of the batches."""

    def write(run: OperatorJob) -> None:
        for processor in processors:
            run.feed(batches // len(processors))
            df = run.source()
            if time_mode == "eventTime":
                df = df.withWatermark("time", "30 seconds")
            grouped = df.groupBy(*keys)
            call = grouped.transformWithState if rows else grouped.transformWithStateInPandas
            df = call(processor(rows), OUTPUT, "update", time_mode)
            if time_mode == "processingTime":
                run.live(df, "update", batches)
            else:
                run.finish(df, "update")

    return write


ENCODINGS = {"": {}, "-avro": {STORE + "encodingFormat": "avro"}}


def transforms(
    name: str,
    *processors: type[Processor],
    providers: Iterable[str] = ROCKS,
    encodings: Iterable[str] = ENCODINGS,
    since: tuple[int, int] = (4, 0),
    **how: Any,
) -> None:
    """With a change log in each encoding; without one in the first encoding only."""
    for encoding in encodings:
        conf = ENCODINGS[encoding]
        cells(f"transform-{name}{encoding}", transform(*processors, **how), ["rocksdb-changelog"], since, **conf)
        if encoding == min(encodings) and "rocksdb-snapshots" in providers:
            short = {"batches": SHORT, **how}
            cells(f"transform-{name}{encoding}", transform(*processors, **short), ["rocksdb-snapshots"], since, **conf)


transforms("state", Remember)
transforms("state-rows", Remember, encodings=[""], rows=True, since=(4, 1))
transforms("append", Append)
cells("transform-append-avro", transform(Append, batches=SHORT), ["rocksdb-snapshots"], (4, 0), **ENCODINGS["-avro"])
transforms("two-keys", Remember, encodings=[""], keys=("user", "kind"))
transforms("event-timers", EventTimers, time_mode="eventTime")
transforms("two-keys-timers", EventTimers, encodings=[""], time_mode="eventTime", keys=("user", "kind"))
transforms("processing-timers", ProcessingTimers, encodings=[""], time_mode="processingTime")
transforms("ttl", Expire, time_mode="processingTime", batches=8)
transforms("variables", Before, After, encodings=[""], batches=8)
transforms("evolution", Narrow, Wide, encodings=["-avro"], batches=8)


# --- single cells


def failed(retried: bool) -> Callable[[OperatorJob], None]:
    """Batch 5 has state and no commit: the sink raised after it had taken all rows."""

    def write(run: OperatorJob) -> None:
        run.feed(6)
        query = run.start(counts(run.source()), "update", raise_at=5, availableNow=True)
        try:
            query.awaitTermination()
        except Exception as error:
            if "a sink that fails once" not in str(error):
                raise
        if retried:
            run.feed(2)
            run.finish(counts(run.source()), "update")

    return write


def repartitioned(make: Callable[[DataFrame], DataFrame], mode: str = "update") -> Callable[[OperatorJob], None]:
    """Two partitions became three in batch 5, between two runs."""

    def write(run: OperatorJob) -> None:
        run.feed(5)
        run.finish(make(run.source()), mode)
        run.spark._streamingCheckpointManager.repartition(str(run.checkpoint), 3)
        run.feed(4)
        run.finish(make(run.source()), mode)

    return write


def remember(df: DataFrame) -> DataFrame:
    return df.groupBy("user").transformWithStateInPandas(Remember(), OUTPUT, "update", "none")


CHECKSUM = {STORE + "rowChecksum.enabled": "true"}
MERGE_1 = {STORE + "rocksdb.mergeOperatorVersion": "1"}
FORMAT_2 = {STORE + "checkpointFormatVersion": "2"}
cells("counts-failed", failed(retried=False), ["hdfs", "rocksdb-changelog"])
cells("counts-retried", failed(retried=True), also=(4, 5))
cells("counts-retried-checkpoint2", failed(retried=True), ["rocksdb-changelog"], (4, 0), also=(4, 5), **FORMAT_2)
cells("counts-checksum", plain(counts, "update"), ["hdfs", "rocksdb-changelog"], (4, 1), **CHECKSUM)
cells("transform-append-checksum", transform(Append), ["rocksdb-changelog"], (4, 1), **CHECKSUM)
# These delete rows, too: each deletion in a change log has a checksum of its own.
for processor in (EventTimers, Remember):
    mode = "eventTime" if processor is EventTimers else "none"
    name = "event-timers" if processor is EventTimers else "state"
    for ending, form in (("checksum", {}), ("checksum-checkpoint2", FORMAT_2)):
        cells(f"transform-{name}-{ending}", transform(processor, time_mode=mode), ["rocksdb-changelog"], (4, 1), **CHECKSUM, **form)
cells("transform-append-merge1", transform(Append), ROCKS, (4, 2), **MERGE_1)
cells("transform-state-checkpoint2", transform(Remember), ["rocksdb-changelog"], (4, 0), **FORMAT_2)
cells("join-full-checkpoint2", join("full_outer", 5), ["rocksdb-changelog"], (4, 0), **FORMAT_2)
cells("counts-repartitioned", repartitioned(counts), ["rocksdb-changelog"], (4, 2), also=(4, 5, 6))
cells("transform-repartitioned", repartitioned(remember), ["rocksdb-changelog"], (4, 2), also=(4, 5, 6))
# Spark refuses format 1 of joins, see below, but still writes this one.
cells("apply-format1", apply("NoTimeout"), ["hdfs"], **{"spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "1"})


# What Spark 4.3 refuses, with the condition of the error, or words of it if it has no condition. `--refused` tries each of them.
# Spark refuses transformWithState on the HDFS-backed provider, whatever the variables.
AVRO_CONF = ENCODINGS["-avro"]
NO_CODEC = "CODEC_NOT_AVAILABLE.WITH_CONF_SUGGESTION"
REFUSED: dict[str, tuple[Cell, str]] = {
    "counts-checkpoint2-hdfs": (Cell(plain(counts, "update"), FORMAT_2), "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED"),
    "counts-repartitioned-hdfs": (Cell(repartitioned(counts)), "STATE_REPARTITION_INVALID_CHECKPOINT.UNSUPPORTED_PROVIDER"),
    "limit-repartitioned-rocksdb-changelog": (
        Cell(repartitioned(lambda df: df.limit(45), "append"), CHANGELOG),
        "STDS_FAILED_TO_READ_STATE_SCHEMA",
    ),
    "counts-avro-rocksdb-changelog": (
        Cell(plain(counts, "update"), {**CHANGELOG, **AVRO_CONF}),
        "encoding format as avro is not supported for operator=aggregation",
    ),
    "dedupe-avro-rocksdb-changelog": (
        Cell(plain(dedupe), {**CHANGELOG, **AVRO_CONF}),
        "encoding format as avro is not supported for operator=dropDuplicates",
    ),
    "sessions-avro-rocksdb-changelog": (
        Cell(plain(sessions("user")), {**CHANGELOG, **AVRO_CONF}),
        "encoding format as avro is not supported for operator=aggregation",
    ),
    "join-inner-avro-rocksdb-changelog": (
        Cell(join("inner"), {**CHANGELOG, **AVRO_CONF}),
        "encoding format as avro is not supported for operator=join",
    ),
    "apply-avro-rocksdb-changelog": (
        Cell(apply("NoTimeout"), {**CHANGELOG, **AVRO_CONF}),
        "encoding format as avro is not supported for operator=applyInPandasWithState",
    ),
    "limit-avro-rocksdb-changelog": (
        Cell(plain(lambda df: df.limit(45)), {**CHANGELOG, **AVRO_CONF}),
        "StateSchemaProvider should always be defined for the Avro encoder",
    ),
    "join-inner-format1-hdfs": (Cell(join("inner"), {JOIN_FORMAT: "1"}), "Unsupported schema writer version: 1"),
    "join-left-format1-hdfs": (Cell(join("left_outer"), {JOIN_FORMAT: "1"}), "LeftOuter join with state format version 1"),
    "counts-none-hdfs": (Cell(plain(counts, "update"), {STORE + "compression.codec": "none"}), NO_CODEC),
    "counts-none-rocksdb-changelog": (Cell(plain(counts, "update"), {**CHANGELOG, STORE + "compression.codec": "none"}), NO_CODEC),
    "transform-append-merge3-rocksdb-changelog": (
        Cell(transform(Append), {**CHANGELOG, STORE + "rocksdb.mergeOperatorVersion": "3"}),
        "INVALID_CONF_VALUE.REQUIREMENT",
    ),
}
TRANSFORM_ON_HDFS = "UNSUPPORTED_FEATURE.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS"
REFUSED |= {
    f"{name.removesuffix('-rocksdb-changelog')}-hdfs": (Cell(cell.write), TRANSFORM_ON_HDFS)
    for name, cell in CELLS.items()
    if name.startswith("transform-") and name.endswith("-rocksdb-changelog") and not set(cell.conf) - set(CHANGELOG)
}


# --- the content that Spark's reader finds


def operators(checkpoint: Path, batch: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(operator id, the metadata that a batch uses). 3.5 wrote no metadata: a join is known by its stores."""
    for folder in sorted((checkpoint / "state").iterdir(), key=lambda p: int(p.name)):
        single, many = folder / "_metadata" / "metadata", folder / "_metadata" / "v2"
        if many.exists():
            ids = [int(p.name) for p in many.iterdir() if p.name.isdigit() and int(p.name) <= batch]
            single = many / str(max(ids))
        if single.exists():
            yield folder.name, json.loads(single.read_text().split("\n")[1])
        else:
            joins = (folder / "0" / "left-keyWithIndexToValue").exists()
            yield folder.name, {"operatorInfo": {"operatorName": "symmetricHashJoin" if joins else ""}}


def read_batch(spark: SparkSession, checkpoint: Path, batch: int) -> dict[str, list[Any]]:
    """Every store of a batch that has a meaning for readers."""
    found: dict[str, list[Any]] = {}
    for operator, metadata in operators(checkpoint, batch):

        def load(operator: str = operator, **options: Any) -> list[Any]:
            reader = spark.read.format("statestore").option("operatorId", operator).option("batchId", batch)
            return [stored(row) for row in reader.options(**options).load(str(checkpoint)).collect()]

        name = metadata["operatorInfo"]["operatorName"]
        if name.startswith("transformWithState"):
            found.update(read_variables(load, operator, metadata))
        elif name == "symmetricHashJoin":
            found.update(read_join(load, operator, metadata))
        else:
            found[f"{operator}/default"] = load()
    return found


def read_join(load: Any, operator: str, metadata: dict[str, Any]) -> dict[str, list[Any]]:
    """The rows of both sides, by `storeName`: `joinSide` leaves out the index and `matched`."""
    families = "useVirtualColumnFamilies" in metadata.get("operatorPropertiesJson", "")
    by_time = families and has_family(metadata, "left-keyWithTsToValues")
    found = {}
    for side in ("left", "right"):
        store = f"{side}-keyWithTsToValues" if by_time else f"{side}-keyWithIndexToValue"
        name = f"{operator}/default/{store}" if families else f"{operator}/{store}"
        found[name] = as_lists(load(storeName=store)) if by_time else load(storeName=store)
    return found


def as_lists(rows: list[Any]) -> list[Any]:
    """One row for each key, with the list of its values. Join format 4 stores lists, but Spark's reader gives single values."""
    lists: dict[str, Any] = {}
    for key, value, partition in rows:
        lists.setdefault(json.dumps([key, partition]), [key, [], partition])[1].append(value)
    return list(lists.values())


def has_family(metadata: dict[str, Any], family: str) -> bool:
    """Whether a store has this column family."""
    schema = Path(metadata["stateStoreInfo"][0]["stateSchemaFilePaths"][-1].removeprefix("file:"))
    return family.encode() in schema.read_bytes()


def read_variables(load: Any, operator: str, metadata: dict[str, Any]) -> dict[str, list[Any]]:
    """State variables and registered timers of transformWithState."""
    found = {}
    properties = json.loads(metadata["operatorPropertiesJson"])
    for variable in properties["stateVariables"]:
        name, kind = variable["stateName"], variable["stateVariableType"]
        if name.startswith("$"):
            continue
        if kind == "ListState":
            rows = load(stateVarName=name, flattenCollectionTypes="false")
        elif kind == "MapState":
            rows = [[[key, user_key], value, partition] for key, user_key, value, partition in load(stateVarName=name)]
        else:
            rows = load(stateVarName=name)
        found[f"{operator}/default/{name}"] = rows
    kind = {"EventTime": "event", "ProcessingTime": "proc"}.get(properties["timeMode"])
    family = f"${kind}Timers_keyToTimestamp"
    if kind and has_family(metadata, family):
        rows = load(readRegisteredTimers="true")
        found[f"{operator}/default/{family}"] = [[[key, at], [None], partition] for key, at, partition in rows]
    return found


def write_cell(spark: SparkSession, name: str, target: Path) -> None:
    """Write the checkpoint."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    checkpoint = target / "checkpoint"
    cell = CELLS[name]
    with tempfile.TemporaryDirectory() as inputs:
        cell.write(OperatorJob(spark, checkpoint, Path(inputs)))
    batches = last_batch(checkpoint) + 1
    about = {"spark": spark.version, "batches": batches, "conf": cell.conf, "oracle": cell.oracle}
    write_json(target / "about.json", about)


def read_cell(spark: SparkSession, name: str, target: Path) -> None:
    """Spark's answer for the first batches, some others, and the last."""
    checkpoint = target / "checkpoint"
    last = last_batch(checkpoint)
    state: dict[str, dict[str, Any]] = {}
    for batch in sorted({0, last // 2, last, *CELLS[name].also}):
        for store, rows in read_batch(spark, checkpoint, batch).items():
            state.setdefault(store, {})[str(batch)] = rows
    for crc in checkpoint.rglob(".*.crc"):
        crc.unlink()
    forget_folder(checkpoint)
    write_json(target / "state.json", state)
    about = json.loads((target / "about.json").read_text())
    write_json(target / "about.json", {**about, "reader": spark.version})
    size = sum(p.stat().st_size for p in target.rglob("*") if p.is_file())
    counts = {store: [len(found) for found in by_batch.values()] for store, by_batch in state.items()}
    print(name, f"{size // 1024} KiB", f"{last + 1} batches", counts, flush=True)


def forget_folder(checkpoint: Path) -> None:
    """Remove the folder's name, which only this machine has, from operator metadata.  After this Spark can't read it there."""
    here = MADE.as_uri().replace("file:///", "file:/")
    for metadata in checkpoint.glob("state/*/_metadata/v2/*"):
        if not metadata.name.startswith("."):
            metadata.write_text(metadata.read_text().replace(here, "file:/golden"))


def last_batch(checkpoint: Path) -> int:
    """The newest committed batch."""
    return max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())


def session() -> SparkSession:
    """A session of a small Spark."""
    # Workers import PySpark from its folder, not from pyspark.zip, which Spark puts first: Python keeps no compiled files for
    # a zip, and Spark gives up a worker of transformWithState that takes ten seconds to start.
    python = Path(tempfile.mkdtemp(), "python")
    python.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    os.environ.update(PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=sys.executable, TZ="UTC")
    time.tzset()
    builder = SparkSession.builder.appName("golden").master("local[2]")
    for key, value in {
        # The JVM compiles much that hardly runs; and Hadoop starts a process for every file that it creates.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": tempfile.mkdtemp(),
        "spark.sql.streaming.metricsEnabled": "false",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    """Write the named cells, or all that this version of Spark knows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", default="spark-{}.{}".format(*VERSION))
    parser.add_argument("--refused", action="store_true")
    parser.add_argument("--only", choices=["write", "read"])
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("cells", nargs="*")
    asked = parser.parse_args()
    # make_golden.py writes the plain aggregations of our own version.
    at_home = {f"counts-{provider}" for provider in PROVIDERS}
    names = asked.cells or [name for name, cell in CELLS.items() if cell.since <= VERSION and name not in at_home]
    spark = session()
    try:
        with ThreadPoolExecutor(asked.at_once) as pool:
            if asked.refused:
                seen = dict(zip(sorted(REFUSED), pool.map(lambda name: see_refused(spark, name), sorted(REFUSED)), strict=True))
                write_json(HERE / "refused.json", {"spark": spark.version, "refused": seen})
                return
            list(pool.map(lambda name: try_cell(spark, name, f"{asked.into}/{name}", asked.only), names))
    finally:
        spark.stop()


def see_refused(spark: SparkSession, name: str) -> str:
    """The condition in REFUSED, if Spark refuses the cell with it now; otherwise what Spark says or does."""
    cell, condition = REFUSED[name]
    said = ""
    for _ in range(5):
        own = spark.newSession()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            try:
                for key, value in {**DEFAULTS, **cell.conf}.items():
                    own.conf.set(key, value)
                cell.write(OperatorJob(own, Path(scratch, "checkpoint"), Path(scratch, "inputs")))
                return "NOT REFUSED"
            except Exception as error:  # noqa: BLE001
                said = str(error)
        if condition in said:
            return condition
        if "failed to connect back" not in said:  # Spark gives a Python worker ten seconds to start
            break
    return f"OTHERWISE {said}"


def try_cell(spark: SparkSession, name: str, packed_as: str, only: str | None) -> None:
    """Make a cell in a session of its own, which has its settings; a failure doesn't stop the other cells."""
    own = spark.newSession()
    for key, value in {**DEFAULTS, **CELLS[name].conf}.items():
        own.conf.set(key, value)
    for attempt in range(5):
        try:
            if only != "read":
                write_cell(own, name, made(packed_as))
            if only != "write":
                read_cell(own, name, made(packed_as))
                pack(packed_as, made(packed_as))
            return
        except Exception as error:  # noqa: BLE001
            slow = "failed to connect back" in str(error)  # Spark gives a Python worker ten seconds to start
            if not slow or attempt == 4:
                print(name, "FAILED", str(error)[:6000], flush=True)
                return


if __name__ == "__main__":
    main()
