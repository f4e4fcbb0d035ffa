"""`millpond windows`: the windows of a key between two times."""

from __future__ import annotations

from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_page
from millpond.cli.place import Reading, open_table
from millpond.tables.job.bounds import Bounds
from millpond.wire.questions import AsOf, Scan


@click.command()
@options.pond_argument
@options.table_argument
@options.key_options
@options.field_option(Scan, "since", metavar="TIME")
@options.field_option(Scan, "until", metavar="TIME")
@options.page_options
@options.as_of_options
@options.bounds_options
@options.reading_options
def windows(
    place: str,
    table_name: str,
    key_words: options.KeyWords,
    since: str | None,
    until: str | None,
    page: dict[str, Any],
    reading: Reading,
    as_json: bool,
    as_of: AsOf,
    bounds: Bounds | None,
) -> None:
    """Show the windows of a key of TABLE between two times.  Name every key column before the time.

    \b
    Examples:
      millpond windows ./pond page_minutes page=/ \\
        --since 2026-03-01T12:00:00Z --until 2026-03-01T13:00:00Z
      millpond windows ./pond page_minutes page=/ --reverse --limit 1
    """
    with open_table(place, table_name, reading, bounds) as table:
        key = key_words.of(table.definition)
        rows = as_of.state_of(table).windows(key, since=since, until=until, **page, bounds=bounds)
        write_page(table.definition, rows, as_json=as_json, closed=as_of.closed)
