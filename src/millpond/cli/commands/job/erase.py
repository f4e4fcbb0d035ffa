"""`millpond erase`: remove one key from all that a stopped job has left."""

from __future__ import annotations

import click

from millpond.cli.complete import complete_place
from millpond.cli.options import KeyWords, key_options, take_over_option
from millpond.cli.plans import local_place, progress_of_files, show_plan
from millpond.cli.terminal import say, write_line
from millpond.savepoint.in_place.exchange import find_stopped_job
from millpond.tables.erase import meant_job, plan_erase, read_definition


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("job")
@key_options
@click.option("--table", "table_name", required=True, help="The table whose rows are erased.")
@click.option("--archive", "archives", multiple=True, metavar="DIR", help="An archive of the job; may be repeated.")
@click.option("--export", "exports", multiple=True, metavar="FILE.tar", help="An exported savepoint of it; may be repeated.")
@click.option("--yes", is_flag=True, help="Do it; without this, show what would be done.")
@take_over_option
@local_place
def erase(
    place: str,
    job: str,
    key_words: KeyWords,
    table_name: str,
    archives: tuple[str, ...],
    exports: tuple[str, ...],
    yes: bool,
    take_over: bool,
) -> None:
    """Remove the rows of a key from a stopped JOB, its savepoints, archives and exports, and the replica.

    Columns of the key may be left out: then all rows with these values go.  The plan counts the
    rows, and names what can't be reached from here.  A receipt says what was done.  A name that
    means a version is that version; the plan names it.

    \b
    Examples:
      millpond erase ./pond visits --table visits user=ann
      millpond erase ./pond visits --table visits user=ann --export may.tar --yes
    """
    own_job, own_table = meant_job(place, job, table_name)
    folder, _ = find_stopped_job(place, own_job, take_over=take_over)
    key = key_words.of(read_definition(folder, own_table))
    plan = plan_erase(place, table_name, key, job=job, archives=archives, exports=exports, take_over=take_over)
    if not show_plan(plan, yes=yes):
        return
    with progress_of_files() as progress:
        receipt = plan.run(progress)
    say(f"erased      {sum(place['records'] for place in receipt.data['places']):,} records")
    write_line(receipt.uri)
