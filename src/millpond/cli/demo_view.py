"""The demo's output: answers of the running jobs' tables, as a live view on a terminal, else as lines.

Every figure has its batch: the five tables are of five jobs, which are rarely at the same batch.
"""

from __future__ import annotations

import heapq
import sys
import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from millpond.cli.terminal import visible, write_line
from millpond.errors import PASSING, MillpondError
from millpond.tables import Row
from millpond.tables.answer import Cut
from millpond.tables.pond import Pond

TABLES = ("page_views", "page_minutes", "hosts", "recent_minutes", "bad_lines")
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

    tables:          those that have a committed batch
    top:             the pages with the most hits, of one scan
    page:            the first of them, looked up again by its key; empty if there is none yet
    lookup_seconds:  how long that lookup took
    """

    tables: list[TableLook]
    top: list[Row]
    page: Row | None
    lookup_seconds: float


def look(pond: Pond) -> Look:
    """Ask every table.  Raises what reads raise, but not for a job that hasn't committed a batch yet."""
    tables = []
    top: list[Row] = []
    page, took = None, 0.0
    for name in TABLES:
        try:
            count = pond[name].count()
            if name == "page_views":
                top = heapq.nlargest(_TOP, pond[name].scan(), key=lambda row: row["hits"])
        except MillpondError as error:
            if error.condition in _NOT_YET:
                continue
            raise
        tables.append(TableLook(name=name, rows=int(count), cut=count.cut))
    if top:
        began = time.perf_counter()
        page = pond["page_views"].get(page=top[0]["page"])
        took = time.perf_counter() - began
    return Look(tables=tables, top=top, page=page, lookup_seconds=took)


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
    """One line: the page looked up, and each table's batch."""
    parts = []
    if seen.page:
        page = seen.page
        parts.append(
            f"{visible(page['page'])}: {page['hits']:,} hits by {page['visitors']:,} visitors "
            f"(batch {page.batch}, {page.behind_seconds:.1f} s behind, {seen.lookup_seconds * 1000:.2f} ms)"
        )
    parts += [f"{table.name} {table.rows:,} rows at batch {table.cut.position.batch}" for table in seen.tables]
    return " · ".join(parts)


def show_end(seen: Look) -> None:
    """The last answers, to stdout."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    for grid in _grids(seen):
        console.print(grid)


def _grids(seen: Look) -> list[Grid | Text]:
    if not seen.tables:
        return [Text("Waiting for the first batch …")]
    return [_table_grid(seen.tables), _page_grid(seen.top), Text(describe_lookup(seen))]


def describe_lookup(seen: Look) -> str:
    """The lookup of the page, and its answer."""
    if not seen.page:
        return ""
    page = seen.page
    return (
        f'pond["page_views"].get(page="{visible(page["page"])}")  ->  {page["hits"]:,} hits, {page["visitors"]:,} visitors, '
        f"batch {page.batch}, {page.behind_seconds:.1f} s behind, in {seen.lookup_seconds * 1000:.2f} ms"
    )


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


def _page_grid(top: list[Row]) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("page", max_width=48, no_wrap=True, overflow="ellipsis")
    names = ("hits", "visitors", "approx_visitors", "bytes", "status_2xx", "status_3xx", "status_4xx", "status_5xx")
    for name in names:
        grid.add_column(name.removeprefix("status_").replace("approx_visitors", "approx."), justify="right")
    for row in top:
        grid.add_row(Text(visible(row["page"])), *(f"{row[name] or 0:,}" for name in names))
    return grid
