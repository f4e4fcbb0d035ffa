"""What differs between two savepoints, a savepoint and a job, or two jobs: rows added, removed and changed.

1. Each side is one committed batch.  Find its tables, and match them with the other side's.
2. Read all rows of one side, then of the other; rows are sorted by key outside of memory.
3. commits/N must still be the file that was read.  If Spark cleaned up meanwhile, begin again with
   the batch that is now the newest.
4. Merge the sorted rows of both sides, table by table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from millpond.checkpoint.log import check_still_committed
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError, RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.tables.default_tables import unknown_table
from millpond.tables.diff.compare import (
    Columns,
    Comparison,
    Counts,
    RetypedColumn,
    RowDiff,
    SideRows,
    has_same_key,
    match_columns,
)
from millpond.tables.diff.sides import DiffSide, Offsets, OpenSide, Source, compare_offsets, find_sources
from millpond.tables.diff.sorted_rows import SortedRows, Sorter, open_sorter

Progress = Callable[[int], None]
"""called with the number of rows read so far, of both sides"""

LIMIT = 100
# How often Spark may remove a batch's files during the read before it fails.
_TRIES = 5
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """What differs in one table.

    table, right_table:  its name on the left, and on the right
    counts:              of all rows
    columns:             that were compared, besides the key
    only_left, only_right:  columns that the other side lacks
    retyped:             columns of another type on the right
    rows:                the first rows that differ, in key order, up to the limit
    """

    table: str
    right_table: str
    counts: Counts
    columns: tuple[str, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    retyped: tuple[RetypedColumn, ...]
    rows: tuple[RowDiff, ...]

    @property
    def is_same(self) -> bool:
        """Whether both sides have the same rows and columns."""
        return not (self.counts.differ or self.only_left or self.only_right or self.retyped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What differs between two sides.

    left, right:  the batch of each side
    offsets:      whether both sides have read the same input: same, differ; unknown if the offsets
                  have equal numbers, but each job counts them for itself, as file sources do
    tables:       those that both sides have
    only_left, only_right:  tables that the other side lacks
    """

    left: DiffSide
    right: DiffSide
    offsets: Offsets
    tables: tuple[TableDiff, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether both sides have the same tables, with the same rows and columns."""
        return not (self.only_left or self.only_right) and all(table.is_same for table in self.tables)


@dataclass(frozen=True, slots=True)
class Pair:
    """A table that both sides have."""

    left: TableDefinition
    right: TableDefinition
    columns: Columns


@dataclass(frozen=True, slots=True)
class PairReading:
    """A pair whose rows were read, and are compared once."""

    pair: Pair
    comparison: Comparison

    def differences(self) -> Iterator[RowDiff]:
        """The rows that differ, in key order.  Raises as `Comparison.differences`."""
        return self.comparison.differences()

    def result(self, rows: Iterable[RowDiff] = ()) -> TableDiff:
        """What was found, after all differences were read."""
        columns = self.pair.columns
        return TableDiff(
            table=self.pair.left.table,
            right_table=self.pair.right.table,
            counts=self.comparison.counts,
            columns=tuple(name for name, _ in columns.compared),
            only_left=columns.only_left,
            only_right=columns.only_right,
            retyped=columns.retyped,
            rows=tuple(rows),
        )


@dataclass(frozen=True, slots=True)
class Matched:
    """The tables of both sides, by which of them are compared."""

    pairs: tuple[Pair, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiffReading:
    """Both sides, read but not compared yet."""

    left: DiffSide
    right: DiffSide
    matched: Matched
    tables: tuple[PairReading, ...]

    @property
    def offsets(self) -> Offsets:
        """As `Diff.offsets`."""
        return compare_offsets(self.left, self.right)

    def result(self, tables: Iterable[TableDiff]) -> Diff:
        """The whole answer."""
        return Diff(
            left=self.left,
            right=self.right,
            offsets=self.offsets,
            tables=tuple(tables),
            only_left=self.matched.only_left,
            only_right=self.matched.only_right,
        )


def read_diff(
    place: str | Path,
    left: str,
    right: str | None = None,
    *,
    against: str | Path | None = None,
    tables: Sequence[str] = (),
    ignore: Sequence[str] = (),
    limit: int | None = LIMIT,
    parquet: str | Path | None = None,
    allow: Iterable[str | Path] = (),
    progress: Progress | None = None,
) -> Diff:
    """Compare two savepoints, a savepoint and a job, or two jobs: which rows were added, removed or changed.

    A side is a savepoint or a job by its name; `page_views@41` is a job at an earlier batch that
    Spark still has.  `savepoint:NAME` and `job:NAME` tell two of one name apart.

    Rows are sorted in files below `MILLPOND_HOME`, so memory doesn't grow with their number.

    place:     a pond, or the folder of a checkpoint
    left:      the old side
    right:     the new side; None for the job of the left side as it is now, or for the only job of
               `against`
    against:   the place of the right side, if it is another
    tables:    only these, by their name on either side; by default all
    ignore:    columns that aren't compared
    limit:     how many rows of each table to give back; None for all that differ
    parquet:   a file that gets all rows that differ, of one table
    allow:     places outside of a pond where its checkpoints may lie, as for `open`
    progress:  called with the number of rows read so far, of both sides
    Raises:    UNKNOWN_SAVEPOINT, UNKNOWN_TABLE, UNKNOWN_COLUMN, INVALID_REQUEST; KEYS_DIFFER if a
               table has another key on the right; NO_COMMITTED_BATCH, BATCH_GONE; DISK_FULL,
               NOT_WRITABLE; what reading the state raises.
    """
    with open_diff(
        place,
        left,
        right,
        against=against,
        tables=tables,
        ignore=ignore,
        allow=allow,
        one_table=parquet is not None,
        progress=progress,
    ) as reading:
        return reading.result(_collect(table, limit, parquet) for table in reading.tables)


@contextmanager
def open_diff(
    place: str | Path,
    left: str,
    right: str | None = None,
    *,
    against: str | Path | None = None,
    tables: Sequence[str] = (),
    ignore: Sequence[str] = (),
    allow: Iterable[str | Path] = (),
    one_table: bool = False,
    renamed: Mapping[str, str] = _NONE,
    progress: Progress | None = None,
) -> Iterator[DiffReading]:
    """Both sides as `read_diff`, to be compared row by row.

    one_table:  refuse to compare several
    renamed:    tables of the left side -> the table of the right side that belongs to it
    Raises:     as `read_diff`.
    """
    sources = find_sources(place, left, right, against, allow)
    match = partial(match_tables, wanted=tables, ignore=ignore, one=one_table, renamed=renamed)
    for left_tries in reversed(range(_TRIES)):
        with ExitStack() as opened:
            sorters = opened.enter_context(open_sorter()), opened.enter_context(open_sorter())
            try:
                reading = _read(sources, sorters, match, progress or _silent)
            except CheckpointError as error:
                if error.condition != "FILE_GONE" or not left_tries or all(s.number is not None for s in sources):
                    raise
                continue
            yield reading
            return


def _collect(table: PairReading, limit: int | None, parquet: str | Path | None) -> TableDiff:
    shown: list[RowDiff] = []

    def noted() -> Iterator[RowDiff]:
        for row in table.differences():
            if limit is None or len(shown) < limit:
                shown.append(row)
            yield row

    if parquet is None:
        for _ in noted():
            pass
    else:
        write_diff(Path(parquet), table.pair, noted())
    return table.result(shown)


def write_diff(path: Path, pair: Pair, rows: Iterator[RowDiff]) -> int:
    """Write rows that differ to a Parquet file, and return their number.

    Raises:  as `forms.arrow.write_tables`.
    """
    from millpond.tables.diff.arrow import diff_pages
    from millpond.tables.forms.arrow import write_tables

    return write_tables(path, diff_pages(pair.left, pair.right, rows))


def _read(
    sources: tuple[Source, Source],
    sorters: tuple[Sorter, Sorter],
    match: Callable[[OpenSide, OpenSide], Matched],
    progress: Progress,
) -> DiffReading:
    now_ms = time.time_ns() // 1_000_000
    left, right = sources[0].open(now_ms), sources[1].open(now_ms)
    matched = match(left, right)  # 1
    rows: list[list[SideRows]] = [[], []]
    done = 0
    # First the side whose files Spark may remove.
    for number in sorted((0, 1), key=lambda n: sources[n].number is not None):
        side, sorter = (left, right)[number], sorters[number]
        reader = StateReader(side.storage)
        for pair in matched.pairs:  # 2
            definitions = pair.left, pair.right
            definition, schema = definitions[number], side.store(definitions[number].table)
            by_record = any(d.many or d.parts is not None for d in definitions)
            sorted_ = SortedRows(definition, schema, sorter, by_record=by_record)
            before = done

            def report(count: int, before: int = before) -> None:
                nonlocal done
                done = before + count
                progress(done)

            sorted_.read(reader, side.batch, report)
            rows[number].append(SideRows(definition, schema, sorted_, side.side.judged_ms, side.hidden(definition)))
        check_still_committed(side.storage, side.batch)  # 3
    readings = [
        PairReading(pair, Comparison(here, there, pair.columns)) for pair, here, there in zip(matched.pairs, *rows, strict=True)
    ]
    return DiffReading(left.side, right.side, matched, tuple(readings))  # 4


def match_tables(
    left: OpenSide,
    right: OpenSide,
    *,
    wanted: Sequence[str],
    ignore: Sequence[str],
    one: bool,
    renamed: Mapping[str, str] = _NONE,
) -> Matched:
    """Which tables are compared.

    Tables of one name belong together; then those of one store, as a fork's tables have other
    names.

    wanted:  names on either side; empty for all
    one:     whether more than one is refused: a Parquet file has the columns of one
    renamed: names on the left -> names on the right that belong together in any case
    Raises:  UNKNOWN_TABLE, UNKNOWN_COLUMN, INVALID_REQUEST, KEYS_DIFFER; the error of a table that
             can't be read.
    """
    for side in (left, right):
        side.check_known(wanted)
    names = {name: other for name, other in renamed.items() if name in left.tables and other in right.tables}
    names |= {name: name for name in left.tables if name in right.tables and name not in names}
    rest = [name for name in right.tables if name not in names.values()]
    for name, definition in left.tables.items():
        like = [other for other in rest if _is_like(left, definition, right, right.tables[other])]
        if name not in names and like:
            names[name] = like[0]
            rest.remove(like[0])
    only_left = [name for name in left.tables if name not in names]
    if wanted:
        every = {*left.tables, *right.tables}
        for name in wanted:
            if name not in every:
                raise unknown_table(name, f"{left.storage.uri} and {right.storage.uri}", every)
        names = {name: other for name, other in names.items() if name in wanted or other in wanted}
        only_left, rest = ([name for name in some if name in wanted] for some in (only_left, rest))
    definitions = [(left.tables[name], right.tables[other]) for name, other in sorted(names.items())]
    if one and len(definitions) != 1:
        known = ", ".join(here.table for here, _ in definitions)
        raise RequestError(
            "INVALID_REQUEST",
            f"A Parquet file has the rows of one table, but {len(definitions)} are compared.",
            hint=f"Name one of: {known}." if known else "Compare sides that have a table in common.",
        )
    _check_ignored(ignore, definitions)
    for old, new in definitions:
        if not has_same_key(old, new):
            raise _keys_differ(old, new)
    pairs = [Pair(old, new, match_columns(old, new, ignore)) for old, new in definitions]
    return Matched(tuple(pairs), tuple(sorted(only_left)), tuple(sorted(rest)))


def _is_like(left: OpenSide, here: TableDefinition, right: OpenSide, there: TableDefinition) -> bool:
    """Whether two tables of other names show the same store of a query."""
    kinds = [
        {s.operator_name for s in side.stores if (s.operator, s.store, s.family) == definition.store_id}
        for side, definition in ((left, here), (right, there))
    ]
    return here.store_id == there.store_id and kinds[0] == kinds[1] and has_same_key(here, there)


def _check_ignored(ignore: Sequence[str], pairs: list[tuple[TableDefinition, TableDefinition]]) -> None:
    definitions = list(chain.from_iterable(pairs))
    values = {c.name for d in definitions for c in d.values}
    for name in ignore:
        if name in values:
            continue
        if any(c.name == name for d in definitions for c in d.key):
            raise RequestError(
                "INVALID_REQUEST",
                f"{name} is a column of the key, by which rows of both sides are found.",
                hint="Ignore other columns.",
                column=name,
            )
        raise RequestError(
            "UNKNOWN_COLUMN",
            f"No compared table has a column {name!r}.",
            hint=f"The columns are: {', '.join(sorted(values))}." if values else "No column is compared.",
            column=name,
        )


def _keys_differ(left: TableDefinition, right: TableDefinition) -> RequestError:
    said = [", ".join(f"{c.name} {c.type}" for c in d.key) or "no column" for d in (left, right)]
    names = left.table if left.table == right.table else f"{left.table} and {right.table}"
    return RequestError(
        "KEYS_DIFFER",
        f"The key of {names} is {said[0]} on the left, and {said[1]} on the right: their rows don't correspond.",
        hint="Name other tables.",
        table=left.table,
    )


def _silent(done: int) -> None:
    pass
