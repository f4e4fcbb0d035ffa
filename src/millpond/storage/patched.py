"""A folder as it would be if some files were changed or gone: changes stay in memory, and the folder keeps its own."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from millpond.errors import CheckpointError
from millpond.storage.base import FileStamp, Storage


class PatchedStorage:
    """See `base.Storage`.

    Every file has the time of the view, as the files of a copy that is made of it would have.  A
    folder stays in its folder's names when its last file is gone.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._written: dict[str, bytes] = {}
        self._hidden: set[str] = set()
        self._made_ns = time.time_ns()

    @property
    def written(self) -> Mapping[str, bytes]:
        """The files that were written into the view."""
        return self._written

    @property
    def uri(self) -> str:
        return self._storage.uri

    @property
    def is_remote(self) -> bool:
        return self._storage.is_remote

    @property
    def requests(self) -> Mapping[str, int]:
        return self._storage.requests

    @property
    def transferred(self) -> Mapping[str, int]:
        return self._storage.transferred

    def folder(self, path: str) -> PatchedStorage:
        inside = PatchedStorage(self._storage.folder(path))
        inside._written = {name[len(path) + 1 :]: data for name, data in self._written.items() if name.startswith(f"{path}/")}
        inside._hidden = {name[len(path) + 1 :] for name in self._hidden if name.startswith(f"{path}/")}
        return inside

    def copy(self) -> PatchedStorage:
        """A view with the same changes, which changes no more with this one."""
        other = PatchedStorage(self._storage)
        other._written, other._hidden = dict(self._written), set(self._hidden)
        return other

    def read(self, path: str, most_bytes: int) -> bytes:
        data = self._changed(path)
        return self._storage.read(path, most_bytes) if data is None else data

    def iter_pieces(self, path: str, piece_bytes: int, most_bytes: int) -> Iterator[bytes]:
        data = self._changed(path)
        if data is None:
            yield from self._storage.iter_pieces(path, piece_bytes, most_bytes)
        else:
            yield data

    def read_ours(self, path: str, most_bytes: int) -> tuple[bytes, bool]:
        data = self._changed(path)
        return self._storage.read_ours(path, most_bytes) if data is None else (data, True)

    def open_file(self, path: str, most_bytes: int) -> int | None:
        return self._storage.open_file(path, most_bytes) if self._changed(path) is None else None

    def stamp(self, path: str) -> FileStamp | None:
        if path in self._written:
            data = self._written[path]
            return FileStamp(hashlib.sha256(data).hexdigest(), self._made_ns, len(data))
        found = None if path in self._hidden else self._storage.stamp(path)
        return found and FileStamp(found.identity, self._made_ns, found.size_bytes)

    def names(self, path: str = "") -> list[str]:
        prefix = f"{path}/" if path else ""
        written = {name[len(prefix) :].split("/", 1)[0] for name in self._written if name.startswith(prefix)}
        written = {name for name in written if not name.startswith(".")}
        return sorted({name for name in self._storage.names(path) if prefix + name not in self._hidden} | written)

    def sizes(self, path: str = "") -> dict[str, int]:
        prefix = f"{path}/" if path else ""
        found = {name: size for name, size in self._storage.sizes(path).items() if prefix + name not in self._hidden}
        for name, data in self._written.items():
            if name.startswith(prefix) and "/" not in name[len(prefix) :] and not name[len(prefix) :].startswith("."):
                found[name[len(prefix) :]] = len(data)
        return dict(sorted(found.items()))

    def write(self, path: str, data: bytes) -> None:
        self._hidden.discard(path)
        self._written[path] = data

    def write_pieces(self, path: str, pieces: Iterable[bytes]) -> None:
        self.write(path, b"".join(pieces))

    def create(self, path: str, data: bytes) -> bool:
        if self.stamp(path) is not None:
            return False
        self.write(path, data)
        return True

    def replace(self, path: str, old: bytes, new: bytes) -> bool:
        stamp = self.stamp(path)
        if stamp is None or stamp.size_bytes != len(old) or self.read(path, len(old)) != old:
            return False
        self.write(path, new)
        return True

    def take(self, source: Storage, source_path: str, path: str, *, share: bool) -> bool:  # noqa: ARG002 - as in `Storage`
        return False

    def delete(self, path: str) -> None:
        self._written.pop(path, None)
        self._hidden.add(path)

    def delete_all(self, path: str = "") -> None:
        prefix = f"{path}/" if path else ""
        for name, is_file in [(name, name in self.sizes(path)) for name in self.names(path)]:
            if is_file:
                self.delete(prefix + name)
            else:
                self.delete_all(prefix + name)

    def sync(self) -> None:
        """Nothing is written to a disk."""

    def local_path(self, path: str = "") -> Path | None:
        return None if path in self._written else self._storage.local_path(path)

    def _changed(self, path: str) -> bytes | None:
        """What the view has instead of the folder's file; None if that file is as it was.

        Raises:  FILE_GONE.
        """
        if path in self._hidden:
            raise CheckpointError(
                "FILE_GONE", f"{self.uri}/{path} is left out.", hint="Restore the file from a copy.", path=f"{self.uri}/{path}"
            )
        return self._written.get(path)
