"""`millpond get`: one row by its key."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.output import write_miss, write_rows
from millpond.cli.place import Reading, is_server, open_table
from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.tables.answer import Rows
from millpond.tables.cold.table import find_definition, read_row
from millpond.tables.job.bounds import Bounds
from millpond.wire.questions import AsOf

NOT_THERE = 1


@click.command()
@options.pond_argument
@options.table_argument
@options.key_options
@options.as_of_options
@options.bounds_options
@options.reading_options
@click.option("--cold", is_flag=True, help="Read this one key from the checkpoint itself, without a replica.")
@click.pass_context
def get(
    ctx: click.Context,
    /,
    place: str,
    table_name: str,
    key_words: options.KeyWords,
    reading: Reading,
    as_json: bool,
    cold: bool,
    as_of: AsOf,
    bounds: Bounds | None,
) -> None:
    """Show the row of TABLE with this key; exit code 1 if there is none.

    Name every key column.  COLUMN= is the empty text, COLUMN__isnull=1 is NULL; times are UTC
    unless they name an offset.

    \b
    Examples:
      millpond get ./pond page_views page=/index.html
      millpond get ./pond page_minutes page=/ minute=2026-03-01T12:00:00Z
      millpond get ./pond hosts host__isnull=1
      millpond get ./pond page_views --key '{"page": "/a=b"}' --json
      millpond get ./pond page_views page=/ --contains-offset views:0:7 --wait 5
      millpond get --cold /data/checkpoints/views views.aggregate_0 page=/
    """
    if cold and not (bounds is None and as_of == AsOf()):
        raise RequestError(
            "INVALID_REQUEST",
            "--cold always reads the newest committed batch, so it takes no bounds, --batch, --time or --closed.",
            hint="Leave --cold out to wait for a batch or offsets, or to read an earlier batch or expired rows.",
        )
    if cold and is_server(place):
        raise RequestError("INVALID_REQUEST", "--cold reads a checkpoint, not a server.", hint="Leave --cold out, or name a path.")
    if cold:
        definition = find_definition(place, table_name, allow=reading.allow)
        row = read_row(place, table_name, key_words.of(definition), allow=reading.allow)
        _show(ctx, definition, Rows([row], row.cut), as_json=as_json, closed=as_of.closed)
        return
    with open_table(place, table_name, reading, bounds) as table:
        key = key_words.of(table.definition)
        rows = as_of.state_of(table).get_all([key], bounds=bounds)
        _show(ctx, table.definition, rows, as_json=as_json, closed=as_of.closed)


def _show(ctx: click.Context, definition: TableDefinition, rows: Rows, *, as_json: bool, closed: bool | None) -> None:
    if rows[0]:
        write_rows(definition, rows, as_json=as_json, closed=closed)
        return
    write_miss(definition, rows, as_json=as_json)
    ctx.exit(NOT_THERE)
