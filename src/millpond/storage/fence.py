"""Files that somebody else may have put there: looked up without waiting, never outside of a fence, never beyond a bound.

1. A path is looked up without opening what lies there (O_PATH): a FIFO without a writer or a device does nothing.
2. The system says where that really lies, whatever links led there: inside the fence, or it is refused.
3. It has to be a regular file of at most so many bytes, or a folder where one is listed.
4. That very file is opened, not its name again, which could mean another one by now.
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
        """Whether a path without links in it lies in one of the folders."""
        if any(is_below(path, folder) for folder in self._real):
            return True
        self._real = tuple(map(os.path.realpath, self._named))  # a folder that was made, or moved, since
        return any(is_below(path, folder) for folder in self._real)


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder's, or of something in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def open_file(path: str, fence: Fence, most_bytes: int) -> int:
    """The descriptor of a regular file, which reads from its begin.

    Raises:  CORRUPT_FILE where it is something else, or larger; PLACE_NOT_ALLOWED; OSError where it can't be looked up or read,
             ValueError where no path is like that.
    """
    found = _look_up(path, fence, os.O_PATH)
    try:
        facts = os.fstat(found)
        if not stat.S_ISREG(facts.st_mode):
            kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "something else")
            raise _refused(path, f"is {kind}, and no file", "Remove it, and restore the file from a copy.")
        if facts.st_size > most_bytes:
            raise too_large(path, facts.st_size, most_bytes)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(found)


def open_folder(path: str, fence: Fence) -> int:
    """The descriptor of a folder, for its list.  Raises PLACE_NOT_ALLOWED; OSError and ValueError as `open_file`."""
    found = _look_up(path, fence, os.O_PATH | os.O_DIRECTORY)
    try:
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)


def stat_link(path: str, fence: Fence) -> os.stat_result:
    """What lies where a link leads.  Raises as `open_folder`."""
    found = _look_up(path, fence, os.O_PATH)
    try:
        return os.fstat(found)
    finally:
        os.close(found)


def too_large(path: str, size_bytes: int, most_bytes: int) -> CheckpointError:
    """A file is larger than one of its kind can be."""
    what = f"has {size_bytes:,} bytes, and a file of its kind has {most_bytes:,} at most"
    return _refused(path, what, "Look at what wrote the file, and restore it from a copy.")


def not_allowed(path: str, place: str) -> CheckpointError:
    """What a pond or checkpoint names lies where the operator has allowed nothing."""
    return CheckpointError(
        "PLACE_NOT_ALLOWED",
        f"{path} leads to {place}, which lies outside of the pond, and which nobody has allowed.",
        hint=f"Where that place is to be read, allow it: --allow {place}, or allow= of `millpond.open`.",
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
