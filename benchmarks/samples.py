"""What measuring many jobs costs: processor time of the watcher of `millpond serve`, as a share of a core.

    python benchmarks/samples.py [--jobs 50] [--partitions 200] [--minutes 8] [--write]

The checkpoints are written by hand: HDFS-backed, with a hundred versions of each partition, as Spark
keeps them by default.  The watcher has a process of its own.  Each job commits a batch every ten
seconds, so each sample finds a new one.

`first_seconds` is the first look, which measures all sizes.  The share is of the minutes after it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from asked import Process
from results import write_result

from millpond.catalogue import create_job, open_jobs
from millpond.operate.sample_log import samples_of
from spark_files.checkpoint import WrittenCheckpoint

VERSIONS, COMMIT_SECONDS = 100, 10.0
WATCHER = """
import json, sys, time
from millpond.operate.watcher import Watcher
place, jobs = sys.argv[1], int(sys.argv[2])

def tell():
    print(json.dumps({"at": time.monotonic(), "processor_seconds": time.process_time() - begun}), flush=True)

with Watcher({"": place}) as watcher:
    begun = time.process_time()
    while len(watcher.samples()) < jobs:
        time.sleep(0.05)
    tell()
    for _ in sys.stdin:
        tell()
"""


def write_jobs(pond: Path, jobs: int, partitions: int) -> list[WrittenCheckpoint]:
    """Jobs with a hundred versions of their state."""
    written = []
    for number in range(jobs):
        create_job(pond, f"job{number}")
        job = WrittenCheckpoint(pond / f"jobs/job{number}/checkpoint", f"job-{number}", partitions=partitions)
        job.plan([("k" * (1 + key % 40), key) for key in range(40)], snapshot=True)
        job.commit()
        for partition in range(partitions):
            folder = job.path / f"state/0/{partition}"
            for version in range(2, VERSIONS):  # the same bytes by another name: only names and sizes are read
                os.link(folder / "1.delta", folder / f"{version}.delta")
        for batch in range(1, VERSIONS - 1):
            for log in ("offsets", "commits"):
                (job.path / log / str(batch)).write_bytes((job.path / log / "0").read_bytes())
        job.next_batch = VERSIONS - 1
        written.append(job)
    return written


def main() -> None:
    """Let the watcher run for some minutes, and jobs commit meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/samples.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jobs = write_jobs(Path(folder), options.jobs, options.partitions)
        watcher = Process(WATCHER, folder, options.jobs)
        first, before = watcher.first["processor_seconds"], watcher.ask("now")
        ends = time.monotonic() + options.minutes * 60
        while time.monotonic() < ends:
            for job in jobs:
                job.plan([("k", 1)], snapshot=False)
                job.commit()
            time.sleep(max(0.0, min(COMMIT_SECONDS, ends - time.monotonic())))
        after = watcher.ask("now")
        watcher.end()
        kept = [samples_of(job) for job in open_jobs(folder)]
        assert all(sample.problem is None for samples in kept for sample in samples)
        assert all(samples[-1].operators[0].partitions == options.partitions for samples in kept)
    spent = after["processor_seconds"] - before["processor_seconds"]
    result = {
        "what": "processor time of the watcher of all jobs of a pond",
        "jobs": options.jobs,
        "partitions_of_a_job": options.partitions,
        "files_of_a_partition": VERSIONS,
        "minutes": options.minutes,
        "samples_of_a_job": min(map(len, kept)),
        "first_seconds": round(first, 2),
        "percent_of_a_core": round(spent / (after["at"] - before["at"]) * 100, 2),
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("samples", result, [before, after])


if __name__ == "__main__":
    main()
