"""`millpond windows`: the windows of a key between two times."""

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
@click.option("--since", metavar="TIME", help="Only windows that begin then or later.")
@click.option("--until", metavar="TIME", help="Only windows that begin before.")
@options.page_options
@options.as_of_options
@options.bounds_options
@options.reading_options
def windows(
    place: str,
    table_name: str,
    columns: tuple[str, ...],
    key_json: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    reverse: bool,
    token: str | None,
    replica_dir: str | None,
    wait_seconds: float,
    server_token: str | None,
    as_json: bool,
    batch: int | None,
    time: str | None,
    closed: bool | None,
    **bounds: Any,
) -> None:
    """Show the windows of a key of TABLE, from one time until another: name every column of the key that stands before the time.

    \b
    Examples:
      millpond windows ./pond page_minutes page=/ --since 2026-03-01T12:00:00Z --until 2026-03-01T13:00:00Z
      millpond windows ./pond page_minutes page=/ --reverse --limit 1
    """
    wanted = options.parse_bounds(**bounds)
    with open_place(place, replica_dir=replica_dir, wait_seconds=wait_seconds, server_token=server_token, table=table_name) as pond:
        table = pond[table_name]
        key = options.parse_key(table.definition, columns, key_json)
        table = options.as_of(table, batch, time, closed)
        rows = table.windows(key, since=since, until=until, limit=limit, reverse=reverse, token=token, bounds=wanted)
        write_page(table.definition, rows, limit=limit, as_json=as_json, closed=closed)
