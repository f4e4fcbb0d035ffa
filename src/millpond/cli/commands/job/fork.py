"""`millpond fork`: a second job with the state of a savepoint."""

from __future__ import annotations

from typing import Any

import click

from millpond.cli.complete import complete_place
from millpond.cli.plans import form_options, local_place, progress_of_files
from millpond.cli.terminal import say, write_line
from millpond.errors import RequestError
from millpond.savepoint.fork import plan_fork


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("job")
@click.option("--from", "name", required=True, metavar="SAVEPOINT", help="A savepoint of JOB.")
@click.option("--as", "new_job", required=True, metavar="NAME", help="The new job's name.")
@form_options
@local_place
def fork(place: str, job: str, name: str, new_job: str, **form: Any) -> None:
    """Make a second job of JOB in the pond DIR, which begins with the state of a savepoint.

    It has an id and a checkpoint of its own, and the definitions of JOB's tables.  Start it with
    the same query: millpond.start(…, table=NAME, pond=DIR).

    \b
    Examples:
      millpond fork ./pond page_views --from before-upgrade --as page_views_b
      millpond fork ./pond page_views --from v1 --as views_b --partitions 32
    """
    plan = plan_fork(place, name, new_job, **form)
    if plan.savepoint.manifest.job != job:
        raise RequestError(
            "INVALID_REQUEST",
            f"{name} is a savepoint of {plan.savepoint.manifest.job}, not of {job}.",
            hint="Name that job, or a savepoint of this one.",
        )
    for line in plan.describe().splitlines():
        say(line)
    with progress_of_files() as progress:
        made = plan.run(progress)
    write_line(made.checkpoint)
