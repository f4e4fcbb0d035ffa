"""`millpond count`: how many rows a table has, or a part of its key."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.output import write_one


@click.command()
@options.table_read()
def count(asked: options.TableRead) -> None:
    """Show how many rows TABLE has, or how many with these values in key columns.

    \b
    Examples:
      millpond count ./pond page_views
      millpond count ./pond page_views page=/index.html --live
    """
    with asked.open() as (table, key):
        write_one(table.definition, table.count(key, bounds=asked.bounds), ("count",), as_json=asked.as_json)
