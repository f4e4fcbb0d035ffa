"""What signals mean to a server: SIGTERM and SIGINT end it, SIGHUP has it read its tokens and certificate again.

A SIGHUP that says that the server's terminal is gone ends it: nobody could end it otherwise.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from millpond.logs import EventLog

log = EventLog(__name__)
ENDING = (signal.SIGTERM, signal.SIGINT)


class Terminal:
    """The terminal that this process was started from, if any."""

    def __init__(self) -> None:
        self._was_there = _is_there()

    @property
    def is_gone(self) -> bool:
        """Whether there was one, and isn't any more."""
        return self._was_there and not _is_there()


def _is_there() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def say_end(number: int) -> None:
    """Say by which signal the server ends."""
    log.info("server.ends", signal=signal.Signals(number).name)


@contextmanager
def hangups_blocked() -> Iterator[None]:
    """Processes that are started meanwhile don't get SIGHUP until they ask for it; by default it would end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_hangups() -> None:
    """Get SIGHUP from here on."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
