"""`millpond watch`: one row, or the rows of a part of a key, each time a batch changes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_miss, write_rows
from millpond.cli.place import Reading, open_table
from millpond.cli.terminal import say
from millpond.errors import MillpondError
from millpond.tables.answer import Rows
from millpond.tables.job.bounds import Bounds
from millpond.tables.scan.keys import Key

# How long one read waits for the next batch.
_LOOK_SECONDS = 1.0


@click.command()
@options.pond_argument
@options.table_argument
@options.key_options
@click.option("--times", type=click.IntRange(1), help="End after showing it this many times.")
@click.option("--limit", type=click.IntRange(1), default=options.LIMIT, show_default=True, help="The largest number of rows.")
@options.reading_options
def watch(
    place: str,
    table_name: str | None,
    key_words: options.KeyWords,
    times: int | None,
    limit: int,
    reading: Reading,
    as_json: bool,
) -> None:
    """Show the row of TABLE with this key now, and again whenever a batch has changed it, until Ctrl-C.

    If only a part of the key is given, all rows with these values are shown; without values, all
    rows.  If several batches change a row between two looks, only its newest values are shown.

    \b
    Examples:
      millpond watch ./pond page_visitors page=/index.html
      millpond watch ./pond page_visitors page=/ --times 10 --json
      millpond watch ./pond wine_statistics
    """
    with open_table(place, table_name, reading) as table:
        key = key_words.after(table_name, table.name).of(table.definition)
        look = _looking(table, key, limit)
        found = look(None)
        shown, left = None, times
        while True:
            rows = [(dict(row), row.final) for row in found if row]
            if rows != shown:
                if rows:
                    write_rows(table.definition, found, as_json=as_json)
                else:
                    write_miss(table.definition, found, as_json=as_json)
                if found.more and not as_json:
                    say(f"There are more rows: only {limit} are shown (--limit)")
                sys.stdout.flush()
                shown = rows
                left = None if left is None else left - 1
                if left == 0:
                    return
            try:
                found = look(Bounds(min_batch=found.batch + 1, wait_seconds=_LOOK_SECONDS))
            except MillpondError as error:
                if error.condition != "NOT_UP_TO_BOUND":
                    raise
                here = error.context.get("here")
                if isinstance(here, int) and here < found.batch:  # the job began again
                    found = look(None)


def _looking(table: Any, key: Key, limit: int) -> Callable[[Bounds | None], Rows]:
    """A function that reads the row of a key, or the rows of a part of one."""
    if not all(column.name in key for column in table.definition.key):
        return lambda bounds: table.scan(key, limit=limit, bounds=bounds)

    def look(bounds: Bounds | None) -> Rows:
        row = table.get(key, bounds=bounds)
        return Rows([row], row.cut)

    return look
