"""`millpond reprocess`: buckets of an aggregate computed anew, and rows that differ repaired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from millpond.cli import options
from millpond.cli.aggregates import open_aggregate
from millpond.cli.complete import complete_place
from millpond.cli.plans import local_place, show_plan
from millpond.cli.progress import Progress
from millpond.cli.terminal import say, write_line
from millpond.errors import RequestError


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("table")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--since", metavar="TIME", help="Buckets from here on; the span grows to whole buckets.")
@click.option("--until", metavar="TIME", help="Buckets before this time.")
@click.option("--key", "keys", metavar="COLUMN=VALUE", multiple=True, help="Only groups with this value; may be repeated.")
@click.option("--job", metavar="NAME", help="The job that has the table.  [default: TABLE]")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of the Spark session; may be repeated.")
@click.option("--yes", is_flag=True, help="Repair the rows of the stopped job; without this, show what differs.")
@options.take_over_option
@local_place
def reprocess(
    place: str,
    table: str,
    file: Path,
    since: str | None,
    until: str | None,
    keys: tuple[str, ...],
    job: str | None,
    conf: tuple[str, ...],
    yes: bool,
    take_over: bool,
) -> None:
    """Compute buckets of TABLE anew from its source, and repair the rows that differ.

    FILE declares the aggregate as its job does: SQL statements in a file named .sql, or Python with
    the Aggregate and a function source(spark), which returns the stream of events.  Give it the
    session's settings of the job: --conf.

    Without --yes the job may run: it shows which rows differ, and by how much. With it, the job must
    be stopped. The repair is a batch without events; then start the job again.

    \b
    Examples:
      millpond reprocess ./pond page_views job.py --since 2026-03-01T00:00Z
      millpond reprocess ./pond page_views views.sql --key page=/ --yes
    """
    chosen = dict(map(_parse, keys))
    with open_aggregate("reprocess", place, table, file, conf) as (aggregate, source):
        from millpond.spark.reprocess.plan import plan_reprocess

        part: dict[str, Any] = {"since": since, "until": until, "key": chosen}
        with _comparing() as compared:
            plan = plan_reprocess(aggregate, source, pond=place, job=job, take_over=take_over, progress=compared, **part)
        with plan:
            if not show_plan(plan, yes=yes or not plan.changes) or not plan.changes:
                return
            with _comparing() as compared:
                done = plan.run(compared)
    say(f"repaired    {done.rows:,} rows" + ("" if done.batch is None else f", in batch {done.batch}; start the job again"))
    write_line(plan.job.checkpoint)


@contextmanager
def _comparing() -> Iterator[Callable[[int, int], None]]:
    with Progress("partitions") as line:
        yield lambda done, every: line(f"{done:,} of {every:,}")


def _parse(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise RequestError("INVALID_REQUEST", f"{word!r:.80} isn't COLUMN=VALUE.", hint="Write --key page=/index.html.")
    return name, value
