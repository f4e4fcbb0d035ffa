"""A savepoint as one file: a tar with the manifest first, then the files in the manifest's order."""

from __future__ import annotations

import fcntl
import glob
import io
import os
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from millpond.catalogue import savepoints_folder
from millpond.errors import SetupError
from millpond.savepoint.manage.folder import claim, remove
from millpond.savepoint.manifest import CHECKPOINT, NAME, Manifest, Savepoint, SavepointFile, damaged, parse_manifest, renamed
from millpond.savepoint.threads import Progress
from millpond.settings import FileBounds
from millpond.storage import Storage, sync_folder
from millpond.storage.copying import Hashing

_BOUNDS = FileBounds()
_PIECE_BYTES = 4 << 20
_TEMPORARY = ".tmp"


def export_savepoint(savepoint: Savepoint, file: str | Path, progress: Progress | None = None) -> None:
    """Write a savepoint into a tar file, which appears when it is whole.

    Raises:  SAVEPOINT_DAMAGED if a file isn't as the manifest says; NOT_WRITABLE.
    """
    target = Path(file)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}{_TEMPORARY}")
    try:
        _delete_left(target)
        try:
            with open(temporary, "xb") as out:
                fcntl.flock(out, fcntl.LOCK_EX)
                _write_tar(savepoint, out, progress)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, target)
            sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as broken:
        raise SetupError(
            "NOT_WRITABLE",
            f"{target} can't be written: {broken.strerror}.",
            hint="Choose a folder that this user may write to, on a disk with room.",
            path=str(target),
        ) from broken


def _delete_left(target: Path) -> None:
    """Delete what killed exports to the same file have left: a living one holds a lock on its own."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{_TEMPORARY}"):
        with suppress(OSError), open(left, "rb") as there:  # another export may do the same
            fcntl.flock(there, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def import_savepoint(
    place: str | Path, file: str | Path, *, name: str | None = None, progress: Progress | None = None
) -> Savepoint:
    """Read a savepoint from a tar file into a pond, and compare each file with its hash.

    name:    another name than it had
    Raises:  FILE_MISSING; SAVEPOINT_DAMAGED if it isn't such a file, or isn't whole;
             SAVEPOINT_TOO_NEW; SAVEPOINT_EXISTS, SAVEPOINT_INCOMPLETE, INVALID_NAME; NOT_WRITABLE.
    """
    try:
        with open(file, "rb") as opened, tarfile.open(fileobj=opened, mode="r|") as tar:
            return _read_tar(savepoints_folder(place), tar, str(file), name, progress)
    except FileNotFoundError as missing:
        raise SetupError("FILE_MISSING", f"{file} doesn't exist.", hint="Check the path.", path=str(file)) from missing
    except (tarfile.TarError, EOFError, ValueError, OSError) as broken:
        raise damaged(str(file), f"can't be read as a savepoint: {broken}") from broken


def _write_tar(savepoint: Savepoint, out: IO[bytes], progress: Progress | None) -> None:
    manifest = savepoint.manifest
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        text = manifest.to_bytes()
        tar.addfile(_member(NAME, len(text), manifest), io.BytesIO(text))
        for done, file in enumerate(manifest.files, 1):
            path = f"{CHECKPOINT}/{file.path}"
            pieces = savepoint.storage.iter_pieces(path, _PIECE_BYTES, _BOUNDS.state_bytes)
            reader = _Pieces(_checked(pieces, file, f"{savepoint.storage.uri}/{path}"))
            tar.addfile(_member(path, file.size_bytes, manifest), reader)
            if reader.read(1):  # read to the end, so that the hash was compared
                raise damaged(f"{savepoint.storage.uri}/{path}", "is longer than its manifest says")
            if progress is not None:
                progress(done, len(manifest.files))


def _member(path: str, size_bytes: int, manifest: Manifest) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size, member.mtime, member.mode = size_bytes, manifest.created_ms // 1000, 0o644
    return member


def _read_tar(root: Storage, tar: tarfile.TarFile, file: str, name: str | None, progress: Progress | None) -> Savepoint:
    first = tar.next()
    opened = None if first is None or first.name != NAME or not first.isfile() else tar.extractfile(first)
    if first is None or opened is None or first.size > _BOUNDS.manifest_bytes:
        raise damaged(file, f"doesn't begin with {NAME}")
    manifest = parse_manifest(opened.read(), file)
    manifest = renamed(manifest, name or manifest.name)
    folder = claim(root, manifest.name)
    try:
        for done, wanted in enumerate(manifest.files, 1):
            path, member = f"{CHECKPOINT}/{wanted.path}", tar.next()
            content = None if member is None or member.name != path or not member.isfile() else tar.extractfile(member)
            if content is None:
                raise damaged(file, f"ends or goes on otherwise where {path} should be")
            folder.write_pieces(path, _checked(_pieces(content), wanted, f"{file}: {path}"))
            if progress is not None:
                progress(done, len(manifest.files))
        if tar.next() is not None:
            raise damaged(file, "has more files than its manifest")
        folder.sync()
        folder.write(NAME, manifest.to_bytes())
    except BaseException:
        remove(folder)
        raise
    return Savepoint(manifest, folder)


def _pieces(content: IO[bytes]) -> Iterator[bytes]:
    while piece := content.read(_PIECE_BYTES):
        yield piece


def _checked(pieces: Iterator[bytes], file: SavepointFile, path: str) -> Iterator[bytes]:
    """The pieces.  After the last one it raises SAVEPOINT_DAMAGED if they aren't the manifest's file."""
    hashing = Hashing(pieces)
    yield from hashing
    if hashing.result() != file.content:
        raise damaged(path, "doesn't have the hash that the manifest names")


class _Pieces(io.RawIOBase):
    """Pieces as a file that can be read once."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._left) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._left += piece
        size = len(self._left) if size < 0 else size
        found, self._left = self._left[:size], self._left[size:]
        return found
