"""A job whose rows wait: `python -m faults.buffered_job INPUT POND OUTPUT`, a process group of its own that is killed as one."""

from __future__ import annotations

import sys

from quick_java import QUICK_JAVA
from soak.orphans import end_with_parent

AT_LEAST, AFTER_SECONDS, PARTITIONS = 25, 5.0, 2


def main(incoming: str, pond: str, output: str) -> None:
    """Run until killed."""
    import millpond

    conf = {
        "spark.master": "local[2,4]",  # a task may fail three times: its Python worker is killed as well
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        **QUICK_JAVA,
    }
    spark = millpond.session("buffered", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.schema("n long, text string").json(incoming)
    waiting = millpond.buffered(rows, at_least=AT_LEAST, after_seconds=AFTER_SECONDS, shards=2, partitions=PARTITIONS)
    job = millpond.start(
        waiting,
        table="rows",
        pond=pond,
        partitions=PARTITIONS,
        trigger="100 milliseconds",
        output_mode="append",
        sink=lambda writer: writer.format("parquet").option("path", output),
    )
    job.wait_for_end()


if __name__ == "__main__":
    end_with_parent(group=True)
    main(*sys.argv[1:])
