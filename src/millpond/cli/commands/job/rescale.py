"""`millpond rescale`: the state of a stopped job under another number of partitions."""

from __future__ import annotations

import click

from millpond.cli.complete import complete_place
from millpond.cli.options import take_over_option
from millpond.cli.plans import local_place, progress_of_files, show_plan
from millpond.cli.terminal import say, write_line
from millpond.savepoint.in_place.rescale import plan_rescale


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("job", required=False)
@click.option("--partitions", type=int, required=True, help="The new number of partitions of the state.")
@click.option("--to", metavar="DIR|URI", help="For a job that Millpond doesn't start: an empty folder for the new checkpoint.")
@click.option("--yes", is_flag=True, help="Do it; without this, show what would be done.")
@take_over_option
@local_place
def rescale(place: str, job: str | None, partitions: int, to: str | None, yes: bool, take_over: bool) -> None:
    """Give the state of a stopped JOB another number of partitions.

    The new checkpoint takes the place of the old one when all rows are found equal; the old one is
    kept beside it.  JOB may be left out if there is only one.  A checkpoint outside of a pond stays
    as it is, and gets a new one beside it.

    \b
    Examples:
      millpond rescale ./pond page_views --partitions 8
      millpond rescale ./pond page_views --partitions 8 --yes
    """
    plan = plan_rescale(place, partitions, job=job, to=to, take_over=take_over)
    if not show_plan(plan, yes=yes):
        return
    with progress_of_files() as progress:
        done = plan.run(progress)
    say(f"equal       {done.rows:,} rows in {done.partitions} partitions, after batch {done.batch}")
    if done.kept is not None:
        say(f"kept        {done.kept}: delete it when you don't need it any more")
    write_line(done.checkpoint)
