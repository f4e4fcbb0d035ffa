"""Two folders of a local disk exchange their names, in one step of the system."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from millpond.storage.local import sync_folder

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# The file system, the system or its C library can't do it.
_IMPOSSIBLE = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM})


def try_exchange(first: Path, second: Path) -> bool:
    """Let each have the other's name; False if that isn't possible here, and then nothing changed.

    Nobody ever sees one of the names missing.  Raises OSError if one of them doesn't exist, or may
    not be changed.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        for parent in {first.parent, second.parent}:
            sync_folder(parent)
        return True
    number = ctypes.get_errno()
    if number in _IMPOSSIBLE:
        return False
    raise OSError(number, os.strerror(number), str(first))


def rename(old: Path, new: Path) -> None:
    """Give a folder another name, which nothing has yet; it survives a crash of the machine."""
    os.rename(old, new)
    sync_folder(new.parent)
