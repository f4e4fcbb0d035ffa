"""`millpond history`: all versions of a row."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.output import write_versions
from millpond.cli.place import Reading, open_table
from millpond.tables.job.bounds import Bounds
from millpond.wire.parse import parse_when
from millpond.wire.questions import AsOf, ListVersions


@click.command()
@options.pond_argument
@options.table_argument
@options.key_options
@options.field_option(ListVersions, "since", metavar="BATCH|TIME")
@options.field_option(ListVersions, "until", metavar="BATCH|TIME")
@options.field_option(ListVersions, "limit", default=options.LIMIT, show_default=True)
@options.edge_options
@options.as_of_options
@options.bounds_options
@options.reading_options
def history(
    place: str,
    table_name: str,
    key_words: options.KeyWords,
    since: str | None,
    until: str | None,
    limit: int,
    edges: options.Edges,
    reading: Reading,
    as_json: bool,
    as_of: AsOf,
    bounds: Bounds | None,
) -> None:
    """Show every version of a row of TABLE, or of the rows of a part of its key: by key, then by batch.

    The process that follows the job must keep them: `millpond serve --history TABLE=…`, or
    `millpond.open(…, retention=…)`.

    \b
    Examples:
      millpond history ./pond page_views page=/index.html
      millpond history ./pond page_views page=/ \\
        --since 2026-03-01T12:00:00Z --until 2026-03-01T13:00:00Z
      millpond history ./pond page_views --since 41 --limit 1000 --json
    """
    with open_table(place, table_name, reading, bounds) as table:
        key = key_words.of(table.definition)
        found = as_of.state_of(table).history(
            key, **edges.of(table.definition), since=parse_when(since), until=parse_when(until), limit=limit, bounds=bounds
        )
        write_versions(table.definition, found, as_json=as_json)
