"""The savepoints of a place, as files.

    savepoints/<name>/claim.json       who makes the savepoint, and since when; made only if it isn't there
    savepoints/<name>/checkpoint/…     the files that Spark needs
    savepoints/<name>/savepoint.json   the manifest, written last

So two commands can't make one savepoint, and a command that was killed leaves one that is
incomplete: it can be deleted, and nothing reads it.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from time import time_ns

from millpond.catalogue import savepoints_folder
from millpond.errors import CheckpointError, MillpondError, RequestError, SavepointError, StorageError
from millpond.savepoint.archive.layout import NEWEST, find_archive
from millpond.savepoint.manifest import CHECKPOINT, NAME, Savepoint, check_savepoint_name, damaged, parse_manifest
from millpond.schema.moment import time_micros
from millpond.settings import FileBounds
from millpond.storage import Storage

CLAIM = "claim.json"
_BOUNDS = FileBounds()


@dataclass(frozen=True, slots=True)
class Savepoints:
    """The savepoints of a place.

    found:       oldest first
    incomplete:  names of those that a command makes now, or was killed in making
    broken:      name -> why its manifest can't be read
    """

    found: list[Savepoint]
    incomplete: list[str]
    broken: dict[str, MillpondError]


def list_savepoints(place: str | Path) -> Savepoints:
    """All savepoints of a pond, of a bare checkpoint, or of an archive, whose batches they are.

    Raises:  what the storage raises.
    """
    if (archive := find_archive(place)) is not None:
        return Savepoints([archive.savepoint(batch) for batch in archive.batches()], [], {})
    root = savepoints_folder(place)
    found: list[Savepoint] = []
    incomplete: list[str] = []
    broken: dict[str, MillpondError] = {}
    for name in root.names():
        try:
            found.append(_open(root, name))
        except StorageError:
            raise
        except MillpondError as error:
            if error.condition == "SAVEPOINT_INCOMPLETE":
                incomplete.append(name)
            elif error.condition != "UNKNOWN_SAVEPOINT":  # it was deleted just now
                broken[name] = error
    return Savepoints(sorted(found, key=lambda s: (s.manifest.created_ms, s.manifest.name)), incomplete, broken)


def open_savepoint(place: str | Path, name: str | None = None, *, time: dt.datetime | str | None = None) -> Savepoint:
    """One savepoint, its manifest read.

    place:   a pond, a checkpoint, or an archive
    name:    of an archive `newest`, `batch-17` or `batch-17.generation-2`; the newest without it
    time:    of an archive the newest batch that was committed by this time, instead of a name
    Raises:  UNKNOWN_SAVEPOINT, SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, SAVEPOINT_TOO_NEW,
             INVALID_NAME, INVALID_REQUEST, WRONG_TYPE.
    """
    if name is not None and time is not None:
        raise RequestError("INVALID_REQUEST", "Both a name and a time are given.", hint="Use one of the two.")
    if name is not None:
        check_savepoint_name(name)
    if (archive := find_archive(place)) is not None:
        archive.facts()  # it may be of a newer format
        return archive.savepoint(archive.find(name or NEWEST) if time is None else archive.at(time_micros(time) // 1000))
    if name is None:
        raise RequestError(
            "INVALID_REQUEST",
            f"{place} isn't an archive, so a savepoint has to be named.",
            hint="Name one: millpond savepoint list shows them.",
        )
    return _open(savepoints_folder(place), name)


def claim(root: Storage, name: str) -> Storage:
    """The folder of a new savepoint, which nobody else can make from now on.

    Raises:  SAVEPOINT_EXISTS, SAVEPOINT_INCOMPLETE, INVALID_NAME, NOT_WRITABLE.
    """
    check_savepoint_name(name)
    folder = root.folder(name)
    said = {"writer": uuid.uuid4().hex, "since_ms": time_ns() // 1_000_000}
    if not folder.create(CLAIM, json.dumps(said).encode()):
        check_free(root, name)
        raise _incomplete(folder, name)  # it was deleted just now
    return folder


def check_free(root: Storage, name: str) -> None:
    """Raise INVALID_NAME if no savepoint can have a name; SAVEPOINT_EXISTS or SAVEPOINT_INCOMPLETE if it is taken."""
    check_savepoint_name(name)
    folder = root.folder(name)
    if folder.stamp(NAME) is not None:
        raise SavepointError(
            "SAVEPOINT_EXISTS",
            f"There is a savepoint {name!r} already, in {root.uri}.",
            hint="Choose another name, or delete that savepoint first.",
            savepoint=name,
        )
    if folder.stamp(CLAIM) is not None or folder.names():
        raise _incomplete(folder, name)


def remove(folder: Storage) -> None:
    """Delete all files of a savepoint's folder: the manifest first, the claim last.

    So it is never taken for whole while files are missing, and nobody makes it anew meanwhile.
    """
    folder.delete(NAME)
    folder.delete_all(CHECKPOINT)
    folder.delete(CLAIM)
    folder.delete_all()


def _open(root: Storage, name: str) -> Savepoint:
    folder = root.folder(name)
    try:
        text = folder.read(NAME, _BOUNDS.manifest_bytes)
    except CheckpointError as error:
        if error.condition != "FILE_GONE":
            raise
        if folder.stamp(CLAIM) is not None or folder.names():
            raise _incomplete(folder, name) from error
        raise SavepointError(
            "UNKNOWN_SAVEPOINT",
            f"There is no savepoint {name!r} in {root.uri}.",
            hint="List them: millpond savepoint list.",
            savepoint=name,
        ) from error
    path = f"{folder.uri}/{NAME}"
    manifest = parse_manifest(text, path)
    if manifest.name != name:
        raise damaged(path, f"is the manifest of a savepoint {manifest.name!r}")
    return Savepoint(manifest, folder)


def _incomplete(folder: Storage, name: str) -> SavepointError:
    return SavepointError(
        "SAVEPOINT_INCOMPLETE",
        f"The savepoint {name!r} isn't finished: a command makes it now, or was killed in making it ({folder.uri}).",
        hint=f"Wait for that command, or delete what it left: millpond savepoint delete … {name}.",
        savepoint=name,
    )
