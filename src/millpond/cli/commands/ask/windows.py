"""`millpond windows`: the windows of a key between two times."""

from __future__ import annotations

from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_page
from millpond.wire.questions import Scan


@click.command()
@options.table_read(
    options.field_option(Scan, "since", metavar="TIME"),
    options.field_option(Scan, "until", metavar="TIME"),
    options.page_options,
)
def windows(asked: options.TableRead, since: str | None, until: str | None, page: dict[str, Any]) -> None:
    """Show the windows of a key of TABLE between two times.  Name every key column before the time.

    \b
    Examples:
      millpond windows ./pond recent_minutes \\
        --since 2026-03-01T12:00:00Z --until 2026-03-01T13:00:00Z
      millpond windows ./pond recent_minutes --reverse --limit 1
    """
    with asked.open() as (table, key):
        rows = table.windows(key, since=since, until=until, **page, bounds=asked.bounds)
        write_page(table.definition, rows, as_json=asked.as_json, closed=asked.as_of.closed)
