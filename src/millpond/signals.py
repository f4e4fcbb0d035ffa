"""Signals that ask a command to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Within this context, Ctrl-C and SIGTERM set the event and don't end the process."""
    ending = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        ending.set()

    # PySpark installs its own handler for SIGINT, which cancels Spark jobs and then raises
    # KeyboardInterrupt.
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
