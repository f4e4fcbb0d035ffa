"""`millpond scan`: the rows of a table, or of a part of its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from millpond.cli import options
from millpond.cli.export import check_export, write_export
from millpond.cli.output import write_page
from millpond.tables.answer import Rows
from millpond.tables.history.reads import check_limit
from millpond.wire.questions import Scan


@click.command()
@options.table_read(
    options.page_options, options.edge_options, options.field_option(Scan, "by", metavar="COLUMN"), options.export_options
)
@click.pass_context
def scan(
    ctx: click.Context,
    /,
    asked: options.TableRead,
    page: dict[str, Any],
    edges: options.Edges,
    by: tuple[str, ...],
    export: options.Export,
) -> None:
    """Show rows of TABLE in the order of its key: all, or those with these values in key columns.

    \b
    Examples:
      millpond scan ./pond page_views
      millpond scan ./pond page_views page=/index.html --limit 10
      millpond scan ./pond recent_minutes --start minute=2026-03-01T12:00:00Z
      millpond scan ./pond hosts --where 'hits > 100'
      millpond scan ./pond hosts --order-by hits --reverse --limit 10
      millpond scan ./pond hosts --by hits --reverse --limit 10
      millpond scan ./pond page_views --csv > views.csv
      millpond scan ./pond page_views --parquet views.parquet
      millpond scan ./pond page_views --limit 1000000 --json > views.jsonl
    """
    if not export.is_plain:
        check_export(export, as_json=asked.as_json, token=page["token"])
    # A file gets all rows, a screen doesn't.
    is_whole = ctx.get_parameter_source("limit") is ParameterSource.DEFAULT and (export.csv or export.parquet is not None)
    with asked.open(by_value=bool(by)) as (table, key):
        span: dict[str, Any] = edges.of(table.definition, by_value=bool(by))
        if by:
            span["by"] = by
        rows_of: Callable[..., Rows] = table.range if span else table.scan

        def read(**how: Any) -> Rows:
            return rows_of(key, **span, **how)

        if export.is_plain:
            write_page(table.definition, read(**page, bounds=asked.bounds), as_json=asked.as_json, closed=asked.as_of.closed)
            return
        check_limit(page["limit"])
        write_export(
            table.definition,
            read,
            export,
            limit=None if is_whole and export.order_by is None else page["limit"],
            reverse=page["reverse"],
            bounds=asked.bounds,
            as_json=asked.as_json,
            closed=asked.as_of.closed,
        )
