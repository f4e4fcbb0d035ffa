"""`millpond evolve`: a savepoint for a changed query."""

from __future__ import annotations

import click

from millpond.cli.complete import complete_place
from millpond.cli.plans import local_place, show_or_run
from millpond.cli.queries import load_queries, query_options


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("savepoint")
@click.argument("file", metavar="FILE[:FUNCTION]")
@click.option("--name", required=True, help="The new savepoint's name.")
@click.option("--note", default="", help="A text for people.")
@click.option("--yes", is_flag=True, help="Do it; without this, show what would be done.")
@query_options
@local_place
def evolve(
    place: str,
    savepoint: str,
    file: str,
    name: str,
    note: str,
    yes: bool,
    old: str | None,
    output_mode: str | None,
    conf: tuple[str, ...],
) -> None:
    """Make a savepoint of SAVEPOINT with which the changed query of FILE goes on.

    Aggregates that the state has go on; new ones begin as Spark begins a group; others are dropped.
    Variables of transformWithState and their columns go on by their names.  SAVEPOINT stays as it is.

    FILE defines query(spark), as for check-upgrade.  For state variables it may also have
    expire = {"visits": "30 days"} (the values of a variable that gets a TTL), renamed = {"new": "old"},
    and value_of(variable, value), which gets a value as a dict, and returns it with the new columns.
    For an aggregation that groups by fewer columns it has merge(first, second), which makes one value of two.

    \b
    Examples:
      millpond evolve ./pond before-upgrade pipeline.py --name after-upgrade
      millpond evolve ./pond before-upgrade pipeline.py --name after-upgrade --yes
    """
    queries = load_queries("evolve", file, old, output_mode, conf)
    from millpond.spark.upgrade.evolve import plan_evolve

    plan = plan_evolve(
        queries.new, place, savepoint, name, output_mode=queries.output_mode, old=queries.old, note=note, **queries.rules
    )
    show_or_run(plan, yes=yes)
