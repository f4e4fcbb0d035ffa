"""Batches, versions, and the position of a replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NewType

Batch = NewType("Batch", int)
# State files are numbered by version; version N+1 belongs to batch N. Two types, so that they can't
# be swapped.
Version = NewType("Version", int)


def version_of(batch: Batch) -> Version:
    """The version of the state files that batch `batch` wrote."""
    return Version(batch + 1)


def batch_of(version: Version) -> Batch:
    """The batch that wrote the state files of a version."""
    return Batch(version - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a replica has come.

    batch:              the newest batch whose changes are all in, on every partition
    offsets:            per source, its end offset as Spark wrote it (JSON), None if the source had
                        none yet
    watermark_ms:       Spark's event-time watermark of that batch, None if the job has none
    batch_started_ms:   when Spark planned the batch
    committed_ns:       modification time of commits/N when it was last read; see `Lag.age_from` for
                        copies
    """

    batch: Batch
    offsets: dict[str, Any]
    watermark_ms: int | None
    batch_started_ms: int
    committed_ns: int
