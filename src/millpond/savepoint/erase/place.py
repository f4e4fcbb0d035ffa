"""Erase a key from one folder: a checkpoint, a savepoint or an archive.

1. Make a copy beside the folder, of hard links: a hidden folder.
2. Erase the key in the copy.  Each changed file is a new one, so the folder keeps its own.
3. Renew the manifests of a savepoint or an archive: hashes, sizes, rows; a manifest comes last.
4. Look again: nothing of the copy may have rows of the key.
5. Let the copy survive a crash; then the two folders exchange their names, in one step.
6. Delete the old one, which has the copy's name now.

Who is killed before the fifth step has changed nothing; after it the key is gone, but for a hidden
folder that the next run deletes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from millpond.checkpoint.log import CommittedBatch, read_batch
from millpond.checkpoint.position import Batch
from millpond.errors import CheckpointError, SavepointError, SetupError
from millpond.savepoint.archive.layout import Archive, folder_of, without_batch
from millpond.savepoint.create import find_batches
from millpond.savepoint.erase.files import ErasedFile, StateEraser, StateFile, Written, state_file
from millpond.savepoint.erase.key import Columns, ErasedKey, OperatorRows, find_rows
from millpond.savepoint.manifest import (
    CHECKPOINT,
    NAME,
    Manifest,
    PartitionState,
    Savepoint,
    SavepointFile,
    damaged,
    parse_manifest,
)
from millpond.savepoint.rows import count_rows
from millpond.savepoint.verify import verify_savepoint
from millpond.schema.store import store_folder
from millpond.settings import FileBounds
from millpond.storage import Storage, open_storage
from millpond.storage.below import files_below
from millpond.storage.exchange import try_exchange
from millpond.storage.local import sync_file_system, sync_folder
from millpond.storage.names import numbers

_BOUNDS = FileBounds()
_COPY = ".erase-"
_TEMPORARY = re.compile(r"\..*\.tmp")
_SAMPLES = 3


@dataclass(slots=True, kw_only=True)
class FoundRows:
    """What a place has of the key.

    files:    those that have rows of it
    samples:  the grouping columns of the first few different rows
    """

    files: list[ErasedFile] = field(default_factory=list)
    samples: list[Columns] = field(default_factory=list)

    def see(self, columns: Columns) -> None:
        """One row more."""
        if len(self.samples) < _SAMPLES and columns not in self.samples:
            self.samples.append(columns)

    @property
    def records(self) -> int:
        """How many records of its files are of the key."""
        return sum(file.records for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder that may have rows of the key.

    kind:    checkpoint, old copy, savepoint, archive or export
    path:    on a local disk
    """

    kind: str
    path: Path

    @property
    def copy(self) -> Path:
        """The hidden folder beside it."""
        return self.path.with_name(_COPY + self.path.name)

    @property
    def uri(self) -> str:
        """Where it is."""
        return str(self.path)

    @property
    def left(self) -> str | None:
        """What a killed command has left; None if there is nothing."""
        return str(self.copy) if self.copy.exists() else None

    def find(self, key: ErasedKey) -> FoundRows:
        """What it has of the key; nothing changes.  Raises what its files and `find_rows` raise."""
        found = find_in(open_storage(self.path), self.kind, key)
        # What a killed writer has left may have the key too, and nobody needs it.
        for path in sorted(self.path.rglob(".*.tmp")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found.files.append(ErasedFile(path=str(path.relative_to(self.path)), sha256=digest, records=0, new_path=None))
        return found

    def erase(self, key: ErasedKey, written: Written, check: Callable[[], None] = lambda: None) -> FoundRows:
        """Erase the key from it.

        check:   called before the last step that can be taken back
        Raises:  NOT_WRITABLE, UNSUPPORTED, SAVEPOINT_DAMAGED, what its files raise.  Then the place
                 is as it was.
        """
        found = FoundRows()
        try:
            if self.left is not None:
                shutil.rmtree(self.copy)
            if not (before := self.find(key).files):
                return found
            try:
                _copy_tree(self.path, self.copy)  # 1
                found.files += [file for file in before if _TEMPORARY.fullmatch(file.path.rpartition("/")[2])]
                storage = open_storage(self.copy)
                for eraser in _erasers(storage, self.kind, key, found):  # 2
                    found.files += eraser.erase(written)
                self._renew(storage, found)  # 3
                if Place(kind=self.kind, path=self.copy).find(key).files:  # 4
                    raise damaged(str(self.copy), "still has rows of the key, which is a bug of Millpond")
                sync_file_system(self.copy)  # 5
                check()
                if not try_exchange(self.copy, self.path):
                    raise CheckpointError(
                        "UNSUPPORTED",
                        f"Two folders can't exchange their names at {self.path.parent}.",
                        hint="Nothing is erased there: copy it to a file system of a local disk, such as ext4 or XFS.",
                    )
            except BaseException:
                shutil.rmtree(self.copy, ignore_errors=True)
                raise
            for file in found.files:
                if file.new_path is not None and file.new_path.endswith(".sst"):
                    written.paths[file.new_sha256] = self.path / file.new_path
            shutil.rmtree(self.copy)  # 6
            sync_folder(self.path.parent)
        except OSError as broken:
            raise SetupError(
                "NOT_WRITABLE",
                f"{self.path} can't be changed: {broken.strerror}.",
                hint="Run it as a user that may write there, on a disk with room.",
                path=str(self.path),
            ) from broken
        return found

    def erase_private(self, key: ErasedKey, done: Iterable[ErasedFile] = ()) -> FoundRows:
        """Erase the key from a folder that only this command knows.

        done:  files that are without the key already, while manifests may name the old ones
        """
        found, storage = FoundRows(files=list(done)), open_storage(self.path)
        if found.files:  # a killed command may have left files that no manifest names any more, or yet: these go below
            self._renew(storage, found, is_whole=False)
        for eraser in _erasers(storage, self.kind, key, found):
            found.files += eraser.erase(Written())
        if found.files:
            self._renew(storage, found)
        return found

    def _renew(self, storage: Storage, found: FoundRows, *, is_whole: bool = True) -> None:
        """Write the manifests anew.

        is_whole:  whether a savepoint must be whole afterwards
        Raises:    SAVEPOINT_DAMAGED.
        """
        if self.kind in ("savepoint", "export"):
            changes = {file.path.removeprefix(f"{CHECKPOINT}/"): file for file in found.files}
            manifest = _recounted(Savepoint(_renewed(open_manifest(storage), changes, f"{CHECKPOINT}/"), storage))
            storage.write(NAME, manifest.to_bytes())
            if is_whole and (problems := verify_savepoint(Savepoint(manifest, storage)).problems):
                raise damaged(storage.uri, f"isn't whole: {problems[0].message}")
        elif self.kind == "archive":
            _renew_archive(storage, found)


def find_in(storage: Storage, kind: str, key: ErasedKey) -> FoundRows:
    """What a place has of the key; nothing changes.  Raises what its files and `find_rows` raise."""
    found = FoundRows()
    for eraser in _erasers(storage, kind, key, found):
        found.files += eraser.find()
    return found


def open_manifest(storage: Storage) -> Manifest:
    """The manifest of a savepoint's folder, under whatever name.  Raises as `parse_manifest`."""
    return parse_manifest(storage.read(NAME, _BOUNDS.manifest_bytes), f"{storage.uri}/{NAME}")


def _erasers(storage: Storage, kind: str, key: ErasedKey, found: FoundRows) -> Iterator[StateEraser]:
    """For each checkpoint, or series of them, in a folder."""
    if kind == "archive":
        archive = Archive(storage)
        for number in archive.numbers():
            batches, files = archive.batches(number), list(files_below(storage, f"{folder_of(number)}/files"))
            if not batches:
                if files:
                    raise SavepointError(
                        "SAVEPOINT_INCOMPLETE",
                        f"Generation {number} of {storage.uri} has files and no whole batch.",
                        hint="Let its archiver run for a batch, or delete that generation's folder.",
                    )
                continue
            newest = batches[-1]
            savepoint = archive.savepoint(newest)
            batch = read_batch(savepoint.checkpoint, Batch(newest.batch))
            rows = find_rows(savepoint.checkpoint, batch, key, f"{storage.uri}, generation {number}")
            front = f"{folder_of(number)}/files/"
            yield _eraser(storage, {path: without_batch(path.removeprefix(front)) for path in files}, rows, found)
        return
    prefix = f"{CHECKPOINT}/" if kind in ("savepoint", "export") else ""
    checkpoint = storage.folder(CHECKPOINT) if prefix else storage
    batch = _batch_of(storage, checkpoint, kind)
    rows = find_rows(checkpoint, batch, key, storage.uri)
    files = [prefix + path for path in files_below(checkpoint, f"state/{rows.operator}")]
    yield _eraser(storage, {path: path.removeprefix(prefix) for path in files}, rows, found)


def _batch_of(storage: Storage, checkpoint: Storage, kind: str) -> CommittedBatch:
    number = open_manifest(storage).batch if kind in ("savepoint", "export") else find_batches(checkpoint, None)[-1]
    return read_batch(checkpoint, Batch(number))


def _eraser(storage: Storage, paths: Mapping[str, str], rows: OperatorRows, found: FoundRows) -> StateEraser:
    files = (state_file(path, inside, rows.operator) for path, inside in paths.items())
    known: list[StateFile] = [file for file in files if file is not None]
    return StateEraser(storage, known, rows, found.see)


def _copy_tree(source: Path, target: Path) -> None:
    """A copy of hard links, without the temporary files of killed writers."""
    target.mkdir(mode=source.stat().st_mode & 0o777)
    for entry in os.scandir(source):
        if entry.is_symlink():
            raise CheckpointError(
                "UNSUPPORTED",
                f"{entry.path} is a link, and what it names may belong to others.",
                hint="Nothing is erased there: put the folder itself in the link's place.",
                path=entry.path,
            )
        if entry.is_dir():
            _copy_tree(Path(entry.path), target / entry.name)
        elif not _TEMPORARY.fullmatch(entry.name):
            os.link(entry.path, target / entry.name)


def _renewed(manifest: Manifest, changes: Mapping[str, ErasedFile], prefix: str) -> Manifest:
    """A manifest with these files in place of those.

    changes:  path in the manifest -> what became of the file
    prefix:   of paths in the changes' new paths
    """
    files, sizes = [], {file.path: file.size_bytes for file in manifest.files}
    grown: dict[str, int] = {}
    for file in manifest.files:
        change = changes.get(file.path)
        if change is None or (change.path == change.new_path and file.sha256 == change.new_sha256):
            files.append(file)
            continue
        if file.sha256 != change.sha256:
            raise damaged(file.path, "isn't the file that the manifest names")
        grown[file.path] = change.new_bytes - sizes[file.path]
        if change.new_path is not None:
            path = change.new_path.removeprefix(prefix)
            files.append(SavepointFile(path=path, size_bytes=change.new_bytes, sha256=change.new_sha256))

    def resized(state: PartitionState) -> PartitionState:
        folder = store_folder(state.operator, state.partition, state.store)
        size = sum(by for path, by in grown.items() if _folder(path) in (folder, f"{folder}/SSTs"))
        return replace(state, size_bytes=state.size_bytes + size)

    # Two names may have become one: the content decides the name of an SST.
    unique = {file.path: file for file in files}
    return replace(
        manifest,
        files=tuple(unique[path] for path in sorted(unique)),
        partitions=tuple(map(resized, manifest.partitions)),
    )


def _folder(path: str) -> str:
    at = path.find("state/")
    return path[at:].rpartition("/")[0]


def _recounted(savepoint: Savepoint) -> Manifest:
    """The manifest with the numbers of rows that there are now, where they were counted before."""
    manifest = savepoint.manifest
    if manifest.rows is None:
        return manifest
    counted: dict[tuple[int, str, int], int] = {}
    for where, rows in count_rows(savepoint.checkpoint, read_batch(savepoint.checkpoint, Batch(manifest.batch))):
        if not isinstance(rows, int):
            raise rows
        counted[where] = counted.get(where, 0) + rows
    return replace(
        manifest,
        partitions=tuple(
            state if state.rows is None else replace(state, rows=counted.get((state.operator, state.store, state.partition), 0))
            for state in manifest.partitions
        ),
    )


def _renew_archive(storage: Storage, found: FoundRows) -> None:
    archive = Archive(storage)
    for number in archive.numbers():
        prefix = f"{folder_of(number)}/files/"
        changes = {file.path.removeprefix(prefix): file for file in found.files if file.path.startswith(prefix)}
        batches = [(batch, batch.path) for batch in archive.batches(number)]
        batches += [(batch, batch.expired_path) for batch in archive.expired(number)]
        for batch, path in batches:
            before = archive.manifest(batch, path)
            after = _renewed(before, changes, prefix)
            if after.files != before.files:
                storage.write(path, after.to_bytes())
    # An archiver that still runs notices that it has been taken, before its next batch.
    taken = max(numbers(name.removesuffix(".json") for name in storage.names("writers")), default=0) + 1
    said = {"writer": uuid.uuid4().hex, "host": "erase", "pid": os.getpid(), "since_ms": int(time.time() * 1000)}
    storage.write(f"writers/{taken}.json", json.dumps(said).encode())
