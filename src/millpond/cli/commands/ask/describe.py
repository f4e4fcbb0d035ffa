"""`millpond describe`: the definition of one table."""

from __future__ import annotations

import sys

import click

from millpond.cli import options
from millpond.cli.output import write_footer, write_grid
from millpond.cli.place import Reading, open_table
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.schema.definition.indexes import name_of
from millpond.wire.answers import table_json
from millpond.wire.rows import typed_columns


@click.command()
@options.pond_argument
@options.table_argument
@options.reading_options
def describe(place: str, table_name: str | None, reading: Reading, as_json: bool) -> None:
    """Show TABLE's columns with Spark's types, its key in the order of rows, retention and number of rows.

    \b
    Examples:
      millpond describe ./pond page_views
      millpond describe http://localhost:8642 page_views --json
    """
    with open_table(place, table_name, reading) as table:
        count = table.count()
        definition = table.definition
        if as_json:
            write_json(table_json(table.name, count, definition))
            return
        facts = [("table", table.name), ("job", count.cut.job), ("rows", str(int(count)))]
        if definition.retention is not None:
            facts.append(("kept", definition.retention.words()))
        if definition.indexes:
            facts.append(("indexes", "; ".join(map(name_of, definition.indexes))))
        for name, text in facts:
            write_line(f"{name:<12}{visible(text)}")
        if not sys.stdout.isatty():
            write_line("")
        # In the order by which rows are sorted.
        key = {name: str(place) for place, name in enumerate(table.key_order, 1)}
        raw = {column.name: column.raw or "" for column in definition.values}
        columns = typed_columns(definition)
        rows = [[name, str(type_), key.get(name, ""), "as stored" if raw.get(name) else ""] for name, type_ in columns]
        names = ["column", "type", "key", "value"]
        write_grid(names if any(raw.values()) else names[:-1], rows if any(raw.values()) else [row[:-1] for row in rows])
        for warning in definition.warnings:
            say(warning)
        write_footer(count.cut)
