"""Bytes by name.  `open_storage(uri)` gives the backend for a URI; every backend has the same calls."""

from __future__ import annotations

from pathlib import Path

from millpond.errors import CheckpointError
from millpond.storage.base import FileStamp, Storage
from millpond.storage.bucket import is_bucket_uri, parse_bucket_uri
from millpond.storage.fence import Fence
from millpond.storage.local import LocalStorage, sync_folder
from millpond.storage.names import is_local_uri, local_uri, path_of

__all__ = ["Fence", "FileStamp", "LocalStorage", "Storage", "open_storage", "sync_folder", "uri_of"]


def open_storage(uri: str | Path, *, fence: Fence | None = None) -> Storage:
    """The storage behind a path or URI.

    fence:   where links on a local disk may lead; by default only into this folder
    Raises:  UNSUPPORTED for a scheme that has no backend; LIBRARY_MISSING for an object store
             without `millpond[object-store]`.
    """
    place = uri_of(uri)
    if is_local_uri(place):
        return LocalStorage(Path(path_of(place)), fence=fence)
    from millpond.storage.object_store import ObjectStorage

    return ObjectStorage(*parse_bucket_uri(place))


def uri_of(uri: str | Path) -> str:
    """The canonical URI of a place, that of `Storage.uri`; this makes no request.

    A canonical URI stays as it is.  Raises UNSUPPORTED.
    """
    text = str(uri)
    if is_local_uri(text):
        return local_uri(path_of(text))
    if "://" not in text:
        return local_uri(text)
    if is_bucket_uri(text):
        bucket, folder = parse_bucket_uri(text)
        return f"{bucket.uri}/{folder}".rstrip("/")
    scheme = text.split("://", 1)[0]
    raise CheckpointError(
        "UNSUPPORTED",
        f"Storage of the kind {scheme!r} can't be read.",
        hint="Use a local path, or a URI with file:, s3:, s3a:, gs:, abfs: or abfss:.",
        uri=text,
    )
