"""`millpond scan`: the rows of a table, or of a part of its key."""

from __future__ import annotations

from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_rows
from millpond.cli.place import open_place
from millpond.errors import RequestError

LIMIT = 100


@click.command()
@options.pond_argument
@options.table_argument
@options.columns_argument
@options.key_option
@click.option("--limit", type=int, default=LIMIT, show_default=True, help="The largest number of rows.")
@click.option("--reverse", is_flag=True, help="Against the order of the key.")
@click.option(
    "--start", multiple=True, metavar="COLUMN=VALUE", help="Begin here: the next columns of the key, repeated for several."
)
@click.option("--end", multiple=True, metavar="COLUMN=VALUE", help="End before this.")
@click.option("--token", help="Show the next rows: what the same command wrote before.")
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
    if limit < 1:
        raise RequestError("INVALID_LIMIT", f"A limit must be at least 1, not {limit}.", hint="Write it like --limit 100.")
    wanted = options.parse_bounds(**bounds)
    with open_place(place, replica_dir=replica_dir, wait_seconds=wait_seconds, server_token=server_token, table=table_name) as pond:
        table = pond[table_name]
        key = options.parse_key(table.definition, columns, key_json)
        table = options.as_of(table, batch, time, closed)
        more: dict[str, Any] = {"limit": limit, "reverse": reverse, "token": token, "bounds": wanted}
        if start or end:
            first, last = (options.parse_words(table.definition, words) for words in (start, end))
            rows = table.range(key, start=first, end=last, **more)
        else:
            rows = table.scan(key, **more)
        write_rows(table.definition, rows, as_json=as_json, closed=closed)
        if rows.more and not as_json:
            click.echo(f"There are more rows: only {limit} are shown (--limit); the next: --token {rows.token}", err=True)
