"""Some files of a storage under other names, as a storage that can only be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from millpond.errors import CheckpointError, SetupError
from millpond.storage.base import FileStamp, Storage


class RenamedStorage:
    """Files of a storage under other names.

    names:  name here -> path there; a folder is there if a file in it is
    """

    def __init__(self, storage: Storage, names: Mapping[str, str]) -> None:
        self._storage = storage
        self._names = names
        # Folder -> what is in it, and whether that is a file.
        self._folders: dict[str, dict[str, bool]] = {}
        for name in names:
            folder, _, last = name.rpartition("/")
            self._folders.setdefault(folder, {})[last] = True
            while folder:
                folder, _, last = folder.rpartition("/")
                self._folders.setdefault(folder, {})[last] = False

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

    def folder(self, path: str) -> RenamedStorage:
        prefix = f"{path}/" if path else ""
        inside = {name.removeprefix(prefix): there for name, there in self._names.items() if name.startswith(prefix)}
        return RenamedStorage(self._storage, inside)

    def read(self, path: str, most_bytes: int) -> bytes:
        return self._storage.read(self._there(path), most_bytes)

    def iter_pieces(self, path: str, piece_bytes: int, most_bytes: int) -> Iterator[bytes]:
        yield from self._storage.iter_pieces(self._there(path), piece_bytes, most_bytes)

    def read_ours(self, path: str, most_bytes: int) -> tuple[bytes, bool]:
        return self._storage.read_ours(self._there(path), most_bytes)

    def open_file(self, path: str, most_bytes: int) -> int | None:
        return self._storage.open_file(self._there(path), most_bytes)

    def stamp(self, path: str) -> FileStamp | None:
        there = self._names.get(path)
        return None if there is None else self._storage.stamp(there)

    def names(self, path: str = "") -> list[str]:
        return sorted(self._folders.get(path, {}))

    def sizes(self, path: str = "") -> dict[str, int]:
        prefix = f"{path}/" if path else ""
        stamps = {name: self.stamp(prefix + name) for name, is_file in sorted(self._folders.get(path, {}).items()) if is_file}
        return {name: stamp.size_bytes for name, stamp in stamps.items() if stamp is not None}

    def local_path(self, path: str = "") -> Path | None:
        there = self._names.get(path)
        return None if there is None else self._storage.local_path(there)

    def write(self, path: str, data: bytes) -> None:  # noqa: ARG002 - the protocol's
        raise self._read_only(path)

    def write_pieces(self, path: str, pieces: Iterable[bytes]) -> None:  # noqa: ARG002 - the protocol's
        raise self._read_only(path)

    def create(self, path: str, data: bytes) -> bool:  # noqa: ARG002 - the protocol's
        raise self._read_only(path)

    def replace(self, path: str, old: bytes, new: bytes) -> bool:  # noqa: ARG002 - the protocol's
        raise self._read_only(path)

    def take(self, source: Storage, source_path: str, path: str, *, share: bool) -> bool:  # noqa: ARG002 - the protocol's
        raise self._read_only(path)

    def delete(self, path: str) -> None:
        raise self._read_only(path)

    def delete_all(self, path: str = "") -> None:
        raise self._read_only(path)

    def sync(self) -> None:
        """Nothing is written here."""

    def _there(self, path: str) -> str:
        try:
            return self._names[path]
        except KeyError:
            raise CheckpointError(
                "FILE_GONE",
                f"{self.uri} has no file {path}.",
                hint="Choose another batch.",
                path=f"{self.uri}/{path}",
            ) from None

    def _read_only(self, path: str) -> SetupError:
        return SetupError(
            "NOT_WRITABLE",
            f"{self.uri}/{path} can't be written: these files are only read.",
            hint="Write to another folder.",
            path=f"{self.uri}/{path}",
        )
