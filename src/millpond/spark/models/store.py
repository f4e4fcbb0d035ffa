"""Bytes of models, each once: `<pond>/models/<SHA-256>`, whoever serves them and however often."""

from __future__ import annotations

import hashlib
import re

from millpond.errors import CheckpointError
from millpond.settings import FileBounds
from millpond.storage import FileStamp, open_storage

_NAME = re.compile(r"[0-9a-f]{64}")


class ModelStore:
    """The models of a pond; workers open it by its URI."""

    def __init__(self, pond: str) -> None:
        self._storage = open_storage(pond)

    def keep(self, content: bytes) -> str:
        """Write the bytes where they aren't there yet; their SHA-256 in hex.  Raises NOT_WRITABLE, DISK_FULL."""
        digest = hashlib.sha256(content).hexdigest()
        stamp = self._storage.stamp(f"models/{digest}")
        # An altered one is written anew: what it is called is what it has to be.
        known = stamp is not None and stamp.size_bytes == len(content)
        if not known or self._storage.read(f"models/{digest}", len(content)) != content:
            self._storage.write(f"models/{digest}", content)
        return digest

    def read(self, digest: str) -> bytes:
        """The bytes of a model.

        Raises:  MODEL_LOST where they aren't there, or are others.
        """
        self.stamp(digest)
        content = self._storage.read(f"models/{digest}", FileBounds().model_bytes)
        if hashlib.sha256(content).hexdigest() != digest:
            raise self._lost(f"models/{digest}", f"holds {len(content)} other bytes")
        return content

    def stamp(self, digest: str) -> FileStamp:
        """What tells the file of a model from another one, without reading it.

        Raises:  MODEL_LOST where it isn't there.
        """
        path = f"models/{digest}"
        found = self._storage.stamp(path) if _NAME.fullmatch(digest) else None
        if found is None:
            raise self._lost(path, "isn't there")
        return found

    def check(self, digest: str, size_bytes: int, read: FileStamp | None) -> FileStamp:
        """Look whether a model is there and unaltered, without reading it again if its file is the same.  Its stamp.

        read:    the stamp of the file whose bytes this process has hashed; None if it has read none
        Raises:  MODEL_LOST where it isn't there, or was altered.
        """
        found = self.stamp(digest)
        if found.size_bytes != size_bytes:
            raise self._lost(f"models/{digest}", f"holds {found.size_bytes} other bytes")
        if read is not None and found != read:
            self.read(digest)
        return found

    def _lost(self, path: str, what: str) -> CheckpointError:
        return CheckpointError(
            "MODEL_LOST",
            f"{self._storage.uri}/{path} {what}: the model that is to score can't be loaded, and no record was taken.",
            hint="Put the model's file back (its name is its SHA-256), or publish it again; the job then goes on where it stopped.",
            path=f"{self._storage.uri}/{path}",
        )
