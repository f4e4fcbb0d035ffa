"""`millpond retention`: for how long a declared aggregate keeps its buckets."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.plans import local_place, progress_of_files, show_plan
from millpond.cli.terminal import say, write_line
from millpond.errors import RequestError
from millpond.tables.buckets.retention import plan_retention

_EVER = ("ever", "forever")


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("table")
@click.argument("keep", metavar="RESOLUTION=TIME...", nargs=-1)
@click.option("--hide", is_flag=True, help="Hide older buckets from readers at once; the job may run, and its state stays.")
@click.option("--yes", is_flag=True, help="Do it; without this, show what would go.")
@options.take_over_option
@options.allow_option
@local_place
def retention(
    place: str, table: str, keep: tuple[str, ...], hide: bool, yes: bool, take_over: bool, allow: tuple[str, ...]
) -> None:
    """Keep the buckets of TABLE, a declared aggregate, for another time.

    Without --yes the job may run: it shows how many rows and bytes would go, now and within the next
    week. With it, the job must be stopped. Its new state takes the place of the old one, which is
    kept beside it. Then start the job with these times in its declaration.

    With --hide the job goes on: readers see buckets for a shorter time at once, and for a longer one
    again, up to that of the job. Without RESOLUTION=TIME the times are those that readers see.

    \b
    Examples:
      millpond retention ./pond page_views "1 minute=12 hours" "1 hour=30 days"
      millpond retention ./pond page_views "1 minute=12 hours" --hide --yes
      millpond retention ./pond page_views "1 day=ever" --yes
    """
    plan = plan_retention(place, table, dict(map(_parse, keep)), take_over=take_over, allow=allow)
    if not show_plan(plan, yes=yes):
        return
    if hide:
        plan.hide()
        say("readers     see buckets for these times from now on; the state of the job stays as it is")
        return
    with progress_of_files() as progress:
        done = plan.run(progress)
    say(f"kept        {done.kept}: delete it when you don't need it any more")
    write_line(done.job.checkpoint)


def _parse(word: str) -> tuple[str, str | None]:
    name, equals, length = word.partition("=")
    if not equals:
        raise RequestError("INVALID_REQUEST", f"{word!r:.80} isn't RESOLUTION=TIME.", hint='Write "1 hour=30 days", or =ever.')
    return name, None if length in _EVER else length
