"""A SELECT over tables of several servers: DuckDB here, over stored rows of all shards at one batch.

1. All tables of a job are read at the same cuts, found by the table that lies in the most shards.
2. Filters on keys and indexes are pages of stored rows in a range, asked of all shards.
3. If the servers have moved on meanwhile, the statement begins again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.router.common_batch import ShardCut
from millpond.router.reads.asking import begins_again
from millpond.router.reads.stored import StoredTable
from millpond.router.reads.table import ShardedTable
from millpond.tables.answer import Cut
from millpond.tables.job.bounds import Bounds
from millpond.tables.sql.answer import SqlAnswer
from millpond.tables.sql.duck import Parameters
from millpond.tables.sql.end import SqlLimits
from millpond.tables.sql.reading.opened import OpenedTables
from millpond.tables.sql.run import run_opened
from millpond.tables.sql.statement import TableName


class ShardedTables(Protocol):
    """Where tables come from: a pond of shards."""

    def __getitem__(self, name: str) -> ShardedTable:
        """The table of a name.  Raises UNKNOWN_TABLE."""


class OpenedShards:
    """Opens the tables of one statement.  See `Opening`."""

    def __init__(self, pond: ShardedTables, bounds: Bounds | None, separate: bool) -> None:
        """Tables of a pond.

        separate:  whether tables of several jobs may be of batches that end at different offsets
        """
        self._pond, self._bounds, self._separate = pond, bounds, separate

    def __call__(self, names: list[TableName], *, is_dry: bool) -> OpenedTables:
        """The tables at one batch of each job.

        Raises:  INVALID_STATEMENT for what shards can't answer; UNKNOWN_TABLE; NO_COMMON_BATCH, …
        """
        if not names:
            return OpenedTables()
        return self._pond[names[0].name].again(self._bounds, lambda: self._opened(names, is_dry))

    def _opened(self, names: list[TableName], is_dry: bool) -> OpenedTables:
        opened = OpenedTables()
        tables = {each.name: self._pond[each.name] for each in names if each.is_newest}
        stored: dict[str, StoredTable] = {}
        for job in self._jobs(tables):
            common = max(job, key=lambda table: len(table.owners().shards)).common_cuts(self._bounds)  # 1
            for table in job:
                stored[table.name] = self._open(table, common)
        read: dict[str, Cut] = {}
        for each in names:
            scanned = stored[each.name] if each.is_newest else self._earlier(each)
            with scanned.begin() as begun:
                read.setdefault(f"{scanned.job} {each.batch} {each.time}", begun.cut)
            opened.add(scanned, each, is_dry=is_dry, cache_bytes=0)
        opened.cuts = tuple(read.values())
        return opened

    def _earlier(self, name: TableName) -> StoredTable:
        table = self._pond[name.name].at(batch=name.batch, time=name.time)
        return table.stored_at(table.common_cuts(None))

    def _jobs(self, tables: dict[str, ShardedTable]) -> list[list[ShardedTable]]:
        """The tables of each job."""
        jobs: dict[str, list[ShardedTable]] = {}
        for table in tables.values():
            jobs.setdefault(table.owners().job_id, []).append(table)
        if len(jobs) > 1 and not self._separate:
            raise RequestError(
                "INVALID_STATEMENT",
                "The statement has tables of several jobs, and those of shards aren't aligned.",
                hint="Ask for each at its newest batch (`separate`), or ask a server that follows all partitions.",
            )
        return list(jobs.values())

    def _open(self, table: ShardedTable, cuts: Sequence[ShardCut]) -> StoredTable:
        by_shard = {at.shard.shard: at for at in cuts}
        its = [(shard, by_shard.get(shard.shard)) for shard in table.owners().shards]
        there = [replace(at, shard=shard) for shard, at in its if at is not None and at.server in shard.servers]
        if len(there) < len(its):
            table.forget_owners()
            raise ReplicaError(
                "NO_COMMON_BATCH",
                f"The shards of {table.name} aren't those of the statement's other tables.",
                hint="Let each server follow the same partitions of all tables of the job.",
                table=table.name,
                definitions_differ=True,
            )
        return table.stored_at(there)


def run_sharded(
    pond: ShardedTables,
    text: str,
    parameters: Parameters,
    *,
    bounds: Bounds | None,
    limits: SqlLimits,
    separate: bool,
    at: int | str | None = None,
) -> SqlAnswer:
    """The whole answer of a statement.  Raises as `Pond.sql`; INVALID_STATEMENT for what shards can't answer."""
    opening = OpenedShards(pond, bounds, separate)
    lead: list[ShardedTable] = []

    def open_(names: list[TableName], *, is_dry: bool) -> OpenedTables:
        lead[:] = [pond[each.name] for each in names[:1]]
        return opening(names, is_dry=is_dry)

    def run() -> SqlAnswer:
        return run_opened(open_, text, parameters, limits=limits, at=at)

    try:
        return run()
    except MillpondError as error:
        if not lead or not begins_again(error):
            raise
        return lead[0].again(bounds, run)  # 3
