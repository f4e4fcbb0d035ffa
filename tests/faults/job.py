"""Runs the jobs of one kind: `python -m faults.job KIND FOLDER`.  They are killed as one process group."""

from __future__ import annotations

import json
import sys
import uuid
from importlib import import_module
from pathlib import Path
from typing import Any

from live_jobs.quick_java import QUICK_JAVA
from soak.orphans import end_with_parent
from suite.waiting import wait_until

PARTITIONS = 2
WAIT_SECONDS = 240


def main(kind: str, folder: str) -> None:
    """Run until killed."""
    import millpond
    from faults.kinds import KINDS
    from millpond.spark.job import run_until_stopped

    conf = {
        "spark.master": "local[2,4]",  # a task may fail three times: its Python worker is killed as well
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.streaming.minBatchesToRetain": "10000",  # the log says which input each batch had
        **QUICK_JAVA,
        **KINDS[kind].settings(),
    }
    spark = millpond.session(kind, **conf)
    spark.sparkContext.setLogLevel("ERROR")
    jobs = []
    for job in KINDS[kind].start(spark, Path(folder)):
        jobs.append(job)
        wait_for_progress(job)
    run_until_stopped(jobs)


def wait_for_progress(job: Any) -> None:
    """Wait until it has done a batch, or has none to do.

    The first batch starts a Python process, and Spark waits 10 seconds for it.  On a busy machine that is too short for three
    jobs that start at once.
    """
    query = job.query

    def progresses() -> object:
        return not query.isActive or query.recentProgress or query.status["message"] == "Waiting for data to arrive"

    wait_until(progresses, "the first batch of a job", seconds=WAIT_SECONDS)


def example(name: str) -> Any:
    """A program of examples/ as a module; its functions go to the workers by value."""
    from pyspark import cloudpickle

    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    module = import_module(name)
    cloudpickle.register_pickle_by_value(module)
    return module


def read(spark: Any, folder: Path, schema: str) -> Any:
    """A stream of files; each is one batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))


def to_files(folder: Path, job: str) -> dict[str, Any]:
    """Options of a job whose rows go to Spark's file sink."""
    return {
        "partitions": PARTITIONS,
        "output_mode": "append",
        "sink": lambda writer: writer.format("parquet").option("path", str(folder / "out" / job)),
    }


def attempts(folder: Path, job: str) -> dict[str, Any]:
    """Options of a job that writes a file for each attempt at a batch, with the rows that the attempt emits."""
    out = folder / "out" / job
    out.mkdir(parents=True, exist_ok=True)

    def tell(frame: Any, batch: int) -> None:
        hidden = out / f".{uuid.uuid4().hex}"
        hidden.write_text(json.dumps([row.asDict() for row in frame.collect()]))
        hidden.rename(out / f"{batch}-{hidden.name[1:]}.json")

    return {"partitions": PARTITIONS, "sink": tell}


if __name__ == "__main__":
    end_with_parent(group=True)
    main(*sys.argv[1:])
