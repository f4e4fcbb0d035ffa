"""The tables that a statement reads, opened at one batch of each job."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from millpond.errors import RequestError
from millpond.replica.replica import View
from millpond.tables.align import align
from millpond.tables.answer import Cut
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.reads import JobReads, Reads
from millpond.tables.sql.reading.buckets import BucketScans
from millpond.tables.sql.reading.dataset import Relation
from millpond.tables.sql.reading.past import PastScans
from millpond.tables.sql.reading.scan import TableRead, TableScans
from millpond.tables.sql.statement import PAST_FUNCTIONS, TableName
from millpond.tables.table import Table


class Tables(Protocol):
    """Where tables come from: a pond."""

    def now(self, name: str) -> Table:
        """The table of a name.  Raises UNKNOWN_TABLE."""


class _OneView(Reads):
    """A view of one job that several scans of a statement read, one after the other."""

    def __init__(self, job: JobReads, view: View, cut: Cut) -> None:
        self.job, self._view, self._cut = job, view, cut

    def open(self, bounds: Bounds | None = None) -> tuple[View, Cut]:  # noqa: ARG002 - the view was opened with them
        return self._view.lend(lambda: None), self._cut


@dataclass(slots=True)
class OpenedTables:
    """What a statement reads: a context manager, which ends the views.

    cuts:       the batch of each job
    relations:  of the statement's tables, in their order
    reads:      how each was read so far
    failed:     errors of scans, of which DuckDB and pyarrow hand on only the words
    """

    cuts: tuple[Cut, ...] = ()
    relations: list[Relation] = field(default_factory=list)
    reads: list[TableRead] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)
    _opened: ExitStack = field(default_factory=ExitStack, repr=False)

    def __enter__(self) -> OpenedTables:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def add(self, table: Table, name: TableName, *, is_dry: bool, cache_bytes: int) -> None:
        """Add the relation of a name.  Raises WRONG_TYPE, HISTORY_GONE, INVALID_REQUEST."""
        relation: Relation
        if not name.function:
            relation = TableScans(table, name.name, self.reads, self.failed, is_dry=is_dry, cache_bytes=cache_bytes)
        elif name.function in PAST_FUNCTIONS:
            relation = PastScans(table, name, self.reads, self.failed, is_dry=is_dry)
        else:
            relation = BucketScans(table, name, self.reads, self.failed, is_dry=is_dry)
        self.relations.append(relation)

    def plan_lines(self) -> list[str]:
        """How each table was read, for EXPLAIN."""
        return [f"{read.table}: {read.how}, columns {', '.join(read.columns)}" for read in self.reads]


class Opening(Protocol):
    """Opens the tables of a statement, if its reader may read them."""

    def __call__(self, names: list[TableName], *, is_dry: bool) -> OpenedTables: ...


def open_tables(
    pond: Tables, names: Sequence[TableName], *, bounds: Bounds | None, separate: bool, is_dry: bool, cache_bytes: int
) -> OpenedTables:
    """Open the tables of a statement.

    bounds:    what those at the newest batch must reflect
    separate:  whether those of several jobs may be of batches that end at different offsets
    is_dry:    whether they only say how they would be read
    Raises:    UNKNOWN_TABLE; NOT_ALIGNED if jobs have no batch that ends at the same offsets;
               WRONG_TYPE for columns that SQL can't hold; as `Table.scan`.
    """
    with OpenedTables() as opened:
        tables, opened.cuts, newest = _open(pond, names, bounds, separate, opened._opened)
        for each, table in tables.items():
            kept_bytes = cache_bytes if each in newest else 0
            opened.add(table, each, is_dry=is_dry, cache_bytes=kept_bytes)
        return OpenedTables(opened.cuts, opened.relations, opened.reads, opened.failed, opened._opened.pop_all())


def _open(
    pond: Tables, names: Sequence[TableName], bounds: Bounds | None, separate: bool, opened: ExitStack
) -> tuple[dict[TableName, Table], tuple[Cut, ...], set[TableName]]:
    """The tables, and their cuts.  The third value has the tables that are read at their job's newest batch."""
    now = {each: pond.now(each.name) for each in names}
    found: dict[TableName, Table] = {}
    cuts: dict[str, Cut] = {}
    views: dict[str, _OneView] = {}
    current = [each for each in names if each.is_newest]
    newest = set(current) if separate or len({now[each].job for each in current}) == 1 else set()
    if len(newest) < len(current) and any(each.function in PAST_FUNCTIONS for each in current):
        raise RequestError(
            "INVALID_STATEMENT",
            "changes() and history() read one job at its newest batch, and the statement has tables of several jobs.",
            hint="Ask for tables of several jobs each at its newest batch (`separate`), or by two statements.",
        )
    aligned = align({each.name: now[each] for each in current}, None) if len(newest) < len(current) else {}
    for each, table in now.items():
        if each in newest:
            if table.job not in views:
                view, cut = table.job_reads.open(bounds)
                opened.callback(view.close)
                views[table.job], cuts[table.job] = _OneView(table.job_reads, view, cut), cut
            found[each] = table.read_by(views[table.job])
            continue
        is_past = each.batch is not None or each.time is not None
        found[each] = table.at(batch=each.batch, time=each.time) if is_past else aligned[each.name]
        with found[each].begin(None if is_past else bounds) as read:
            cuts.setdefault(f"{table.job} {each.batch} {each.time}", read.cut)
    return found, tuple(cuts.values()), newest
