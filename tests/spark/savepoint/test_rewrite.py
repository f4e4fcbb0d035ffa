"""State in another form: Spark reads what we wrote, goes on from it, and ends with the state of the job that nobody interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from live_jobs.interrupted import (
    CELLS,
    NAMES,
    Interrupted,
    Restored,
    last_batch,
    read_batch,
    session_of,
    without_partitions,
)
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HDFS = [name for name in NAMES if name.endswith("-hdfs")]
# With NULL in place of whole numbers in keys: these can't be divided anew.
DISPLACED = "transform-two-keys"
# First what Spark's own repartition makes unreadable.  Without change logs the files that we read and write are the same.
ROCKSDB = sorted(
    (name for name in NAMES if name.endswith("-rocksdb-changelog") and DISPLACED not in name),
    key=lambda name: "full-format4" not in name,
)
SNAPSHOTS = [name for name in NAMES if name.endswith("-rocksdb-snapshots") and DISPLACED not in name][::4]
# What Spark keeps in RocksDB only.
ONLY_ROCKSDB = ("transform", "format3", "format4")
TO_HDFS = [name for name in ROCKSDB if not any(word in name for word in ONLY_ROCKSDB)]
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class Case:
    """A cell's job, interrupted and run to its end, and the jobs that go on from its savepoint in other forms."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self.spark, self.folder, self.cell = session_of(spark, name), folder, CELLS[name]
        self.job = Interrupted(self.spark, folder / "checkpoint", folder / "inputs")
        self.cell.write(self.job)
        self.batch = self.job.savepoint.manifest.batch
        self.before = self.state(self.job.checkpoint, self.batch)
        self.end = self.state(self.job.checkpoint, last_batch(self.job.checkpoint))
        assert any(self.end.values()), "a state without rows shows nothing"

    def state(self, checkpoint: Path, batch: int) -> dict[str, list[str]]:
        """What Spark's own reader finds; only with format 2 in its settings it reads one in format 2."""
        format_2 = (checkpoint / "commits" / str(batch)).read_text().startswith("v2")
        own = self.spark.conf.get(FORMAT)
        self.spark.conf.set(FORMAT, "2" if format_2 else "1")
        try:
            return without_partitions(read_batch(self.spark, checkpoint, batch))
        finally:
            self.spark.conf.set(FORMAT, own)

    def restore(self, source: Path, name: str, to: str, **form: Any) -> Path:
        """Restore a savepoint in another form: Spark reads the same rows in it."""
        plan_restore(source, name, self.folder / to, **form).run()
        assert self.state(self.folder / to, self.batch) == self.before
        assert verify_savepoint(plan_savepoint(self.folder / to, to).run()).problems == ()
        return self.folder / to

    def run(self, checkpoint: Path) -> int:
        """Run a restored job to the end of the input; returns how many keys Spark says its state has."""
        restored = Restored(self.spark, checkpoint, self.folder / "inputs", self.job.runs)
        self.cell.write(restored)
        assert last_batch(checkpoint) > self.batch
        assert self.state(checkpoint, last_batch(checkpoint)) == self.end
        return restored.keys


@pytest.mark.long
@pytest.mark.parametrize("name", a_few(HDFS, 0, long=3))
def test_a_job_goes_on_under_another_number_of_partitions(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """From two to five, from five to three, in other codecs and with checksums: at the end the state has the same rows."""
    case = Case(spark, tmp_path, name)
    five = case.restore(case.job.checkpoint, f"run-{case.job.runs}", "five", partitions=5, codec="zstd")
    three = case.restore(five, "five", "three", partitions=3, codec="snappy", row_checksum=True)
    case.run(three)


@pytest.mark.long
@pytest.mark.parametrize("name", a_few(ROCKSDB + SNAPSHOTS, 1, long=6))
def test_a_job_in_rocksdb_goes_on_under_another_number_of_partitions(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The same, in the end in the other checkpoint format.  Spark counts its keys as if nothing had happened."""
    case = Case(spark, tmp_path, name)
    is_two = "checkpoint2" in name
    five = case.restore(case.job.checkpoint, f"run-{case.job.runs}", "five", partitions=5, codec="zstd")
    three = case.restore(five, "five", "three", partitions=3, checkpoint_format=1 if is_two else 2, row_checksum=True)
    assert case.run(three) == case.job.keys
    assert (three / "commits" / str(last_batch(three))).read_text().startswith("v1" if is_two else "v2")


@pytest.mark.parametrize("name", a_few(HDFS, 0, long=4))
def test_a_job_moves_to_rocksdb(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """With change logs and without, in both checkpoint formats; and back again."""
    case = Case(spark, tmp_path, name)
    logs = case.restore(case.job.checkpoint, f"run-{case.job.runs}", "logs", provider="rocksdb", partitions=3)
    snapshots = case.restore(case.job.checkpoint, f"run-{case.job.runs}", "snapshots", provider="rocksdb", checkpoint_format=2)
    case.restore(logs, "logs", "back", provider="hdfs", partitions=2)
    keys = []
    for checkpoint, changelog in ((logs, "true"), (snapshots, "false")):
        case.spark.conf.set(CHANGELOG, changelog)
        keys.append(case.run(checkpoint))
    assert keys[0] == keys[1]
    assert list((logs / "state").rglob("*.changelog"))
    assert not list((snapshots / "state").rglob("*.changelog"))


@pytest.mark.long
@pytest.mark.parametrize("name", a_few(TO_HDFS, 0, long=3))
def test_a_job_moves_from_rocksdb_to_the_hdfs_backed_provider(spark: SparkSession, tmp_path: Path, name: str) -> None:
    case = Case(spark, tmp_path, name)
    hdfs = case.restore(case.job.checkpoint, f"run-{case.job.runs}", "hdfs", provider="hdfs")
    case.run(hdfs)
    assert list((hdfs / "state").rglob("*.delta"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["windows-hdfs", "transform-state-rocksdb-changelog"])
@pytest.mark.parametrize("partitions", [1, 200])
def test_to_one_partition_and_to_two_hundred(spark: SparkSession, tmp_path: Path, name: str, partitions: int) -> None:
    case = Case(spark, tmp_path, name)
    case.run(case.restore(case.job.checkpoint, f"run-{case.job.runs}", "other", partitions=partitions, provider="rocksdb"))
