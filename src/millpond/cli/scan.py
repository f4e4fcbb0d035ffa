"""`millpond scan`: the rows of a table, or of a part of its key."""

from __future__ import annotations

from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_page
from millpond.cli.place import open_place


@click.command()
@options.pond_argument
@options.table_argument
@options.columns_argument
@options.key_option
@options.page_options
@options.edge_options
@options.as_of_options
@options.bounds_options
@options.reading_options
def scan(
    place: str,
    table_name: str,
    columns: tuple[str, ...],
    key_json: str | None,
    limit: int,
    replica_dir: str | None,
    wait_seconds: float,
    server_token: str | None,
    as_json: bool,
    reverse: bool,
    start: tuple[str, ...],
    end: tuple[str, ...],
    token: str | None,
    batch: int | None,
    time: str | None,
    closed: bool | None,
    **bounds: Any,
) -> None:
    """Show rows of TABLE in the order of its key: all, or those with these values in key columns.

    \b
    Examples:
      millpond scan ./pond page_views
      millpond scan ./pond page_minutes page=/index.html --limit 10
      millpond scan ./pond page_minutes page=/ --start minute=2026-03-01T12:00:00Z --reverse
      millpond scan ./pond page_views --limit 1000000 --json > views.jsonl
    """
    wanted = options.parse_bounds(**bounds)
    with open_place(place, replica_dir=replica_dir, wait_seconds=wait_seconds, server_token=server_token, table=table_name) as pond:
        table = pond[table_name]
        key = options.parse_key(table.definition, columns, key_json)
        table = options.as_of(table, batch, time, closed)
        more: dict[str, Any] = {"limit": limit, "reverse": reverse, "token": token, "bounds": wanted}
        if start or end:
            first, last = options.parse_edges(table.definition, start, end)
            rows = table.range(key, start=first, end=last, **more)
        else:
            rows = table.scan(key, **more)
        write_page(table.definition, rows, limit=limit, as_json=as_json, closed=closed)
