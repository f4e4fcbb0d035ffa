"""A server's signals: SIGTERM and SIGINT end it; at SIGHUP it reads tokens and certificate again.

If SIGHUP means that the server's terminal is gone, the server ends: nobody could end it otherwise.
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
    """The terminal from which this process was started, if any."""

    def __init__(self) -> None:
        self._was_there = _is_there()

    @property
    def is_gone(self) -> bool:
        """Whether there was a terminal that no longer exists."""
        return self._was_there and not _is_there()


def _is_there() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def say_end(number: int) -> None:
    """Print which signal ends the server."""
    log.info("server.ends", signal=signal.Signals(number).name)


@contextmanager
def hangups_blocked() -> Iterator[None]:
    """A context whose new processes get no SIGHUP until `unblock_hangups`; it would end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_hangups() -> None:
    """Receive SIGHUP from here on."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
