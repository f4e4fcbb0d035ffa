"""`millpond savepoint`: make, list, verify, restore, move and delete savepoints."""

from __future__ import annotations

import click

from millpond.cli.commands.savepoint.keep import delete, export, import_, prune, schedule
from millpond.cli.commands.savepoint.look import list_, show, tree, verify
from millpond.cli.commands.savepoint.make import create, edit, redistribute, restore


@click.group()
def savepoint() -> None:
    """Make, list, verify, restore, move and delete savepoints of jobs.

    A savepoint is a copy of a job's checkpoint after one batch, with all that Spark needs to go on
    from there.  Making one doesn't touch the job, which may run meanwhile.  DIR is a pond, or the
    folder of a checkpoint.

    \b
    Examples:
      millpond savepoint create ./pond page_views --name before-upgrade
      millpond savepoint list ./pond
      millpond savepoint restore ./pond before-upgrade --to ./restored
    """


for command in (create, list_, show, verify, restore, edit, redistribute, delete, prune, schedule, export, import_, tree):
    savepoint.add_command(command)
