"""`millpond get`: one row by its key."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.output import write_miss, write_rows
from millpond.cli.place import is_server, may_be_left_out, which_table
from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.tables.answer import Rows
from millpond.tables.cold.table import find_definition, find_tables, read_row
from millpond.wire.questions import AsOf

NOT_THERE = 1


@click.command()
@options.table_read()
@click.option("--cold", is_flag=True, help="Read this one key from the checkpoint itself, without a replica.")
@click.pass_context
def get(ctx: click.Context, /, asked: options.TableRead, cold: bool) -> None:
    """Show the row of TABLE with this key; exit code 1 if there is none.

    Name every key column.  COLUMN= is the empty text, COLUMN__isnull=1 is NULL; times are UTC
    unless they name an offset.

    \b
    Examples:
      millpond get ./pond page_visitors page=/index.html
      millpond get ./pond recent_minutes minute=2026-03-01T12:00:00Z
      millpond get ./pond hosts host__isnull=1
      millpond get ./pond page_visitors --key '{"page": "/a=b"}' --json
      millpond get ./pond page_visitors page=/ --min-batch 7 --wait 5
      millpond get --cold /data/checkpoints/views views.aggregate_0 page=/
    """
    if cold and not (asked.bounds is None and asked.as_of == AsOf()):
        raise RequestError(
            "INVALID_REQUEST",
            "--cold always reads the newest committed batch, so it takes no bounds, --batch, --time or --closed.",
            hint="Leave --cold out to wait for a batch or offsets, or to read an earlier batch or expired rows.",
        )
    if cold and is_server(asked.place):
        raise RequestError("INVALID_REQUEST", "--cold reads a checkpoint, not a server.", hint="Leave --cold out, or name a path.")
    if cold:
        place, allow = asked.place, asked.reading.allow
        given = asked.table_name
        name = which_table(given, find_tables(place, allow=allow)) if may_be_left_out(given) else str(given)
        definition = find_definition(place, name, allow=allow)
        row = read_row(place, name, asked.key_words.after(given, name).of(definition), allow=allow)
        _show(ctx, asked, definition, Rows([row], row.cut))
        return
    with asked.open() as (table, key):
        _show(ctx, asked, table.definition, table.get_all([key], bounds=asked.bounds))


def _show(ctx: click.Context, asked: options.TableRead, definition: TableDefinition, rows: Rows) -> None:
    if rows[0]:
        write_rows(definition, rows, as_json=asked.as_json, closed=asked.as_of.closed)
        return
    write_miss(definition, rows, as_json=asked.as_json)
    ctx.exit(NOT_THERE)
