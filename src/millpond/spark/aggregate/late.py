"""Which events are too late for a batch: those whose row Spark would reject, or remove at its end.

Spark removes rows by the watermark of the batch, and rejects them by that of the batch before, which
isn't later.  No expression has a watermark.  So a static DataFrame of one row reads it from the
job's checkpoint, once in each batch: `offsets/N` is there before batch N runs, and stays the same if
the batch runs again.

Source:  WatermarkPropagator and IncrementalExecution, Spark 4.3 (eventTimeWatermarkForEviction).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.checkpoint.log import read_plan
from millpond.checkpoint.position import Batch
from millpond.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WATERMARK = "__millpond_watermark"
# Spark sets it for each task of a batch.
_BATCH = "streaming.sql.batchId"


def watermark_of_batch(spark: SparkSession, checkpoint: str) -> DataFrame:
    """One row: the watermark by which Spark removes rows in the batch that reads it.

    checkpoint:  of the job; the workers read it
    """
    from pyspark.sql import functions as sf

    def millpond_watermark_ms(_: int) -> int | None:
        from pyspark import TaskContext

        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(_BATCH)
        return read_plan(open_storage(checkpoint), Batch(int(batch))).watermark_ms if batch else None

    # A function that isn't deterministic: Spark mustn't compute it when it plans.
    read = sf.udf(millpond_watermark_ms, "long", useArrow=False).asNondeterministic()
    return spark.range(1).select(sf.timestamp_millis(read("id")).alias(WATERMARK))
