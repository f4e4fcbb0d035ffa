"""Signals that ask a command to end."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator
from types import FrameType


class SignalEvent:
    """An event that a handler of signals may set.

    `threading.Event` has a lock.  A handler runs in the main thread, wherever that is: if it is within
    the lock, as in the handler of the signal before, it would wait for itself for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()  # its `put` may interrupt its `put` and `get`

    def set(self) -> None:
        """Let all go on that wait, from here on."""
        self._is_set = True
        self._queue.put(None)

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or so many seconds; returns whether it is."""
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=timeout)
                self._queue.put(None)  # for others that wait
        return self._is_set


@contextlib.contextmanager
def stop_signals() -> Iterator[SignalEvent]:
    """Within this context, Ctrl-C and SIGTERM set the event and don't end the process."""
    ending = SignalEvent()

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
