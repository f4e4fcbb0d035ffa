"""Standard streams of a command: what can't be written is an error of its own, and a stream that is closed isn't another file.

A full disk under `> file` is no mistake of ours.  Where a stream was closed (`>&-`), the next file that is opened would take its
number, and then get what is printed.
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
    """Standard output, which says what is wrong with it."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise  # the reader has seen enough: no error
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
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
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
    """Throw away what is still to be written: without this Python complains once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
