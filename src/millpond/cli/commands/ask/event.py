"""`millpond event`: where one event is."""

from __future__ import annotations

from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_one
from millpond.wire.questions import FindEvent

NOT_IN = 1


@click.command()
@options.table_read(*(options.field_option(FindEvent, name) for name in ("offset", "file", "line", "event_time")))
@click.pass_context
def event(ctx: click.Context, /, asked: options.TableRead, **event: Any) -> None:
    """Show which batch read an event, whether TABLE has that batch, and whether Spark dropped it as late.

    Exit code 1 if TABLE doesn't have it yet.  COLUMN=VALUE name the event's row, with the columns
    of its window.  Give these, or --event-time, to learn whether it was late.

    \b
    Examples:
      millpond event ./pond page_views --offset views:0:11170
      millpond event ./pond recent_minutes --offset views:0:11170 \\
        --event-time 2026-03-01T12:00:07Z
      millpond event ./pond page_views --file /logs/access.log --line 17
    """
    with asked.open() as (table, key):
        found = table.find_event(**event, key=key or None, bounds=asked.bounds)
        write_one(table.definition, found, ("batch_read", "applied", "late", "reason"), as_json=asked.as_json)
    if not found.applied:
        ctx.exit(NOT_IN)
