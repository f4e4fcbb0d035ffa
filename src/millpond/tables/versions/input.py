"""What two jobs have read, compared: records by their offsets, files as sets of files.

A file source counts the entries of its own log, so equal numbers of two jobs mean nothing.  Their
logs name the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millpond.checkpoint.log import committed_batches, read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import log_offset
from millpond.checkpoint.source_files import iter_logged
from millpond.errors import CheckpointError
from millpond.storage import Storage

Offsets = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What one job has read and another hasn't.

    records:  of sources that number their records
    files:    of file sources
    unknown:  why the rest can't be compared; empty if all is
    """

    records: int = 0
    files: int = 0
    unknown: str = ""

    @property
    def count(self) -> int:
        """Records and files."""
        return self.records + self.files

    def words(self) -> str:
        """The same as text."""
        if self.unknown:
            return f"unknown: {self.unknown}"
        parts = [f"{n:,} {what if n == 1 else what + 's'}" for n, what in ((self.records, "record"), (self.files, "file")) if n]
        return " and ".join(parts) or "nothing"


def missing(one: tuple[Storage, Offsets], other: tuple[Storage, Offsets]) -> Missing:
    """What the first job has read up to its offsets and the other hasn't up to its own.

    Each is the job's checkpoint and the end offsets of a batch.
    """
    mine, theirs = one[1], other[1]
    if mine.keys() != theirs.keys():
        return Missing(unknown=f"the one reads {len(mine)} sources, the other {len(theirs)}")
    records = files = 0
    for source, end in mine.items():
        other_end = theirs[source]
        of_files = [log_offset(each) is not None for each in (end, other_end) if each is not None]
        if any(of_files) and not all(of_files):
            return Missing(unknown=f"source {source} is of files in one job only")
        if any(of_files):
            files += len(_files(*one, source) - _files(*other, source))
            continue
        behind = _behind(end, other_end)
        if behind is None:
            shown = json.dumps([end, other_end])
            return Missing(unknown=f"the offsets of source {source} mean something in their own job only: {shown:.200}")
        records += behind
    return Missing(records=records, files=files)


def equal_batches(one: Storage, other: Storage) -> tuple[int, int] | None:
    """The newest batches of two jobs that have read the same, of those that Spark still has; None if there are none."""
    here, there = _by_input(one), _by_input(other)
    return next(((here[key], there[key]) for key in reversed(here) if key in there), None)


def _by_input(storage: Storage) -> dict[str, int]:
    """What a batch has read up to its end, as a text that is equal for two jobs -> the newest such batch."""
    found: dict[str, int] = {}
    digests: dict[str, list[tuple[int, str]]] = {}
    batches = []
    for number in committed_batches(storage):
        try:
            batches.append(read_batch(storage, Batch(number)))
        except CheckpointError as error:
            if error.condition != "FILE_GONE":  # Spark removed it just now
                raise
    for source, end in batches[-1].offsets.items() if batches else ():
        upto = log_offset(end)
        if upto is not None:
            digests[source] = list(_digests(storage, source, upto))
    for batch in batches:
        ends = {}
        for source, end in batch.offsets.items():
            upto = log_offset(end)
            if upto is not None:
                ends[source] = next((d for entry, d in reversed(digests.get(source, ())) if entry <= upto), "no files")
            elif end is None or (isinstance(end, Mapping) and _behind(end, end) is not None):
                ends[source] = json.dumps(end, sort_keys=True)
            else:
                return {}  # it means something in its own job only
        key = json.dumps(ends, sort_keys=True)
        found.pop(key, None)
        found[key] = int(batch.batch)
    return found


def _digests(storage: Storage, source: str, upto: int) -> Iterator[tuple[int, str]]:
    """Entry of a source's log -> a hash of the set of files up to it, by entry."""
    total = count = 0
    last = None
    for entry, path in sorted((file.entry, file.path) for file in iter_logged(storage, source, upto=upto)):
        if last is not None and entry != last:
            yield last, f"{count} files {total:x}"
        total = (total + int.from_bytes(hashlib.sha256(path.encode(errors="surrogateescape")).digest()[:16])) % (1 << 128)
        count, last = count + 1, entry
    if last is not None:
        yield last, f"{count} files {total:x}"


def _files(storage: Storage, offsets: Offsets, source: str) -> set[str]:
    upto = log_offset(offsets[source])
    return set() if upto is None else {file.path for file in iter_logged(storage, source, upto=upto)}


def _behind(end: Any, other: Any) -> int | None:
    """How many records an offset is beyond another one; None if such offsets can't be compared.

    Offsets of records are numbers by name, such as Kafka's by topic and partition.
    """
    if end is None:
        return 0
    if not isinstance(end, Mapping) or not (other is None or isinstance(other, Mapping)):
        return None
    behind = 0
    for name, value in end.items():
        there = None if other is None else other.get(name)
        if isinstance(value, Mapping):
            below = _behind(value, there)
        elif isinstance(value, int) and not isinstance(value, bool) and (there is None or isinstance(there, int)):
            below = max(0, value - (there or 0))
        else:
            below = 0 if value == there else None
        if below is None:
            return None
        behind += below
    return behind
