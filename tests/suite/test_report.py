"""The suite's own plugin: in CI a skipped test fails unless its reason is known; a group reports its times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SKIPPED = """
import pytest

def test_skipped():
    pytest.skip({reason!r})

@pytest.mark.xfail
def test_fails():
    assert False
"""


def run(folder: Path, *options: str, ci: bool) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    # The plugins that are installed take seconds of a core to load, in each process.
    environment |= {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **({"CI": "true"} if ci else {})}
    plugins = [part for plugin in ("xdist", "suite.report", "no:cacheprovider") for part in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *options, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=300)


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
