"""A second try for tests that waited in vain: a real job may be late on a busy machine.

Only `TimedOut` is tried again, only in GROUPS, once, alone, after all others.  A wrong answer is one also if it comes once.
Each second try is printed as FLAKY with both outcomes, and written to build/flaky.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from suite.waiting import TimedOut

GROUPS = ("spark", "faults")
FLAKY = Path("build") / "flaky.json"
_REASON = "timed out"


def mark(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Note in a report that its test waited in vain; the note goes from a worker to the process that reports."""
    if call.excinfo is not None and call.excinfo.errisinstance(TimedOut):
        report.user_properties.append((_REASON, str(call.excinfo.value)))


def try_again(session: pytest.Session, group: str) -> list[dict[str, str]]:
    """Run what waited in vain once more, and take back the failures of those tests that pass now.

    Returns: for each second try the test, its group, what it first waited for, and how it ended alone.
    """
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    failed, errors = terminal.stats.get("failed", []), terminal.stats.get("error", [])
    times = Counter(report.nodeid for report in [*failed, *errors])
    late = {report.nodeid: dict(report.user_properties).get(_REASON) for report in failed if times[report.nodeid] == 1}
    tries = []
    for test, reason in late.items():
        if reason is None:
            continue
        command = [sys.executable, "-m", "pytest", "-q", *_plugins(session.config), test]
        done = subprocess.run(command, capture_output=True, text=True, cwd=session.config.rootpath)
        passed = done.returncode == 0
        tries.append({"test": test, "group": group, "first": reason, "alone": "passed" if passed else "failed"})
        if passed:
            failed[:] = [report for report in failed if report.nodeid != test]
            session.testsfailed -= 1
        else:
            terminal.write_line(done.stdout[-20_000:])
    if tries and not session.testsfailed and session.exitstatus == pytest.ExitCode.TESTS_FAILED:
        session.exitstatus = pytest.ExitCode.OK
    _write(session.config.rootpath / FLAKY, group, tries)
    return tries


def _plugins(config: pytest.Config) -> list[str]:
    """The plugins that were named on the command line: the second try is run as the first was."""
    return [part for name in config.getoption("plugins") for part in ("-p", name)]


def _write(path: Path, group: str, tries: list[Any]) -> None:
    others = [one for one in json.loads(path.read_text()) if one["group"] != group] if path.exists() else []
    if tries or path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(others + tries, indent=1) + "\n")
