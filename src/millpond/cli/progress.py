"""The progress of a wait, on stderr: one line that changes on a terminal, a line now and then elsewhere.

A wait that is over at once writes nothing.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from millpond.cli.terminal import visible

_QUIET_SECONDS = 0.5
_TERMINAL_SECONDS = 0.1
_PIPE_SECONDS = 5.0


class Progress:
    """Call it with each new text, which follows the first word."""

    def __init__(self, word: str = "catching up") -> None:
        self._word = word
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + _QUIET_SECONDS
        self._written = False

    def __enter__(self) -> Progress:
        return self

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_TERMINAL_SECONDS if self._terminal else _PIPE_SECONDS)
        self._written = True
        line = f"{self._word}: {visible(text)}"
        sys.stderr.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        if self._terminal and self._written:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
