"""What a what-if says, held against what happened: the same input, run by Spark from the beginning in the other form.

The bounds are stated in docs/cost.md.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.checkpoint.log import newest_committed, read_batch
from millpond.operate.cost.files import StateFiles, count_files
from millpond.operate.what_if.answer import Figure, WhatIf
from millpond.savepoint.rows import count_rows
from millpond.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

BATCHES = 11
_STORE = "spark.sql.streaming.stateStore"
_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
BASE = {
    f"{_STORE}.providerClass": f"{_PACKAGE}.HDFSBackedStateStoreProvider",
    f"{_STORE}.compression.codec": "lz4",
    f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
}
ROCKSDB = {f"{_STORE}.providerClass": f"{_PACKAGE}.RocksDBStateStoreProvider"}
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def figure(found: WhatIf, what: str) -> Figure:
    (only,) = (each for each in found.figures if each.what == what)
    return only


@contextmanager
def settings(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each batch; its events are of the same two minutes, so that no delay of the watermark makes one late."""
    folder, draw = tmp_path_factory.mktemp("events"), random.Random(9)
    for number in range(BATCHES):
        rows = [
            {
                "at": (BEGIN + dt.timedelta(seconds=number * 120 + draw.random() * 120)).isoformat(),
                "page": f"/images/page-{draw.randrange(4000)}.html",
            }
            for _ in range(2500)
        ]
        (folder / f"{number:03}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(spark: SparkSession, events: Path, checkpoint: Path, conf: dict[str, str], delay: str | None = None) -> Path:
    """Count events by page, or by window and page with a watermark, a file a batch."""
    from pyspark.sql import functions as F

    with settings(spark, {**BASE, **conf}):
        source = spark.readStream.schema("at timestamp, page string").option("maxFilesPerTrigger", 1).json(str(events))
        grouped: DataFrame = source
        if delay is None:
            counts = grouped.groupBy("page").agg(F.count("*").alias("n"), F.max("at").alias("newest"))
        else:
            counts = source.withWatermark("at", delay).groupBy(F.window("at", "1 minute"), "page").count()
        query = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
        ended = query.trigger(availableNow=True).start()
        assert ended.awaitTermination(240)
    return checkpoint


def counted(checkpoint: Path) -> StateFiles:
    storage = open_storage(checkpoint)
    return count_files(storage, read_batch(storage, newest_committed(storage)))


def rows_of(checkpoint: Path) -> Counter[int]:
    storage, found = open_storage(checkpoint), Counter[int]()
    for (_, _, partition), rows in count_rows(storage, read_batch(storage, newest_committed(storage))):
        assert isinstance(rows, int)
        found[partition] += rows
    return found


@pytest.fixture(scope="module")
def job(spark: SparkSession, events: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job as it is: HDFS-backed, LZ4, two partitions."""
    return run(spark, events, tmp_path_factory.mktemp("job") / "checkpoint", {})


def newest_snapshots(checkpoint: Path) -> dict[str, tuple[int, int]]:
    """Folder of a partition -> version and bytes of its newest snapshot."""
    found: dict[str, tuple[int, int]] = {}
    for file in checkpoint.rglob("*.snapshot"):
        place = str(file.parent.relative_to(checkpoint))
        found[place] = max(found.get(place, (0, 0)), (int(file.stem), file.stat().st_size))
    return found


@pytest.mark.parametrize("codec", ["zstd", "snappy"])
def test_another_codec(spark: SparkSession, events: Path, job: Path, tmp_path: Path, codec: str) -> None:
    """Within 3 percent, of change files and of each snapshot; how many snapshots there are is up to Spark's maintenance."""
    found = millpond.what_if(job, codec=codec)
    checkpoint = run(spark, events, tmp_path / "checkpoint", {f"{_STORE}.compression.codec": codec})
    really = counted(checkpoint)
    assert figure(found, "change files").now.value == pytest.approx(counted(job).change_bytes, rel=0.01)
    assert figure(found, "change files").then.value == pytest.approx(really.change_bytes, rel=0.03)
    now, then = figure(found, "state as snapshots").now.value, figure(found, "state as snapshots").then.value
    before, after = newest_snapshots(job), newest_snapshots(checkpoint)
    same = [place for place in before if before[place][0] == after.get(place, (0, 0))[0]]
    for place in same:  # the same rows, by Spark with both codecs
        assert after[place][1] == pytest.approx(before[place][1] * then / now, rel=0.03)


def test_another_number_of_partitions(spark: SparkSession, events: Path, job: Path, tmp_path: Path) -> None:
    """Rows of each partition and files a batch are the same; bytes within 10 percent."""
    found = millpond.what_if(job, partitions=7)
    checkpoint = run(spark, events, tmp_path / "checkpoint", {"spark.sql.shuffle.partitions": "7"})
    really, rows = counted(checkpoint), rows_of(checkpoint)
    (operator,) = found.partitions
    assert operator.then_rows == tuple(rows[number] for number in range(7))
    assert figure(found, "files a batch").then.value == pytest.approx(really.a_batch, rel=0.15)
    assert counted(job).change_bytes == pytest.approx(really.change_bytes, rel=0.1)


def test_another_provider(spark: SparkSession, events: Path, job: Path, tmp_path: Path) -> None:
    """Change files within 10 percent; RocksDB's snapshots, which are in key order, within 2.

    HDFS-backed snapshots within 25: Spark's hash map and its deltas decide the order of their rows, and rows in key order, as those
    of RocksDB come, pack better by LZ4.
    """
    found = millpond.what_if(job, provider="rocksdb")
    own = {**ROCKSDB, f"{_STORE}.minDeltasForSnapshot": "1", f"{_STORE}.maintenanceInterval": "1s"}
    checkpoint = run(spark, events, tmp_path / "checkpoint", own)
    back = millpond.what_if(checkpoint, provider="hdfs")
    assert figure(found, "rows").then.value == figure(back, "rows").now.value == rows_of(checkpoint).total()
    assert figure(found, "state as snapshots").then.value == pytest.approx(figure(back, "state as snapshots").now.value, rel=0.02)
    assert figure(back, "state as snapshots").then.value == pytest.approx(figure(found, "state as snapshots").now.value, rel=0.25)
    assert [any("in key order" in sentence for sentence in each.unknown) for each in (found, back)] == [False, True]
    assert counted(checkpoint).change_bytes == pytest.approx(counted(job).change_bytes, rel=0.1)


def test_another_delay_of_the_watermark(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    """As many rows as the job has that was run with it."""
    long = run(spark, events, tmp_path / "long", {}, "30 minutes")
    for minutes in (4, 9, 21):
        found = millpond.what_if(long, ttl=f"{minutes}m")
        short = run(spark, events, tmp_path / f"short-{minutes}", {}, f"{minutes} minutes")
        assert figure(found, "rows").then.value == rows_of(short).total() > 0
