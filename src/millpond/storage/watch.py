"""Wait until a file appears in a folder: at once if the system reports it (inotify: Linux, local disks), else until time is up.

The system doesn't report changes on a network file system, nor in a folder that took the place of the watched one.  So the caller
has to look for the file when time is up.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from pathlib import Path

_MOVED_TO, _CLOSE_WRITE = 0x80, 0x08
_EVENT = struct.Struct("iIII")
_EVENT_BYTES = 65536
# How often the folder is looked up again by its name: watching a folder that is watched already changes nothing.
_AGAIN_SECONDS = 1.0


class FolderWatch:
    """Waits for files in a folder; one thread waits, any may wake it."""

    def __init__(self, folder: Path | None) -> None:
        """The folder needn't exist yet; None waits for time alone."""
        self._name = None if folder is None else os.fsencode(folder)
        self._watched_at = 0.0
        self._woken = threading.Event()
        self._closing = threading.Lock()
        self._files, self._wake = (-1, -1) if folder is None else _open()

    def wait(self, seconds: float) -> bool:
        """Return when a file has appeared, somebody woke us, or time is up; whether a file has."""
        if self._files < 0:
            self._woken.wait(seconds)
            self._woken.clear()
            return False
        now = time.monotonic()
        if now - self._watched_at > _AGAIN_SECONDS:
            self._watched_at = now
            _libc.inotify_add_watch(self._files, self._name, _MOVED_TO | _CLOSE_WRITE)
        deadline = now + seconds
        poll = select.poll()
        for file in (self._files, self._wake):
            poll.register(file, select.POLLIN)
        while True:
            ready = {file for file, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
            if self._wake in ready:
                os.eventfd_read(self._wake)
            # Names with a dot in front aren't done yet, or sums of others.
            if self._files in ready and any(not name.startswith(b".") for name in _names(os.read(self._files, _EVENT_BYTES))):
                return True
            if self._files not in ready or self._wake in ready:
                return False

    def wake(self) -> None:
        """Have the one who waits return, or not wait the next time."""
        self._woken.set()
        with self._closing:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Give the system's part back.  From here on waits are for time alone."""
        with self._closing:
            files, self._files, self._wake = (self._files, self._wake), -1, -1
            for file in files:
                if file >= 0:
                    os.close(file)


def _names(events: bytes) -> list[bytes]:
    """The files of inotify's events."""
    names, at = [], 0
    while at < len(events):
        *_, size = _EVENT.unpack_from(events, at)
        at += _EVENT.size + size
        names.append(events[at - size : at].rstrip(b"\0"))
    return names


_libc = ctypes.CDLL(None, use_errno=True)


def _open() -> tuple[int, int]:
    """Files of inotify and of who wakes; negative where this system has none, or no more of them."""
    try:
        watching = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        return (watching, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)) if watching >= 0 else (-1, -1)
    except (AttributeError, OSError):
        return -1, -1
