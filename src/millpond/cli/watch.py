"""`millpond watch`: one row, shown each time that a batch changes it."""

from __future__ import annotations

import sys

import click

from millpond.cli import options
from millpond.cli.output import write_rows
from millpond.cli.place import open_place
from millpond.errors import MillpondError
from millpond.tables.bounds import Bounds

# How long one look for the next batch waits.
_LOOK_SECONDS = 1.0


@click.command()
@options.pond_argument
@options.table_argument
@options.columns_argument
@options.key_option
@click.option("--times", type=click.IntRange(1), help="End after showing the row so many times.")
@options.reading_options
def watch(
    place: str,
    table_name: str,
    columns: tuple[str, ...],
    key_json: str | None,
    times: int | None,
    replica_dir: str | None,
    wait_seconds: float,
    server_token: str | None,
    as_json: bool,
) -> None:
    """Show the row of TABLE with this key now, and again whenever a batch has changed it, until Ctrl-C.

    A row that is changed by several batches between two looks is shown as the last of them left it.

    \b
    Examples:
      millpond watch ./pond page_views page=/index.html
      millpond watch ./pond page_views page=/ --times 10 --json
    """
    with open_place(place, replica_dir=replica_dir, wait_seconds=wait_seconds, server_token=server_token, table=table_name) as pond:
        table = pond[table_name]
        key = options.parse_key(table.definition, columns, key_json)
        row = table.get(key)
        shown, left = None, times
        while True:
            if shown is None or dict(row) != shown:
                if row:
                    write_rows(table.definition, [row], row.cut, as_json=as_json)
                else:
                    click.echo(f"Batch {row.batch}: {table_name} has no row with this key.", err=True)
                sys.stdout.flush()
                shown = dict(row)
                left = None if left is None else left - 1
                if left == 0:
                    return
            try:
                row = table.get(key, bounds=Bounds(min_batch=row.batch + 1, wait_seconds=_LOOK_SECONDS))
            except MillpondError as error:
                if error.condition != "NOT_UP_TO_BOUND":
                    raise
                here = error.context.get("here")
                if isinstance(here, int) and here < row.batch:  # the job began anew
                    row = table.get(key)
