"""Reads of a replica that follows a shard: some partitions of the job only.

1. A row by its key is read if the shard has its partition.
2. Other reads need the bound `shard`, by which a caller says that it combines the answers of all.
3. Rows that lie in parts can't be read, since these lie in several partitions, nor sums of buckets.
   A router merges what all shards have stored (`stored_rows`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.checkpoint.partition import hashed_fields, may_lie_anywhere
from millpond.errors import RequestError
from millpond.replica.replica import View
from millpond.schema.murmur import partition_of
from millpond.schema.shard import parse_shard
from millpond.tables.answer import Answer, Cut
from millpond.tables.job.bounds import Bounds
from millpond.tables.scan.binding import Binding


class ShardState(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of a table a replica has, and of which batch: answers that agree on all but `shard` can be combined.

    shard:       the partitions that the replica follows; empty for all
    partitions:  in how many the table's rows lie
    hashed:      how many of the key's first fields Spark hashes to find a row's partition; None if
                 rows of one key may lie in any
    job_id:      Spark's id of the job
    commit:      a hash of the batch's files in the checkpoint
    """

    shard: str
    partitions: int
    hashed: int | None
    job_id: str
    commit: str


class TableState(Answer):
    """Which rows of a table are here, and of which batch."""

    def __init__(self, cut: Cut, state: ShardState) -> None:
        self.cut = cut
        self.state = state


def shard_state(view: View, binding: Binding) -> ShardState:
    """What a view has of a table."""
    record, stores = view.record, view.stores
    return ShardState(
        shard=stores.shard,
        partitions=1 if binding.schema.single else record.partitions,
        hashed=None if binding.parts is not None else hashed_fields(binding.schema),
        job_id=stores.job_id,
        commit=record.fingerprint,
    )


def check_shard(view: View, binding: Binding, bounds: Bounds | None) -> None:
    """Raise ONLY_A_SHARD if a read of more than one key isn't of the shard that the replica follows."""
    check_same_shard(view, binding, bounds)
    if view.stores.shard:
        check_parts(view, binding)


def check_same_shard(view: View, binding: Binding, bounds: Bounds | None) -> None:
    """The same for reads that don't merge the parts of rows."""
    shard, asked = view.stores.shard, "" if bounds is None else bounds.shard or ""
    if asked != shard:
        raise _only(shard, asked, binding)


def check_whole(view: View, binding: Binding) -> None:
    """Raise ONLY_A_SHARD on a shard, for reads whose answers can't be combined: merged values of several rows."""
    if view.stores.shard:
        raise RequestError(
            "ONLY_A_SHARD",
            f"The read merges rows of {binding.definition.table} from several partitions, and this replica follows "
            f"{view.stores.shard}.",
            hint="Read it with `millpond.connect_shards`, a router, or a replica that follows all partitions.",
            table=binding.definition.table,
            shard=view.stores.shard,
        )


def check_parts(view: View, binding: Binding) -> None:
    """Raise ONLY_A_SHARD for a table whose rows lie in parts."""
    if binding.parts is not None:
        raise RequestError(
            "ONLY_A_SHARD",
            f"A row of {binding.definition.table} lies in parts, in several partitions, and this replica follows "
            f"{view.stores.shard}.",
            hint="Read it with `millpond.connect_shards`, a router, or a replica that follows all partitions.",
            table=binding.definition.table,
            shard=view.stores.shard,
        )


def check_key(view: View, binding: Binding, key: tuple[Any, ...], bounds: Bounds | None) -> None:
    """Raise if the shard can't tell whether there is a row: OTHER_SHARD, ONLY_A_SHARD.

    key:  the key row, in stored form
    """
    if bounds is not None and bounds.shard:
        check_shard(view, binding, bounds)
    check_parts(view, binding)
    state = shard_state(view, binding)
    count = state.hashed or 0
    if may_lie_anywhere(binding.schema, key):
        check_shard(view, binding, bounds)
        return
    partition = partition_of(binding.schema.key[:count], key[:count], state.partitions)
    if not parse_shard(state.shard).has(partition, state.partitions):
        table = binding.definition.table
        raise RequestError(
            "OTHER_SHARD",
            f"A row of {table} with this key lies in partition {partition} of {state.partitions}; "
            f"this replica follows the shard {state.shard}.",
            hint="Ask the server that follows it; `millpond.connect_shards` finds it.",
            table=table,
            partition=partition,
            shard=state.shard,
        )


def _only(shard: str, asked: str, binding: Binding) -> RequestError:
    table = binding.definition.table
    if not shard:
        return RequestError(
            "OTHER_SHARD",
            f"The shard {asked} of {table} is asked for, and this replica follows all partitions.",
            hint="Leave the bound `shard` out.",
            table=table,
            shard=shard,
        )
    if asked:
        return RequestError(
            "OTHER_SHARD",
            f"The shard {asked} of {table} is asked for, and this replica follows {shard}.",
            hint="Ask the server that follows it; `millpond shards` says which one that is.",
            table=table,
            shard=shard,
        )
    return RequestError(
        "ONLY_A_SHARD",
        f"This replica follows the shard {shard} of {table}, and the read needs all partitions.",
        hint=f"Read all shards together, with `millpond.connect_shards`; or this one alone, with the bound shard={shard}.",
        table=table,
        shard=shard,
    )
