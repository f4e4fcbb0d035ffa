"""`millpond run`, with real programs that need no Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millpond.catalogue import create_job
from millpond.operate.run.runner import Runner, Status
from millpond.ownership.runs import Run, begin_run, change_run, read_runs
from millpond.settings import RunSettings
from millpond.storage import open_storage
from suite.programs import started
from suite.waiting import wait_until

QUICK = RunSettings(first_pause_seconds=0.01, most_pause_seconds=0.05, most_idle_runs=3, look_seconds=0.02)


def program(folder: Path, text: str) -> Path:
    """A file with this program, whose first argument is its folder."""
    path = folder / "program.py"
    path.write_text(text)
    return path


def run(path: Path, settings: RunSettings = QUICK) -> tuple[Status, list[Status]]:
    """Run it until it isn't started again; how it ended, and all that was said meanwhile."""
    said: list[Status] = []
    return Runner(path, [str(path.parent)], settings=settings, say=said.append).run(), said


COUNTED = """
import os, sys
from pathlib import Path
runs = Path(sys.argv[1], "runs")
with runs.open("a") as file:
    file.write("run ")
run = len(runs.read_text().split())
"""


def test_a_program_that_ends_well_runs_once(tmp_path: Path) -> None:
    """It sees its arguments, its own folder for imports, and `__main__`."""
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    text = COUNTED + "import beside\nassert __name__ == '__main__' and beside.WORD == 'found' and sys.argv[0] == __file__\n"
    status, _ = run(program(tmp_path, text))
    assert status.last is not None
    assert (status.runs, status.last.is_good, status.why_final) == (1, True, "")


def test_a_program_that_fails_is_started_again(tmp_path: Path) -> None:
    """Whatever ended it, until it ends well."""
    text = (
        COUNTED + "if run == 1:\n    raise ConnectionError('the broker is away')\n"
        "if run == 2:\n    os.kill(os.getpid(), 9)\nif run == 3:\n    sys.exit(7)\nif run == 4:\n    os.kill(os.getpid(), 15)\n"
        "sys.exit(0)\n"
    )
    status, said = run(program(tmp_path, text), RunSettings(first_pause_seconds=0.01, look_seconds=0.02, most_idle_runs=5))
    assert status.last is not None
    assert (status.runs, status.last.is_good) == (5, True)
    failed = [each.last.name for each in said if each.state == "pausing" and each.last is not None]
    assert failed == ["ConnectionError", "SIGKILL", "exit code 7", "SIGTERM"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def (", "SyntaxError"),
        (
            "from millpond.errors import CheckpointError\ntry:\n    1 / 0\nexcept ZeroDivisionError as cause:\n"
            "    raise ValueError('state') from CheckpointError('DEFINITION_CHANGED', 'Other.', hint='Look.')",
            "DEFINITION_CHANGED",
        ),
    ],
)
def test_an_error_that_comes_again_in_any_case_ends_it(tmp_path: Path, text: str, name: str) -> None:
    """Whether it is the error itself, or its cause."""
    status, _ = run(program(tmp_path, text))
    assert status.last is not None
    assert (status.runs, status.last.name) == (1, name)
    assert status.why_final == "it would fail again in the same way"
    assert status.last.advice.hint


@pytest.mark.long
def test_runs_without_a_commit_end_it(tmp_path: Path) -> None:
    """As many as the settings say; the pauses double up to the longest."""
    settings = RunSettings(first_pause_seconds=0.01, most_pause_seconds=0.02, jitter=0, most_idle_runs=4, look_seconds=0.02)
    status, said = run(program(tmp_path, "raise OSError('again')"), settings)
    assert status.runs == 4
    assert status.why_final == "4 runs in a row have committed nothing"
    assert [each.pause_seconds for each in said if each.state == "pausing"] == [0.01, 0.02, 0.02]


@pytest.mark.long
def test_a_run_with_a_commit_makes_the_next_pause_short_again(tmp_path: Path) -> None:
    """Though its process was killed: its commits count by the checkpoint."""
    folder = create_job(tmp_path / "pond", "counts")
    text = (
        COUNTED + "from millpond.catalogue import job_of\nfrom millpond.spark.supervised import note_start\n"
        "folder = job_of(sys.argv[1] + '/pond', 'counts')\nnote_start(folder)\n"
        "commits = Path(folder.checkpoint.removeprefix('file://'), 'commits')\ncommits.mkdir(parents=True, exist_ok=True)\n"
        "if run in (2, 4):\n    (commits / str(run)).write_text('v1\\n{}')\n"
        "if run == 5:\n    sys.exit(0)\nos.kill(os.getpid(), 9)\n"
    )
    settings = RunSettings(first_pause_seconds=0.01, most_pause_seconds=1, jitter=0, most_idle_runs=3, look_seconds=0.02)
    status, said = run(program(tmp_path, text), settings)
    assert status.last is not None
    assert (status.runs, status.last.is_good) == (5, True)
    assert [each.pause_seconds for each in said if each.state == "pausing"] == [0.01, 0.01, 0.02, 0.01]
    assert folder.job == "counts"


@pytest.mark.long
def test_a_job_that_fails_has_no_progress_by_another(tmp_path: Path) -> None:
    """One job commits in each run, and the program fails: by an error that names no job, then by one of the other job."""
    for name in ("a", "b"):
        create_job(tmp_path / "pond", name)
    text = (
        COUNTED + "from millpond.catalogue import job_of\nfrom millpond.spark.supervised import note_start\n"
        "for name in ('a', 'b'):\n    folder = job_of(sys.argv[1] + '/pond', name)\n    note_start(folder)\n"
        "    if name == 'a':\n        commits = Path(folder.checkpoint.removeprefix('file://'), 'commits')\n"
        "        commits.mkdir(parents=True, exist_ok=True)\n        (commits / str(run)).write_text('v1\\n{}')\n"
        "failed = OSError('poison')\nif run == 2:\n    failed.millpond_job = 'a'\nraise failed\n"
    )
    status, _ = run(program(tmp_path, text))
    assert (status.runs, status.why_final) == (5, "3 runs in a row have committed nothing")


def test_whatever_the_program_leaves_the_next_run_begins(tmp_path: Path) -> None:
    """A thread that goes on, a process, an error that can't be written down, a folder that is gone; the caller's orders."""
    text = (
        "import subprocess, threading, time, shutil, os\n" + COUNTED + "assert 'MILLPOND_DRILL_POND' not in os.environ\n"
        "left = subprocess.Popen(['sleep', '300'])\nwith open(sys.argv[1] + '/left', 'a') as file:\n"
        "    file.write(f'{left.pid} ')\n"
        "threading.Thread(target=time.sleep, args=(300,)).start()\n"
        "if run == 1:\n    raise OSError('x\\udcff')\n"
        "if run == 2:\n    shutil.rmtree(os.path.dirname(os.environ['MILLPOND_RUN_FOLDER']))\n    raise OSError('gone')\n"
        "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\n"
        "if run == 3:\n    raise Odd\n"
        "os._exit(0)\n"
    )
    said: list[Status] = []
    settings = RunSettings(first_pause_seconds=0.01, most_idle_runs=4, look_seconds=0.02, group_seconds=0.2)
    environment = {**os.environ, "MILLPOND_DRILL_POND": "/nowhere", "MILLPOND_RUN_STANDBY": "1"}
    runner = Runner(program(tmp_path, text), [str(tmp_path)], settings=settings, say=said.append, environment=environment)
    status = runner.run()
    assert status.last is not None
    assert (status.runs, status.last.is_good) == (4, True), status.last
    names = [each.last.name for each in said if each.state == "pausing" and each.last is not None]
    assert names == ["OSError", "OSError", "exit code 1"]
    for pid in (tmp_path / "left").read_text().split():
        wait_until(lambda pid=pid: not is_running(int(pid)), "the end of what the program has left")


@pytest.mark.long
def test_the_hint_of_our_own_error_is_kept(tmp_path: Path) -> None:
    """Where there is no better one."""
    text = "from millpond.errors import library_missing\nraise library_missing('duckdb', 'sql')\n"
    status, _ = run(program(tmp_path, text))
    assert status.last is not None
    assert status.last.advice.hint == "Run: pip install 'millpond[sql]'"


WAITS = (
    COUNTED
    + """
import time
try:
    Path(sys.argv[1], "pid").write_text(str(os.getpid()))
    Path(sys.argv[1], "began").touch()
    while True:
        time.sleep(0.05)
finally:
    Path(sys.argv[1], "cleaned").touch()
"""
)


def wait_for(path: Path) -> None:
    """Until a file is there."""
    wait_until(path.exists, f"the file `{path.name}`")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_stop_lets_the_program_clean_up(tmp_path: Path) -> None:
    """And begins no other run."""
    runner = Runner(program(tmp_path, WAITS), [str(tmp_path)], settings=QUICK)
    found: list[Status] = []
    working = threading.Thread(target=lambda: found.append(runner.run()))
    working.start()
    wait_for(tmp_path / "began")
    runner.stop()
    working.join(60)
    assert (tmp_path / "cleaned").exists()
    assert (found[0].runs, found[0].state) == (1, "ended")


@pytest.mark.long
def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """With all that it has started."""
    text = "import signal\n" + WAITS.replace("import time\n", "import time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n")
    settings = RunSettings(look_seconds=0.02, end_seconds=0.3)
    runner = Runner(program(tmp_path, text), [str(tmp_path)], settings=settings)
    found: list[Status] = []
    working = threading.Thread(target=lambda: found.append(runner.run()))
    working.start()
    wait_for(tmp_path / "began")
    runner.stop()
    working.join(60)
    assert found[0].last is not None
    assert found[0].last.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_command_takes_the_program_with_it(tmp_path: Path, number: signal.Signals) -> None:
    """However it ends; a program of which nobody would know any more doesn't go on."""
    path = program(tmp_path, WAITS)
    words = [sys.executable, "-m", "millpond.cli", "run", str(path), str(tmp_path)]
    with started(words, stderr=subprocess.PIPE) as command:
        wait_for(tmp_path / "began")
        command.send_signal(number)
        command.communicate(timeout=60)
    assert command.returncode == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    wait_for(tmp_path / "cleaned")
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_running(pid), "the end of the program")


@pytest.mark.long
def test_the_command_says_why(tmp_path: Path) -> None:
    """On stderr, with a hint, and by its exit code."""
    path = program(tmp_path, "import nothing_of_this_name")
    words = [sys.executable, "-m", "millpond.cli", "run", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 5
    assert "[JOB_FAILED]" in done.stderr
    assert "[ModuleNotFoundError] No module named 'nothing_of_this_name'" in done.stderr
    assert "Mend the program" in done.stderr


def test_runs_are_kept_and_bounded(tmp_path: Path) -> None:
    """The newest hundred, and how many there were."""
    storage = open_storage(tmp_path)
    assert read_runs(storage).count == 0
    for number in range(130):
        begin_run(storage, Run(began_ms=number, host="h" * 64, batch=number))
    change_run(storage, Run(began_ms=129, host="h" * 64, batch=129, committed_ms=5129, ended_ms=6000, error="E" * 100))
    change_run(storage, Run(began_ms=77, host="h" * 64, committed_ms=1))  # another one is the newest
    found = read_runs(storage)
    assert (found.count, [run.began_ms for run in found.runs]) == (130, list(range(30, 130)))
    assert [run.committed_ms for run in found.runs] == [None] * 99 + [5129]
    assert found.runs[-1].recovery_seconds == 5.0


def test_a_damaged_file_of_runs_stops_no_job(tmp_path: Path) -> None:
    """It is begun anew."""
    storage = open_storage(tmp_path)
    storage.write("runs.json", b'{"format": 1, "count": "many"}')
    begin_run(storage, Run(began_ms=1, host="here"))
    assert read_runs(storage).count == 1
