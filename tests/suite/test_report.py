"""The suite's own plugin: in CI a skipped test fails unless its reason is known; a group reports its times."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from suite.programs import started
from suite.waiting import wait_until

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]
SKIPPED = """
import pytest

def test_skipped():
    pytest.skip({reason!r})

@pytest.mark.xfail
def test_fails():
    assert False
"""


def command(folder: Path, *options: str, ci: bool) -> dict[str, Any]:
    """Arguments of `subprocess.run` for a run of pytest in that folder."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    # The plugins that are installed take seconds of a core to load, in each process.
    environment |= {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **({"CI": "true"} if ci else {})}
    plugins = [part for plugin in ("xdist", "suite.report", "no:cacheprovider") for part in ("-p", plugin)]
    # Without a folder of its own, pytest would first delete what earlier runs of the whole suite have left.
    options += (f"--basetemp={folder / 'base'}",)
    return {
        "args": [sys.executable, "-m", "pytest", "-q", *plugins, *options, str(folder)],
        "text": True,
        "env": environment,
        "cwd": folder,
    }


def run(folder: Path, *options: str, ci: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(**command(folder, *options, ci=ci), capture_output=True, timeout=300)


@pytest.mark.parametrize(
    ("text", "ci", "code"),
    [
        (SKIPPED.format(reason="no reason at all"), True, 1),
        (SKIPPED.format(reason="no reason at all"), False, 0),
        (SKIPPED.format(reason="this machine has no systemd-analyze"), True, 0),
        ("import pytest\npytest.importorskip('nobody_has_this')\n", True, 2),
    ],
)
def test_a_skipped_test_fails_in_ci_unless_its_reason_is_known(text: str, ci: bool, code: int, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(text)
    done = run(tmp_path, ci=ci)
    assert done.returncode == code, done.stdout
    assert ("KNOWN_REASONS" in done.stdout) == (code > 0)


def test_a_group_says_what_its_folders_took(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_one():\n    pass\n\ndef test_two():\n    pass\n")
    done = run(tmp_path, "--group", "small", "--budget", "0.0001", ci=False)
    assert done.returncode == 0, "a budget fails no test"
    assert "2 tests" in done.stdout
    assert "of a budget of 0.0001: OVER" in done.stdout


def test_the_time_left_goes_by_the_pace_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pathlib, suite.report\n"
        "suite.report.LINE_SECONDS = 0\n"
        "suite.report.DURATIONS = pathlib.Path(__file__).with_name('durations.json')\n"
    )
    (tmp_path / "durations.json").write_text('{"small": {"test_it.py": 600, "test_gone.py": 600}}')
    (tmp_path / "test_it.py").write_text("".join(f"def test_{n}():\n    pass\n\n" for n in range(4)))
    for processes in ((), ("-n", "2")):
        done = run(tmp_path, "--group", "small", *processes, ci=False)
        left = [float(minutes) for minutes in re.findall(r"about ([\d.]+) min to go", done.stdout)]
        # 600 seconds in one file; after the first test it is known that these take no time here.
        assert left[0] == (10.0 if not processes else 5.0)
        assert left[-1] == 0.0
        assert len(left) > 4


LATE = """
import pathlib
import pytest
from suite import waiting

waiting.LEAST_SECONDS = 0
TRIES = pathlib.Path(__file__).with_name("tries")

def once(test, seen):
    with TRIES.open("a") as file:
        file.write(test + "\\n")
    if TRIES.read_text().split().count(test) == 1:
        waiting.wait_until(lambda: seen, "a batch", seconds=0.01)

def test_late():
    once("late", [])

def test_sound():
    pass
"""
ALWAYS_LATE = "\ndef test_never():\n    waiting.wait_until(lambda: 'unseen' and 0, 'what never comes', seconds=0.01)\n"
WRONG_ONCE = """
def test_wrong_once():
    with TRIES.open("a") as file:
        file.write("wrong ")
    assert TRIES.read_text().count("wrong") > 1
"""
LATE_AND_WRONG = """
@pytest.fixture
def broken():
    yield
    assert 1 + 1 == 3

def test_with_a_broken_end(broken):
    once("broken", [])
"""


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_what_waited_in_vain_has_a_second_try_in_groups_with_real_jobs(processes: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LATE)
    done = run(tmp_path, "--group", "faults", *processes, ci=False)
    assert done.returncode == 0, done.stdout
    assert "FLAKY test_it.py::test_late: waited 0.01 s for a batch; saw last: []; alone it passed" in done.stdout
    assert "\nFAILED" not in done.stdout, "the failure was named as it came, and taken back"
    [flaky] = json.loads((tmp_path / "build" / "flaky.json").read_text())
    assert (flaky["test"], flaky["group"], flaky["alone"]) == ("test_it.py::test_late", "faults", "passed")


@pytest.mark.parametrize(
    ("group", "more", "failed", "tried"),
    [
        ("fast", "", "test_late", []),
        ("spark", ALWAYS_LATE, "test_never", ["test_late", "test_never"]),
        ("spark", WRONG_ONCE, "test_wrong_once", ["test_late"]),
        ("spark", LATE_AND_WRONG, "test_with_a_broken_end", ["test_late"]),
    ],
)
def test_nothing_else_has_one(group: str, more: str, failed: str, tried: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LATE + more)
    result = tmp_path / "result.json"
    result.write_text('{"another": {"tests": 1}}')
    done = run(tmp_path, "--group", group, "--result", str(result), ci=False)
    assert done.returncode == 1, done.stdout
    written = json.loads(result.read_text())
    assert set(written) == {"another", group}
    assert written[group]["failures"] == [f"test_it.py::{failed}"]
    assert [again["test"].partition("::")[2] for again in written[group]["flaky"]] == tried


def test_a_group_that_is_ended_by_a_signal_is_named(tmp_path: Path) -> None:
    wrong = "def test_wrong():\n    assert 'this' == 'that'\n\n"
    endless = "import time\n\ndef test_long():\n    open('began', 'w').close()\n    time.sleep(600)\n"
    (tmp_path / "test_it.py").write_text(wrong + endless)
    output, result = tmp_path / "output", tmp_path / "result.json"
    for group, processes in (("spark", ()), ("fast", ("-n", "2"))):
        options = ("--group", group, "--result", str(result), *processes)
        with output.open("w") as file, started(**command(tmp_path, *options, ci=False), stdout=file) as running:
            wait_until((tmp_path / "began").exists, "the test's begin", unless=running.poll)
            failed = re.compile(f"{group}: FAILED test_it.py::test_wrong")
            wait_until(partial(_matches, failed, output), "the failure's line, as it comes", unless=running.poll)
            assert "assert 'this' == 'that'" not in output.read_text()
            running.terminate()
            running.wait(timeout=60)
        said = output.read_text()
        assert running.returncode == 143
        assert f"SIGTERM in group {group}" in said
        assert "assert 'this' == 'that'" in said, "the failures of the run are shown at its end"
        assert not result.exists(), "a part of a group is no result"
        (tmp_path / "began").unlink()


def _matches(pattern: re.Pattern[str], file: Path) -> bool:
    return pattern.search(file.read_text()) is not None


@pytest.mark.long
def test_a_test_that_hangs_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    hangs = "import threading\n\ndef test_hangs():\n    threading.Event().wait()\n\n"
    (tmp_path / "test_it.py").write_text(hangs + "".join(f"def test_{n}():\n    pass\n\n" for n in range(9)))
    limit = ("-p", "pytest_timeout", "--timeout", "20", "--timeout-method", "thread", "-o", "faulthandler_timeout=15")
    done = run(tmp_path, "--group", "fast", "-n", "2", *limit, ci=True)
    assert done.returncode == 1, done.stdout
    assert re.search(r"^FAILED test_it.py::test_hangs", done.stdout, re.MULTILINE), done.stdout
    assert "1 failed, 9 passed" in done.stdout
    assert re.search(r"test_it.py., line 4 in test_hangs", done.stderr), "where it stands"
