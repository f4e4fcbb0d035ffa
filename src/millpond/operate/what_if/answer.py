"""The answer to a what-if: figures as they are and as they would be, each with how it is known."""

from __future__ import annotations

import msgspec

from millpond.operate.cost.cost import Cost
from millpond.operate.cost.facts import Fact


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number, now and then.

    what:   of which thing
    unit:   B, rows, files, batches, requests or s
    now, then: with how each is known
    """

    what: str
    unit: str
    now: Fact
    then: Fact


class PartitionSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one operator by partition, in whole snapshots.

    operator, name: Spark's
    now_bytes, then_bytes: of each partition
    now_rows, then_rows:   the same of its tables
    """

    operator: int
    name: str
    now_bytes: tuple[int, ...]
    then_bytes: tuple[int, ...]
    now_rows: tuple[int, ...]
    then_rows: tuple[int, ...]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """What would be.

    job, batch:  whose state was read
    change:      what would change, in words
    figures:     each number, now and then
    partitions:  of each operator; empty if only a sample was read
    cost_now, cost_then: by the same prices
    unknown:     what isn't said, and why
    """

    job: str
    batch: int
    change: str
    figures: tuple[Figure, ...]
    partitions: tuple[PartitionSizes, ...]
    cost_now: Cost
    cost_then: Cost
    unknown: tuple[str, ...]
