"""`millpond changes`: the changes of a table's rows, in order."""

from __future__ import annotations

import sys
from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_json_list
from millpond.cli.place import Reading, open_table
from millpond.cli.terminal import say, write_line
from millpond.errors import RequestError
from millpond.schema.values import encode_json
from millpond.tables.history.changes import Changes
from millpond.wire.answers import ChangesAnswer, answer_json
from millpond.wire.parse import parse_when
from millpond.wire.questions import AsOf
from millpond.wire.rows import row_writer

LIMIT = 1000
_LOOK_SECONDS = 1.0


@click.command()
@options.pond_argument
@options.table_argument
@click.option("--since", metavar="TOKEN|BATCH", help="All changes after this batch or token. [default: from now on]")
@click.option("--limit", type=click.IntRange(1), help="End after this many changes.")
@click.option("--follow", is_flag=True, help="Continue as batches come, until Ctrl-C.")
@options.as_of_options
@options.reading_options
def changes(
    place: str,
    table_name: str | None,
    since: str | None,
    limit: int | None,
    follow: bool,
    as_of: AsOf,
    reading: Reading,
    as_json: bool,
) -> None:
    """Show the changes of TABLE's rows, one line each, in order; stderr gets a token to continue.

    The process that follows the job must keep them: `millpond serve --history TABLE=…`, or
    `millpond.open(…, retention=…)`.

    \b
    Examples:
      millpond changes ./pond page_views --since 41
      millpond changes ./pond page_views --since 41 --batch 44
      millpond changes ./pond page_views --follow --json
    """
    if follow and not as_of.is_newest:
        raise RequestError(
            "INVALID_REQUEST",
            "--follow waits for batches that come; with --batch or --time no more changes come.",
            hint="Leave out one of them.",
        )
    left = limit
    with open_table(place, table_name, reading) as here:
        table = as_of.state_of(here)
        at: str | int | None = parse_when(since)
        while True:
            most = LIMIT if left is None else min(left, LIMIT)
            page = table.changes(at, limit=most, wait_seconds=_LOOK_SECONDS if follow else 0.0)
            at = page.token
            left = None if left is None else left - len(page)
            is_last = (left is not None and left <= 0) or not (follow or page.more)
            _write(table, page, as_json=as_json, is_last=is_last)
            if is_last:
                break
        if not as_json:
            say(f"Continue with --since {at}")


def _write(table: Any, page: Changes, *, as_json: bool, is_last: bool) -> None:
    if as_json:
        write_json_list(table.definition, page, "changes", footer=is_last)
    else:
        answer = answer_json(table.name, page, row_writer(table.definition))
        assert isinstance(answer, ChangesAnswer)
        for change in answer.changes:
            row = change.new or change.final or change.old
            kind = f"{change.kind}, repaired" if change.repaired else change.kind
            write_line("\t".join((str(change.batch), kind, encode_json(row).decode())))
    # With --follow, show each batch as it comes.
    sys.stdout.flush()
