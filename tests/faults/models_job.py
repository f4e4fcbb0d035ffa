"""A job that serves models: `python -m faults.models_job RECORDS PUBLISHED POND OUTPUT`, a process group that is killed as one."""

from __future__ import annotations

import sys

from quick_java import QUICK_JAVA
from soak.orphans import end_with_parent


def main(records: str, published: str, pond: str, output: str) -> None:
    """Run until killed."""
    import millpond

    conf = {"spark.master": "local[2,4]", "spark.ui.enabled": "false", "spark.driver.memory": "1g", **QUICK_JAVA}
    spark = millpond.session("models", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    scored = millpond.serve_models(
        spark.readStream.schema("id long, a double, b double").json(records),
        millpond.read_models(spark, published),
        pond=pond,
        inputs=["a", "b"],
        shards=2,
        partitions=2,
    )
    job = millpond.start(
        scored,
        table="model",
        pond=pond,
        partitions=2,
        output_mode="append",
        sink=lambda writer: writer.format("parquet").option("path", output),
    )
    job.wait_for_end()


if __name__ == "__main__":
    end_with_parent(group=True)
    main(*sys.argv[1:])
