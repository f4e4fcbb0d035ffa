"""The demo as a user runs it: a process, a real log, signals; it leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import millpond
from inputs.real_log import first_lines
from live_jobs.quick_java import QUICK_JAVA_ENVIRONMENT
from millpond.cli import main
from millpond.demo.visits import VisitOptions, iter_visits
from millpond.errors import MillpondError
from suite.waiting import wait_until

pytest.importorskip("pyspark")
COMMAND = Path(sys.executable).with_name("millpond")
# A cold Spark on a busy machine with two cores.
LONG_SECONDS = 240


class Demo:
    """A running `millpond demo` in its own process group, with a mark in its environment."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.mark = f"MILLPOND_TEST={folder}-{time.monotonic_ns()}"
        name, value = self.mark.split("=")
        places = {"MILLPOND_HOME": str(folder / "home"), "TMPDIR": str(folder)}
        env = {**os.environ, **QUICK_JAVA_ENVIRONMENT, **places, name: value}
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [COMMAND, "demo", *options], env=env, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def wait(self) -> int:
        return self.process.wait(LONG_SECONDS)

    def wait_for_output(self, pattern: str) -> None:
        wait_until(
            lambda: re.search(pattern, self.out.read_text()),
            f"{pattern!r} on the output of the demo",
            seconds=LONG_SECONDS,
            unless=lambda: self.process.poll() is not None and (self.err.read_text() or "nothing said"),
        )

    def processes(self) -> list[int]:
        """All processes that inherited the mark: the JVM, and the workers in whatever group."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """Kill all of them at once, as a power failure does."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(60)
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        wait_until(lambda: not self.processes(), "the end of all processes of the demo")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[Demo]]:
    """Demos of a test; kills what is left of them at its end."""
    started: list[Demo] = []
    yield started
    for one in started:
        one.kill()


@pytest.mark.long
@pytest.mark.spark
def test_once_reads_all_of_a_real_log_names_batches_and_leaves_nothing(tmp_path: Path, running: list[Demo]) -> None:
    lines = first_lines().decode().splitlines()
    log = tmp_path / "cut.tsv"
    log.write_text("\n".join(lines))  # the last line without its line end
    one = Demo(tmp_path, "--log", str(log), "--once", "--pond", str(tmp_path / "pond"))
    running.append(one)
    assert one.wait() == 0, one.err.read_text()
    out, err = one.out.read_text(), one.err.read_text()
    assert re.search(r"hits by .* visitors \(batch \d+", out)
    # The second batch of requests, and one without any, by which buckets would expire.
    assert re.search(r"^page_views +[\d,]+ +2 ", out, re.MULTILINE), out
    assert re.search(r"^page_visitors +[\d,]+ +1 ", out, re.MULTILINE), out
    assert "All input has been read." in err
    assert "WARN" not in err
    assert "Traceback" not in err
    assert "at org.apache" not in err
    one.wait_until_gone()
    assert not list(tmp_path.glob("millpond-demo-*"))

    hits = Counter(line.split("\t")[4].split("?")[0] for line in lines[1:])
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "replica") as pond:
        totals = {page: pond["page_views"].total(page=page) for page in {row["page"] for row in pond["page_views"].scan()}}
        assert {page: total["hits"] for page, total in totals.items()} == hits
        assert totals["/"].job_state == "stopped"


@pytest.mark.long
@pytest.mark.spark
def test_a_pond_that_was_deleted_is_begun_anew_over_the_replicas_of_the_old_one(tmp_path: Path, running: list[Demo]) -> None:
    log = tmp_path / "access.log"
    for pages in (30, 40):
        log.write_text("".join(f'h{n} - - [01/Jan/2026:00:00:00 +0000] "GET /{n % pages} HTTP/1.1" 200 1\n' for n in range(2000)))
        one = Demo(tmp_path, "--log", str(log), "--once", "--pond", str(tmp_path / "pond"))
        running.append(one)
        assert one.wait() == 0, one.err.read_text()
        with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home") as pond:
            assert pond["page_visitors"].count() == pages
            assert pond["page_views"].count() == 3 * pages  # a minute, an hour and a day of each
        shutil.rmtree(tmp_path / "pond")


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_running_demo_cleanly_within_seconds(tmp_path: Path, running: list[Demo], number: int) -> None:
    one = Demo(tmp_path, "--rate", "200")
    running.append(one)
    one.wait_for_output(r"\(batch \d+")
    assert len(one.processes()) > 1
    began = time.monotonic()
    # As on a terminal, the whole foreground group gets Ctrl-C.
    os.killpg(one.process.pid, number) if number == signal.SIGINT else one.process.send_signal(number)
    assert one.wait() == 0, one.err.read_text()
    assert time.monotonic() - began < 60
    one.wait_until_gone()
    assert "Traceback" not in one.err.read_text()
    assert not list(tmp_path.glob("millpond-demo-*"))


@pytest.mark.long
@pytest.mark.faults
def test_a_demo_that_was_killed_goes_on_and_counts_every_line_once(tmp_path: Path, running: list[Demo]) -> None:
    visits = list(iter_visits(VisitOptions(pages=50, hosts=500), 0, 9_000))
    log = tmp_path / "access.log"
    with log.open("w") as file:
        for row in visits:
            line = f'{row.host} - - [01/Jan/2026:00:00:00 +0000] "GET {row.url} HTTP/1.1" {row.status} {row.bytes}'
            file.write((row.text or line) + "\n")
    options = ("--log", str(log), "--pond", str(tmp_path / "pond"))
    first = Demo(tmp_path, *options)
    running.append(first)
    first.wait_for_output(r"page_views [\d,]+ rows at batch")
    first.kill()

    second = Demo(tmp_path, *options, "--once")
    running.append(second)
    assert second.wait() == 0, second.err.read_text()
    assert "continues from its checkpoint" in second.err.read_text()

    good = [row for row in visits if row.error is None]
    hosts = defaultdict(set)
    for row in good:
        hosts[row.page].add(row.host)
    hits, size = Counter(row.page for row in good), Counter[str | None]()
    for row in good:
        size[row.page] += row.bytes or 0
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "replica") as pond:
        visitors = {r["page"]: r["visitors"] for r in pond["page_visitors"].scan()}
        totals = {page: pond["page_views"].total(page=page) for page in visitors}
        found = {page: (total["hits"], total["bytes"], visitors[page]) for page, total in totals.items()}
        bad = [(r["file"], r["line"]) for r in pond["bad_lines"].scan()]
    assert found == {page: (n, size[page], len(hosts[page])) for page, n in hits.items()}
    assert sorted(bad) == [(str(log), n) for n, row in enumerate(visits, start=1) if row.error]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        ["--once", "--seconds", "5"],
        ["--once", "--log", "x", "--speed", "2"],
        ["--speed", "2"],
        ["--log", "x", "--rate", "2"],
        ["--log", "x", "--rows", "2"],
    ],
)
def test_options_that_contradict_each_other_are_refused_before_spark_starts(options: list[str]) -> None:
    ended = CliRunner().invoke(main.named("demo"), options)
    assert isinstance(ended.exception, MillpondError)
    assert ended.exception.condition == "INVALID_REQUEST"


@pytest.mark.long
def test_a_log_that_isn_t_there_is_refused_before_spark_starts(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main.named("demo"), ["--log", str(tmp_path / "none.log")])
    assert isinstance(ended.exception, MillpondError)
    assert ended.exception.condition == "FILE_MISSING"


@pytest.mark.long
def test_without_pyspark_the_demo_says_in_one_line_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from millpond.cli import main; main(['demo'])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 6
    assert ended.stderr.count("\n") == 1
    assert "[PYSPARK_MISSING]" in ended.stderr
    assert "pip install 'millpond[spark]'" in ended.stderr
