"""`millpond scan`: the rows of a table, or of a part of its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from millpond.cli import options
from millpond.cli.export import check_export, write_export
from millpond.cli.output import write_page
from millpond.cli.place import Reading, open_table
from millpond.tables.answer import Rows
from millpond.tables.history.reads import check_limit
from millpond.tables.job.bounds import Bounds
from millpond.wire.questions import AsOf


@click.command()
@options.pond_argument
@options.table_argument
@options.key_options
@options.page_options
@options.edge_options
@options.export_options
@options.as_of_options
@options.bounds_options
@options.reading_options
@click.pass_context
def scan(
    ctx: click.Context,
    /,
    place: str,
    table_name: str,
    key_words: options.KeyWords,
    page: dict[str, Any],
    edges: options.Edges,
    export: options.Export,
    reading: Reading,
    as_json: bool,
    as_of: AsOf,
    bounds: Bounds | None,
) -> None:
    """Show rows of TABLE in the order of its key: all, or those with these values in key columns.

    \b
    Examples:
      millpond scan ./pond page_views
      millpond scan ./pond page_minutes page=/index.html --limit 10
      millpond scan ./pond page_minutes page=/ --start minute=2026-03-01T12:00:00Z
      millpond scan ./pond page_views --where 'hits > 100'
      millpond scan ./pond page_views --order-by hits --reverse --limit 10
      millpond scan ./pond page_views --csv > views.csv
      millpond scan ./pond page_views --parquet views.parquet
      millpond scan ./pond page_views --limit 1000000 --json > views.jsonl
    """
    if not export.is_plain:
        check_export(export, as_json=as_json, token=page["token"])
    # A file gets all rows, a screen doesn't.
    is_whole = ctx.get_parameter_source("limit") is ParameterSource.DEFAULT and (export.csv or export.parquet is not None)
    with open_table(place, table_name, reading, bounds) as table:
        key = key_words.of(table.definition)
        span = edges.of(table.definition)
        rows_of: Callable[..., Rows] = as_of.state_of(table).range if span else as_of.state_of(table).scan

        def read(**how: Any) -> Rows:
            return rows_of(key, **span, **how)

        if export.is_plain:
            write_page(table.definition, read(**page, bounds=bounds), as_json=as_json, closed=as_of.closed)
            return
        check_limit(page["limit"])
        write_export(
            table.definition,
            read,
            export,
            limit=None if is_whole and export.order_by is None else page["limit"],
            reverse=page["reverse"],
            bounds=bounds,
            as_json=as_json,
            closed=as_of.closed,
        )
