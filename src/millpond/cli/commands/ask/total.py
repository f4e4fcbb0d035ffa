"""`millpond total`: one row for a span of time, of a declared aggregate."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.output import write_merged
from millpond.wire.questions import FindTotal


@click.command()
@options.table_read(*(options.field_option(FindTotal, name, metavar="TIME") for name in ("since", "until")))
def total(asked: options.TableRead, since: str | None, until: str | None) -> None:
    """Show one row for a group of TABLE: its buckets of a span of time, merged.

    TABLE is a declared aggregate with several resolutions.  COLUMN=VALUE name all columns of the
    group.  The span begins and ends with a bucket; stderr shows it, and which buckets make it up.

    \b
    Examples:
      millpond total ./pond page_views page=/index.html
      millpond total ./pond page_views page=/ --since 2026-03-01T00:00:00Z
    """
    with asked.open() as (table, key):
        write_merged(table.definition, table.total(key, since=since, until=until, bounds=asked.bounds), as_json=asked.as_json)
