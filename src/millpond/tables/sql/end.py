"""What one statement may take, and how another thread ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from millpond.errors import ReplicaError

_INTERRUPT_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlLimits:
    """What one statement may take; None for no limit.

    rows, bytes:   of its answer
    seconds:       from its start to the end of its answer
    memory_bytes:  of all statements of this process that run at the same time
    cache_bytes:   of columns of whole tables that this process keeps for statements at the same
                   batch; 0: none
    """

    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = 60.0
    memory_bytes: int = 1 << 30
    cache_bytes: int = 256 << 20


class SqlEnd:
    """Ends a statement from another thread, also one that begins only then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self._is_over = False

    def now(self) -> None:
        """End it: it raises READ_TOO_LONG."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
        if not was_over:
            threading.Thread(target=self._go_on, name="millpond-sql-end", daemon=True).start()

    def _go_on(self) -> None:
        # DuckDB forgets an interrupt that comes before it has begun, so one isn't enough.
        while True:
            with self._lock:
                if self._interrupt is None:
                    return
                self._interrupt()
            time.sleep(_INTERRUPT_SECONDS)

    def begin(self, interrupt: Callable[[], None]) -> None:
        """The statement begins.  Raises READ_TOO_LONG if it is over."""
        with self._lock:
            if self._is_over:
                raise ReplicaError("READ_TOO_LONG", "The statement was ended before it began.", hint="Ask again.")
            self._interrupt = interrupt

    def stop(self) -> None:
        """It can't be ended any more."""
        with self._lock:
            self._interrupt = None
