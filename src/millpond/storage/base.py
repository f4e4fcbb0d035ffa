"""The interface of storage backends.  Paths are relative, with forward slashes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Facts that tell one version of a file from another without reading it.

    identity:    inode on a local disk, ETag on an object store
    modified_ns: nanoseconds since 1970; object stores give whole seconds
    size_bytes:  length
    """

    identity: str
    modified_ns: int
    size_bytes: int


class Storage(Protocol):
    """A folder of files, local or remote.

    Every call that asks an object store raises STORAGE_UNAVAILABLE or ACCESS_DENIED if it doesn't
    answer.
    """

    @property
    def uri(self) -> str:
        """The absolute URI, without a final slash."""

    @property
    def is_remote(self) -> bool:
        """Whether each call is a request over a network, which takes milliseconds, costs money, and may fail."""

    @property
    def requests(self) -> Mapping[str, int]:
        """Requests made so far, by kind: head, get, list, put; of these `retried`.  Empty on a local disk."""

    def folder(self, path: str) -> Storage:
        """A folder in this one, which needn't exist yet, with the same fence."""

    def read(self, path: str, most_bytes: int) -> bytes:
        """The whole file.

        most_bytes:  a larger file is refused before it is read, see `settings.FileBounds`
        Raises:      FILE_GONE if it doesn't exist; CORRUPT_FILE if it isn't a regular file, is too
                     large or can't be read; PLACE_NOT_ALLOWED if links lead to a place that isn't
                     allowed.
        """

    def iter_pieces(self, path: str, piece_bytes: int, most_bytes: int) -> Iterator[bytes]:
        """The same in pieces, all of one version of the file; an object store gives one piece.

        Raises as `read`, at the first piece.
        """

    def read_ours(self, path: str, most_bytes: int) -> tuple[bytes, bool]:
        """As `read`; and whether only this user can have written it, which is never known on an object store."""

    def open_file(self, path: str, most_bytes: int) -> int | None:
        """The file's descriptor, which the caller closes; None if the backend isn't a local disk.

        Raises as `read`.
        """

    def stamp(self, path: str) -> FileStamp | None:
        """The file's stamp; None if it doesn't exist."""

    def names(self, path: str = "") -> list[str]:
        """Names in a folder, sorted, without hidden ones; empty if the folder doesn't exist."""

    def sizes(self, path: str = "") -> dict[str, int]:
        """The same for files only, with their lengths in bytes."""

    def write(self, path: str, data: bytes) -> None:
        """Put a whole file in place at once: readers see the old one or the new one, also after a crash."""

    def local_path(self, path: str = "") -> Path | None:
        """The file as a local path, None if the backend isn't a local disk."""
