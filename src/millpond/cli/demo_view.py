"""The demo's output: answers of the running jobs' tables, as a live view on a terminal, else as lines.

Every figure has its batch: the five tables are of five jobs, which are rarely at the same batch.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from millpond.cli.terminal import visible, write_line
from millpond.errors import PASSING, MillpondError
from millpond.tables import Row
from millpond.tables.answer import Cut
from millpond.tables.buckets.answer import Total
from millpond.tables.pond import Pond

TABLES = ("page_views", "page_visitors", "hosts", "recent_minutes", "bad_lines")
_TOP = 8
# Without a new batch, a line now and then shows that the demo still runs.
_STILL_SECONDS = 5.0
# The errors of a job that hasn't committed its first batch yet.
_NOT_YET = PASSING | {"NO_CHECKPOINT", "UNKNOWN_TABLE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLook:
    """One table as of one batch."""

    name: str
    rows: int
    cut: Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The answers of one moment.

    tables:    those that have a committed batch
    top:       totals of the pages with the most visitors, of one batch of page_views, most hits first
    views:     the first of them, asked for once more
    visitors:  the row of the same page in page_visitors, looked up by its key
    """

    tables: list[TableLook]
    top: list[Total]
    views: Timed | None = None
    visitors: Timed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A row, and how long the read of it took."""

    row: Row
    seconds: float


def look(pond: Pond) -> Look:
    """Ask every table.  Raises what reads raise, but not for a job that hasn't committed a batch yet."""
    tables: list[TableLook] = []
    busy: list[Any] = []
    top: list[Total] = []
    for name in TABLES:
        with _without_new_jobs():
            count = pond[name].count()
            if name == "page_visitors":
                busy = [row["page"] for row in heapq.nlargest(_TOP, pond[name].scan(), key=lambda row: row["visitors"])]
            tables.append(TableLook(name=name, rows=int(count), cut=count.cut))
    with _without_new_jobs(), pond.cut("page_views") as cut:
        totals = [cut["page_views"].total(page=page) for page in busy]
        top = sorted(filter(None, totals), key=lambda row: -row["hits"])
    if not top:
        return Look(tables=tables, top=top)
    page = top[0]["page"]
    views = _timed(lambda: pond["page_views"].total(page=page))
    return Look(tables=tables, top=top, views=views, visitors=_timed(lambda: pond["page_visitors"].get(page=page)))


@contextmanager
def _without_new_jobs() -> Iterator[None]:
    """Leave out what needs a job that hasn't committed a batch yet."""
    try:
        yield
    except MillpondError as error:
        if error.condition not in _NOT_YET:
            raise


def _timed(read: Callable[[], Row]) -> Timed:
    began = time.perf_counter()
    row = read()
    return Timed(row=row, seconds=time.perf_counter() - began)


class Screen:
    """Shows looks until it is left: a live view on a terminal, a line per change elsewhere."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._terminal = sys.stdout.isatty()
        self._live = Live(console=Console(highlight=False), refresh_per_second=4, transient=True) if self._terminal else None
        self._last: tuple[int, ...] = ()
        self._next = 0.0

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, seen: Look) -> None:
        """Show one look."""
        if self._live is not None:
            self._live.update(Group(Text(self._title, style="bold"), *_grids(seen)), refresh=True)
            return
        batches = tuple(table.cut.position.batch for table in seen.tables)
        now = time.monotonic()
        if not seen.tables or (batches == self._last and now < self._next):
            return
        self._last, self._next = batches, now + _STILL_SECONDS
        write_line(f"{time.strftime('%H:%M:%S')}  {describe(seen)}")


def describe(seen: Look) -> str:
    """One line: the page asked for, and each table's batch."""
    parts = []
    if seen.views:
        row = seen.views.row
        parts.append(
            f"{visible(row['page'])}: {row['hits']:,} hits by about {row['approx_visitors']:,} visitors {_freshness(seen.views)}"
        )
    parts += [f"{table.name} {table.rows:,} rows at batch {table.cut.position.batch}" for table in seen.tables]
    return " · ".join(parts)


def _freshness(read: Timed) -> str:
    return f"(batch {read.row.batch}, {read.row.behind_seconds:.1f} s behind, {read.seconds * 1000:.2f} ms)"


def show_end(seen: Look) -> None:
    """The last answers, to stdout."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    for grid in _grids(seen):
        console.print(grid)


def _grids(seen: Look) -> list[Grid | Text]:
    if not seen.tables:
        return [Text("Waiting for the first batch …")]
    return [_table_grid(seen.tables), _page_grid(seen.top), Text(describe_reads(seen))]


def describe_reads(seen: Look) -> str:
    """The two reads of one page, and their answers."""
    if not (seen.views and seen.visitors):
        return ""
    views, visitors = seen.views.row, seen.visitors.row
    page = visible(views["page"])
    reads = {
        f'pond["page_views"].total(page="{page}")': f"{views['hits']:,} hits {_freshness(seen.views)}",
        f'pond["page_visitors"].get(page="{page}")': f"{visitors['visitors']:,} visitors {_freshness(seen.visitors)}",
    }
    width = max(map(len, reads))
    return "\n".join(f"{read:{width}}  ->  {answer}" for read, answer in reads.items())


def _table_grid(tables: list[TableLook]) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    grid.add_column("table")
    for name in ("rows", "batch", "behind", "committed", "watermark"):
        grid.add_column(name, justify="right")
    grid.add_column("job")
    for table in tables:
        lag = table.cut.lag
        watermark = table.cut.position.watermark_ms
        grid.add_row(
            table.name,
            f"{table.rows:,}",
            str(table.cut.position.batch),
            f"{lag.behind_seconds:.1f} s",
            f"{lag.age_seconds:.1f} s ago",
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(watermark / 1000)) if watermark else "none",
            table.cut.job_state,
        )
    return grid


def _page_grid(top: list[Total]) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("page", max_width=48, no_wrap=True, overflow="ellipsis")
    names = ("hits", "approx_visitors", "bytes", "status_2xx", "status_3xx", "status_4xx", "status_5xx")
    for name in names:
        grid.add_column(name.removeprefix("status_"), justify="right")
    for row in top:
        grid.add_row(Text(visible(row["page"])), *(f"{row[name] or 0:,}" for name in names))
    return grid
