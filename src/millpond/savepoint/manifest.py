"""The manifest of a savepoint: `savepoint.json`, written last.  A folder without it isn't a savepoint.

{
 "format": 1,
 "name": …, "note": …,
 "parent": …, "shares_with": …,               the job's savepoint before it; the one that had some of its files
 "job": …, "job_id": …, "checkpoint": …,      the job, Spark's id of it, and the place that was copied
 "batch": …, "offsets": …, "watermark_ms": …, "batch_started_ms": …, "committed_ms": …,
 "created_ms": …, "millpond": …,              when, by the clock of the machine that made it, and by which version
 "checkpoint_format": …, "conf": …,           all settings that Spark pinned in the batch
 "partitions": [[operator, store, partition, rows, bytes], …],
 "operators": [[operator, name], …],
 "tables": {table: definition, …},
 "sink": …,                                   the folder of a file sink whose log was copied; else null
 "files": [[path, bytes, sha256], …],
 "sha256": …                                  of all that stands before it
}
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from millpond.errors import SavepointError
from millpond.schema.definition.table import check_table_name
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.storage import Storage
from millpond.storage.copying import Copied

FORMAT = 1
NAME = "savepoint.json"
CHECKPOINT = "checkpoint"
_HASH = "sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointFile:
    """One file of a savepoint.

    path:    below the savepoint's folder `checkpoint`
    sha256:  in hexadecimal
    """

    path: str
    size_bytes: int
    sha256: str

    @property
    def content(self) -> Copied:
        """Size and hash, to compare with those of the bytes that are read."""
        return Copied(self.size_bytes, self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition of a store.

    rows:        of the batch; None if they weren't counted, and for a store that only Spark needs
    size_bytes:  of its files
    """

    operator: int
    store: str
    partition: int
    rows: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a savepoint holds.

    name:               unique in its pond
    note:               a text for people
    parent:             the last savepoint of the same job before this one; None if there was none
    shares_with:        the savepoint whose files this one shares; None if it shares none
    job, job_id:        the job's name, and the id that Spark wrote into its checkpoint
    checkpoint:         URI of the checkpoint that was copied
    origin:             the savepoint from which that checkpoint was restored; None if it wasn't
    batch:              a job that starts from the savepoint goes on after this batch
    offsets:            per source, its end offset
    watermark_ms:       after the batch; None if the job has none
    batch_started_ms:   when Spark planned the batch
    committed_ms:       when the batch was committed; None if the checkpoint itself was a copy
    created_ms:         by the clock of the machine that made the savepoint
    millpond:           the version that made it
    checkpoint_format:  1 or 2
    conf:               every setting that Spark pinned in the batch
    operators:          Spark's operator id -> Spark's name of it
    partitions:         of each store, with its rows and bytes
    tables:             table -> its definition as JSON
    files:              all files, by their paths
    sink:               URI of the file sink whose log was copied, up to the batch; None if none was
    """

    name: str
    note: str
    parent: str | None
    shares_with: str | None
    job: str
    job_id: str
    checkpoint: str
    origin: str | None
    batch: int
    offsets: dict[str, Any]
    watermark_ms: int | None
    batch_started_ms: int
    committed_ms: int | None
    created_ms: int
    millpond: str
    checkpoint_format: int
    conf: dict[str, str]
    operators: dict[int, str]
    partitions: tuple[PartitionState, ...]
    tables: dict[str, Any]
    files: tuple[SavepointFile, ...]
    sink: str | None = None

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def rows(self) -> int | None:
        """Of all stores whose rows were counted; None if none were."""
        counts = [partition.rows for partition in self.partitions if partition.rows is not None]
        return sum(counts) if counts or not self.partitions else None

    def to_bytes(self) -> bytes:
        """The file `savepoint.json`."""
        data = {"format": FORMAT, **{f.name: getattr(self, f.name) for f in fields(self)}}
        data["operators"] = [[operator, name] for operator, name in sorted(self.operators.items())]
        data["partitions"] = [[p.operator, p.store, p.partition, p.rows, p.size_bytes] for p in self.partitions]
        data["files"] = [[file.path, file.size_bytes, file.sha256] for file in self.files]
        return (json.dumps({**data, _HASH: _digest(data)}, indent=1, ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Savepoint:
    """One savepoint.

    manifest:  what it holds
    storage:   its folder
    """

    manifest: Manifest
    storage: Storage

    @property
    def checkpoint(self) -> Storage:
        """The copied checkpoint."""
        return self.storage.folder(CHECKPOINT)


def parse_manifest(text: bytes, path: str) -> Manifest:
    """The reverse of `Manifest.to_bytes`.

    path:    for messages
    Raises:  SAVEPOINT_DAMAGED if it isn't what was written; SAVEPOINT_TOO_NEW.
    """
    try:
        data = parse_json(text)
        number = data["format"]
        if type(number) is not int:
            raise ValueError("its format isn't a number")
        if number != FORMAT:
            raise SavepointError(
                "SAVEPOINT_TOO_NEW",
                f"{path} has format {number}; this version of Millpond knows format {FORMAT}.",
                hint="Use the version of Millpond that made the savepoint, or a newer one.",
                path=path,
                format=number,
            )
        if data.pop(_HASH) != _digest(data):
            raise ValueError("its own hash doesn't match")
        del data["format"]
        return _manifest(data)
    except DAMAGE as broken:
        raise damaged(path, f"isn't a manifest as it was written: {broken!r:.200}") from broken


def damaged(path: str, what: str) -> SavepointError:
    """The error of a savepoint's file that has changed since the savepoint was made."""
    return SavepointError(
        "SAVEPOINT_DAMAGED",
        f"{path} {what}.",
        hint="Restore another savepoint, or the files of this one from a copy.",
        path=path,
    )


def _manifest(data: dict[str, Any]) -> Manifest:
    # A hash shows what somebody changed by mistake; names become paths, so they are checked all the
    # same.
    for file in data["files"]:
        if any(part in ("", ".", "..") for part in file[0].split("/")) or "\0" in file[0]:
            raise ValueError(f"{file[0]!r:.100} is no path")
    check_savepoint_name(data["name"])
    # Older manifests name only the savepoint whose files they share, as the parent.
    data.setdefault("shares_with", data["parent"])
    data["operators"] = {int(operator): str(name) for operator, name in data["operators"]}
    data["files"] = tuple(SavepointFile(path=path, size_bytes=size, sha256=digest) for path, size, digest in data["files"])
    data["partitions"] = tuple(
        PartitionState(operator=operator, store=store, partition=partition, rows=rows, size_bytes=size)
        for operator, store, partition, rows, size in data["partitions"]
    )
    found = Manifest(**data)
    for name, hint in _TYPES.items():
        if not isinstance(getattr(found, name), hint):
            raise ValueError(f"its {name} isn't one")
    return found


def check_savepoint_name(name: str) -> None:
    """Raises INVALID_NAME: savepoints are named like tables."""
    check_table_name(name)


def renamed(manifest: Manifest, name: str) -> Manifest:
    """The same savepoint under another name."""
    return replace(manifest, name=name)


_TYPES: dict[str, Any] = {
    name: hint for name, hint in get_type_hints(Manifest).items() if hint in (str, int) or str(hint) in ("str | None", "int | None")
}


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
