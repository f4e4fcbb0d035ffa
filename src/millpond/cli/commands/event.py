"""`millpond event`: where one event is."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.output import write_one
from millpond.cli.place import Reading, open_table
from millpond.tables.job.bounds import Bounds
from millpond.wire.questions import AsOf, FindEvent

NOT_IN = 1


@click.command()
@options.pond_argument
@options.table_argument
@options.key_options
@options.field_option(FindEvent, "offset")
@options.field_option(FindEvent, "file")
@options.field_option(FindEvent, "line")
@options.field_option(FindEvent, "event_time")
@options.as_of_options
@options.bounds_options
@options.reading_options
@click.pass_context
def event(
    ctx: click.Context,
    /,
    place: str,
    table_name: str,
    key_words: options.KeyWords,
    offset: str | None,
    file: str | None,
    line: int | None,
    event_time: str | None,
    reading: Reading,
    as_json: bool,
    as_of: AsOf,
    bounds: Bounds | None,
) -> None:
    """Show which batch read an event, whether TABLE has that batch, and whether Spark dropped it as late.

    Exit code 1 if TABLE doesn't have it yet.  COLUMN=VALUE name the event's row, with the columns
    of its window.  Give these, or --event-time, to learn whether it was late.

    \b
    Examples:
      millpond event ./pond page_views --offset views:0:11170
      millpond event ./pond page_minutes --offset views:0:11170 \\
        --event-time 2026-03-01T12:00:07Z
      millpond event ./pond page_views --file /logs/access.log --line 17
    """
    with open_table(place, table_name, reading, bounds) as table:
        key = key_words.of(table.definition) or None
        read = as_of.state_of(table).find_event
        found = read(offset=offset, file=file, line=line, key=key, event_time=event_time, bounds=bounds)
        write_one(table.definition, found, ("batch_read", "applied", "late", "reason"), as_json=as_json)
    if not found.applied:
        ctx.exit(NOT_IN)
