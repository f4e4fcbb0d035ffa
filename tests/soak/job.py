"""The soak's Spark job: `python -m soak.job INPUT POND PROVIDER`. It has its own process group, which is killed as one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from live_jobs.quick_java import QUICK_JAVA
from millpond.storage import open_storage
from soak.orphans import end_with_parent
from soak.reader import BY_WINDOW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    import millpond
    from millpond.storage.base import Storage

PARTITIONS = 3
EVENT = "time timestamp, page string, bytes long, run long"
# So few batches stay readable that Spark cleans up some while a follower is away for a moment.
RETAINED = 2


def main(incoming: str, pond: str, provider: str) -> None:
    """Run until killed."""
    import millpond

    state = "spark.sql.streaming.stateStore"
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        **QUICK_JAVA,
        "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
        f"{state}.providerClass": f"org.apache.spark.sql.execution.streaming.state.{provider}",
        f"{state}.maintenanceInterval": "1s",
        f"{state}.minDeltasForSnapshot": "3",
    }
    spark = millpond.session("soak", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    events = spark.readStream.schema(EVENT).option("maxFilesPerTrigger", 1).json(incoming)
    start_views(events, pond, partitions=PARTITIONS, trigger="200 milliseconds").wait_for_end()


def start_views(events: DataFrame, pond: str, **options: Any) -> millpond.Job:
    """Start the job that counts events by page and window; its two tables are of the same store."""
    from pyspark.sql import functions as F

    import millpond

    views = (
        events.withWatermark("time", "6 seconds")
        .groupBy(F.window("time", "5 seconds"), "page")
        .agg(F.count("*").alias("hits"), F.sum("bytes").alias("bytes"), F.max("run").alias("run"))
        .select(F.col("window.start").alias("start"), "page", "hits", "bytes", "run")
    )
    tables = open_storage(f"{pond}/jobs/views/tables")
    tables.delete(f"{BY_WINDOW}.json")  # `start` takes one definition of a store
    job = millpond.start(views, table="views", pond=pond, strict=True, **options)
    define_by_window(tables)
    return job


def define_by_window(tables: Storage) -> None:
    """Define a second table of the same store, which has the window as one column."""
    definition = json.loads(tables.read("views.json", 1 << 20))
    (place,) = {column["index"] for column in definition["key"] if column["path"]}
    window = {"name": "window", "type": definition["key_schema"]["fields"][place]["type"], "index": place, "path": []}
    definition |= {"table": BY_WINDOW, "key": [window, *(column for column in definition["key"] if not column["path"])]}
    tables.write(f"{BY_WINDOW}.json", json.dumps(definition).encode())


if __name__ == "__main__":
    end_with_parent(group=True)
    main(*sys.argv[1:])
