"""Bytes of models, each once: `<pond>/models/<SHA-256>`, whoever serves them and however often."""

from __future__ import annotations

import hashlib
import re

from millpond.errors import CheckpointError
from millpond.storage import open_storage

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
        if stamp is None or self._storage.read(f"models/{digest}") != content:
            self._storage.write(f"models/{digest}", content)
        return digest

    def read(self, digest: str) -> bytes:
        """The bytes of a model.

        Raises:  MODEL_LOST where they aren't there, or are others.
        """
        path = f"models/{digest}"
        if not _NAME.fullmatch(digest) or self._storage.stamp(path) is None:
            raise self._lost(path, "isn't there")
        content = self._storage.read(path)
        if hashlib.sha256(content).hexdigest() != digest:
            raise self._lost(path, f"holds {len(content)} other bytes")
        return content

    def _lost(self, path: str, what: str) -> CheckpointError:
        return CheckpointError(
            "MODEL_LOST",
            f"{self._storage.uri}/{path} {what}: the model that is to score can't be loaded, and no record was taken.",
            hint="Put the model's file back (its name is its SHA-256), or publish it again; the job then goes on where it stopped.",
            path=f"{self._storage.uri}/{path}",
        )
