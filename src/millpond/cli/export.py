"""Rows of a scan by their values, in another order, or as a file.

They are read page by page, all of one batch, with one page in memory at a time.  Only an order by a
value needs memory for all rows up to the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice

from millpond.cli.options import Export
from millpond.cli.output import write_footer, write_rows
from millpond.cli.terminal import say, write_bytes
from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.serve.formats import CSV, write_pages
from millpond.tables.answer import Cut, Row, Rows
from millpond.tables.job.bounds import Bounds
from millpond.tables.scan.where import first_by, met, parse_condition

# How many rows are in memory at a time.
PAGE_ROWS = 10_000


def check_export(export: Export, *, as_json: bool, token: str | None) -> None:
    """Raise INVALID_REQUEST if options don't go together."""
    if as_json + export.csv + (export.parquet is not None) > 1:
        raise RequestError("INVALID_REQUEST", "More than one form is given.", hint="Give one of --json, --csv and --parquet.")
    if token is not None:
        raise RequestError(
            "INVALID_REQUEST",
            "--token continues a scan by key.",
            hint="Leave it out, or --where, --order-by, --csv and --parquet.",
        )


def write_export(
    definition: TableDefinition,
    read: Callable[..., Rows],
    export: Export,
    *,
    limit: int | None,
    reverse: bool,
    bounds: Bounds | None,
    as_json: bool,
    closed: bool | None,
) -> None:
    """Read rows, and write the requested ones.

    limit:   None for all of them
    Raises:  as `Table.scan`; INVALID_REQUEST, UNKNOWN_COLUMN, WRONG_TYPE, NOT_WRITABLE,
             LIBRARY_MISSING.
    """
    conditions = [parse_condition(definition, text) for text in export.where]
    pages = _pages(partial(read, reverse=reverse and export.order_by is None), bounds)
    first = next(pages)
    rows = met(chain.from_iterable(chain([first], pages)), conditions)
    more = False
    if export.order_by is not None:
        if limit is None:
            raise RequestError("INVALID_REQUEST", "All rows in the order of a value don't fit in memory.", hint="Give --limit too.")
        chosen, more = first_by(definition, export.order_by, rows, limit, reverse=reverse)
        rows = iter(chosen)
    elif limit is not None and not (export.csv or export.parquet):
        chosen = list(islice(rows, limit + 1))
        more = len(chosen) > limit
        rows = iter(chosen[:limit])
    elif limit is not None:
        rows = islice(rows, limit)
    _write(definition, rows, first.cut, export, as_json=as_json, closed=closed)
    if more and not as_json:
        say(f"There are more rows: only {limit} are shown (--limit)")


def _pages(read: Callable[..., Rows], bounds: Bounds | None) -> Iterator[Rows]:
    page = read(limit=PAGE_ROWS, bounds=bounds)
    yield page
    while page.more:
        page = read(limit=PAGE_ROWS, token=page.token)
        yield page


def _write(
    definition: TableDefinition, rows: Iterator[Row], cut: Cut, export: Export, *, as_json: bool, closed: bool | None
) -> None:
    if export.csv:
        for piece in write_pages(CSV, definition, _in_pages(rows, cut)):
            write_bytes(piece)
    elif export.parquet is not None:
        from millpond.tables.forms.arrow import write_parquet

        count = write_parquet(export.parquet, definition, _in_pages(rows, cut))
        say(f"{count} rows in {export.parquet}")
    else:
        write_rows(definition, Rows(rows, cut), as_json=as_json, closed=closed)
        return
    write_footer(cut)


def _in_pages(rows: Iterator[Row], cut: Cut) -> Iterator[Rows]:
    """Rows as pages, at least one, so that a file without rows is complete too."""
    yield Rows(islice(rows, PAGE_ROWS), cut)
    while page := Rows(islice(rows, PAGE_ROWS), cut):
        yield page
