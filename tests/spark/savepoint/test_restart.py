"""A savepoint of a running job: Spark goes on from it, and ends with the state of the job that nobody interrupted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.cloudpickle
import pytest

from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from spark_files.golden import load_script
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

sys.path.append(str(Path(__file__).parents[2] / "golden"))  # where the script finds `cells`
_GOLDEN = load_script("make_operators")
pyspark.cloudpickle.register_pickle_by_value(_GOLDEN)  # workers can't import a script
CELLS, DEFAULTS, read_batch, last_batch = _GOLDEN.CELLS, _GOLDEN.DEFAULTS, _GOLDEN.read_batch, _GOLDEN.last_batch
# These go by the clock, so that no two runs have the same state; or they end a run on purpose.
UNEQUAL = ("processing", "ttl", "failed", "retried", "repartitioned")
NAMES = sorted(name for name in CELLS if not any(word in name for word in UNEQUAL))


HDFS = sorted(name for name in NAMES if name.endswith("-hdfs"))


class Interrupted(_GOLDEN.OperatorJob):
    """A job over the first half of its input, of which a savepoint is made while it runs, and then over the rest."""

    runs = 0

    def feed(self, batches: int) -> None:
        super().feed(batches // 2)
        self._rest = batches - batches // 2

    def finish(self, df: DataFrame, mode: str, **options: Any) -> None:
        query = self.start(df, mode, processingTime="0 seconds")
        query.processAllAvailable()
        self.runs += 1
        self.savepoint = plan_savepoint(self.checkpoint, f"run-{self.runs}").run()
        assert query.isActive
        query.stop()
        # Both sources must have all their files before the next batch: else it may take one side's file alone.
        super().feed(self._rest)
        query = self.start(df, mode, processingTime="0 seconds")
        query.processAllAvailable()
        query.stop()


class Restored(_GOLDEN.OperatorJob):
    """The same job from the last of its savepoints, over the input that is there."""

    def __init__(self, spark: SparkSession, checkpoint: Path, inputs: Path, runs: int) -> None:
        super().__init__(spark, checkpoint, inputs)
        self._runs = runs

    def feed(self, batches: int) -> None:
        """Nothing more."""

    def finish(self, df: DataFrame, mode: str, **options: Any) -> None:
        self._runs -= 1
        if not self._runs:
            query = self.start(df, mode, processingTime="0 seconds")
            query.processAllAvailable()
            query.stop()


@pytest.mark.parametrize("name", a_few(NAMES, 2))
def test_a_restored_job_ends_like_the_one_that_was_never_interrupted(spark: SparkSession, tmp_path: Path, name: str) -> None:
    own, cell = spark.newSession(), CELLS[name]
    for key, value in {**DEFAULTS, **cell.conf}.items():
        own.conf.set(key, value)
    job = Interrupted(own, tmp_path / "checkpoint", tmp_path / "inputs")
    cell.write(job)
    savepoint = job.savepoint
    assert verify_savepoint(savepoint).problems == ()
    plan_restore(job.checkpoint, savepoint.manifest.name, tmp_path / "restored").run()
    batch = savepoint.manifest.batch
    assert batch < last_batch(job.checkpoint)
    assert ordered(read_batch(own, tmp_path / "restored", batch)) == ordered(read_batch(own, job.checkpoint, batch))
    cell.write(Restored(own, tmp_path / "restored", tmp_path / "inputs", job.runs))
    ends = [read_batch(own, folder, last_batch(folder)) for folder in (tmp_path / "restored", job.checkpoint)]
    assert ordered(ends[0]) == ordered(ends[1])
    assert any(ends[0].values()), "a state without rows shows nothing"


@pytest.mark.parametrize("name", a_few(HDFS, 1))
def test_a_job_goes_on_under_another_number_of_partitions(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """From two to five, from five to three, in other codecs and with checksums: at the end the state has the same rows."""
    own, cell = spark.newSession(), CELLS[name]
    for key, value in {**DEFAULTS, **cell.conf}.items():
        own.conf.set(key, value)
    job = Interrupted(own, tmp_path / "checkpoint", tmp_path / "inputs")
    cell.write(job)
    number = job.savepoint.manifest.batch
    plan_restore(job.checkpoint, "run-1", tmp_path / "five", partitions=5, codec="zstd").run()
    before = without_partitions(read_batch(own, job.checkpoint, number))
    assert without_partitions(read_batch(own, tmp_path / "five", number)) == before
    plan_savepoint(tmp_path / "five", "five").run()
    plan_restore(tmp_path / "five", "five", tmp_path / "three", partitions=3, codec="snappy", row_checksum=True).run()
    ends = []
    for folder in (tmp_path / "five", tmp_path / "three"):
        cell.write(Restored(own, folder, tmp_path / "inputs", job.runs))
        ends.append(without_partitions(read_batch(own, folder, last_batch(folder))))
    expected = without_partitions(read_batch(own, job.checkpoint, last_batch(job.checkpoint)))
    assert ends == [expected, expected]


def without_partitions(state: dict[str, list[Any]]) -> dict[str, list[str]]:
    """The rows of each store, wherever they lie."""
    return ordered({store: [row[:-1] for row in rows] for store, rows in state.items()})


def ordered(state: dict[str, list[Any]]) -> dict[str, list[str]]:
    """The rows of each store: their order means nothing."""
    return {store: sorted(map(repr, rows)) for store, rows in state.items()}
