"""`millpond scan`: the rows of a table, or of a part of its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_page
from millpond.cli.place import Reading, open_table
from millpond.tables.answer import Rows
from millpond.tables.bounds import Bounds


@click.command()
@options.pond_argument
@options.table_argument
@options.key_options
@options.page_options
@options.edge_options
@options.as_of_options
@options.bounds_options
@options.reading_options
def scan(
    place: str,
    table_name: str,
    key_words: options.KeyWords,
    page: dict[str, Any],
    edges: options.Edges,
    reading: Reading,
    as_json: bool,
    as_of: options.AsOf,
    bounds: Bounds | None,
) -> None:
    """Show rows of TABLE in the order of its key: all, or those with these values in key columns.

    \b
    Examples:
      millpond scan ./pond page_views
      millpond scan ./pond page_minutes page=/index.html --limit 10
      millpond scan ./pond page_minutes page=/ --start minute=2026-03-01T12:00:00Z
      millpond scan ./pond page_views --limit 1000000 --json > views.jsonl
    """
    with open_table(place, table_name, reading, bounds) as table:
        key = key_words.of(table.definition)
        span = edges.of(table.definition)
        read: Callable[..., Rows] = as_of.of(table).range if span else as_of.of(table).scan
        write_page(table.definition, read(key, **span, **page, bounds=bounds), as_json=as_json, closed=as_of.closed)
