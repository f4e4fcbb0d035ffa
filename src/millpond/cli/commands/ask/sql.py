"""`millpond sql`: a SELECT over tables, or a prompt for them."""

from __future__ import annotations

import sys
from typing import Any

import click

from millpond.cli import options
from millpond.cli.output import write_sql, write_sql_changes
from millpond.cli.place import Reading, is_server, open_place
from millpond.cli.sql_prompt import run_prompt
from millpond.errors import RequestError
from millpond.tables.job.bounds import Bounds
from millpond.tables.sql.end import SqlLimits
from millpond.wire.questions import AsOf


@click.command()
@options.pond_argument
@click.argument("statement", required=False)
@click.option("--param", "parameters", metavar="VALUE", multiple=True, help="The value of the next ?; may be repeated.")
@click.option("--separate", is_flag=True, help="Read tables of several jobs each at its newest batch.")
@click.option("--limit", type=click.IntRange(min=0), metavar="ROWS", help="Fail if the answer has more rows.")
@click.option("--seconds", type=float, help="The longest time for one statement.  [default: 60]")
@click.option("--watch", "is_watched", is_flag=True, help="Show the rows, and then what each batch changes in them, until Ctrl-C.")
@click.option("--by", "key", metavar="COLUMN", multiple=True, help="With --watch: columns that name a row; may be repeated.")
@options.field_option(AsOf, "batch")
@options.field_option(AsOf, "time")
@options.bounds_options
@options.reading_options
def sql(
    place: str,
    statement: str | None,
    parameters: tuple[str, ...],
    separate: bool,
    limit: int | None,
    seconds: float | None,
    is_watched: bool,
    key: tuple[str, ...],
    batch: int | None,
    time: str | None,
    reading: Reading,
    as_json: bool,
    bounds: Bounds | None,
) -> None:
    """Answer a SELECT over the tables of DIR, or of the server at URL, in DuckDB's SQL, all of one batch.

    Conditions on key columns choose which rows are read; EXPLAIN SELECT … says how. Without a
    statement there is a prompt.

    \b
    Examples:
      millpond sql ./pond "SELECT * FROM page_views ORDER BY hits DESC LIMIT 10"
      millpond sql ./pond "SELECT hits FROM page_views WHERE page = ?" --param /
      millpond sql ./pond "EXPLAIN SELECT hits FROM page_views WHERE page < '/b'"
      millpond sql http://localhost:8642 "SELECT count(*) FROM page_views"
      millpond sql ./pond "SELECT page, hits FROM page_views" --watch --by page
      millpond sql ./pond
    """
    how: dict[str, Any] = {"separate": separate, "bounds": bounds}
    if batch is not None and time is not None:
        raise RequestError("INVALID_REQUEST", "Give a batch or a time.", hint="Leave one of --batch and --time out.")
    if batch is not None or time is not None:
        how["at"] = time if batch is None else batch
    if not is_server(place):
        how["limits"] = SqlLimits(rows=limit, seconds=60.0 if seconds is None else seconds)
    elif limit is not None or seconds is not None:
        raise RequestError(
            "INVALID_REQUEST",
            "A server has limits of its own.",
            hint="Leave --limit and --seconds out, or write LIMIT in the statement.",
        )
    if is_watched and (statement is None or separate or bounds is not None or "at" in how):
        raise RequestError(
            "INVALID_REQUEST",
            "--watch takes a statement and the newest batches.",
            hint="Leave --separate, --batch, --time and bounds out.",
        )
    with open_place(place, reading) as pond:
        if is_watched and statement is not None:
            more = {"limits": how["limits"]} if "limits" in how else {}
            for changes in pond.subscribe(statement, list(parameters) or None, key=key or None, **more):
                write_sql_changes(changes, as_json=as_json)
                sys.stdout.flush()
        elif statement is not None:
            write_sql(pond.sql(statement, list(parameters) or None, **how), as_json=as_json)
        else:
            run_prompt(pond, sys.stdin, how, as_json=as_json)
