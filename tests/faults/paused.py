"""A fenced job that can be paused: `python -m faults.paused FOLDER`.  Each batch says that it has begun, and takes a second."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from live_jobs.quick_java import QUICK_JAVA
from soak.orphans import end_with_parent

TABLE = "counts"


def start(spark: Any, folder: Path, seconds: float, **options: Any) -> Any:
    """Start the job over the files of `in`; each batch makes the file `begun/<batch>`, and takes so long."""
    from pyspark.sql import functions as sf

    import millpond

    stream = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))

    def tell(frame: Any, batch: int) -> None:
        frame.collect()
        (folder / "begun" / str(batch)).touch()
        time.sleep(seconds)

    counts = stream.groupBy("k").agg(sf.count("*").alias("n"), sf.sum("v").alias("v"))
    return millpond.start(counts, table=TABLE, pond=folder / "pond", partitions=2, fenced=True, sink=tell, **options)


def main(folder: str) -> None:
    """Run until the JVM ends."""
    import millpond
    from millpond.spark.job import run_until_stopped

    conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "1g", **QUICK_JAVA}
    spark = millpond.session("paused", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    job = start(spark, Path(folder), 1.0)
    print("java", spark.sparkContext._gateway.jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    run_until_stopped([job])


if __name__ == "__main__":
    end_with_parent(group=True)
    main(sys.argv[1])
