"""`millpond count`: how many rows a table has, or a part of its key."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.output import write_one
from millpond.cli.place import Reading, open_table
from millpond.tables.job.bounds import Bounds
from millpond.wire.questions import AsOf


@click.command()
@options.pond_argument
@options.table_argument
@options.key_options
@options.as_of_options
@options.bounds_options
@options.reading_options
def count(
    place: str,
    table_name: str,
    key_words: options.KeyWords,
    reading: Reading,
    as_json: bool,
    as_of: AsOf,
    bounds: Bounds | None,
) -> None:
    """Show how many rows TABLE has, or how many with these values in key columns.

    \b
    Examples:
      millpond count ./pond page_views
      millpond count ./pond page_minutes page=/index.html --live
    """
    with open_table(place, table_name, reading, bounds) as table:
        key = key_words.of(table.definition)
        found = as_of.state_of(table).count(key, bounds=bounds)
        write_one(table.definition, found, ("count",), as_json=as_json)
