"""`millpond rollback`: a stopped job at an earlier batch, with its file sink."""

from __future__ import annotations

import click

from millpond.cli.complete import complete_place
from millpond.cli.options import take_over_option
from millpond.cli.plans import local_place, progress_of_files, show_plan
from millpond.cli.terminal import say, visible, write_line
from millpond.savepoint.in_place.rollback import plan_rollback


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("job", required=False)
@click.option("--to", "savepoint", metavar="SAVEPOINT", help="A savepoint of the job.")
@click.option("--batch", type=click.IntRange(min=0), help="Or a committed batch that Spark still keeps.")
@click.option("--sink", metavar="DIR|URI", help="The folder that the job's file sink writes to, if Millpond can't know it.")
@click.option("--no-file-sink", is_flag=True, help="The job writes to no file sink.")
@click.option(
    "--new", "to", metavar="DIR|URI", help="For a job that Millpond doesn't start: an empty folder for the new checkpoint."
)
@click.option("--yes", is_flag=True, help="Do it; without this, show what would be done.")
@take_over_option
@local_place
def rollback(
    place: str,
    job: str | None,
    savepoint: str | None,
    batch: int | None,
    sink: str | None,
    no_file_sink: bool,
    to: str | None,
    yes: bool,
    take_over: bool,
) -> None:
    """Take a stopped JOB back to an earlier batch: state, offsets, commits and file sink together.

    The old checkpoint and the old log of the file sink are kept beside the new ones.  JOB may be
    left out if there is only one.  A checkpoint outside of a pond stays as it is, and gets a new one
    beside it.

    \b
    Examples:
      millpond rollback ./pond page_views --to before-upgrade
      millpond rollback ./pond page_views --batch 41 --yes
    """
    plan = plan_rollback(
        place, job=job, savepoint=savepoint, batch=batch, sink=sink, no_file_sink=no_file_sink, to=to, take_over=take_over
    )
    if not show_plan(plan, yes=yes):
        return
    with progress_of_files() as progress:
        done = plan.run(progress)
    if done.sink_log is not None:
        say(f"sink log    {done.sink_log}")
    for path in done.unlisted:
        say(f"unlisted    {visible(path)}")
    for kept in (done.kept, done.kept_sink):
        if kept is not None:
            say(f"kept        {kept}: delete it when you don't need it any more")
    write_line(done.checkpoint)
