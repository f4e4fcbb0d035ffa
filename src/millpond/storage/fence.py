"""Untrusted files: opened without waiting, never outside a fence, never beyond a size.

1. Look the path up without opening the file (O_PATH), so that a FIFO without a writer or a device
   does nothing.
2. Ask the system where the file really is, after all links.  Refuse it outside the fence.
3. It must be a regular file of at most so many bytes; for a list of names, a folder.
4. Open that very file, not its name again, which may mean another file by now.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from millpond.errors import CheckpointError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Fence:
    """The folders in which files may lie, wherever symbolic links lead."""

    def __init__(self, folders: Iterable[str]) -> None:
        """Folders by their paths; they needn't exist yet."""
        self._named = tuple(os.path.abspath(folder) for folder in folders)
        self._real = tuple(map(os.path.realpath, self._named))

    def holds(self, path: str) -> bool:
        """Whether a path without links lies in one of the folders."""
        if any(is_below(path, folder) for folder in self._real):
            return True
        self._real = tuple(map(os.path.realpath, self._named))  # a folder may have been made or moved since
        return any(is_below(path, folder) for folder in self._real)


def is_below(path: str, folder: str) -> bool:
    """Whether a path is that of a folder, or of something in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def open_file(path: str, fence: Fence, most_bytes: int) -> int:
    """The descriptor of a regular file, at its beginning.

    Raises:  CORRUPT_FILE if it is something else, or larger; PLACE_NOT_ALLOWED; OSError if it can't
             be looked up or read; ValueError if the path isn't possible.
    """
    found = _look_up(path, fence, os.O_PATH)
    try:
        facts = os.fstat(found)
        if not stat.S_ISREG(facts.st_mode):
            kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "something else")
            raise _refused(path, f"is {kind}, not a file", "Remove it, and restore the file from a copy.")
        if facts.st_size > most_bytes:
            raise too_large(path, facts.st_size, most_bytes)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(found)


def open_folder(path: str, fence: Fence) -> int:
    """The descriptor of a folder, for its list.

    Raises:  PLACE_NOT_ALLOWED; OSError and ValueError as `open_file`.
    """
    found = _look_up(path, fence, os.O_PATH | os.O_DIRECTORY)
    try:
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)


def stat_link(path: str, fence: Fence) -> os.stat_result:
    """The facts of a link's target.  Raises as `open_folder`."""
    found = _look_up(path, fence, os.O_PATH)
    try:
        return os.fstat(found)
    finally:
        os.close(found)


def too_large(path: str, size_bytes: int, most_bytes: int) -> CheckpointError:
    """A file is larger than one of its kind can be."""
    what = f"has {size_bytes:,} bytes, but a file of its kind has at most {most_bytes:,}"
    return _refused(path, what, "Look at what wrote the file, and restore it from a copy.")


def not_allowed(path: str, place: str) -> CheckpointError:
    """A pond or checkpoint names a place that nobody has allowed."""
    return CheckpointError(
        "PLACE_NOT_ALLOWED",
        f"{path} leads to {place}, a place outside of the pond that nobody has allowed.",
        hint=f"If that place may be read, allow it: --allow {place}, or allow= of `millpond.open`.",
        path=path,
        place=place,
    )


def _look_up(path: str, fence: Fence, flags: int) -> int:
    found = os.open(path, flags | os.O_CLOEXEC)
    try:
        real = os.readlink(f"/proc/self/fd/{found}")
        if not fence.holds(real):
            raise not_allowed(path, real)
    except BaseException:
        os.close(found)
        raise
    return found


def _refused(path: str, what: str, hint: str) -> CheckpointError:
    return CheckpointError("CORRUPT_FILE", f"{path} {what}.", hint=hint, path=path)
