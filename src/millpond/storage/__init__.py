"""Bytes by name.  `open_storage(uri)` gives the backend for a URI; every backend has the same calls."""

from __future__ import annotations

from pathlib import Path

from millpond.errors import CheckpointError
from millpond.storage.base import FileStamp, Storage
from millpond.storage.bucket import is_bucket_uri, parse_bucket_uri
from millpond.storage.fence import Fence
from millpond.storage.local import LocalStorage, sync_folder
from millpond.storage.names import is_local_uri, local_uri, path_of, scheme_of

__all__ = ["Fence", "FileStamp", "LocalStorage", "Storage", "open_storage", "sync_folder", "uri_of"]

_KINDS = "Use a local path, or a URI with file:, s3:, s3a:, gs:, abfs: or abfss:."
_TWO_SLASHES = "Write it with two slashes, and as a text: a Path makes one of them."
_INSTEAD = {
    "dbfs": "Use /dbfs/…, the folder where Databricks shows the same files.",
    "wasb": "Use abfs://container@account.dfs.core.windows.net/…, which shows the same files.",
    "wasbs": "Use abfss://container@account.dfs.core.windows.net/…, which shows the same files.",
    "oss": "Use its S3 interface: s3://bucket/folder, with AWS_ENDPOINT_URL.",
    "cosn": "Use its S3 interface: s3://bucket/folder, with AWS_ENDPOINT_URL.",
    "obs": "Use its S3 interface: s3://bucket/folder, with AWS_ENDPOINT_URL.",
    "maprfs": "Use the folder below /mapr where the same files are mounted.",
    "http": "A server isn't a place of files: use millpond.connect.",
    "https": "A server isn't a place of files: use millpond.connect.",
    **dict.fromkeys(("s3", "s3a", "gs", "abfs", "abfss"), _TWO_SLASHES),
}
"""what to use in place of a scheme that isn't read"""


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
    scheme = scheme_of(text)
    if scheme is None:
        return local_uri(text)
    if is_bucket_uri(text):
        bucket, folder = parse_bucket_uri(text)
        return f"{bucket.uri}/{folder}".rstrip("/")
    raise CheckpointError(
        "UNSUPPORTED",
        f"Storage of the kind {scheme!r} can't be read: {text!r:.200}.",
        hint=_INSTEAD.get(scheme, f"{_KINDS}  A folder of that name is ./{text:.200}."),
        uri=text,
    )
