"""`millpond apply`: aggregates declared as SQL statements."""

from __future__ import annotations

from pathlib import Path

import click

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.plans import local_place, show_plan
from millpond.cli.queries import settings_of
from millpond.cli.terminal import say
from millpond.errors import RequestError, SetupError, importing_pyspark


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.option("--yes", is_flag=True, help="Start the jobs; without this, show what would change.")
@click.option(
    "--trigger", metavar="TIME", help="A time between batches such as `1 second`, or available-now to end with the input."
)
@click.option("--partitions", type=click.IntRange(min=1), help="Of the state of new jobs.")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; may be repeated.")
@options.take_over_option
@local_place
def apply(
    place: str, file: Path, yes: bool, trigger: str | None, partitions: int | None, conf: tuple[str, ...], take_over: bool
) -> None:
    """Start the aggregates that the SQL statements of FILE declare, in the pond DIR.

    Without --yes it shows what would change: which are new, which go on, which can't. With it, the
    jobs run until Ctrl-C. Settings of Spark must be the same at each start.

    \b
    Examples:
      millpond apply views.sql ./pond
      millpond apply views.sql ./pond --yes
      millpond apply views.sql ./pond --yes --trigger available-now
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise RequestError("INVALID_REQUEST", f"{file} can't be read: {wrong}.", hint="Name a file of SQL statements.") from None
    settings = settings_of(conf)
    with importing_pyspark():
        from pyspark.errors import StreamingQueryException

        from millpond.spark.job import run_until_stopped
        from millpond.spark.session import session
        from millpond.spark.sql.apply import plan_apply
        from millpond.spark.sql.statement import parse_statements
    parse_statements(text)  # before Spark starts, which takes seconds
    spark = session("millpond apply", **{"spark.ui.enabled": "false", **settings})
    plan = plan_apply(text, place, spark=spark)
    wanted = show_plan(plan, yes=yes)
    plan.check()
    if not wanted:
        return
    jobs = plan.run(trigger=trigger, partitions=partitions, take_over=take_over)
    say(f"{', '.join(job.name for job in jobs)} -> {place} (Ctrl-C ends)")
    try:
        run_until_stopped(jobs)
    except StreamingQueryException as failed:
        said = str(failed).strip().partition("\n")[0]
        raise SetupError("JOB_FAILED", f"A job failed: {said}", hint="Mend the cause, and give the same command.") from failed
