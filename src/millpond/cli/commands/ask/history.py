"""`millpond history`: all versions of a row."""

from __future__ import annotations

from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_versions
from millpond.wire.parse import parse_when
from millpond.wire.questions import ListVersions


@click.command()
@options.table_read(
    options.field_option(ListVersions, "since", metavar="BATCH|TIME"),
    options.field_option(ListVersions, "until", metavar="BATCH|TIME"),
    options.field_option(ListVersions, "limit", default=options.LIMIT, show_default=True),
    options.edge_options,
)
def history(asked: options.TableRead, since: str | None, until: str | None, limit: int, edges: options.Edges) -> None:
    """Show every version of a row of TABLE, or of the rows of a part of its key: by key, then by batch.

    The process that follows the job must keep them: `millpond serve --history TABLE=…`, or
    `millpond.open(…, retention=…)`.

    \b
    Examples:
      millpond history ./pond page_visitors page=/index.html
      millpond history ./pond page_visitors page=/ \\
        --since 2026-03-01T12:00:00Z --until 2026-03-01T13:00:00Z
      millpond history ./pond page_visitors --since 41 --limit 1000 --json
    """
    with asked.open() as (table, key):
        span: dict[str, Any] = {**edges.of(table.definition), "since": parse_when(since), "until": parse_when(until)}
        write_versions(table.definition, table.history(key, **span, limit=limit, bounds=asked.bounds), as_json=asked.as_json)
