"""Commands of workers in the background: they show how far the worker is, and write its metrics to a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from millpond.cli.progress import Progress
from millpond.cli.terminal import say
from millpond.errors import MillpondError
from millpond.signals import stop_signals
from millpond.storage import open_storage

_LOOK_SECONDS = 0.2
_METRICS_SECONDS = 5.0


class _Status(Protocol):
    """How far a worker is."""

    @property
    def state(self) -> str: ...

    @property
    def last_error(self) -> MillpondError | None: ...


Status = TypeVar("Status", bound=_Status)
Shown = TypeVar("Shown", bound=_Status, covariant=True)


class Worker(Protocol[Shown]):
    """An archiver, or a sender."""

    def run(self, *, once: bool) -> None: ...

    def start(self) -> AbstractContextManager[Any]: ...

    def status(self) -> Shown: ...


@dataclass(frozen=True, slots=True)
class WorkerCommand(Generic[Status]):
    """See the module.

    title:    of the line that shows how far the worker is
    words:    that line
    metrics:  in Prometheus' text format
    file:     for these metrics; None for none
    """

    title: str
    worker: Worker[Status]
    words: Callable[[Status], str]
    metrics: Callable[[Status], str]
    file: Path | None

    def once(self) -> None:
        """Return when all is done that can be done now."""
        try:
            self.worker.run(once=True)
        finally:
            self._write(self.worker.status())
        say(self.words(self.worker.status()))

    def follow(self, note: Callable[[Status], None] | None = None) -> None:
        """Return at Ctrl-C or SIGTERM, or when the worker has ended.

        note:    is called at each look
        Raises:  the worker's last error, if it has ended by itself.
        """
        with stop_signals() as ending, Progress(self.title) as line, self.worker.start():
            failing, metrics_at = "", 0.0
            while not ending.wait(_LOOK_SECONDS):
                status = self.worker.status()
                line(self.words(status))
                if note is not None:
                    note(status)
                now_failing = "" if status.last_error is None else status.last_error.condition
                if status.last_error is not None and now_failing != failing:
                    say(str(status.last_error))
                failing = now_failing
                if time.monotonic() >= metrics_at:
                    self._write(status)
                    metrics_at = time.monotonic() + _METRICS_SECONDS
                if status.state == "ended":
                    break
        status = self.worker.status()
        self._write(status)
        if not ending.is_set() and status.last_error is not None:
            raise status.last_error
        say(self.words(status))

    def _write(self, status: Status) -> None:
        if self.file is not None:
            open_storage(self.file.absolute().parent).write(self.file.name, self.metrics(status).encode())
