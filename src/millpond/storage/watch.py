"""Waits for a file in a folder: until the system reports it (inotify: Linux, local disks), or a time.

The system doesn't report changes on a network file system, nor in a folder that replaced the
watched one.  So the caller must look for the file when the time is over.
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
# How often the folder is watched again by its name; for a folder that is already watched, this
# changes nothing.
_AGAIN_SECONDS = 1.0


class FolderWatch:
    """Waits for files in a folder; one thread waits, any thread may wake it."""

    def __init__(self, folder: Path | None) -> None:
        """The folder needn't exist yet; None waits for time alone."""
        self._name = None if folder is None else os.fsencode(folder)
        self._watched_at = 0.0
        self._woken = threading.Event()
        self._closing = threading.Lock()
        self._files, self._wake = (-1, -1) if folder is None else _open()

    def wait(self, seconds: float) -> bool:
        """Return whether a file has appeared: when it has, when woken, or when the time is over."""
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
            # Files with a dot in front aren't finished yet, or are checksums.
            if self._files in ready and any(not name.startswith(b".") for name in _names(os.read(self._files, _EVENT_BYTES))):
                return True
            if self._files not in ready or self._wake in ready:
                return False

    def wake(self) -> None:
        """Let the waiting thread return; if none waits, the next wait returns at once."""
        self._woken.set()
        with self._closing:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Release the system's watch.  From here on, only time ends a wait."""
        with self._closing:
            files, self._files, self._wake = (self._files, self._wake), -1, -1
            for file in files:
                if file >= 0:
                    os.close(file)

    def __del__(self) -> None:
        """Release what nobody closed: the system has few watches."""
        if hasattr(self, "_files"):
            self.close()


def _names(events: bytes) -> list[bytes]:
    """The names of the files in inotify's events."""
    names, at = [], 0
    while at < len(events):
        *_, size = _EVENT.unpack_from(events, at)
        at += _EVENT.size + size
        names.append(events[at - size : at].rstrip(b"\0"))
    return names


_libc = ctypes.CDLL(None, use_errno=True)


def _open() -> tuple[int, int]:
    """The descriptors of inotify and of `wake`; negative if this system has none, or no more of them."""
    try:
        watching = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        return (watching, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)) if watching >= 0 else (-1, -1)
    except (AttributeError, OSError):
        return -1, -1
