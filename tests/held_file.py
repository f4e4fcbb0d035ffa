"""A file whose readers wait: for tests that look at what goes on while a file is being read."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held_file(path: Path) -> Iterator[Callable[[], None]]:
    """Put a pipe in the place of a file: who reads it, in whatever process, waits in the middle of it.  Gives what lets it go on.

    When it is let go, the file is as it was, and whoever waits gets what is in it.
    """
    content = path.with_name(f".{path.name}.held")
    path.rename(content)
    os.mkfifo(path)
    pipe = path.with_name(f".{path.name}.pipe")
    os.link(path, pipe)

    def let_go() -> None:
        if not pipe.exists():
            return
        data = content.read_bytes()
        content.replace(path)  # who comes from now on finds the file
        with open(_opened_by_a_reader(pipe), "wb") as into:
            into.write(data)
        pipe.unlink()

    try:
        yield let_go
    finally:
        let_go()


def _opened_by_a_reader(pipe: Path) -> int:
    """The pipe, to be written to, as soon as somebody reads it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as nobody:
            if nobody.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
            continue
        os.set_blocking(descriptor, True)
        return descriptor
