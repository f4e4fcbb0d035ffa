"""Copies of files between any two places, with their hashes.

1. Both on one local disk: a second name if the file never changes, else shared blocks, else a copy
   in the kernel.
2. Both in one bucket: the object store copies.
3. Otherwise the bytes pass through this program.

The hash is that of the copy's bytes: where the copy isn't made here, the bytes are read for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millpond.storage.base import Storage

_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Copied:
    """One copied file.

    sha256:  in hexadecimal
    """

    size_bytes: int
    sha256: str


def copy_file(
    source: Storage,
    source_path: str,
    target: Storage,
    path: str,
    *,
    most_bytes: int,
    share: bool = False,
    known: Copied | None = None,
) -> Copied:
    """Copy one file; on a local disk `sync` makes it survive a crash of the machine.

    share:   the copy may be the same file under another name, see `Storage.take`
    known:   what the file is known to be, so that its bytes needn't be read
    Raises:  FILE_GONE if the source doesn't exist; CORRUPT_FILE if it is no regular file, or too
             large; NOT_WRITABLE; what the storages raise.
    """
    if not target.take(source, source_path, path, share=share):
        hashing = Hashing(source.iter_pieces(source_path, _PIECE_BYTES, most_bytes))
        target.write_pieces(path, hashing)
        return hashing.result()
    return known if known is not None else hash_file(target, path, most_bytes=most_bytes)


def hash_file(storage: Storage, path: str, *, most_bytes: int) -> Copied:
    """Size and hash of a file.  Raises as `Storage.read`."""
    hashing = Hashing(storage.iter_pieces(path, _PIECE_BYTES, most_bytes))
    for _ in hashing:
        pass
    return hashing.result()


class Hashing:
    """Pieces, hashed while they are taken; `result` is that of all taken so far."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._digest = hashlib.sha256()
        self._size = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._digest.update(piece)
            self._size += len(piece)
            yield piece

    def result(self) -> Copied:
        """Size and hash."""
        return Copied(self._size, self._digest.hexdigest())
