"""Erase a key from a place on an object store, where no folder can take another's place in one step.

1. Copy the place to a folder on this machine, and erase the key there (`place`).
2. Upload the files with new names: nothing names them yet.
3. Write `erasing.json`: each file that is written over, with its old and new hash.
4. Write over these files, and then the manifests, each in one step.
5. Delete the files that nothing names any more, and `erasing.json` at last.

A state file without the key fits to the others at any time, so Spark can start from a checkpoint
between two steps.  A savepoint or an archive between the third and the fifth step may differ from
its manifest; who is killed there runs the command again, which finds out by `erasing.json` what was
done.  The folder on this machine is deleted at the end, and by the next run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millpond.errors import CheckpointError
from millpond.savepoint.erase.files import ErasedFile, Written
from millpond.savepoint.erase.key import ErasedKey
from millpond.savepoint.erase.place import FoundRows, Place, find_in
from millpond.savepoint.manifest import NAME, damaged
from millpond.savepoint.threads import do_each, threads_between
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds, home
from millpond.storage import Storage, open_storage
from millpond.storage.below import files_below
from millpond.storage.copying import copy_file

ERASING = "erasing.json"
_FORMAT = 1
_WORK = "erasing"
_BOUNDS = FileBounds()
_LAST = ("/batches/", "/expired/", "writers/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePlace:
    """A place on an object store that may have rows of the key.

    kind:     checkpoint, old copy, savepoint or archive
    storage:  its folder
    """

    kind: str
    storage: Storage

    @property
    def uri(self) -> str:
        """Where it is."""
        return self.storage.uri

    @property
    def left(self) -> str | None:
        """What a killed command has left; None if there is nothing."""
        if self._work.exists():
            return str(self._work)
        return f"{self.uri}/{ERASING}" if self.storage.stamp(ERASING) is not None else None

    def find(self, key: ErasedKey) -> FoundRows:
        """What it has of the key; nothing changes.  Raises what its files and `find_rows` raise."""
        return find_in(self.storage, self.kind, key)

    def erase(self, key: ErasedKey, written: Written, check: Callable[[], None] = lambda: None) -> FoundRows:  # noqa: ARG002
        """Erase the key from it.

        check:   called before the first step that others see
        Raises:  NOT_WRITABLE, UNSUPPORTED, SAVEPOINT_DAMAGED, what its files and the object store raise.
        """
        shutil.rmtree(self._work, ignore_errors=True)
        begun = self._begun()
        if not begun and not self.find(key).files:
            return FoundRows()
        try:
            self._work.mkdir(parents=True, mode=0o700)
            local = open_storage(self._work)
            before = self._download(local)  # 1
            done = [file for file in begun if before.get(file.path) == file.new_sha256]
            found = Place(kind=self.kind, path=self._work).erase_private(key, done)
            check()
            self._upload(local, before, begun, found)
            return found
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    @property
    def _work(self) -> Path:
        return home() / _WORK / hashlib.sha256(self.uri.encode()).hexdigest()[:16]

    def _download(self, local: Storage) -> dict[str, str]:
        """Copy all files but `erasing.json`: path -> hash."""
        hashes: dict[str, str] = {}

        def copy(path: str) -> None:
            hashes[path] = copy_file(self.storage, path, local, path, most_bytes=_BOUNDS.state_bytes).sha256

        paths = [path for path in files_below(self.storage) if path != ERASING]
        do_each(copy, paths, threads=threads_between(self.storage, local))
        return hashes

    def _upload(self, local: Storage, before: dict[str, str], begun: Iterable[ErasedFile], found: FoundRows) -> None:
        after = {path: hashlib.sha256(local.read(path, _BOUNDS.state_bytes)).hexdigest() for path in files_below(local)}
        changed = [path for path, digest in after.items() if before.get(path, digest) != digest]
        new = [path for path in after if path not in before]
        threads = threads_between(self.storage, local)
        put = partial(_put, local, self.storage)
        do_each(put, [path for path in new if not _is_last(path)], threads=threads)  # 2
        over = {file.path: file for file in (*begun, *found.files) if file.path == file.new_path}
        if self.kind in ("savepoint", "archive"):
            self.storage.write(ERASING, _encode(over.values()))  # 3
        for path in changed:
            if not _is_last(path):
                folder, _, name = path.rpartition("/")
                for checksum in (f"{folder}/.{name}.crc", f"{path}.crc"):  # a missing one is right, a stale one is not
                    if checksum not in after:
                        self.storage.delete(checksum)
        do_each(put, [path for path in changed if not _is_last(path)], threads=threads)  # 4
        for path in (path for path in (*changed, *new) if _is_last(path)):
            put(path)
        for path in before.keys() - after.keys():  # 5
            self.storage.delete(path)
        self.storage.delete(ERASING)

    def _begun(self) -> list[ErasedFile]:
        """What a killed command has begun to write over.  Raises SAVEPOINT_DAMAGED."""
        try:
            data = parse_json(self.storage.read(ERASING, _BOUNDS.manifest_bytes))
        except CheckpointError as error:
            if error.condition == "FILE_GONE":
                return []
            raise
        try:
            if data["format"] != _FORMAT:
                raise ValueError(f"its format is {data['format']!r}")
            return [
                ErasedFile(
                    path=f["path"],
                    sha256=f["sha256"],
                    records=f["records"],
                    new_path=f["path"],
                    new_bytes=f["new_bytes"],
                    new_sha256=f["new_sha256"],
                )
                for f in data["files"]
            ]
        except DAMAGE as broken:
            raise damaged(f"{self.uri}/{ERASING}", f"isn't readable: {broken!r:.100}") from broken


def _encode(files: Iterable[ErasedFile]) -> bytes:
    names = ("path", "sha256", "records", "new_bytes", "new_sha256")
    each = [{name: getattr(file, name) for name in names} for file in files]
    return json.dumps({"format": _FORMAT, "files": each}, indent=1).encode()


def _put(local: Storage, remote: Storage, path: str) -> None:
    remote.write(path, local.read(path, _BOUNDS.state_bytes))


def _is_last(path: str) -> bool:
    """Whether a file is a manifest, or says who writes to an archive."""
    return path == NAME or any(part in path for part in _LAST)
