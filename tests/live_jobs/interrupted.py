"""The jobs of golden checkpoints, stopped in the middle: a savepoint of each while it runs, and the job that goes on from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.cloudpickle

from millpond.savepoint.create import plan_savepoint
from spark_files.golden import SCRIPTS, load_script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

sys.path.append(str(SCRIPTS))  # where the script finds `cells`
_GOLDEN = load_script("make_operators")
pyspark.cloudpickle.register_pickle_by_value(_GOLDEN)  # workers can't import a script
OperatorJob = _GOLDEN.OperatorJob
CELLS, DEFAULTS, read_batch, last_batch = _GOLDEN.CELLS, _GOLDEN.DEFAULTS, _GOLDEN.read_batch, _GOLDEN.last_batch
# These go by the clock, so that no two runs have the same state; or they end a run on purpose.
UNEQUAL = ("processing", "ttl", "failed", "retried", "repartitioned")
NAMES = sorted(name for name in CELLS if not any(word in name for word in UNEQUAL))


class Interrupted(_GOLDEN.OperatorJob):
    """A job over the first half of its input, of which a savepoint is made while it runs, and then over the rest."""

    runs = 0
    keys = 0

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
        self.keys = keys_of(query)
        query.stop()


class Restored(_GOLDEN.OperatorJob):
    """The same job from the last of its savepoints, over the input that is there."""

    def __init__(self, spark: SparkSession, checkpoint: Path, inputs: Path, runs: int) -> None:
        super().__init__(spark, checkpoint, inputs)
        self._runs = runs
        self.keys = 0

    def feed(self, batches: int) -> None:
        """Nothing more."""

    def finish(self, df: DataFrame, mode: str, **options: Any) -> None:
        self._runs -= 1
        if not self._runs:
            query = self.start(df, mode, processingTime="0 seconds")
            query.processAllAvailable()
            self.keys = keys_of(query)
            query.stop()


def session_of(spark: SparkSession, name: str) -> SparkSession:
    """A session with the settings of a cell."""
    own = spark.newSession()
    for key, value in {**DEFAULTS, **CELLS[name].conf}.items():
        own.conf.set(key, value)
    return own


def keys_of(query: Any) -> int:
    """How many keys Spark says a query's state has."""
    return sum(operator["numRowsTotal"] for operator in query.lastProgress["stateOperators"])


def without_partitions(state: dict[str, list[Any]]) -> dict[str, list[str]]:
    """The rows of each store, wherever they lie."""
    return ordered({store: [row[:-1] for row in rows] for store, rows in state.items()})


def ordered(state: dict[str, list[Any]]) -> dict[str, list[str]]:
    """The rows of each store: their order means nothing."""
    return {store: sorted(map(repr, rows)) for store, rows in state.items()}
