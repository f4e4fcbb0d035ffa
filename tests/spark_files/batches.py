"""Batches that are committed one after the other, by a thread, while a test does other things."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Batches(threading.Thread, ABC):
    """Commits batches until `end`."""

    def __init__(self, pause_seconds: float) -> None:
        super().__init__(daemon=True)
        self.raised: BaseException | None = None
        self._pause_seconds, self._ended = pause_seconds, threading.Event()

    @abstractmethod
    def batch(self) -> None:
        """Commit one."""

    def run(self) -> None:
        """Batch after batch."""
        try:
            while not self._ended.wait(self._pause_seconds):
                self.batch()
        except BaseException as error:  # noqa: BLE001 - `end` raises it
            self.raised = error

    def end(self) -> None:
        """Stop, if it has begun; raises what a batch raised."""
        self._ended.set()
        if self.is_alive():
            self.join()
        if self.raised is not None:
            raise self.raised
