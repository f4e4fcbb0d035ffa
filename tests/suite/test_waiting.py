"""Waiting: for the event, with a limit, and with an error that says what was waited for."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time

import pytest

from suite import programs, waiting
from suite.programs import started
from suite.waiting import TimedOut, stays, wait_until, wait_until_async


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LEAST_SECONDS", 0)


def test_the_first_true_value_is_returned() -> None:
    numbers = itertools.count()
    assert wait_until(lambda: next(numbers) > 3 and "there", "a number above three") == "there"

    async def awaited() -> tuple[str, str]:
        async def later() -> str:
            return "awaited" if next(numbers) > 8 else ""

        return await wait_until_async(later, "eight"), await wait_until_async(lambda: "plain", "nothing")

    assert asyncio.run(awaited()) == ("awaited", "plain")


@pytest.mark.usefixtures("impatient")
def test_what_doesnt_come_is_named_with_what_was_seen_last() -> None:
    for wait in (wait_until, lambda *a, **k: asyncio.run(wait_until_async(*a, **k))):
        with pytest.raises(TimedOut, match=r"waited 0.05 s for a batch; saw last: \[\]"):
            wait(list, "a batch", seconds=0.05)
        with pytest.raises(TimedOut, match=r"saw last: ConnectionError\('refused'\)"):
            wait(_refused, "a server", seconds=0.05, ignoring=(OSError,))
        with pytest.raises(ConnectionError):
            wait(_refused, "a server", seconds=0.05)


def test_nobody_waits_less_than_a_busy_machine_needs() -> None:
    with pytest.raises(AssertionError, match="20 s at least"):
        wait_until(lambda: True, "anything", seconds=5)


def test_a_wait_ends_when_the_event_can_no_longer_come() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(AssertionError, match="a file can't come any more: 3") as caught:
        wait_until(lambda: None, "a file", unless=process.poll)
    assert not isinstance(caught.value, TimedOut), "the test isn't run again for it"


@pytest.mark.usefixtures("impatient")
def test_there_is_a_look_after_the_deadline() -> None:
    """As when the machine stops the whole test for a minute."""
    began = time.monotonic()

    def late() -> bool:
        time.sleep(0.05)
        return time.monotonic() - began > 0.09

    assert wait_until(late, "the second look", seconds=0.01)


def test_what_stays_is_watched_for_a_while() -> None:
    numbers = itertools.count()
    with pytest.raises(AssertionError, match="it didn't stay so: below four"):
        stays(lambda: next(numbers) < 4, "below four", seconds=20)
    stays(lambda: True, "true", seconds=0.01)


def _refused() -> None:
    raise ConnectionError("refused")


def test_a_program_ends_with_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the test fails, and if the program goes on."""
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(ValueError, match="fails"), started(waits) as failed:
        raise ValueError("the test fails")
    monkeypatch.setattr(programs, "PATIENCE_SECONDS", 0.05)
    with pytest.raises(subprocess.TimeoutExpired), started(waits) as goes_on:
        pass
    assert failed.returncode == goes_on.returncode == -9
    monkeypatch.undo()
    with started([sys.executable, "-c", "pass"]) as ended:
        pass
    assert ended.returncode == 0
