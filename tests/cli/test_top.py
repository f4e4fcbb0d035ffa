"""`millpond top` and `millpond samples`: what a person sees, and what a program gets."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from codecs import getincrementaldecoder
from pathlib import Path

import pytest
from rich.console import Console

from millpond.catalogue import create_job, find_job
from millpond.cli.top_view import COLUMNS, JobLine, behind_text, grid, sorted_lines, sparks
from millpond.operate.sample import OperatorSize, Sample
from millpond.operate.sample_log import SampleLog
from millpond.operate.units import seconds_text, size_text
from spark_files.checkpoint import WrittenCheckpoint
from suite.programs import started
from suite.waiting import wait_until


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    for name, batches in (("few", 1), ("many", 6)):
        create_job(tmp_path / "pond", name)
        job = WrittenCheckpoint(tmp_path / "pond/jobs" / name / "checkpoint", name)
        for batch in range(batches):
            job.plan([(f"k{key}", batch) for key in range(batches * 10)], snapshot=False)
            job.commit()
    create_job(tmp_path / "pond", "broken")
    (tmp_path / "pond/jobs/broken/job.json").write_text("{")
    return tmp_path / "pond"


def run(*words: object) -> str:
    done = subprocess.run([sys.executable, "-m", "millpond.cli", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_pipe_gets_the_jobs_once(pond: Path) -> None:
    lines = [line.split() for line in run("top", pond, "--interval", "0.2").splitlines() if line.strip()]
    assert [line[0] for line in lines[2:]] == ["many", "few", "broken"]  # by size; without a size last
    assert lines[4][1] == "CORRUPT_FILE"
    assert lines[2][2] == "5"


def test_json_has_all_that_is_measured(pond: Path) -> None:
    found = {line["job"]: line for line in map(json.loads, run("top", pond, "--json").splitlines())}
    assert found["broken"] == {"job": "broken", "error": "CORRUPT_FILE"}
    state = pond / "jobs/many/checkpoint/state/0"
    assert found["many"]["operators"][0]["state_bytes"] == sum(file.stat().st_size for file in state.rglob("*.delta"))
    assert (found["many"]["batch"], found["few"]["batch"]) == (5, 0)


def test_a_place_that_is_neither_pond_nor_checkpoint_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "millpond.cli", "top", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "NO_CHECKPOINT" in done.stderr


def test_keys_on_a_terminal(pond: Path) -> None:
    """It draws, sorts by the next column, turns the order, and ends at q with the terminal as it was."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "millpond.cli", "top", str(pond), "--interval", "0.2", "--sort", "job"]
    environment = {**os.environ, "COLUMNS": "150", "LINES": "30", "TERM": "xterm"}
    seen, decoder = "", getincrementaldecoder("utf-8")()  # a read may end in the middle of a letter
    with started(command, stdin=child, stdout=child, stderr=child, env=environment, close_fds=True) as process:

        def read() -> None:
            nonlocal seen
            if select.select([parent], [], [], 0.2)[0]:
                seen += decoder.decode(os.read(parent, 65536))

        def has_ended() -> bool:
            read()  # the terminal takes no more than a few screens that nobody reads
            return process.poll() is not None

        def until(pattern: str) -> None:
            def is_seen() -> bool:
                read()
                return bool(re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen), re.DOTALL))

            wait_until(is_seen, f"{pattern} on the terminal", unless=process.poll)

        def press(key: str, pattern: str) -> None:
            nonlocal seen
            seen = ""
            os.write(parent, key.encode())
            until(pattern)

        until(r"3 jobs, 0 running.*broken .*few .*many ")
        press("r", r"many .*few .*broken ")
        press("r", r"broken .*few .*many ")
        press("s", r"CORRUPT_FILE.*unknown")  # by state
        press("S", r"broken .*few .*many ")
        os.write(parent, b"q")
        wait_until(has_ended, "the end of the command")
        assert process.returncode == 0
    os.close(child)
    os.close(parent)


def sample(at_ms: int, **facts: object) -> Sample:
    return Sample(at_ms=at_ms, job_state="running", **facts)  # type: ignore[arg-type]


def sized(state_bytes: int, largest: int = 1, median: int = 1) -> tuple[OperatorSize, ...]:
    return (
        OperatorSize(
            operator=0, name="x", partitions=2, state_bytes=state_bytes, changed_bytes=0, largest_partition=0,
            largest_bytes=largest, median_bytes=median,
        ),
    )  # fmt: skip


def test_rates_are_of_the_last_minute() -> None:
    line = JobLine("a")
    assert line.batches_per_minute is None
    for second in range(0, 200, 10):
        batches = 100 if second < 100 else 3
        line.add(sample(second * 1000, batches=batches, operators=sized(1000 + second * 7), sized_ms=second * 1000))
    assert [one.at_ms for one in line.samples] == [second * 1000 for second in range(130, 200, 10)]
    assert line.batches_per_minute == pytest.approx(18)
    assert line.growth_per_minute == pytest.approx(420)
    assert line.skew == 1.0


def test_order_of_every_column() -> None:
    """The largest first, names from the first letter, and nothing that isn't known before what is."""
    lines = []
    for number in range(5):
        line = JobLine(f"job{(number * 3) % 5}")
        facts = {"batch": number, "batch_seconds": number / 10, "behind_records": number * 100, "watermark_ms": 5000 - number}
        line.add(sample(0, batches=1, operators=sized(number, number + 1), sized_ms=0, **facts))
        line.add(sample(9000, batches=number, operators=sized(number * 2, number + 1), sized_ms=9000, **facts))
        lines.append(line)
    lines.append(JobLine("unseen"))
    for name, column in COLUMNS.items():
        for reverse in (False, True):
            found = [column.value(line) for line in sorted_lines(lines, name, reverse=reverse)]
            known = [value for value in found if value is not None]
            assert found[: len(known)] == known
            assert known == sorted(known, reverse=column.is_number != reverse), name  # type: ignore[type-var]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160])
def test_nothing_is_cut_off_on_a_narrow_terminal(width: int) -> None:
    line = JobLine("page_views")
    for second in range(60):
        line.add(sample(second * 1000, batch=812, batch_seconds=1.5, longest_batch_seconds=1.5, watermark_ms=0, behind_records=9999,
                        operators=sized(5 << 30, 9, 3), sized_ms=second * 1000, committed_ms=0, waiting_seconds=0.2))  # fmt: skip
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - it is closed with the test
    console.print(grid([line], "size", reverse=False, width=width))
    text = console.export_text()
    assert "page_views" in text
    assert "5.0 GiB" in text
    assert "…" not in text


def test_words() -> None:
    assert [seconds_text(s) for s in (0.1234, 3.44, 61, 300, 9000, 400_000)] == [
        "0.12 s", "3.4 s", "61.0 s", "5.0 min", "2.5 h", "4.6 d",
    ]  # fmt: skip
    assert [size_text(n) for n in (0, 1023, 1024, 5 << 30, 3 << 41)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB", "6.0 TiB"]
    behind = [{"behind_records": 4000}, {"waiting_files": 1200}, {"waiting_files": 1}, {"behind_records": 3}, {}]
    assert [behind_text(sample(0, **facts)) for facts in behind] == ["4,000", "1,200 files", "1 file", "3", ""]
    line = JobLine("a")
    assert sparks(line) == ""
    for at, seconds in enumerate((0.0, 1.0, 8.0)):
        line.add(sample(at, batch_seconds=seconds))
    assert sparks(line) == "▁▂█"


def test_samples_of_days(pond: Path) -> None:
    log, now = SampleLog(find_job(pond, "many")), int(time.time() * 1000)
    for age_seconds in (50_000, 3000, 60):
        log.add(sample(now - age_seconds * 1000, batch=age_seconds, operators=sized(2048), sized_ms=now))
    rows = [line.split("\t") for line in run("samples", pond, "--job", "many").splitlines()]
    assert [row[2] for row in rows] == ["batch", "3000", "60"]
    assert rows[1][9] == "2.0 KiB"
    found = [json.loads(line)["batch"] for line in run("samples", pond, "--job", "many", "--last", "1d", "--json").splitlines()]
    assert found == [50_000, 3000, 60]
