"""Standard streams of a command: failed writes have an error of their own, and closed streams are safe.

A full disk under `> file` isn't a bug in Millpond.  If a stream was closed (`>&-`), the next file
that is opened would take its number, and then receive the output.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

from millpond.errors import SetupError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Out(io.FileIO):
    """Standard output with an error of its own for failed writes."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise  # the reader has ended, which isn't an error
        except OSError as broken:
            raise SetupError(
                "NOT_WRITABLE",
                f"The output can't be written: {broken.strerror}.",
                hint="Free some room, or write the output to another place.",
                stream="stdout",
            ) from broken


def guard_streams() -> None:
    """Make standard streams safe to use: once, before a command begins."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as long as the process lives
    old: Any = sys.stdout
    is_replaced = old is not sys.__stdout__  # by a program that runs commands by itself
    if old is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    elif not is_replaced:
        new = io.BufferedWriter(_Out(old.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(new, old.encoding, old.errors, line_buffering=old.line_buffering)


def drop_output() -> None:
    """Drop the output that isn't written yet: otherwise Python reports the error again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
