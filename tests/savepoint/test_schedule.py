"""Scheduled savepoints: made at intervals, old ones deleted by a rule, others left alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.manage.prune import keep_of
from millpond.savepoint.manage.schedule import Schedule
from spark_files.checkpoint import WrittenCheckpoint
from suite.programs import started
from suite.waiting import stays, wait_until

HOUR = 3_600_000


def names(place: Path) -> list[str]:
    return [found.manifest.name for found in list_savepoints(place).found]


def commit(job: WrittenCheckpoint) -> None:
    job.plan([("a", job.next_batch)], snapshot=True)
    job.commit()


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    written = WrittenCheckpoint(tmp_path / "ck")
    commit(written)
    return written


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clock by which savepoints are made, which goes an hour at a time."""
    now = [time.time_ns()]
    monkeypatch.setattr("millpond.savepoint.describe.time.time", lambda: now[0] / 1e9)
    monkeypatch.setattr("millpond.savepoint.manage.prune.time.time_ns", lambda: now[0])
    return now


def test_a_savepoint_an_hour_and_the_newest_three_stay(job: WrittenCheckpoint, tmp_path: Path, clock: list[int]) -> None:
    plan_savepoint(tmp_path / "ck", "by-hand").run()
    made = []
    for _ in range(6):
        # Each time a new program: a schedule has no state of its own.
        schedule = Schedule(tmp_path / "ck", "1h", keep=keep_of(last=3))
        now_ms = clock[0] // 1_000_000
        schedule.step(now_ms)
        made.append(schedule.status().newest)
        commit(job)
        left = schedule.step(now_ms + HOUR // 2)
        assert abs(left - HOUR // 2) < 1000
        assert schedule.status().made == 1
        clock[0] += HOUR * 1_000_000
    assert names(tmp_path / "ck") == ["by-hand", *made[-3:]]
    assert schedule.status().deleted == 1
    schedule = Schedule(tmp_path / "ck", "1h", keep=keep_of(last=3))
    schedule.step(clock[0] // 1_000_000)
    clock[0] += 2 * HOUR * 1_000_000
    schedule.step(clock[0] // 1_000_000)
    assert schedule.status().made == 1, "a second savepoint of one batch"


def test_the_newest_stays_whatever_the_rule_says(job: WrittenCheckpoint, tmp_path: Path, clock: list[int]) -> None:
    schedule = Schedule(tmp_path / "ck", "1h", keep=keep_of(keep_for="2h"))
    schedule.step(clock[0] // 1_000_000)
    clock[0] += 50 * HOUR * 1_000_000
    schedule.step(clock[0] // 1_000_000)
    assert len(names(tmp_path / "ck")) == 1


def test_what_a_killed_program_left_is_deleted_after_a_day(job: WrittenCheckpoint, tmp_path: Path, clock: list[int]) -> None:
    left = tmp_path / "ck.millpond/savepoints/scheduled-20260301T120000.000Z"
    left.mkdir(parents=True)
    (left / "claim.json").write_text("{}")
    mine = tmp_path / "ck.millpond/savepoints/mine"
    mine.mkdir()
    (mine / "claim.json").write_text("{}")
    Schedule(tmp_path / "ck", "1h", keep=keep_of(last=1)).step(clock[0] // 1_000_000)
    assert not left.exists()
    assert mine.exists()


def test_it_tries_again(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "ck")
    job.plan([("a", 1)], snapshot=True)
    with millpond.schedule_savepoints(tmp_path / "ck", "1h", keep_last=1) as schedule:
        error = wait_until(lambda: schedule.status().last_error, "the schedule's first error")
        assert error.condition == "NO_COMMITTED_BATCH"
        job.commit()
        wait_until(lambda: schedule.status().made, "the first savepoint")
    assert (schedule.status().made, schedule.status().last_error) == (1, None)


def test_wrong_words(job: WrittenCheckpoint, tmp_path: Path) -> None:
    for every in ("soon", "no", "forever", "0s"):
        with pytest.raises(MillpondError) as caught:
            Schedule(tmp_path / "ck", every, keep=keep_of(last=1))
        assert caught.value.condition == "INVALID_REQUEST"


@pytest.mark.long
def test_the_command(job: WrittenCheckpoint, tmp_path: Path) -> None:
    words = ["savepoint", "schedule", str(tmp_path / "ck"), "--every", "1h", "--keep-last", "2", "--count"]
    with started([sys.executable, "-m", "millpond.cli", *words], stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: names(tmp_path / "ck"), "the first savepoint", unless=lambda: process.poll() is not None)
        stays(lambda: len(names(tmp_path / "ck")) == 1, "one savepoint")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "made; 0 deleted" in said
    assert len(names(tmp_path / "ck")) == 1
