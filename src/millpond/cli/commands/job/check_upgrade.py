"""`millpond check-upgrade`: what a deploy of new code would do to a job's state."""

from __future__ import annotations

import sys

import click

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.plans import local_place
from millpond.cli.queries import load_queries, query_options
from millpond.cli.terminal import visible, write_json, write_line
from millpond.errors import RequestError


@click.command("check-upgrade")
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("words", metavar="[JOB] FILE[:FUNCTION]", nargs=-1, required=True)
@query_options
@options.allow_option
@options.json_option
@local_place
def check_upgrade(
    place: str,
    words: tuple[str, ...],
    old: str | None,
    output_mode: str | None,
    conf: tuple[str, ...],
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what the state of JOB in DIR would become, if the job went on with the code of FILE.

    FILE defines query(spark), or another FUNCTION, which returns the streaming DataFrame.  Nothing
    is started: Spark plans the query, on this machine, and reads no source.

    Exit codes: 0 compatible, 10 unknown, 11 silently wrong, 12 fixable, 13 refused by Spark.

    \b
    Examples:
      millpond check-upgrade ./pond page_views pipeline.py
      millpond check-upgrade ./checkpoint new.py:views --old old.py:views
      millpond check-upgrade ./pond views.py --output-mode append --json
    """
    if len(words) > 2:
        raise RequestError("INVALID_REQUEST", f"There are {len(words)} words after DIR.", hint="Name a job, and a file.")
    job, file = (words[0] if len(words) == 2 else None), words[-1]
    queries = load_queries("check-upgrade", file, old, output_mode, conf)
    from millpond.spark.upgrade.check import check_upgrade as check

    found = check(
        queries.new,
        place,
        job,
        output_mode=queries.output_mode,
        old=queries.old,
        settings=queries.settings,
        allow=allow,
    )
    if as_json:
        write_json(found.to_json())
    else:
        for line in found.describe().splitlines():
            write_line(visible(line))
    sys.exit(found.exit_code)
