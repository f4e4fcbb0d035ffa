"""Files on a local disk."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from millpond.errors import CheckpointError, SetupError
from millpond.storage.base import FileStamp


class LocalStorage:
    """A folder on a local disk; it needn't exist yet."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.abspath(root)

    @property
    def uri(self) -> str:
        return f"file://{self._root}"

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def requests(self) -> Mapping[str, int]:
        return {}

    def read(self, path: str) -> bytes:
        return b"".join(self.iter_pieces(path, -1))

    def iter_pieces(self, path: str, piece_bytes: int) -> Iterator[bytes]:
        try:
            with open(f"{self._root}/{path}", "rb") as file:
                while piece := file.read(piece_bytes):
                    yield piece
        # ValueError: a name with characters that no path has, which a damaged file may ask for.
        except (FileNotFoundError, NotADirectoryError, ValueError) as missing:
            raise CheckpointError(
                "FILE_GONE",
                f"{self._root}/{path} isn't there.",
                hint="Check the path; where Spark has cleaned the file up, the replica is built again by itself.",
                path=f"{self._root}/{path}",
            ) from missing
        except OSError as broken:
            raise self._unreadable(path, broken) from broken

    def stamp(self, path: str) -> FileStamp | None:
        try:
            found = os.stat(f"{self._root}/{path}")
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as broken:
            raise self._unreadable(path, broken) from broken
        return FileStamp(str(found.st_ino), found.st_mtime_ns, found.st_size)

    def names(self, path: str = "") -> list[str]:
        try:
            return sorted(n for n in os.listdir(f"{self._root}/{path}") if not n.startswith("."))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return []
        except OSError as broken:
            raise self._unreadable(path, broken) from broken

    def sizes(self, path: str = "") -> dict[str, int]:
        try:
            with os.scandir(f"{self._root}/{path}") as entries:
                found = {e.name: e.stat().st_size for e in entries if not e.name.startswith(".") and e.is_file()}
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        except OSError as broken:
            raise self._unreadable(path, broken) from broken
        return dict(sorted(found.items()))

    def write(self, path: str, data: bytes) -> None:
        target = Path(self._root, path)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(target)
            sync_folder(target.parent)
        except OSError as broken:
            # The folder itself may be what is wrong.
            with contextlib.suppress(OSError):
                temporary.unlink()
            full = broken.errno in (errno.ENOSPC, errno.EDQUOT)
            raise SetupError(
                "NOT_WRITABLE",
                f"{target} can't be written: {broken.strerror}.",
                hint="Free some space on this disk." if full else "Choose a folder that this user may write to.",
                path=str(target),
            ) from broken

    def local_path(self, path: str = "") -> Path | None:
        return Path(self._root, path) if path else Path(self._root)

    def _unreadable(self, path: str, broken: OSError) -> CheckpointError:
        return CheckpointError(
            "CORRUPT_FILE",
            f"{self._root}/{path} can't be read: {broken.strerror}.",
            hint="Check the file's permissions and the disk.",
            path=f"{self._root}/{path}",
        )


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
