"""`millpond write-state`: a checkpoint for a new job, whose state has the rows of a past."""

from __future__ import annotations

import os
from pathlib import Path

import click

from millpond.cli.progress import Progress
from millpond.cli.queries import settings_of
from millpond.cli.terminal import say, visible, write_line
from millpond.errors import SetupError, importing_pyspark


@click.command("write-state")
@click.argument("target", metavar="DIR|URI")
@click.argument("program", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--from", "past", required=True, metavar="DIR|URI", help="The past: Parquet files with the columns of the source.")
@click.option("--query", "query_name", default="query", show_default=True, help="PROGRAM's function of the events.")
@click.option("--source", "source_name", default="source", show_default=True, help="PROGRAM's function of the session.")
@click.option("--offsets", metavar="JSON", help="Where a Kafka source goes on, in place of its startingOffsets.")
@click.option("--covered", multiple=True, metavar="PATTERN", help="Files of the source that the past has; may be repeated.")
@click.option("--output-mode", type=click.Choice(["update", "complete", "append"]), help="The job's.  [default: PROGRAM's]")
@click.option("--partitions", type=click.IntRange(min=1), help="Of the state, for ever.")
@click.option("--batches", type=click.IntRange(min=1), default=1, show_default=True, help="Read the past in so many batches.")
@click.option("--order-by", metavar="COLUMN", help="Divide the past into batches by this column.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of the Spark session.")
@click.option("--yes", is_flag=True, help="Write it; without this, show what would be done.")
def write_state(
    target: str,
    program: Path,
    past: str,
    query_name: str,
    source_name: str,
    offsets: str | None,
    covered: tuple[str, ...],
    output_mode: str | None,
    partitions: int | None,
    batches: int,
    order_by: str | None,
    conf: tuple[str, ...],
    yes: bool,
) -> None:
    """Make a checkpoint in DIR for a new job, whose state has the rows of a past.

    PROGRAM is a Python file with two functions: query(events) returns the stream that the job
    starts, source(spark) the stream of events that it reads.  Give it the session's settings of
    the job: --conf.

    \b
    Examples:
      millpond write-state ./new-checkpoint job.py --from history.parquet
      millpond write-state ./new-checkpoint job.py --from history.parquet --yes
      millpond write-state ./new job.py --from ./2025 --offsets '{"a":{"0":12}}'
    """
    with importing_pyspark():
        from millpond.program import call_program, function_of, importable
        from millpond.spark.past.write import plan_write_state
        from millpond.spark.program import import_queries, without_starts
        from millpond.spark.session import session
    settings = settings_of(conf)
    if not program.is_file():
        raise SetupError("FILE_MISSING", f"There is no file {program}.", hint="Name the Python file that defines the query.")
    # Spark's workers import what the program imports from beside it.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(program.resolve().parent), os.environ.get("PYTHONPATH", "")])
    spark = session("millpond write-state", **settings)
    try:
        with importable(program):
            with without_starts(program):
                module = import_queries(program)
                query, source = function_of(module, query_name, program), function_of(module, source_name, program)
                plan = plan_write_state(
                    target,
                    query,
                    past=call_program("The past", spark.read.parquet, past),
                    source=call_program(f"{source_name} of {program}", source, spark),
                    offsets=offsets,
                    covered=covered or None,
                    output_mode=output_mode or str(getattr(module, "output_mode", "update")),
                    partitions=partitions,
                    batches=batches,
                    order_by=order_by,
                )
            for line in plan.describe().splitlines():
                say(line)
            if not yes:
                say("nothing is written yet: --yes writes it")
                return
            with Progress("steps") as line_of:
                made = plan.run(lambda done, every: line_of(f"{done:,} of {every:,}"))
        rows = "its rows aren't counted" if made.rows is None else f"{made.rows:,} rows"
        say(f"wrote       {rows}; the job goes on after batch {made.batch}")
        write_line(visible(made.checkpoint))
    finally:
        spark.stop()
