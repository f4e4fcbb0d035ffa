"""A folder that the processes of one server share, and that only this user may enter.

Each process of the server has a shared lock on it.  A process that gets the exclusive lock knows
that no other process uses the folder, and removes it: the last one of a server whose parent was
killed, or a server that starts later.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "millpond-serve-"
_LOCK = "lock"
# The path of a Unix socket has 107 bytes at most.
_LONGEST_PATH = 60


@contextmanager
def shared_folder() -> Iterator[Path]:
    """The folder of a new server; this also removes folders of servers that have ended."""
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > _LONGEST_PATH:
        parent = Path("/tmp")  # noqa: S108 - mkdtemp's names are its own
    for left in parent.glob(f"{_PREFIX}*"):
        if left.lstat().st_uid == os.getuid():
            _remove_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    begun = folder / f"{_LOCK}.new"
    lock = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    begun.rename(folder / _LOCK)  # the lock is held before others can find it
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def staying_in(folder: Path | None) -> Iterator[None]:
    """Use the folder; afterwards remove it if the server's parent and all other processes have ended."""
    if folder is None:
        yield
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)
        _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return  # another process makes or removes it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # another process uses it
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
