"""An archive as files, and its batches as savepoints.

    archive.json                                   the job; a folder that has it is an archive
    writers/<n>.json                               who took the archive; the newest one may write
    generations/<g>/generation.json                why it began, and which batches were lost before it
    generations/<g>/batches/<N>-<committed>.json   the manifest of batch N, written last
    generations/<g>/expired/…                      manifests of batches whose files are being deleted
    generations/<g>/files/<N>/…                    the files that batch N was the first to need

A batch's manifest is that of a savepoint, and has all files that a restart needs.  The paths in it
begin with the batch in whose folder the file is: `17/offsets/17`, `12/state/0/3/13.delta`.

A generation is a series of batches of one run of a job, without a gap.  A batch takes a file from
the batch before, or has a copy of its own.  So those batches that use a file follow each other,
which is why a file can be deleted as soon as the oldest batch that is left doesn't have it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millpond.errors import SavepointError
from millpond.savepoint.manifest import CHECKPOINT, Manifest, Savepoint, damaged, parse_manifest
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage, open_storage
from millpond.storage.names import NUMBER, numbers
from millpond.storage.renamed import RenamedStorage

NAME = "archive.json"
FORMAT = 1
GENERATION = "generation.json"
NEWEST = "newest"
_RECORD = re.compile(rf"({NUMBER})-({NUMBER})\.json")
_NAMED = re.compile(rf"batch-({NUMBER})(?:\.generation-({NUMBER}))?")
_BOUNDS = FileBounds()


@dataclass(frozen=True, slots=True, order=True)
class ArchivedBatch:
    """One batch of an archive.

    committed_ms:  when it was committed, or planned if that isn't known
    """

    generation: int
    batch: int
    committed_ms: int

    @property
    def name(self) -> str:
        """Its name as a savepoint."""
        return f"batch-{self.batch}.generation-{self.generation}"

    @property
    def path(self) -> str:
        """Its manifest."""
        return f"{folder_of(self.generation)}/batches/{self.batch}-{self.committed_ms}.json"

    @property
    def expired_path(self) -> str:
        """The same while its files are being deleted."""
        return f"{folder_of(self.generation)}/expired/{self.batch}-{self.committed_ms}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A series of batches without a gap.

    number:    from 1
    began_ms:  by the clock of the archiver's machine
    why:       it began
    lost:      the first and last batch that were committed before it and aren't archived; None if
               there are none
    """

    number: int
    began_ms: int
    why: str
    lost: tuple[int, int] | None

    def to_bytes(self) -> bytes:
        """The file `generation.json`."""
        return json.dumps({"began_ms": self.began_ms, "why": self.why, "lost": self.lost}).encode()


class Archive:
    """The batches of an archive, for reading."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def facts(self) -> dict[str, Any]:
        """What archive.json says of the job that made it: `job`, `job_id`, `checkpoint`.

        Raises:  FILE_GONE, SAVEPOINT_DAMAGED, SAVEPOINT_TOO_NEW.
        """
        found = self._read(NAME)
        if found.get("format") != FORMAT:
            raise SavepointError(
                "SAVEPOINT_TOO_NEW",
                f"{self.storage.uri}/{NAME} has format {found.get('format')}; this version of Millpond knows format {FORMAT}.",
                hint="Use the version of Millpond that made the archive, or a newer one.",
                path=f"{self.storage.uri}/{NAME}",
            )
        return found

    def numbers(self) -> list[int]:
        """The numbers of its generations, ascending; one of them may have no batch yet."""
        return numbers(self.storage.names("generations"))

    def generations(self) -> list[Generation]:
        """Its generations, oldest first.  Raises SAVEPOINT_DAMAGED."""
        found = []
        for number in self.numbers():
            path = f"{folder_of(number)}/{GENERATION}"
            if self.storage.stamp(path) is None:  # an archiver was killed before it had a batch
                continue
            facts = self._read(path)
            try:
                lost = None if facts["lost"] is None else (int(facts["lost"][0]), int(facts["lost"][1]))
                found.append(Generation(number=number, began_ms=int(facts["began_ms"]), why=str(facts["why"]), lost=lost))
            except DAMAGE as broken:
                raise damaged(f"{self.storage.uri}/{path}", f"can't be read: {broken!r:.100}") from broken
        return found

    def batches(self, generation: int | None = None) -> list[ArchivedBatch]:
        """All its batches, or those of a generation, oldest first."""
        found = []
        for number in self.numbers() if generation is None else [generation]:
            names = self.storage.names(f"{folder_of(number)}/batches")
            found += [ArchivedBatch(number, int(m[1]), int(m[2])) for name in names if (m := _RECORD.fullmatch(name))]
        return sorted(found)

    def expired(self, generation: int) -> list[ArchivedBatch]:
        """Those of a generation whose files are being deleted."""
        names = self.storage.names(f"{folder_of(generation)}/expired")
        return sorted(ArchivedBatch(generation, int(m[1]), int(m[2])) for name in names if (m := _RECORD.fullmatch(name)))

    def newest(self) -> ArchivedBatch | None:
        """The newest batch; None if there is none."""
        for number in reversed(self.numbers()):
            if found := self.batches(number):
                return found[-1]
        return None

    def find(self, name: str) -> ArchivedBatch:
        """A batch by its name: `newest`, `batch-17` or `batch-17.generation-2`.

        Without a generation, it is of the newest one that has it.

        Raises:  UNKNOWN_SAVEPOINT.
        """
        if name == NEWEST:
            if (newest := self.newest()) is None:
                raise self._unknown("has no batch yet")
            return newest
        if (m := _NAMED.fullmatch(name)) is None:
            raise self._unknown(f"has no {name!r:.100}: its savepoints have names like batch-17, or newest")
        for number in reversed(self.numbers()) if m[2] is None else [int(m[2])]:
            for found in self.batches(number):
                if found.batch == int(m[1]):
                    return found
        for generation in self.generations():
            if generation.lost is not None and generation.lost[0] <= int(m[1]) <= generation.lost[1]:
                raise self._unknown(f"doesn't have batch {m[1]}: {generation.why}")
        raise self._unknown(f"has no {name}{self._window()}")

    def at(self, time_ms: int) -> ArchivedBatch:
        """The newest batch that was committed by a time.  Raises UNKNOWN_SAVEPOINT."""
        found = max((batch for batch in self.batches() if batch.committed_ms <= time_ms), default=None)
        if found is None:
            raise self._unknown(f"has no batch of that time or before{self._window()}")
        return found

    def manifest(self, batch: ArchivedBatch, path: str | None = None) -> Manifest:
        """The manifest of a batch, its paths as in the archive.

        Raises:  FILE_GONE, SAVEPOINT_DAMAGED, SAVEPOINT_TOO_NEW.
        """
        path = path or batch.path
        manifest = parse_manifest(self.storage.read(path, _BOUNDS.manifest_bytes), f"{self.storage.uri}/{path}")
        if (manifest.name, manifest.batch) != (batch.name, batch.batch):
            raise damaged(f"{self.storage.uri}/{path}", f"is the manifest of {manifest.name}")
        for file in manifest.files:
            if not numbers([file.path.partition("/")[0]]) or "/" not in file.path:
                raise damaged(f"{self.storage.uri}/{path}", f"names {file.path!r:.100}, which begins with no batch")
        return manifest

    def savepoint(self, batch: ArchivedBatch) -> Savepoint:
        """A batch as a savepoint, for restoring, verifying or exporting it.  Raises as `manifest`."""
        manifest = self.manifest(batch)
        inside = {without_batch(file.path): file for file in manifest.files}
        names = {f"{CHECKPOINT}/{path}": f"{folder_of(batch.generation)}/files/{file.path}" for path, file in inside.items()}
        files = tuple(replace(file, path=path) for path, file in inside.items())
        return Savepoint(replace(manifest, files=files), RenamedStorage(self.storage, names))

    def _read(self, path: str) -> dict[str, Any]:
        text = self.storage.read(path, _BOUNDS.note_bytes)
        try:
            found = parse_json(text)
            if not isinstance(found, dict):
                raise ValueError("it isn't an object")
        except DAMAGE as broken:
            raise damaged(f"{self.storage.uri}/{path}", f"can't be read: {broken!r:.100}") from broken
        return found

    def _window(self) -> str:
        every = self.batches()
        return f"; its batches are {every[0].batch} to {every[-1].batch}" if every else "; it has no batch yet"

    def _unknown(self, what: str) -> SavepointError:
        return SavepointError(
            "UNKNOWN_SAVEPOINT",
            f"The archive {self.storage.uri} {what}.",
            hint="Look at what there is: millpond savepoint list with the archive's folder.",
            uri=self.storage.uri,
        )


def find_archive(place: str | Path) -> Archive | None:
    """The archive at a place; None if the place is none."""
    storage = open_storage(place)
    return Archive(storage) if storage.stamp(NAME) is not None else None


def folder_of(generation: int) -> str:
    """The folder of a generation."""
    return f"generations/{generation}"


def without_batch(path: str) -> str:
    """The path in a checkpoint of a path in a manifest of an archive."""
    return path.partition("/")[2]


def first_needed(path: str) -> int:
    """The batch in whose folder a file of a manifest of an archive is."""
    return int(path.partition("/")[0])
