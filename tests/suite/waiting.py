"""How tests wait: they watch for the event, never for the clock.

A busy machine may delay anything.  So nobody waits for less than LEAST_SECONDS, and what doesn't come is one type, `TimedOut`.
The suite's plugin runs a test of the groups `spark` and `faults` once more if it ended with that type, and with no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60
LEAST_SECONDS = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1


class TimedOut(AssertionError):
    """What a test waited for didn't come: the message names it, and what was seen last."""

    def __init__(self, what: str, seconds: float, last: object) -> None:
        super().__init__(f"waited {seconds:g} s for {what}; saw last: {last!r:.2000}")


def wait_until(
    condition: Callable[[], T],
    what: str,
    *,
    seconds: float = PATIENCE_SECONDS,
    unless: Callable[[], object] | None = None,
    ignoring: tuple[type[BaseException], ...] = (),
) -> T:
    """Return the condition's first value that is true.

    Args:
        what:      what is waited for, for the error
        seconds:   how long at most; not below LEAST_SECONDS
        unless:    ends the wait at once when it is true: the event can't come any more, as when a process has ended
        ignoring:  errors of the condition that mean "not yet"

    Raises: TimedOut, with the last value or error of the condition; AssertionError if `unless` came true first.
    """
    last: object = None
    for pause in _pauses(seconds):
        try:
            if seen := condition():
                return seen
            last = seen
        except ignoring as error:
            last = error
        if unless is not None and (ended := unless()):
            raise AssertionError(f"{what} can't come any more: {ended!r:.3000}; saw last: {last!r:.2000}")
        time.sleep(pause)
    raise TimedOut(what, seconds, last)


async def wait_until_async(
    condition: Callable[[], Awaitable[T] | T],
    what: str,
    *,
    seconds: float = PATIENCE_SECONDS,
    ignoring: tuple[type[BaseException], ...] = (),
) -> T:
    """As `wait_until`, without blocking the event loop.  The condition may be awaitable."""
    last: object = None
    for pause in _pauses(seconds):
        try:
            answer = condition()
            if seen := await answer if isinstance(answer, Awaitable) else answer:
                return seen
            last = seen
        except ignoring as error:
            last = error
        await asyncio.sleep(pause)
    raise TimedOut(what, seconds, last)


def stays(condition: Callable[[], object], what: str, *, seconds: float = 0.5) -> None:
    """Fail as soon as it isn't true any more.  On a busy machine such a test sees less; it never fails for that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"it didn't stay so: {what}"
        time.sleep(_FIRST_PAUSE)
    assert condition(), f"it didn't stay so: {what}"


def _pauses(seconds: float) -> Iterator[float]:
    """How long to sleep after each look.  There is one look at least after the deadline: a paused process isn't late."""
    assert seconds >= LEAST_SECONDS, f"a busy machine delays anything: wait for {LEAST_SECONDS} s at least"
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while time.monotonic() < deadline:
        yield pause
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    yield 0
