"""`millpond count`: how many rows a table has, or a part of its key."""

from __future__ import annotations

from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_one
from millpond.cli.place import open_place
from millpond.serve.shapes import count_json


@click.command()
@options.pond_argument
@options.table_argument
@options.columns_argument
@options.key_option
@options.as_of_options
@options.bounds_options
@options.reading_options
def count(
    place: str,
    table_name: str,
    columns: tuple[str, ...],
    key_json: str | None,
    replica_dir: str | None,
    wait_seconds: float,
    server_token: str | None,
    as_json: bool,
    batch: int | None,
    time: str | None,
    closed: bool | None,
    **bounds: Any,
) -> None:
    """Show how many rows TABLE has, or how many with these values in key columns.

    \b
    Examples:
      millpond count ./pond page_views
      millpond count ./pond page_minutes page=/index.html --live
    """
    wanted = options.parse_bounds(**bounds)
    with open_place(place, replica_dir=replica_dir, wait_seconds=wait_seconds, server_token=server_token, table=table_name) as pond:
        table = pond[table_name]
        key = options.parse_key(table.definition, columns, key_json)
        found = options.as_of(table, batch, time, closed).count(key, bounds=wanted)
        write_one(count_json(table_name, found), ("count",), found.cut, as_json=as_json)
