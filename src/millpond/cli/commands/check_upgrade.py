"""`millpond check-upgrade`: what a deploy of new code would do to a job's state."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from millpond.cli import options
from millpond.cli.commands.savepoint import local_place
from millpond.cli.complete import complete_place
from millpond.cli.terminal import visible, write_json, write_line
from millpond.errors import RequestError, importing_pyspark


@click.command("check-upgrade")
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("words", metavar="[JOB] FILE[:FUNCTION]", nargs=-1, required=True)
@click.option(
    "--old", metavar="FILE[:FUNCTION]", help="The code that wrote the state; without it the definitions of its tables count."
)
@click.option(
    "--output-mode",
    type=click.Choice(["update", "complete", "append"]),
    help="Of the new query. [default: the file's, else update]",
)
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A Spark setting of the deploy; may be repeated.")
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
    with importing_pyspark():
        from millpond.spark.session import session
        from millpond.spark.upgrade.check import check_upgrade as check
        from millpond.spark.upgrade.pipeline import load_pipeline
    settings = dict(_pair(text) for text in conf)
    # Spark's workers import what the files import from beside them.
    folders = [str(Path(spec).resolve().parent) for spec in (file, old) if spec is not None]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    spark = session("millpond check-upgrade", **{"spark.master": "local[1]", "spark.ui.enabled": "false", **settings})
    spark.sparkContext.setLogLevel("OFF")
    before = dict(spark.conf.getAll)
    new = load_pipeline(file, spark)
    given = {name: value for name, value in spark.conf.getAll.items() if name in settings or before.get(name) != value}
    found = check(
        new.df,
        place,
        job,
        output_mode=output_mode or new.output_mode or "update",
        old=None if old is None else load_pipeline(old, spark).df,
        settings=given,
        allow=allow,
    )
    if as_json:
        write_json(found.to_json())
    else:
        for line in found.describe().splitlines():
            write_line(visible(line))
    sys.exit(found.exit_code)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise RequestError("INVALID_REQUEST", f"--conf is {text!r}.", hint="Write KEY=VALUE.")
    return name, value
