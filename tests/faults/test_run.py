"""`millpond run` over a job that fails, and a standby that takes over from one whose processes are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import millpond
from inputs.event_file import write_event_file
from live_jobs.quick_java import QUICK_JAVA
from millpond.catalogue import job_of
from millpond.ownership.runs import read_runs
from millpond.storage.machine import is_running
from suite.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long]
PROGRAM = f"""
import sys
import time
from pathlib import Path
from pyspark.sql import SparkSession, functions as sf
import millpond

folder = Path(sys.argv[1])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
for name, value in {QUICK_JAVA!r}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def sink(frame, batch):
    frame.collect()
    mark = folder / "failed"
    if batch == 2 and not mark.exists():
        mark.touch()
        raise ValueError("no luck with batch 2")

rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
counts = rows.groupBy("k").agg(sf.count("*").alias("n"), sf.sum("v").alias("v"))
is_first = not (folder / "failed").exists()
job = millpond.start(counts, table="counts", pond=folder / "pond", partitions=2, fenced=True, sink=sink)
while is_first and job.query.isActive:  # the sink fails meanwhile
    time.sleep(0.1)
sys.exit(0)
"""


class Runner:
    """`millpond run --standby` in a process group of its own, with its stderr in a file."""

    def __init__(self, folder: Path, name: str) -> None:
        self.err = folder / f"{name}.err"
        words = [sys.executable, "-m", "millpond.cli", "run", "--standby", str(folder / "program.py"), str(folder)]
        with open(self.err, "w") as err:
            self.process = subprocess.Popen(words, stderr=err, stdout=err, start_new_session=True)

    def said(self) -> str:
        """All that is on stderr so far."""
        return self.err.read_text()


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Callable[[str], Runner]]:
    """Starts runners, which end with the test."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "in").mkdir()
    begun: list[Runner] = []

    def begin(name: str) -> Runner:
        begun.append(Runner(tmp_path, name))
        return begun[-1]

    yield begin
    for each in begun:
        each.process.terminate()
    for each in begun:
        each.process.wait(120)


def wait_for(runner: Runner, condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, seconds=180, unless=lambda: runner.process.poll() is not None and runner.said())


def wait_for_standby(runner: Runner) -> None:
    wait_for(runner, lambda: "millpond: counts: standby" in runner.said(), "the runner's word that it is the standby")


def test_a_job_goes_on_after_an_error_and_after_the_loss_of_its_machine(tmp_path: Path, runner: Callable[[str], Runner]) -> None:
    """Every event is counted once; who ran the job, and why it ended, is recorded."""
    folder, expected = job_of(tmp_path / "pond", "counts"), {}

    def feed(file: int) -> None:
        rows = [{"k": f"k{n % 5}", "v": n} for n in range(file * 7, file * 7 + 7)]
        write_event_file(tmp_path / "in", file, rows)
        for row in rows:
            n, v = expected.get(row["k"], (0, 0))
            expected[row["k"]] = (n + 1, v + row["v"])

    def is_committed(batch: int) -> bool:
        return (tmp_path / f"pond/jobs/counts/checkpoint/commits/{batch}").exists()

    for file in range(4):
        feed(file)
    first = runner("first")
    wait_for(first, lambda: is_committed(3), "the commit of batch 3")
    assert "run 1 failed: [ValueError] ValueError: no luck with batch 2" in first.said()
    assert "The program's own function raised it" in first.said()
    second = runner("second")
    wait_for_standby(second)

    holder = json.loads((tmp_path / "pond/jobs/counts/lease.json").read_text())
    first.process.kill()  # the runner first, which would start the program again
    for pid, start in holder["processes"]:
        if is_running(pid, start):
            os.kill(pid, signal.SIGKILL)
    first.process.wait(60)
    for file in range(4, 7):
        feed(file)
    wait_for(second, lambda: is_committed(6), "the commit of batch 6")

    third = runner("third")  # the machine is back, and is the standby now
    wait_for_standby(third)
    with millpond.open(tmp_path / "pond", replica_dir="memory://") as pond:
        found = {row["k"]: (row["n"], row["v"]) for row in pond["counts"].scan()}
    assert found == expected
    for each in (third, second):
        each.process.terminate()
        assert each.process.wait(120) == 0, each.said()
    runs = read_runs(folder.storage)
    assert [(run.batch, run.error) for run in runs.runs] == [(None, "ValueError"), (1, None), (3, None)]
    assert [run.ended_ms is None for run in runs.runs] == [False, True, False]
    assert all(run.recovery_seconds for run in runs.runs)
