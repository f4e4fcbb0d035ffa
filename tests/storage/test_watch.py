"""A waiter learns of a new file at once; without one it waits as long as it wanted, and no longer."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from millpond.storage import watch
from millpond.storage.watch import FolderWatch
from suite.waiting import wait_until

LONG = 120.0


@pytest.fixture(params=["notified", "polls"])
def is_notified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test with the system's notifications, and without."""
    if request.param == "notified":
        return True
    monkeypatch.setattr(watch, "_open", lambda: (-1, -1))
    return False


def appear(folder: Path, name: str) -> None:
    """Write a file as Spark does."""
    temporary = folder / f".{name}.tmp"
    temporary.write_text("")
    temporary.rename(folder / name)


def test_a_file_ends_the_wait(tmp_path: Path) -> None:
    waiting = FolderWatch(tmp_path)
    assert not waiting.wait(0.01)
    threading.Timer(0.05, appear, (tmp_path, "5")).start()
    began = time.monotonic()
    assert waiting.wait(LONG)
    assert time.monotonic() - began < LONG / 2
    assert not waiting.wait(0.01)
    waiting.close()


def test_files_that_came_since_the_last_wait_end_the_next(tmp_path: Path) -> None:
    waiting = FolderWatch(tmp_path)
    assert not waiting.wait(0.01)
    for batch in range(3):
        appear(tmp_path, str(batch))
    assert waiting.wait(LONG)
    assert not waiting.wait(0.01)
    waiting.close()


def test_hidden_files_dont_count(tmp_path: Path) -> None:
    waiting = FolderWatch(tmp_path)
    waiting.wait(0.01)
    appear(tmp_path, ".5.crc")
    assert not waiting.wait(0.05)
    waiting.close()


@pytest.mark.long
def test_a_folder_may_come_later_and_be_replaced(tmp_path: Path) -> None:
    commits = tmp_path / "commits"
    waiting = FolderWatch(commits)
    assert not waiting.wait(0.01)
    commits.mkdir()
    for name in ("old", "older"):
        # The folder is looked up again after a while.
        wait_until(lambda: appear(commits, "5") or waiting.wait(0.2), "the news of a file")
        commits.rename(tmp_path / name)
        commits.mkdir()
        while waiting.wait(0.05):
            pass
    waiting.close()


def test_anybody_wakes_the_one_who_waits(tmp_path: Path, is_notified: bool) -> None:
    waiting = FolderWatch(tmp_path)
    threading.Timer(0.05, waiting.wake).start()
    began = time.monotonic()
    assert not waiting.wait(LONG)
    waiting.wake()
    assert not waiting.wait(LONG)
    assert time.monotonic() - began < LONG / 2
    waiting.close()
    waiting.wake()
    assert not waiting.wait(LONG)


def test_time_ends_the_wait(tmp_path: Path, is_notified: bool) -> None:
    waiting = FolderWatch(tmp_path)
    began = time.monotonic()
    assert not waiting.wait(0.1)
    assert 0.09 < time.monotonic() - began < LONG
    waiting.close()
