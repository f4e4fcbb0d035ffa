"""Files in a bucket: S3 and whatever speaks its protocol, Google Cloud Storage, Azure.

The only module that opens obstore.

There are no folders in a bucket, only names with slashes in them; writers leave empty objects
called `folder/` all the same.  Requests are tried again here and not in the library, so that each
one is counted.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.errors import CheckpointError, MillpondError, SetupError, StorageError, library_missing
from millpond.settings import ObjectStoreSettings
from millpond.storage.base import FileStamp
from millpond.storage.bucket import Bucket, ambient
from millpond.storage.fence import too_large

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from millpond.storage.base import Storage

Answer = TypeVar("Answer")
# One page of a listing.
_PAGE = 1000
# What the library's error says of answers that may be another one later.
_PASSING = (
    "status code: 408",
    "status code: 429",
    "status code: 5",
    "HTTP error",
    "RequestTimeout",
    "SlowDown",
    "RequestTimeTooSkewed",
)
_DENIED = ("status code: 401", "status code: 403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "NoCredentials")
# Addresses under which clouds give a machine its credentials; reached only where nothing else named
# any.
_METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254")


class ObjectStorage:
    """A folder in a bucket; it needn't exist yet."""

    def __init__(self, bucket: Bucket, folder: str, settings: ObjectStoreSettings | None = None) -> None:
        self._bucket = bucket
        self._prefix = f"{folder}/" if folder else ""
        self._settings = settings or ObjectStoreSettings.of_environment()
        self._uri = f"{bucket.uri}/{folder}".rstrip("/")
        self._obstore, self._store = _open_store(bucket, ambient(bucket.scheme), self._settings)
        self._counts: Counter[str] = Counter()
        self._bytes = Counter(read_bytes=0, written_bytes=0)
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def requests(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._counts)

    @property
    def transferred(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._bytes)

    def _moved(self, kind: str, data: bytes) -> bytes:
        with self._lock:
            self._bytes[kind] += len(data)
        return data

    def folder(self, path: str) -> ObjectStorage:
        return ObjectStorage(self._bucket, f"{self._prefix}{path}".rstrip("/"), self._settings)

    def read_ours(self, path: str, most_bytes: int) -> tuple[bytes, bool]:
        return self.read(path, most_bytes), False

    def read(self, path: str, most_bytes: int) -> bytes:
        def get() -> bytes:
            answer = self._obstore.get(self._store, self._prefix + path)
            if (size := answer.meta["size"]) > most_bytes:
                raise too_large(f"{self._uri}/{path}", size, most_bytes)
            return self._moved("read_bytes", bytes(answer.bytes()))

        found = self._ask("get", path, get)
        if found is None:
            raise self._gone(path)
        return found

    def iter_pieces(self, path: str, piece_bytes: int, most_bytes: int) -> Iterator[bytes]:  # noqa: ARG002 - see base.py
        yield self.read(path, most_bytes)

    def open_file(self, path: str, most_bytes: int) -> int | None:  # noqa: ARG002 - the protocol's
        return None

    def stamp(self, path: str) -> FileStamp | None:
        meta = self._ask("head", path, lambda: self._obstore.head(self._store, self._prefix + path))
        if meta is None:
            return None
        return FileStamp(str(meta["e_tag"]), _nanoseconds(meta["last_modified"]), meta["size"])

    def names(self, path: str = "") -> list[str]:
        objects, folders = self._list(path)
        return sorted(objects.keys() | folders)

    def sizes(self, path: str = "") -> dict[str, int]:
        objects, folders = self._list(path)
        return {name: size for name, size in sorted(objects.items()) if name not in folders}

    def write(self, path: str, data: bytes) -> None:
        self._put(path, data, use_multipart=False)

    def write_pieces(self, path: str, pieces: Iterable[bytes]) -> None:
        # Tried again from the beginning, so all pieces must be there.  A file of a state fits into
        # the memory of Spark's tasks.
        data = b"".join(pieces)
        self._put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        try:
            self._put(path, data, use_multipart=False, mode="create")
        except FileExistsError:
            # An earlier try may have written it, though its answer was lost.
            stamp = self.stamp(path)
            return stamp is not None and stamp.size_bytes == len(data) and self.read(path, len(data)) == data
        return True

    def replace(self, path: str, old: bytes, new: bytes) -> bool:
        found = self._ask("get", path, lambda: self._versioned(path, max(len(old), len(new))))
        if found is None or found[1] != old:
            return found is not None and found[1] == new
        try:
            self._put(path, new, use_multipart=False, mode=found[0])
        except FileExistsError:
            # As in `create`.
            again = self._ask("get", path, lambda: self._versioned(path, len(new)))
            return again is not None and again[1] == new
        return True

    def _versioned(self, path: str, most_bytes: int) -> tuple[dict[str, str], bytes | None]:
        """The version of an object, and its bytes, unless there are more."""
        answer = self._obstore.get(self._store, self._prefix + path)
        tags = {"e_tag": answer.meta["e_tag"], "version": answer.meta.get("version")}
        content = self._moved("read_bytes", bytes(answer.bytes())) if answer.meta["size"] <= most_bytes else None
        return {name: tag for name, tag in tags.items() if tag is not None}, content

    def take(self, source: Storage, source_path: str, path: str, *, share: bool) -> bool:  # noqa: ARG002 - the protocol's
        if not isinstance(source, ObjectStorage) or source._bucket != self._bucket:
            return False

        def copy() -> bool:
            self._obstore.copy(self._store, source._prefix + source_path, self._prefix + path)
            return True

        if self._ask("copy", path, copy) is None:
            raise source._gone(source_path)
        return True

    def delete(self, path: str) -> None:
        def delete() -> bool:
            self._obstore.delete(self._store, self._prefix + path)
            return True

        self._ask("delete", path, delete)

    def delete_all(self, path: str = "") -> None:
        folder = (self._prefix + path).strip("/")

        def delete() -> bool:
            for page in self._obstore.list(self._store, f"{folder}/", chunk_size=_PAGE):
                self._obstore.delete(self._store, [meta["path"] for meta in page])
            return True

        self._ask("delete", path, delete)

    def sync(self) -> None:
        """A put has returned when the store has it."""

    def _put(self, path: str, data: bytes, **options: Any) -> None:
        def put() -> bool:
            try:
                self._obstore.put(self._store, self._prefix + path, data, **options)
            except (self._obstore.exceptions.AlreadyExistsError, self._obstore.exceptions.PreconditionError) as there:
                raise FileExistsError(path) from there
            self._moved("written_bytes", data)
            return True

        try:
            written = self._ask("put", path, put)
        except StorageError as refused:
            if refused.condition != "ACCESS_DENIED":
                raise
            raise self._not_writable(path, "these credentials may not") from refused
        if written is None:
            raise self._not_writable(path, "there is no such bucket")

    def _gone(self, path: str) -> CheckpointError:
        return CheckpointError(
            "FILE_GONE",
            f"{self._uri}/{path} doesn't exist.",
            hint="Check the path; if Spark has cleaned the file up, the replica is built again by itself.",
            path=f"{self._uri}/{path}",
        )

    def local_path(self, path: str = "") -> Path | None:  # noqa: ARG002 - the protocol's
        return None

    def _list(self, path: str) -> tuple[dict[str, int], set[str]]:
        """Files with their sizes, and folders."""
        folder = (self._prefix + path).strip("/")

        def ask() -> tuple[dict[str, int], set[str]]:
            found = self._obstore.list_with_delimiter(self._store, folder or None)
            objects, folders = found["objects"], found["common_prefixes"]
            with self._lock:
                self._counts["list"] += (len(objects) + len(folders) - 1) // _PAGE if objects or folders else 0
            # A listing has the empty object `folder/` under the folder's own name.
            files = {_last(o["path"]): o["size"] for o in objects if o["path"] != folder}
            return {name: size for name, size in files.items() if name[0] != "."}, {n for p in folders if (n := _last(p))[0] != "."}

        return self._ask("list", path, ask) or ({}, set())

    def _ask(self, kind: str, path: str, request: Callable[[], Answer]) -> Answer | None:
        """The answer; None if there is no such object.  Failures that may pass are tried again."""
        pause = self._settings.first_pause_seconds
        for n in range(1, self._settings.tries + 1):
            with self._lock:
                self._counts[kind] += 1
                self._counts["retried"] += n > 1
            try:
                return request()
            except FileNotFoundError:
                return None
            except ValueError:  # a name that no object can have, which a damaged file may name
                return None
            except self._obstore.exceptions.BaseError as error:
                problem, passing = self._explain(kind, path, error)
            if not passing or n == self._settings.tries:
                raise problem
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause = min(2 * pause, self._settings.last_pause_seconds)
        raise AssertionError("every way out of the loop is inside it")

    def _explain(self, kind: str, path: str, error: Exception) -> tuple[MillpondError, bool]:
        """Our error for an error of the library, and whether it may pass."""
        exceptions = self._obstore.exceptions
        # Below this line is the error's whole inner structure, for programmers.
        text = str(error).partition("\n\nDebug source:")[0]
        place = f"{self._uri}/{path}".rstrip("/")
        said = " ".join(text.split())[:300]
        if isinstance(error, exceptions.InvalidPathError):
            # A listing met a name with an empty part, like a//b, which Spark never writes.
            return (
                CheckpointError(
                    "CORRUPT_FILE",
                    f"{place} has an object whose name isn't possible in a checkpoint: {said}.",
                    hint="Remove objects whose names have two slashes in a row.",
                    path=place,
                ),
                False,
            )
        if "NoSuchBucket" in text:
            missing = CheckpointError(
                "NO_CHECKPOINT",
                f"There is no bucket {self._bucket.name!r}.",
                hint="Check the URI; for a store that isn't the cloud's own, set AWS_ENDPOINT_URL.",
                uri=place,
            )
            return missing, False
        nobody = any(address in text for address in _METADATA)
        denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        if nobody or denied or any(mark in text for mark in _DENIED):
            what = "there are no credentials" if nobody else f"these credentials may not {kind} it"
            refused = StorageError(
                "ACCESS_DENIED",
                f"{place} can't be read: {what} ({said}).",
                hint=self._bucket.credentials_hint,
                uri=place,
            )
            return refused, False
        away = StorageError(
            "STORAGE_UNAVAILABLE",
            f"The request for {place} failed ({kind}): {said}.",
            hint=self._bucket.endpoint_hint,
            uri=place,
        )
        return away, any(mark in text for mark in _PASSING)

    def _not_writable(self, path: str, why: str) -> SetupError:
        return SetupError(
            "NOT_WRITABLE",
            f"{self._uri}/{path} can't be written: {why}.",
            hint="Give these credentials the right to put objects there, or choose another place.",
            path=f"{self._uri}/{path}",
        )


@lru_cache(maxsize=32)
def _open_store(bucket: Bucket, environment: tuple[tuple[str, str], ...], settings: ObjectStoreSettings) -> tuple[Any, ObjectStore]:
    """The library, and its connections to a bucket, shared by all its folders.

    If the environment has changed, these are new ones.
    """
    try:
        import obstore
        import obstore.exceptions
        from obstore import store
    except ModuleNotFoundError as missing:
        raise library_missing("obstore", "object-store") from missing
    config, provider = bucket.config(dict(environment))
    options: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=settings.whole_seconds),
            "read_timeout": timedelta(seconds=settings.request_seconds),
            "connect_timeout": timedelta(seconds=settings.connect_seconds),
            "allow_http": bucket.is_plain_http(config),
        },
        "retry_config": {"max_retries": 0},
        "config": config,
    }
    if provider is not None:
        options["credential_provider"] = provider
    kind = getattr(store, bucket.store_class)
    try:
        return obstore, kind(bucket.name, **options)
    except (obstore.exceptions.BaseError, ValueError) as wrong:
        raise StorageError(
            "ACCESS_DENIED",
            f"{bucket.uri} can't be opened: {' '.join(str(wrong).partition('Debug source')[0].split())[:300]}.",
            hint=bucket.credentials_hint,
            uri=bucket.uri,
        ) from wrong


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
