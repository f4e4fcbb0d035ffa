"""Bytes by name.  `open_storage(uri)` gives the backend for a URI; every backend has the same calls."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from millpond.errors import CheckpointError
from millpond.storage.base import FileStamp, Storage
from millpond.storage.bucket import is_bucket_uri, parse_bucket_uri
from millpond.storage.local import LocalStorage, sync_folder

__all__ = ["FileStamp", "LocalStorage", "Storage", "open_storage", "sync_folder"]


def open_storage(uri: str | Path) -> Storage:
    """The storage behind a path or URI.

    Raises:  UNSUPPORTED for a scheme that has no backend; LIBRARY_MISSING for an object store without `millpond[object-store]`.
    """
    text = str(uri)
    # Hadoop writes local URIs as file:/x and file:///x.
    if text.startswith("file:"):
        return LocalStorage(Path(unquote(urlsplit(text).path)))
    if "://" not in text:
        return LocalStorage(Path(text))
    if is_bucket_uri(text):
        from millpond.storage.object_store import ObjectStorage

        return ObjectStorage(*parse_bucket_uri(text))
    scheme = text.split("://", 1)[0]
    raise CheckpointError(
        "UNSUPPORTED",
        f"Storage of the kind {scheme!r} can't be read.",
        hint="Use a local path, or a URI with file:, s3:, s3a:, gs:, abfs: or abfss:.",
        uri=text,
    )
