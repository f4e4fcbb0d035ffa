"""The job of test_models.py: records and models from Kafka, by the manual's own code.  The pond is made in the current folder.

python -m kafka.models_job JARS BROKER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from inputs.manual import code_below
from live_jobs.quick_java import QUICK_JAVA
from soak.orphans import end_with_parent


def main(jars: str, broker: str) -> None:
    """Run until killed."""
    from pyspark.sql import functions as F

    import millpond

    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(str(p) for p in sorted(Path(jars).glob("*.jar"))),
        **QUICK_JAVA,
    }
    spark = millpond.session("kafka models", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", "records")
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), "id long, kind string, a double, b double").alias("said"))
        .select("said.*")
    )
    known: dict[str, Any] = {"spark": spark, "millpond": millpond, "bootstrap": broker, "records": records}
    exec(code_below("models.md", "## From Kafka")[0], known)
    job = millpond.start(
        known["scored"],
        table="wine",
        pond="pond",
        partitions=2,
        output_mode="append",
        sink=lambda writer: writer.format("parquet").option("path", "scored"),
    )
    job.wait_for_end()


if __name__ == "__main__":
    end_with_parent(group=True)
    main(*sys.argv[1:])
