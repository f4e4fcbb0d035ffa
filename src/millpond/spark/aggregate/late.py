"""Which events are too late for a batch: those whose row Spark would reject.

Spark rejects a row by the watermark of the batch before, and no expression has that watermark.  So
a static DataFrame of one row reads it from the job's checkpoint, once in each batch: `offsets/N-1`
is there before batch N runs, and stays the same if the batch runs again.

Source:  WatermarkPropagator and IncrementalExecution, Spark 4.3 (eventTimeWatermarkForLateEvents).
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


def watermark_before(spark: SparkSession, checkpoint: str) -> DataFrame:
    """One row: the watermark by which Spark rejects rows of the batch that reads it, NULL if there is none.

    checkpoint:  of the job; the workers read it
    """
    from pyspark.sql import functions as sf

    def millpond_watermark_ms(_: int) -> int | None:
        from pyspark import TaskContext

        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(_BATCH)
        return watermark_ms(checkpoint, int(batch)) if batch else None

    # A function that isn't deterministic: Spark mustn't compute it when it plans.
    read = sf.udf(millpond_watermark_ms, "long", useArrow=False).asNondeterministic()
    return spark.range(1).select(sf.timestamp_millis(read("id")).alias(WATERMARK))


def watermark_ms(checkpoint: str, batch: int) -> int | None:
    """By which watermark Spark rejects rows of a batch; None in a job's first batch.

    Raises:  what reading a checkpoint raises.
    """
    return read_plan(open_storage(checkpoint), Batch(batch - 1)).watermark_ms if batch else None
