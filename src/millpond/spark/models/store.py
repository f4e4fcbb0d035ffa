"""Bytes of models, each model once for all jobs of the pond: `<pond>/models/<SHA-256>`."""

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
        """Write the bytes if the store lacks them; returns their SHA-256.  Raises NOT_WRITABLE, DISK_FULL."""
        digest = hashlib.sha256(content).hexdigest()
        stamp = self._storage.stamp(f"models/{digest}")
        # An altered file is written again: its name is the hash of its bytes.
        known = stamp is not None and stamp.size_bytes == len(content)
        if not known or self._storage.read(f"models/{digest}", len(content)) != content:
            self._storage.write(f"models/{digest}", content)
        return digest

    def read(self, digest: str) -> bytes:
        """The bytes of a model.

        Raises:  MODEL_LOST if the file is missing or was altered.
        """
        self.stamp(digest)
        content = self._storage.read(f"models/{digest}", FileBounds().model_bytes)
        if hashlib.sha256(content).hexdigest() != digest:
            raise self._lost(f"models/{digest}", f"has {len(content)} other bytes")
        return content

    def stamp(self, digest: str) -> FileStamp:
        """The stamp of a model's file, without reading the file.

        Raises:  MODEL_LOST if it doesn't exist.
        """
        path = f"models/{digest}"
        found = self._storage.stamp(path) if _NAME.fullmatch(digest) else None
        if found is None:
            raise self._lost(path, "doesn't exist")
        return found

    def check(self, digest: str, size_bytes: int, read: FileStamp | None) -> FileStamp:
        """Check that a model exists and is unaltered; reads it only if its file has changed.

        Returns its stamp.

        read:    the stamp of the file whose bytes this process has hashed; None if it has read none
        Raises:  MODEL_LOST if the file is missing or was altered.
        """
        found = self.stamp(digest)
        if found.size_bytes != size_bytes:
            raise self._lost(f"models/{digest}", f"has {found.size_bytes} other bytes")
        if read is not None and found != read:
            self.read(digest)
        return found

    def _lost(self, path: str, what: str) -> CheckpointError:
        return CheckpointError(
            "MODEL_LOST",
            f"{self._storage.uri}/{path} {what}: the model can't be loaded, so the job processed no record.",
            hint="Put the model's file back (its name is its SHA-256), or publish it again; then start the job again.",
            path=f"{self._storage.uri}/{path}",
        )
