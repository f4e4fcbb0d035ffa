"""`millpond tables`: the list of tables."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from millpond.cli import options
from millpond.cli.output import write_grid
from millpond.cli.place import Reading, open_place
from millpond.cli.terminal import say, write_json
from millpond.errors import MillpondError
from millpond.tables.pond import Pond
from millpond.wire.answers import error_json, members, table_json, unread_json

if TYPE_CHECKING:
    from millpond.cli.place import AnyPond


@click.command()
@options.pond_argument
@options.reading_options
def tables(place: str, reading: Reading, as_json: bool) -> None:
    """List the tables of a pond or checkpoint, each with its key, columns, rows and batch.

    \b
    Examples:
      millpond tables ./pond
      millpond tables /data/checkpoints/page-views --json
    """
    with open_place(place, reading) as pond:
        rows = []
        # A server reports which of its jobs can't be read.
        broken = pond.broken_jobs() if isinstance(pond, Pond) else {}
        names = pond.tables()
        warnings = [] if as_json else [f"{job}: {error}" for job, error in broken.items()]
        warnings += _without_tables(pond, names, broken)
        for name in names:
            # One table that can't be read mustn't hide the others.
            try:
                table = pond[name]
                entry = members(table_json(name, table.count(), table.definition))
            except MillpondError as error:
                entry = members(unread_json(name, error))
                warnings += [] if as_json else [f"{name}: {error}"]
            if as_json:
                write_json(entry)
                continue
            if "error" in entry:
                rows.append([name, "", "", "", "", "", entry["error"]["condition"]])
                continue
            warnings += [f"{name}: {warning}" for warning in entry["warnings"]]
            values = [column["name"] for column in entry["columns"] if not column["key"]]
            key, behind = ", ".join(entry["key"]), f"{entry['lag']['behind_seconds']:.1f} s"
            rows.append([name, entry["job"], key, ", ".join(values), str(entry["row_count"]), str(entry["batch"]), behind])
        if not as_json:
            columns = ["table", "job", "key", "columns", "rows", "batch", "behind"]
            if sys.stdout.isatty() and all(row[1] in (row[0], "") for row in rows):
                columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]  # that column says nothing new
            write_grid(columns, rows)
        else:
            for job, why in broken.items():
                write_json({"job": job, **members(error_json(why))})
        for warning in warnings:
            say(warning)


def _without_tables(pond: AnyPond, names: Collection[str], broken: Collection[str]) -> list[str]:
    """A line for each job whose tables aren't known yet."""
    why = "has no table yet: its tables are known from its first committed batch on."
    if not isinstance(pond, Pond):
        return [] if names else ["The server has no table yet: they are known from a job's first committed batch on."]
    known = {pond.now(name).job for name in names}
    return [f"{job} {why}" for job in pond.jobs() if job not in known and job not in broken]
