"""A fenced job that is paused beyond its lease changes nothing when it wakes: its JVM ends, and another job's state stays."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import millpond
from faults.paused import TABLE, start
from inputs.event_file import write_event_file
from millpond.errors import MillpondError
from millpond.spark.guard import EXIT_CODE
from millpond.storage.machine import is_running, process_start
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.faults
LEASE_SECONDS = 8.0
SEED = os.environ.get("MILLPOND_SEED", "20261123")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLPOND_LEASE_SECONDS", str(LEASE_SECONDS))
    for name in ("in", "begun"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def paused(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The job in a process group of its own."""
    command = [sys.executable, "-m", "faults.paused", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with open(folder / "err", "w") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=env, start_new_session=True)
    yield process
    for number in (signal.SIGCONT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
    process.wait()


def feed(folder: Path, file: int) -> None:
    write_event_file(folder / "in", file, [{"k": f"k{n % 5}", "v": n} for n in range(file * 7, file * 7 + 7)])


def expected(files: int) -> dict[str, tuple[int, int]]:
    numbers = range(files * 7)
    return {f"k{k}": (len(numbers[k::5]), sum(numbers[k::5])) for k in range(5)}


def rows(folder: Path, batch: int) -> dict[str, tuple[int, int]]:
    found = millpond.read_arrow(folder / "pond", TABLE, batch=batch).to_pylist()
    return {row["k"]: (row["n"], row["v"]) for row in found}


def wait_for_batch_begun(folder: Path, batch: int, paused: subprocess.Popen[str]) -> None:
    def ended() -> object:
        return paused.poll() is not None and ((folder / "err").read_text()[-3000:] or "nothing said")

    wait_until((folder / "begun" / str(batch)).exists, f"the begin of batch {batch}", seconds=180, unless=ended)


def wait_for_end(pid: int, started: str) -> None:
    wait_until(lambda: not is_running(pid, started), "the end of the JVM")


def logs(checkpoint: Path) -> dict[str, bytes]:
    return {
        f"{kind}/{path.name}": path.read_bytes() for kind in ("offsets", "commits") for path in (checkpoint / kind).glob("[0-9]*")
    }


@pytest.mark.long
@pytest.mark.parametrize("batch", [2, None, 0])
def test_a_paused_job_changes_nothing_when_it_wakes(
    spark: SparkSession, folder: Path, paused: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    """It is paused within a batch, or at any moment."""
    seed = random.Random(f"{SEED}/{batch}")
    for file in range(4):
        feed(folder, file)
    assert paused.stdout is not None
    java = int(paused.stdout.readline().split()[1])
    started = process_start(java)
    wait_for_batch_begun(folder, batch if batch is not None else 1, paused)
    time.sleep(seed.uniform(0, 1.2) if batch is None else 0.2)
    os.killpg(paused.pid, signal.SIGSTOP)
    monkeypatch.setenv("MILLPOND_LEASE_SECONDS", "600")  # of the job here, whose guard would end the JVM of all tests
    with pytest.raises(MillpondError) as caught:
        start(spark, folder, 0.0)
    assert caught.value.condition == "CHECKPOINT_IN_USE"
    job: Any = None

    def take() -> bool:
        nonlocal job
        try:
            job = start(spark, folder, 0.0)
        except MillpondError as error:
            assert error.condition == "CHECKPOINT_IN_USE"
        return job is not None

    wait_until(take, "a lease that has run out")
    with job:
        job.wait_for_batch(3, 60)
        checkpoint = folder / "pond/jobs" / TABLE / "checkpoint"
        before = logs(checkpoint)
        assert [rows(folder, n) for n in range(4)] == [expected(n + 1) for n in range(4)]
        os.killpg(paused.pid, signal.SIGCONT)
        wait_for_end(java, started)
        assert paused.wait(60) != 0
        assert "its JVM ends now" in (folder / "err").read_text()
        assert logs(checkpoint) == before
        assert [rows(folder, n) for n in range(4)] == [expected(n + 1) for n in range(4)]
        for file in (4, 5):
            feed(folder, file)
        job.wait_for_batch(5, 60)
        assert job.statistics()["lease_error"] is None
        assert job.statistics()["fenced"]
    assert [rows(folder, n) for n in range(6)] == [expected(n + 1) for n in range(6)]
    assert EXIT_CODE == 86


@pytest.mark.long
def test_the_jvm_ends_though_only_python_is_paused(folder: Path, paused: subprocess.Popen[str]) -> None:
    """It goes on to write, and nobody renews its lease."""
    feed(folder, 0)
    assert paused.stdout is not None
    java = int(paused.stdout.readline().split()[1])
    started = process_start(java)
    wait_for_batch_begun(folder, 0, paused)
    paused.send_signal(signal.SIGSTOP)
    wait_for_end(java, started)
    paused.send_signal(signal.SIGCONT)
    assert paused.wait(60) != 0
