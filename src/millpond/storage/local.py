"""Files on a local disk."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millpond.errors import CheckpointError, SetupError
from millpond.storage.base import FileStamp
from millpond.storage.fence import Fence, is_below, open_file, open_folder, stat_link, too_large
from millpond.storage.names import local_uri

if TYPE_CHECKING:
    from millpond.storage.base import Storage

_PIECE_BYTES = 16 << 20
# Copying needs no memory, so it has no bound.
_MOST_BYTES = 1 << 62
# Linux's FICLONE: the new file shares the old one's blocks until either is written.
_CLONE = 0x40049409
# By default others may read files, but nobody else may write them, with any umask.
_MODE = 0o644
# A `replace` takes milliseconds; only a stopped process keeps others waiting for so long.
_TURN_SECONDS = 10.0
_TURN_PAUSE_SECONDS = 0.005
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _Place(Protocol):
    def __call__(self, *, replace: bool = True) -> bool:
        """Give a file its name; False if there is one of that name, which isn't to be replaced."""


class LocalStorage:
    """A folder on a local disk; it needn't exist yet."""

    def __init__(self, root: Path, *, fence: Fence | None = None, mode: int = _MODE) -> None:
        """
        fence:  where links may lead; by default only into this folder
        mode:   of files that are written, less what the umask takes
        """
        self._root = os.path.abspath(root)
        self._fence = fence or Fence((self._root,))
        self._mode = mode

    @property
    def uri(self) -> str:
        return local_uri(self._root)

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def requests(self) -> Mapping[str, int]:
        return {}

    @property
    def transferred(self) -> Mapping[str, int]:
        return {}

    def folder(self, path: str) -> LocalStorage:
        return LocalStorage(Path(self._root, path), fence=self._fence, mode=self._mode)

    def read(self, path: str, most_bytes: int) -> bytes:
        return b"".join(self.iter_pieces(path, _PIECE_BYTES, most_bytes))

    def read_ours(self, path: str, most_bytes: int) -> tuple[bytes, bool]:
        file = self.open_file(path, most_bytes)
        found = os.fstat(file)
        # Somebody else may have given a file of ours a second name.
        is_ours = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE and found.st_nlink == 1
        return b"".join(self._pieces(path, file, _PIECE_BYTES, most_bytes)), is_ours

    def iter_pieces(self, path: str, piece_bytes: int, most_bytes: int) -> Iterator[bytes]:
        yield from self._pieces(path, self.open_file(path, most_bytes), piece_bytes, most_bytes)

    def _pieces(self, path: str, file: int, piece_bytes: int, most_bytes: int) -> Iterator[bytes]:
        try:
            piece_bytes, read = min(piece_bytes, os.fstat(file).st_size + 1), 0
            while piece := os.read(file, piece_bytes):
                read += len(piece)
                if read > most_bytes:
                    raise too_large(f"{self._root}/{path}", read, most_bytes)
                yield piece
        except OSError as broken:
            raise self._unreadable(path, broken) from broken
        finally:
            os.close(file)

    def open_file(self, path: str, most_bytes: int) -> int:
        try:
            return open_file(f"{self._root}/{path}", self._fence, most_bytes)
        # ValueError: a name with characters that no path can have, which a damaged file may name.
        except (FileNotFoundError, NotADirectoryError, ValueError) as missing:
            raise CheckpointError(
                "FILE_GONE",
                f"{self._root}/{path} doesn't exist.",
                hint="Check the path; if Spark has cleaned the file up, the replica is built again by itself.",
                path=f"{self._root}/{path}",
            ) from missing
        except OSError as broken:
            raise self._unreadable(path, broken) from broken

    def stamp(self, path: str) -> FileStamp | None:
        try:
            found = os.lstat(f"{self._root}/{path}")
            if stat.S_ISLNK(found.st_mode):
                found = stat_link(f"{self._root}/{path}", self._fence)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as broken:
            raise self._unreadable(path, broken) from broken
        return FileStamp(str(found.st_ino), found.st_mtime_ns, found.st_size, found.st_ctime_ns)

    def names(self, path: str = "") -> list[str]:
        with self._folder(path) as folder:
            return [] if folder is None else sorted(n for n in os.listdir(folder) if not n.startswith("."))

    def sizes(self, path: str = "") -> dict[str, int]:
        with self._folder(path) as folder:
            if folder is None:
                return {}
            with os.scandir(folder) as entries:
                found = {e.name: e.stat().st_size for e in entries if not e.name.startswith(".") and e.is_file()}
        return dict(sorted(found.items()))

    @contextlib.contextmanager
    def _folder(self, path: str) -> Iterator[int | None]:
        """The descriptor of a folder; None if it doesn't exist."""
        folder = None
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
                folder = open_folder(f"{self._root}/{path}", self._fence)
            yield folder
        except OSError as broken:
            raise self._unreadable(path, broken) from broken
        finally:
            if folder is not None:
                os.close(folder)

    def write(self, path: str, data: bytes) -> None:
        with self._placing(path) as (file, place):
            _write_all(file, (data,))
            os.fsync(file)
            place()

    def write_pieces(self, path: str, pieces: Iterable[bytes]) -> None:
        with self._placing(path) as (file, place):
            _write_all(file, pieces)
            place()

    def create(self, path: str, data: bytes) -> bool:
        with self._placing(path) as (file, place):
            _write_all(file, (data,))
            os.fsync(file)
            return place(replace=False)

    def replace(self, path: str, old: bytes, new: bytes) -> bool:
        with self._placing(path) as (file, place):
            _write_all(file, (new,))
            os.fsync(file)
            with self._turn(path):
                try:
                    if self.read(path, len(old)) != old:
                        return False
                except CheckpointError as error:
                    if error.condition not in ("FILE_GONE", "CORRUPT_FILE"):
                        raise
                    return False  # it is gone, or has more bytes
                return place()

    @contextlib.contextmanager
    def _turn(self, path: str) -> Iterator[None]:
        """Only one `replace` of a file at a time compares and writes; a killed one lets the next go on."""
        target = Path(self._root, path)
        with self._open_parent(target) as folder:
            lock = os.open(f".{target.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            try:
                deadline = time.monotonic() + _TURN_SECONDS
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(_TURN_PAUSE_SECONDS)
                yield
            finally:
                os.close(lock)

    def take(self, source: Storage, source_path: str, path: str, *, share: bool) -> bool:
        found = source.open_file(source_path, _MOST_BYTES)
        if found is None:
            return False
        try:
            if share and self._link(found, path):
                return True
            with self._placing(path) as (file, place):
                _copy_all(found, file)
                place()
            return True
        finally:
            os.close(found)

    def _link(self, found: int, path: str) -> bool:
        """Give an open file one more name; whether the system allows it."""
        target = Path(self._root, path)
        try:
            with self._open_parent(target) as folder:
                # The open file and not its path, which may mean another file by now.
                os.link(f"/proc/self/fd/{found}", target.name, dst_dir_fd=folder, follow_symlinks=True)
        except OSError:
            return False
        return True

    def delete(self, path: str) -> None:
        target = Path(self._root, path)
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._open_parent(target, make=False) as folder:
                os.unlink(target.name, dir_fd=folder)
            for parent in target.parents:
                if not is_below(str(parent), self._root):
                    break
                parent.rmdir()
        except OSError as broken:
            if broken.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise self._not_writable(target, broken) from broken

    def delete_all(self, path: str = "") -> None:
        target = Path(self._root, path)
        try:
            with self._folder(path) as folder:
                if folder is None:
                    return
            shutil.rmtree(target)  # doesn't follow links, and refuses to begin at one
        except OSError as broken:
            raise self._not_writable(target, broken) from broken

    def sync(self) -> None:
        for root in (Path(self._root), *Path(self._root).parents):
            if root.exists():
                try:
                    sync_file_system(root)
                except OSError as broken:
                    raise self._not_writable(root, broken) from broken
                return

    @contextlib.contextmanager
    def _placing(self, path: str) -> Iterator[tuple[int, _Place]]:
        """A new file under a temporary name, and a function that gives it its own name.

        Raises:  NOT_WRITABLE; then the temporary file is gone.
        """
        target = Path(self._root, path)
        temporary = f".{target.name}.{uuid.uuid4().hex}.tmp"
        try:
            with self._open_parent(target) as folder:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode, dir_fd=folder)
                try:

                    def place(*, replace: bool = True) -> bool:
                        if replace:
                            os.rename(temporary, target.name, src_dir_fd=folder, dst_dir_fd=folder)
                        else:
                            try:
                                os.link(temporary, target.name, src_dir_fd=folder, dst_dir_fd=folder)
                            except FileExistsError:
                                return False
                        os.fsync(folder)
                        return True

                    yield descriptor, place
                finally:
                    os.close(descriptor)
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
        except OSError as broken:
            raise self._not_writable(target, broken) from broken

    @contextlib.contextmanager
    def _open_parent(self, target: Path, *, make: bool = True) -> Iterator[int]:
        if make:
            target.parent.mkdir(parents=True, exist_ok=True)
        folder = open_folder(str(target.parent), self._fence)
        try:
            yield folder
        finally:
            os.close(folder)

    def _not_writable(self, target: Path, broken: OSError) -> SetupError:
        full = broken.errno in (errno.ENOSPC, errno.EDQUOT)
        return SetupError(
            "NOT_WRITABLE",
            f"{target} can't be written: {broken.strerror}.",
            hint="Free some space on this disk." if full else "Choose a folder that this user may write to.",
            path=str(target),
        )

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
    """Let the names in a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(path: Path) -> None:
    """Let everything on the file system of a path survive a crash of the machine.

    One call for any number of files: to flush each of thousands takes minutes.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)


def _write_all(file: int, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        view = memoryview(piece)
        while view:
            view = view[os.write(file, view) :]


def _copy_all(source: int, target: int) -> None:
    """Copy an open file into an empty one: by sharing blocks if the file system can, else in the kernel."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        begin = 0
        while copied := _copy_some(source, target, begin):
            begin += copied


def _copy_some(source: int, target: int, begin: int) -> int:
    try:
        return os.copy_file_range(source, target, _PIECE_BYTES, begin, begin)
    except OSError as broken:
        if broken.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
    piece = os.pread(source, _PIECE_BYTES, begin)
    os.lseek(target, begin, os.SEEK_SET)
    _write_all(target, (piece,))
    return len(piece)
