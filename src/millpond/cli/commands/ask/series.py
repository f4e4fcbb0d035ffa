"""`millpond series`: a row for each step of a span of time, of a declared aggregate."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.output import write_merged
from millpond.wire.questions import ListSeries


@click.command()
@options.table_read(
    options.field_option(ListSeries, "step", required=True),
    *(options.field_option(ListSeries, name, metavar="TIME") for name in ("since", "until")),
)
def series(asked: options.TableRead, step: str, since: str | None, until: str | None) -> None:
    """Show a row for each step of a span of time, for a group of TABLE.

    As total, with a row for each step in which the group has events.

    \b
    Examples:
      millpond series ./pond page_views page=/index.html --step "1 hour"
      millpond series ./pond page_views page=/index.html --step "1 day" \\
        --since 2026-03-01T00:00:00Z --until 2026-04-01T00:00:00Z
    """
    with asked.open() as (table, key):
        found = table.series(key, step=step, since=since, until=until, bounds=asked.bounds)
        write_merged(table.definition, found, as_json=asked.as_json)
