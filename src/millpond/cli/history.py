"""`millpond history`: what a row was, batch after batch."""

from __future__ import annotations

from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_versions
from millpond.cli.place import open_place
from millpond.serve.question import parse_since


@click.command()
@options.pond_argument
@options.table_argument
@options.columns_argument
@options.key_option
@click.option("--since", metavar="BATCH|TIME", help="Only what held then or later. [default: all that is kept]")
@click.option("--until", metavar="BATCH|TIME", help="Only what held then or before.")
@click.option("--limit", type=int, default=options.LIMIT, show_default=True, help="The largest number of versions.")
@options.edge_options
@options.as_of_options
@options.bounds_options
@options.reading_options
def history(
    place: str,
    table_name: str,
    columns: tuple[str, ...],
    key_json: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    start: tuple[str, ...],
    end: tuple[str, ...],
    replica_dir: str | None,
    wait_seconds: float,
    server_token: str | None,
    as_json: bool,
    batch: int | None,
    time: str | None,
    closed: bool | None,
    **bounds: Any,
) -> None:
    """Show every version of a row of TABLE, or of the rows of a part of its key: by key, then by batch.

    Whoever follows the job keeps them: `millpond serve --history TABLE=…`, or `millpond.open(…, retention=…)`.

    \b
    Examples:
      millpond history ./pond page_views page=/index.html
      millpond history ./pond page_views page=/ --since 2026-03-01T12:00:00Z --until 2026-03-01T13:00:00Z
      millpond history ./pond page_views --since 41 --limit 1000 --json
    """
    wanted = options.parse_bounds(**bounds)
    with open_place(place, replica_dir=replica_dir, wait_seconds=wait_seconds, server_token=server_token, table=table_name) as pond:
        table = pond[table_name]
        key = options.parse_key(table.definition, columns, key_json)
        first, last = options.parse_edges(table.definition, start, end)
        table = options.as_of(table, batch, time, closed)
        found = table.history(
            key, start=first, end=last, since=parse_since(since), until=parse_since(until), limit=limit, bounds=wanted
        )
        write_versions(table.definition, found, as_json=as_json)
        if found.more and not as_json:
            click.echo(f"There are more versions: only {limit} are shown (--limit)", err=True)
