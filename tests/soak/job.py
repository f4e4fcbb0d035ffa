"""The soak's Spark job: `python -m soak.job INPUT POND PROVIDER`. It has its own process group, which is killed as one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from live_jobs.quick_java import QUICK_JAVA
from soak.orphans import end_with_parent
from soak.reader import BY_WINDOW

PARTITIONS = 3
# So few batches stay readable that Spark cleans up some while a follower is away for a moment.
RETAINED = 2


def main(incoming: str, pond: str, provider: str) -> None:
    """Run until killed."""
    from pyspark.sql import functions as F

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
    schema = "time timestamp, page string, bytes long, run long"
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(incoming)
    views = (
        events.withWatermark("time", "6 seconds")
        .groupBy(F.window("time", "5 seconds"), "page")
        .agg(F.count("*").alias("hits"), F.sum("bytes").alias("bytes"), F.max("run").alias("run"))
        .select(F.col("window.start").alias("start"), "page", "hits", "bytes", "run")
    )
    tables = Path(pond, "jobs", "views", "tables")
    (tables / f"{BY_WINDOW}.json").unlink(missing_ok=True)  # `start` takes one definition of a store
    job = millpond.start(views, table="views", pond=pond, partitions=PARTITIONS, trigger="200 milliseconds", strict=True)
    define_by_window(tables)
    job.wait_for_end()


def define_by_window(tables: Path) -> None:
    """Define a second table of the same store, which has the window as one column."""
    definition = json.loads((tables / "views.json").read_text())
    (place,) = {column["index"] for column in definition["key"] if column["path"]}
    window = {"name": "window", "type": definition["key_schema"]["fields"][place]["type"], "index": place, "path": []}
    definition |= {"table": BY_WINDOW, "key": [window, *(column for column in definition["key"] if not column["path"])]}
    hidden = tables / f".{BY_WINDOW}.tmp"
    hidden.write_text(json.dumps(definition))
    hidden.rename(tables / f"{BY_WINDOW}.json")


if __name__ == "__main__":
    end_with_parent(group=True)
    main(*sys.argv[1:])
