"""Savepoints of a job at full speed, one right after the other, while Spark deletes all that it may.

Each batch reads the next `ROWS` numbers at a time of its own, so the source's offset alone says what
the state must be: `expected` computes it, and knows nothing of Spark's files.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import millpond
from live_jobs.event_files import PROVIDERS, STORE
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 50
_KEYS = 23
_LEAST_BATCHES = 3
_BEGIN_MS = 1_767_225_600_000
_BATCH_MS = 1000
_WINDOW_MS = 60_000
_DELAY_MS = 5000
_AGGRESSIVE = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0",
    "spark.sql.codegen.wholeStage": "false",  # batches are too small for compiled code to pay
    STORE + "minDeltasForSnapshot": "2",
    STORE + "maintenanceInterval": "50ms",
}
State = tuple[dict[tuple[int, int], tuple[int, int]], set[tuple[int, int]]]
"""(start of a window, k) -> (rows, their sum); and the (value, time) of which no second one is let through"""


def expected(values: int) -> State:
    """The state after the batch that ends with so many values."""
    last = values // ROWS - 1
    watermark = max(0, _time(last * ROWS) - _BATCH_MS - _DELAY_MS) if last else 0
    windows: dict[tuple[int, int], tuple[int, int]] = {}
    seen = set()
    for value in range(values):
        at = _time(value)
        start = at // _WINDOW_MS * _WINDOW_MS
        if start + _WINDOW_MS > watermark:
            n, total = windows.get((start, value % _KEYS), (0, 0))
            windows[start, value % _KEYS] = n + 1, total + value
        if at > watermark:
            seen.add((value, at))
    return windows, seen


def _time(value: int) -> int:
    return _BEGIN_MS + value // ROWS * _BATCH_MS


class Row:
    """A job, and its savepoints.

    made:     in the order in which they were made
    counts:   what was made, verified and restored
    wrong:    what was wrong with them
    """

    def __init__(self, spark: SparkSession, folder: Path, provider: str) -> None:
        self._spark = spark.newSession()
        for name, value in {**PROVIDERS[provider], **_AGGRESSIVE}.items():
            self._spark.conf.set(name, value)
        self._folder = folder
        self._checkpoint = folder / "job"
        self.made: list[Savepoint] = []
        self.counts: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.batches_per_second = 0.0
        self.wrong: list[str] = []

    def run(self, count: int, every: int) -> None:
        """Make so many savepoints, or more, until they are of several batches.  Then restore each.

        every:  of so many, Spark starts from one
        """
        self._make(count)
        for n, savepoint in enumerate(self.made):
            self._check(savepoint, by_spark=n % every == every - 1)

    def facts(self) -> dict[str, Any]:
        """What it came to."""
        ordered = sorted(self.seconds)
        return {
            "savepoints": len(self.made),
            "of_batches": len(self._batches()),
            "batches_per_second_meanwhile": round(self.batches_per_second, 2),
            "seconds_each": {"median": round(ordered[len(ordered) // 2], 4), "longest": round(ordered[-1], 4)},
            **self.counts,
            "wrong": self.wrong,
        }

    def _make(self, count: int) -> None:
        query = self._start(self._checkpoint)
        try:
            millpond.publish(query, table="counts")
            first = _wait_for_batch(query, 1)
            began = time.monotonic()
            while len(self.made) < count or len(self._batches()) < _LEAST_BATCHES:
                assert query.isActive, query.exception()
                self._make_one(len(self.made))
            self.batches_per_second = (_newest(query) - first) / (time.monotonic() - began)
            assert query.isActive, query.exception()
        finally:
            query.stop()
            self._unload()

    def _batches(self) -> set[int]:
        return {savepoint.manifest.batch for savepoint in self.made}

    def _make_one(self, n: int) -> None:
        before = 0

        def tell(done: int, _: int) -> None:
            nonlocal before
            if done < before:
                self.counts["began_again"] += 1
            before = done

        since = time.monotonic()
        self.made.append(plan_savepoint(self._checkpoint, f"s{n}").run(tell))
        self.seconds.append(time.monotonic() - since)
        self._verify(self.made[-1])

    def _check(self, savepoint: Savepoint, *, by_spark: bool) -> None:
        name, target = savepoint.manifest.name, self._folder / "restored"
        self._verify(savepoint)  # also when later ones share its files, and Spark has deleted its own
        plan_restore(self._checkpoint, name, target).run()
        self.counts["restored"] += 1
        wanted = expected(savepoint.manifest.offsets["0"]["offset"])
        self._note(name, "Millpond", _read(target), wanted)
        self.counts["rows_compared"] += len(wanted[0]) + len(wanted[1])
        if by_spark:
            self._note(name, "Spark", self._read_by_spark(target), wanted)
            query = self._start(target)
            _wait_for_batch(query, savepoint.manifest.batch + 2)
            query.stop()
            self._unload()
            after = plan_savepoint(target, "after").run()
            self._note(name, "Spark, which went on", _read(target), expected(after.manifest.offsets["0"]["offset"]))
            self.counts["continued_by_spark"] += 1
        for folder in (target, f"{target}.millpond"):
            shutil.rmtree(folder)

    def _verify(self, savepoint: Savepoint) -> None:
        self._note(savepoint.manifest.name, "verify", verify_savepoint(savepoint).problems, ())
        self.counts["verified"] += 1

    def _note(self, name: str, by: str, found: Any, wanted: Any) -> None:
        if found != wanted:
            self.wrong.append(f"{name}, by {by}: {found!r:.400} isn't {wanted!r:.400}")

    def _start(self, checkpoint: Path) -> Any:
        self._unload()
        writer = _query(self._spark).writeStream.format("noop").outputMode("append")
        return writer.option("checkpointLocation", str(checkpoint)).start()

    def _unload(self) -> None:
        """End the thread that deletes: it would keep the interval of the session that it was started with, and still writes."""
        self._spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()

    def _read_by_spark(self, checkpoint: Path) -> State:
        windows, seen = (
            self._spark.read.format("statestore").option("operatorId", operator).load(str(checkpoint)).collect()
            for operator in (0, 1)
        )
        return (
            {(_ms(row.key[0].start), row.key[1]): tuple(row.value) for row in windows},
            {(row.key[0], _ms(row.key[1])) for row in seen},
        )


def _query(spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as F

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 1)
    source = source.option("startTimestamp", _BEGIN_MS).option("advanceMillisPerBatch", _BATCH_MS)
    events = source.load().withWatermark("timestamp", f"{_DELAY_MS} milliseconds").dropDuplicates(["value", "timestamp"])
    window = F.window("timestamp", f"{_WINDOW_MS} milliseconds")
    return events.groupBy(window, (F.col("value") % _KEYS).alias("k")).agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def _read(checkpoint: Path) -> State:
    """The state by Millpond's reading."""
    with millpond.open(checkpoint, replica_dir="memory://") as pond:
        (seen,) = set(pond.tables()) - {"counts"}
        return (
            {(_ms(row["window_start"]), row["k"]): (row["n"], row["total"]) for row in pond["counts"].scan()},
            {(row["value"], _ms(row["timestamp"])) for row in pond[seen].scan()},
        )


def _ms(time: Any) -> int:
    return round(time.timestamp() * 1000)


def _newest(query: Any) -> int:
    progress = query.lastProgress
    return -1 if progress is None else progress["batchId"]


def _wait_for_batch(query: Any, batch: int) -> int:
    """Wait until a batch has ended; returns the newest one."""
    wait_until(lambda: _newest(query) >= batch, f"the end of batch {batch}", seconds=120, unless=query.exception)
    return _newest(query)
