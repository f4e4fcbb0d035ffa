"""Versions of an aggregate in one process: `python -m faults.backfill FOLDER PROVIDER VERSION…`."""

from __future__ import annotations

import sys
from pathlib import Path

import millpond
from faults.job import PARTITIONS, read, wait_for_progress
from faults.kinds.buckets import KEEPS, SCHEMA, Keeps, declare, set_form
from live_jobs.quick_java import QUICK_JAVA
from millpond.spark.job import run_until_stopped
from soak.orphans import end_with_parent

ZONE = "America/New_York"
LONGER: Keeps = {"1 minute": 12 * 3600, "1 hour": 3 * 86_400, "1 day": None}


def keeps_of(version: int) -> Keeps:
    """How long a version keeps its buckets."""
    return KEEPS if version == 1 else LONGER


def weight_of(version: int) -> int:
    """What an event weighs: versions 2 and 3 are declared alike."""
    return min(version, 2)


def main(folder: Path, provider: str, versions: list[int]) -> None:
    """Run until killed."""
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.streaming.minBatchesToRetain": "10000",  # the log says which input each batch had
        **QUICK_JAVA,
    }
    spark = millpond.session("versions", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    set_form(spark, provider, ZONE)
    jobs = []
    for version in versions:
        aggregate = declare("views", version=version, keeps=keeps_of(version), weight=weight_of(version))
        events = read(spark, folder / "in", SCHEMA)
        jobs.append(millpond.start(aggregate, events, pond=folder / "pond", partitions=PARTITIONS))
        wait_for_progress(jobs[-1])
    run_until_stopped(jobs)


if __name__ == "__main__":
    end_with_parent(group=True)
    main(Path(sys.argv[1]), sys.argv[2], [int(version) for version in sys.argv[3:]])
