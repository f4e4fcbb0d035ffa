"""The interface of storage backends.  Paths are relative, with forward slashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Facts that tell one version of a file from another without reading it.

    identity:    inode on a local disk, ETag on an object store
    modified_ns: nanoseconds since 1970; object stores give whole seconds
    size_bytes:  length
    changed_ns:  when the file, its times or its links last changed, by a clock that nobody sets; 0 on
                 an object store.  Stamps that differ in this alone are equal: links and rights change
                 it, too
    """

    identity: str
    modified_ns: int
    size_bytes: int
    changed_ns: int = field(default=0, compare=False)


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

    @property
    def transferred(self) -> Mapping[str, int]:
        """Bytes of files that these requests have read and written: `read_bytes`, `written_bytes`.  Empty on a local disk."""

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

    def write_pieces(self, path: str, pieces: Iterable[bytes]) -> None:
        """The same for a large file that comes in pieces; on a local disk, `sync` makes it survive a crash."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file unless there is one already; returns whether it was written.

        Of several writers at once, one writes it.  The data must name its writer: on an object
        store, a writer finds out by them whether an earlier try of its own was carried out.
        """

    def replace(self, path: str, old: bytes, new: bytes) -> bool:
        """Write a whole file in place of one with these bytes; returns whether it was written.

        Of several writers at once who have read the same bytes, one writes.  The new data must
        name its writer, see `create`.
        """

    def take(self, source: Storage, source_path: str, path: str, *, share: bool) -> bool:
        """Copy a file from another place of the same kind, without passing its bytes through this program.

        share:    the copy may be the same file under another name: nobody ever writes into it
        Returns:  whether that was possible; if not, nothing was written
        """

    def delete(self, path: str) -> None:
        """Remove a file, if it exists; on a local disk, also folders above it that are empty then."""

    def delete_all(self, path: str = "") -> None:
        """Remove a folder with all files in it, hidden ones and what a killed writer left too."""

    def sync(self) -> None:
        """Return when all that was written and taken survives a crash of the machine."""

    def local_path(self, path: str = "") -> Path | None:
        """The file as a local path, None if the backend isn't a local disk."""
