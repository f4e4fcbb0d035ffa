"""Which rows of its tables a server has: what `GET /shards` answers, and routers ask."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from millpond.tables.job.shards import ShardState, TableState
from millpond.wire.answers import FromCut, cut_json, ref


class TableShard(FromCut, frozen=True, kw_only=True):
    """Which rows of a table a server has, and how far it is."""

    state: ShardState


class ShardsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All tables; for a table that can't be read, why."""

    tables: list[Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": [ref("TableShard"), ref("UnreadTable")]})]]


def table_shard(name: str, found: TableState) -> TableShard:
    """Which rows of a table are here."""
    return TableShard(**{**msgspec.structs.asdict(cut_json(name, found.cut)), "state": found.state})
