"""`millpond diff`: the rows that differ between savepoints or jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import click
from click.core import ParameterSource

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.output import write_json_footer, write_texts
from millpond.cli.place import is_server
from millpond.cli.plans import local_place
from millpond.cli.progress import Progress
from millpond.cli.terminal import say, write_json
from millpond.errors import RequestError
from millpond.operate.units import moment
from millpond.schema.values import encode_json
from millpond.tables.diff.compare import RowDiff
from millpond.tables.diff.read import LIMIT, Diff, DiffReading, Pair, TableDiff, open_diff, write_diff
from millpond.tables.diff.sides import DiffSide
from millpond.tables.failed import ERRORS
from millpond.tables.job.offsets import describe
from millpond.wire.rows import JsonRow, columns_writer

DIFFERENT = 1


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("left")
@click.argument("right", required=False)
@click.option("--against", metavar="DIR|URI", help="The place of RIGHT, if it is another; its only job if RIGHT is left out.")
@click.option(
    "--table", "tables", multiple=True, metavar="TABLE", help="Only this table, by its name on either side; may be repeated."
)
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Don't compare this column; may be repeated.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=LIMIT,
    show_default=True,
    help="The largest number of rows to show of each table; all rows are compared and counted.",
)
@click.option(
    "--parquet",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the rows that differ, of one table, to a Parquet file; all of them, unless --limit is given.",
)
@options.allow_option
@options.json_option
@local_place
def diff(
    place: str,
    left: str,
    right: str | None,
    against: str | None,
    tables: tuple[str, ...],
    ignore: tuple[str, ...],
    limit: int,
    parquet: Path | None,
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the rows that differ from LEFT to RIGHT; exit code 1 if any do.

    Each side is a savepoint or a job of DIR, by its name; JOB@BATCH is a job at an earlier batch
    that Spark still has.  Without RIGHT, LEFT is compared with its job as it is now.

    \b
    Examples:
      millpond diff ./pond before-upgrade after-upgrade
      millpond diff ./pond before-upgrade --table page_views
      millpond diff ./pond page_views page_views_b --ignore last_seen
      millpond diff ./pond page_views@41 page_views@44 --parquet rows.parquet
      millpond diff ./pond before-upgrade --against ./restored
    """
    ctx = click.get_current_context()
    if against is not None and is_server(against):
        raise RequestError("INVALID_REQUEST", f"{against} is a server.", hint="Give the pond's folder or bucket.")
    if parquet is not None and as_json:
        raise RequestError("INVALID_REQUEST", "More than one form is given.", hint="Give one of --json and --parquet.")
    is_whole = ctx.get_parameter_source("limit") is ParameterSource.DEFAULT
    with ExitStack() as opened:
        with Progress("rows") as line:

            def report(rows: int) -> None:
                line(f"{rows:,} read")

            both = open_diff(
                place,
                left,
                right,
                against=against,
                tables=tables,
                ignore=ignore,
                allow=allow,
                one_table=parquet is not None,
                progress=report,
            )
            reading = opened.enter_context(both)
        if parquet is not None:
            found = _write_parquet(reading, parquet, None if is_whole else limit)
        else:
            found = _write_rows(reading, limit, as_json=as_json)
    if as_json:
        write_json_footer(_footer(found))
    else:
        _write_summary(found, None if parquet is not None else limit)
    if not found.is_same:
        ctx.exit(DIFFERENT)


def _write_parquet(reading: DiffReading, path: Path, limit: int | None) -> Diff:
    (table,) = reading.tables
    count = write_diff(path, table.pair, _first(table.differences(), limit))
    say(f"{count} rows in {path}")
    return reading.result([table.result()])


def _first(rows: Iterator[RowDiff], limit: int | None) -> Iterator[RowDiff]:
    """The first rows; all are read, since they are counted meanwhile."""
    for number, row in enumerate(rows):
        if limit is None or number < limit:
            yield row


def _write_rows(reading: DiffReading, limit: int, *, as_json: bool) -> Diff:
    """Write the rows as they are compared."""
    results: list[TableDiff] = []

    def rows() -> Iterator[tuple[str, JsonRow]]:
        for table in reading.tables:
            write = _json_writer(table.pair)
            for row in _first(table.differences(), limit):
                yield table.pair.left.table, write(row)
            results.append(table.result())

    if as_json:
        for table, row in rows():
            write_json({"table": table, **row})
    else:
        write_texts(["table", "kind", "key", "old", "new"], ([table, *_texts(row)] for table, row in rows()))
    return reading.result(results)


def _json_writer(pair: Pair) -> Callable[[RowDiff], JsonRow]:
    key = columns_writer([(c.name, c.type) for c in pair.left.key])
    old, new = (columns_writer([(c.name, c.type) for c in definition.values]) for definition in (pair.left, pair.right))

    def write(row: RowDiff) -> JsonRow:
        return {
            "kind": row.kind,
            "key": key(row.key) or {},
            "old": None if row.old is None else old(row.old) or {},
            "new": None if row.new is None else new(row.new) or {},
            "columns": list(row.columns),
        }

    return write


def _texts(row: JsonRow) -> list[str | None]:
    """Kind, key, old and new values; of a changed row only the values that differ."""
    columns = row["columns"]
    values = [row["key"]]
    for side in (row["old"], row["new"]):
        values.append({name: value for name, value in side.items() if name in columns or name == ERRORS} if columns else side)
    return [row["kind"], *(None if value is None else encode_json(value).decode() for value in values)]


def _footer(found: Diff) -> JsonRow:
    tables = [{name: value for name, value in asdict(table).items() if name != "rows"} for table in found.tables]
    return {"is_same": found.is_same, **asdict(replace(found, tables=())), "tables": tables}


def _write_summary(found: Diff, limit: int | None) -> None:
    for word, side in (("left", found.left), ("right", found.right)):
        say(f"{word}: {_side(side)}")
    if found.offsets == "differ":
        say("The source offsets of the two sides differ, so rows may differ only because one side has read more.")
    elif found.offsets == "unknown":
        say("The source offsets are equal, but each job counts them for itself: the two sides may have read other input.")
    for table in found.tables:
        counts = table.counts
        name = table.table if table.table == table.right_table else f"{table.table} and {table.right_table}"
        say(f"{name}: {counts.added:,} added, {counts.removed:,} removed, {counts.changed:,} changed, {counts.same:,} the same")
        for column in table.retyped:
            how = "" if column.compared else ", not compared"
            say(f"{name}: column {column.name} is {column.left} on the left, {column.right} on the right{how}")
        for side_word, columns in (("left", table.only_left), ("right", table.only_right)):
            if columns:
                say(f"{name}: only on the {side_word}, not compared: {', '.join(columns)}")
        if limit is not None and counts.differ > limit:
            say(f"{name}: only {limit} of the rows that differ are shown (--limit)")
    for side_word, tables in (("left", found.only_left), ("right", found.only_right)):
        if tables:
            say(f"Tables only on the {side_word}: {', '.join(tables)}")
    say("The two sides are the same." if found.is_same else "The two sides differ.")


def _side(side: DiffSide) -> str:
    parts = [f"batch {side.batch} of {side.job}"]
    if side.savepoint is not None:
        parts.insert(0, f"savepoint {side.savepoint}")
    if side.behind_batches is not None:
        parts.append(_behind(side.behind_batches))
    parts.append(f"begun {moment(side.batch_started_ms)}")
    if side.job_state not in (None, "unknown"):
        parts.append(f"job {side.job_state}")
    parts.append(describe(side.offsets))
    return " · ".join(parts)


def _behind(batches: int) -> str:
    return "newest batch" if not batches else "1 batch behind" if batches == 1 else f"{batches} batches behind"
