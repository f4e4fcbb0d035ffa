"""Savepoints deleted, made by the clock, exported and imported."""

from __future__ import annotations

from pathlib import Path

import click

from millpond.cli import options
from millpond.cli.commands.savepoint.words import name_argument, place_argument, show_savepoint
from millpond.cli.plans import Command, local_place, progress_of_files
from millpond.cli.terminal import say
from millpond.savepoint.manage.delete import plan_delete_savepoint
from millpond.savepoint.manage.folder import open_savepoint
from millpond.savepoint.manage.prune import keep_of, plan_prune
from millpond.savepoint.manage.schedule import Schedule
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.signals import stop_signals

_LOOK_SECONDS = 0.2


def _rule(command: Command) -> Command:
    """The options that say which savepoints stay."""
    for option in (
        click.option(
            "--keep-daily", type=click.IntRange(min=0), default=0, metavar="DAYS", help="Keep the newest of each of these days."
        ),
        click.option("--keep-for", metavar="12h|30d", help="Keep those that are younger."),
        click.option("--keep-last", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the newest N of each job."),
    ):
        command = option(command)
    return command


@click.command()
@place_argument
@name_argument
@click.option("--yes", is_flag=True, help="Delete it; without this, show what would be deleted.")
@local_place
def delete(place: str, name: str, yes: bool) -> None:
    """Delete a savepoint, or what is left of one."""
    plan = plan_delete_savepoint(place, name)
    for line in plan.describe().splitlines():
        say(line)
    if yes:
        plan.run()
    else:
        say("Nothing is deleted yet: --yes deletes it.")


@click.command()
@place_argument
@click.option("--job", help="Only the savepoints of this job.")
@_rule
@click.option("--yes", is_flag=True, help="Delete them; without this, show what would be deleted.")
@local_place
def prune(place: str, job: str | None, keep_last: int, keep_for: str | None, keep_daily: int, yes: bool) -> None:
    """Delete the savepoints that a rule doesn't keep.

    A savepoint from which a job of the pond was forked is always kept.

    \b
    Examples:
      millpond savepoint prune ./pond --keep-last 3 --keep-daily 30
    """
    plan = plan_prune(place, keep_last=keep_last, keep_for=keep_for, keep_daily=keep_daily, job=job)
    for line in plan.describe().splitlines():
        say(line)
    if yes:
        plan.run()
    elif plan.deleted:
        say("Nothing is deleted yet: --yes deletes them.")


@click.command()
@place_argument
@click.argument("job", required=False)
@click.option("--every", required=True, metavar="15m|1h|1d", help="The interval.")
@_rule
@click.option("--count", is_flag=True, help="Count the rows, which decodes all of the state.")
@options.allow_option
@local_place
def schedule(
    place: str,
    job: str | None,
    every: str,
    keep_last: int,
    keep_for: str | None,
    keep_daily: int,
    count: bool,
    allow: tuple[str, ...],
) -> None:
    """Make savepoints of JOB in DIR at intervals, until Ctrl-C, and delete old ones by a rule.

    The rule concerns the scheduled savepoints alone; the newest of them always stays.  A job without
    a new batch gets no new savepoint.

    \b
    Examples:
      millpond savepoint schedule ./pond page_views --every 1h --keep-last 24 --keep-daily 30
    """
    keep = keep_of(last=keep_last, keep_for=keep_for, daily=keep_daily)
    with stop_signals() as ending, Schedule(place, every, keep=keep, job=job, count=count, allow=allow).start() as running:
        newest, failing = None, None
        while not ending.wait(_LOOK_SECONDS):
            status = running.status()
            if status.newest != newest and status.made:
                say(f"{status.newest}: made; {status.deleted} deleted so far")
            if status.last_error is not None and status.last_error.condition != failing:
                say(str(status.last_error))
            newest, failing = status.newest, status.last_error and status.last_error.condition


@click.command()
@place_argument
@name_argument
@click.option("--to", required=True, metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="The tar file to write.")
@local_place
def export(place: str, name: str, to: Path) -> None:
    """Write a savepoint into one tar file."""
    with progress_of_files() as progress:
        export_savepoint(open_savepoint(place, name), to, progress)


@click.command("import")
@place_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="Another name than it had.")
@options.json_option
@local_place
def import_(place: str, file: Path, name: str | None, as_json: bool) -> None:
    """Read a savepoint from a tar file into DIR."""
    with progress_of_files() as progress:
        found = import_savepoint(place, file, name=name, progress=progress)
    show_savepoint(found, as_json=as_json)
