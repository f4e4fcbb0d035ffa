"""A live job that reads one file of events in each batch, and notes what it emits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import millpond
from inputs.event_file import hide

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGIN = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
STORE = "spark.sql.streaming.stateStore."
PACKAGE = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {
    "hdfs": {STORE + "providerClass": PACKAGE + "HDFSBackedStateStoreProvider"},
    "changelog": {
        STORE + "providerClass": PACKAGE + "RocksDBStateStoreProvider",
        STORE + "rocksdb.changelogCheckpointing.enabled": "true",
    },
    "snapshots": {
        STORE + "providerClass": PACKAGE + "RocksDBStateStoreProvider",
        STORE + "rocksdb.changelogCheckpointing.enabled": "false",
    },
}
Event = tuple[dt.datetime, str, int]
"""time, k, v"""


class EventJob:
    """A job in append mode, whose table is `t`; its checkpoint is `ck` in the folder.

    emitted:  batch -> the rows that it emitted
    """

    def __init__(self, spark: SparkSession, folder: Path, query: Callable[[DataFrame], DataFrame], provider: str) -> None:
        self.folder = folder
        (folder / "in").mkdir()
        self.emitted: dict[int, list[Any]] = {}
        kept = {name: spark.conf.get(name) for name in PROVIDERS[provider]}
        for name, value in PROVIDERS[provider].items():
            spark.conf.set(name, value)
        try:
            stream = (
                spark.readStream.schema("time timestamp, k string, v int").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
            )
            self.query = (
                query(stream)
                .writeStream.outputMode("append")
                .option("checkpointLocation", str(folder / "ck"))
                .foreachBatch(lambda frame, batch: self.emitted.setdefault(batch, []).extend(frame.collect()))
                .start()
            )
            millpond.publish(self.query, table="t")
        finally:
            for name, value in kept.items():
                spark.conf.set(name, value)

    def add(self, number: int, *files: list[Event]) -> list[Path]:
        """Add files, the first with this number, and wait until the job has read them in consecutive batches."""
        paths: list[Path] = []
        hidden: list[Path] = []
        for place, events in enumerate(files, number):
            path = self.folder / "in" / f"{place:04d}.json"
            hidden.append(hide(path, place, ({"time": t.isoformat(), "k": k, "v": v} for t, k, v in events)))
            paths.append(path)
        for path in reversed(paths):  # the first file comes last: when Spark sees it, it sees the others, too
            hidden.pop().rename(path)
        self.query.processAllAvailable()
        return paths

    def dropped(self) -> dict[int, int]:
        """Batch -> how many rows the watermark dropped in all operators."""
        return {
            p["batchId"]: sum(o["numRowsDroppedByWatermark"] for o in p["stateOperators"])
            for p in self.query.recentProgress
            if p["stateOperators"]
        }

    def batches_without_input(self) -> set[int]:
        """Batches that Spark planned only for the watermark: their offsets equal those of the batch before."""
        ends = {int(file.name): file.read_text().splitlines()[2:] for file in (self.folder / "ck" / "offsets").glob("[0-9]*")}
        return {batch for batch, end in ends.items() if ends.get(batch - 1) == end}
