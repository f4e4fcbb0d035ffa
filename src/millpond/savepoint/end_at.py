"""Let the next batch of a restored job end where another job ended: both have then read the same input.

Batches of two jobs end at different offsets.  The restored checkpoint gets the plan of its next
batch, offsets/N+1, with the ends of the other job's sources.  Spark finds a batch that is planned
and not committed, and runs exactly that one first.

A file source counts the entries of its own log.  So its log gets one more entry, with the files
that the other job has read and this one hasn't.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.checkpoint.log import read_commit, with_offsets
from millpond.checkpoint.offset_order import fallen, growing_numbers
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import log_offset
from millpond.checkpoint.source_files import LoggedFile, iter_logged, newest_compact, write_entry
from millpond.errors import CheckpointError, ReplicaError
from millpond.savepoint.manifest import Savepoint
from millpond.schema.strict_json import parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage

_BOUNDS = FileBounds()
# Spark's default of spark.sql.streaming.fileSource.log.compactInterval.
_COMPACT_INTERVAL = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where a batch of a job ends.

    name:        of the savepoint or job, for people
    batch:       its number
    offsets:     source -> its end offset
    checkpoint:  which has the logs of file sources
    """

    name: str
    batch: int
    offsets: Mapping[str, Any]
    checkpoint: Storage = field(compare=False)

    @classmethod
    def of(cls, savepoint: Savepoint) -> End:
        """Where a savepoint's batch ends."""
        manifest = savepoint.manifest
        return cls(name=manifest.name, batch=manifest.batch, offsets=manifest.offsets, checkpoint=savepoint.checkpoint)


def check_end(first: End, other: End) -> None:
    """Raise an error if the first job's next batch can't end where the other one ends.

    Raises:  NOT_ALIGNED if they have other sources, or the first has read more; UNSUPPORTED for
             offsets that mean something in their own job only.
    """
    for _ in _ends(first, other):
        pass


def plan_next_batch(first: End, other: End, target: Storage) -> int | None:
    """Write the plan of the first job's next batch into a checkpoint that ends there; returns its number.

    None if the first job ends there already.  Raises as `check_end`.
    """
    ends: dict[str, Any] = {}
    for source, end, new in _ends(first, other):
        ends[source] = end
        if new is not None:
            _write_log(target, source, end["logOffset"], new)
    if ends == first.offsets:
        return None
    done = Batch(first.batch)
    watermark_ms = read_commit(target, done).watermark_ms
    path = f"offsets/{done}"
    lines = with_offsets(target.read(path, _BOUNDS.log_bytes), path, ends, watermark_ms).decode().split("\n")
    lines[1] = json.dumps({**parse_json(lines[1]), "batchTimestampMs": time.time_ns() // 1_000_000}, separators=(",", ":"))
    target.write(f"offsets/{done + 1}", "\n".join(lines).encode())
    return done + 1


def _ends(first: End, other: End) -> Iterator[tuple[str, Any, list[LoggedFile] | None]]:
    """Each source, its end, and the files that its log needs for that."""
    mine, theirs = first.offsets, other.offsets
    if mine.keys() != theirs.keys():
        raise _not_aligned(first, other, f"The sources of the one are {sorted(mine)}, those of the other {sorted(theirs)}.")
    for source, end in theirs.items():
        before = mine[source]
        if log_offset(end) is not None or log_offset(before) is not None:
            yield _end_of_files(first, other, source)
            continue
        if end != before:
            if end is None:
                raise _not_aligned(first, other, f"Source {source} has read nothing in {other.name}.")
            falls = fallen(before, end) if before is not None else []
            if not isinstance(end, dict) or growing_numbers(end) is None or falls is None:
                why = "means something in its own job only" if not isinstance(end, dict) else "has no order that is known"
                raise CheckpointError(
                    "UNSUPPORTED",
                    f"The offset of source {source}, {end!r:.80}, {why}.",
                    hint="Jobs that read files or Kafka can be taken to the same offsets.",
                )
            if falls or (isinstance(before, dict) and _lacks(end, before)):
                raise _not_aligned(first, other, f"Source {source} ends at {end!r:.200}, and before at {before!r:.200}.")
        yield source, end, None


def _end_of_files(first: End, other: End, source: str) -> tuple[str, Any, list[LoggedFile] | None]:
    mine, theirs = (_files(end, source) for end in (first, other))
    if more := mine.keys() - theirs.keys():
        raise _not_aligned(first, other, f"Source {source} has read {min(more)}, and {other.name} hasn't.")
    last = log_offset(first.offsets[source])
    upto = -1 if last is None else last
    new = [LoggedFile(path, file.timestamp_ms, upto + 1) for path, file in theirs.items() if path not in mine]
    if not new:
        return source, first.offsets[source], None
    return source, {"logOffset": upto + 1}, sorted(new, key=lambda file: (file.timestamp_ms, file.path))


def _files(end: End, source: str) -> dict[str, LoggedFile]:
    upto = log_offset(end.offsets[source])
    return {} if upto is None else {file.path: file for file in iter_logged(end.checkpoint, source, upto=upto)}


def _write_log(target: Storage, source: str, number: int, new: list[LoggedFile]) -> None:
    is_compact = (number + 1) % _interval(newest_compact(target, source)) == 0
    before = list(iter_logged(target, source, upto=number - 1)) if is_compact else []
    files = sorted(before, key=lambda file: file.entry) + new
    write_entry(target, source, number, files, is_compact=is_compact)


def _interval(newest: int | None) -> int:
    """How many entries Spark compacts at a time.

    Source:  CompactibleFileStreamLog.deriveCompactInterval, Spark 4.3.
    """
    if newest is None:
        return _COMPACT_INTERVAL
    entries = newest + 1
    if entries <= _COMPACT_INTERVAL:
        return entries
    return next(n for n in range(_COMPACT_INTERVAL, entries + 1) if entries % n == 0)


def _lacks(end: Any, before: Any) -> bool:
    """Whether a number that was there is gone, as of a topic's partition."""
    return bool((growing_numbers(before) or {}).keys() - (growing_numbers(end) or {}).keys())


def _not_aligned(first: End, other: End, why: str) -> ReplicaError:
    return ReplicaError(
        "NOT_ALIGNED",
        f"{first.name} can't go on to the end of {other.name}. {why}",
        hint="Take an earlier savepoint of the first job, or a later one of the other.",
    )
