"""Savepoints made, restored, and made of others."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from millpond.cli import options
from millpond.cli.commands.savepoint.words import name_argument, place_argument, show_savepoint
from millpond.cli.output import write_grid
from millpond.cli.plans import form_options, local_place, progress_of_files, show_or_run
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.errors import RequestError
from millpond.program import function_of, import_program, importable
from millpond.savepoint.change.redistribute import plan_redistribute
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.schema.strict_json import parse_json
from millpond.tables.edit import plan_edit_savepoint


@click.command()
@place_argument
@click.argument("job", required=False)
@click.option("--name", required=True, help="The savepoint's name, unique in its pond.")
@click.option("--batch", type=click.IntRange(min=0), help="Another committed batch than the newest, if Spark still keeps it.")
@click.option("--note", default="", help="A text for people.")
@click.option("--no-count", is_flag=True, help="Don't count the rows, which decodes all of the state.")
@click.option("--sink", metavar="DIR|URI", help="Copy the log of the job's file sink as well, which writes to this folder.")
@options.stateless_option
@options.allow_option
@options.json_option
@local_place
def create(
    place: str,
    job: str | None,
    name: str,
    batch: int | None,
    note: str,
    no_count: bool,
    sink: str | None,
    stateless: bool,
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a savepoint of JOB in DIR, running or not.

    JOB may be left out if there is only one.

    \b
    Examples:
      millpond savepoint create ./pond page_views --name before-upgrade
      millpond savepoint create s3://my-bucket/checkpoints/page-views --name monday --note 'before 4.4'
    """
    plan = plan_savepoint(
        place, name, job=job, batch=batch, note=note, count=not no_count, sink=sink, stateless=stateless, allow=allow
    )
    with progress_of_files() as progress:
        made = plan.run(progress)
    show_savepoint(made, as_json=as_json)


@click.command()
@place_argument
@click.argument("name", metavar="[SAVEPOINT]", required=False)
@click.option("--time", metavar="TIME", help="Of an archive, the newest batch that was committed by this time.")
@click.option("--to", required=True, metavar="DIR|URI", help="The new checkpoint: a folder that is empty or doesn't exist yet.")
@click.option("--new-id", is_flag=True, help="Give the restored job an id of its own, for a job that runs beside the old one.")
@form_options
@click.option("--end-at", metavar="SAVEPOINT", help="Let the next batch end where this savepoint of another job ends.")
@local_place
def restore(place: str, name: str | None, time: str | None, to: str, new_id: bool, **form: Any) -> None:
    """Make a checkpoint of a savepoint, in an empty folder.

    Spark starts the job from it.  DIR may also be an archive; SAVEPOINT is then one of its batches,
    such as batch-17, and the newest one if it is left out.

    \b
    Examples:
      millpond savepoint restore ./pond before-upgrade --to ./restored
      millpond savepoint restore s3://my-bucket/archive batch-17 --to ./restored
      millpond savepoint restore s3://my-bucket/archive --time 2026-03-01T12:00:00Z --to ./restored
      millpond savepoint restore ./pond before-upgrade --to ./restored --partitions 32
      millpond savepoint restore ./pond before-upgrade --to ./restored --provider rocksdb
    """
    plan = plan_restore(place, name, to, time=time, new_id=new_id, **form)
    for line in plan.describe().splitlines():
        say(line)
    with progress_of_files() as progress:
        plan.run(progress)
    write_line(plan.target.uri)


@click.command()
@place_argument
@name_argument
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", "new_name", required=True, help="The new savepoint's name.")
@click.option("--table", "tables", multiple=True, help="Edit the rows of this table only; may be repeated.")
@click.option("--offset", "offsets", metavar="SOURCE=JSON", multiple=True, help="The end offset of a source; may be repeated.")
@click.option("--watermark", metavar="TIME", help="The watermark of the next batch.")
@click.option("--note", default="", help="A text for people.")
@click.option("--yes", is_flag=True, help="Do it; without this, edit the rows without writing any, and show some.")
@local_place
def edit(
    place: str,
    name: str,
    file: Path | None,
    new_name: str,
    tables: tuple[str, ...],
    offsets: tuple[str, ...],
    watermark: str | None,
    note: str,
    yes: bool,
) -> None:
    """Make a savepoint with the rows of SAVEPOINT as the functions of FILE change them.

    FILE is a Python file.  Its edit(row) gets each row: row.table, and the dicts row.key and
    row.value.  It returns the row, changed or not, or None to remove it.  If rows may get the same
    key, merge(first, second) returns one in place of both.  SAVEPOINT stays as it is.

    \b
    Examples:
      millpond savepoint edit ./pond before fix.py --name fixed
      millpond savepoint edit ./pond before fix.py --table page_views --name fixed --yes
      millpond savepoint edit ./pond before --offset '0={"clicks":{"0":1200}}' --name moved --yes
    """
    with nullcontext() if file is None else importable(file):
        module = None if file is None else import_program(file)
        plan = plan_edit_savepoint(
            place,
            name,
            new_name,
            edit=None if module is None else function_of(module, "edit", Path(str(file))),
            merge=getattr(module, "merge", None),
            tables=tables or None,
            offsets=dict(map(_offset, offsets)),
            watermark=watermark,
            note=note,
        )
        for line in plan.describe().splitlines():
            say(visible(line))
        if yes:
            with progress_of_files() as progress:
                made = plan.run(progress)
            write_line(visible(made.manifest.name))
            return
        preview = plan.preview()
    if preview:
        columns = ["table", "rows", "changed", "removed", "merged"]
        grid = [[t, f"{c.rows:,}", f"{c.changed:,}", f"{c.removed:,}", f"{c.merged:,}"] for t, c in preview.items()]
        write_grid(columns, grid)
        for sample in (sample for counts in preview.values() for sample in counts.samples):
            write_json(asdict(sample))
    say("Nothing is written yet: --yes makes the savepoint.")


@click.command()
@place_argument
@name_argument
@click.option("--name", "new_name", required=True, help="The new savepoint's name.")
@click.option("--shards", type=click.IntRange(min=1), required=True, help="How many shards the job will be started with.")
@click.option("--partitions", type=click.IntRange(min=1), help="Of the state.  [default: as many as now]")
@click.option("--note", default="", help="A text for people.")
@click.option("--yes", is_flag=True, help="Do it; without this, show what would be done.")
@local_place
def redistribute(place: str, name: str, new_name: str, shards: int, partitions: int | None, note: str, yes: bool) -> None:
    """Make a savepoint of SAVEPOINT whose operator and broadcast state lies in other shards.

    It is for jobs of broadcast, serve_models and buffered.  Control state gets a copy in each shard,
    statistics keep their sums, and rows that wait are divided evenly.  SAVEPOINT stays as it is.

    \b
    Examples:
      millpond savepoint redistribute ./pond before --shards 8 --partitions 8 --name in-eight --yes
    """
    plan = plan_redistribute(place, name, new_name, shards=shards, partitions=partitions, note=note)
    show_or_run(plan, yes=yes)


def _offset(text: str) -> tuple[str, Any]:
    source, equals, offset = text.partition("=")
    try:
        if equals:
            return source, parse_json(offset)
    except ValueError:
        pass
    raise RequestError(
        "INVALID_REQUEST", f"--offset {text!r:.200} isn't SOURCE=JSON.", hint='Write --offset \'0={"clicks":{"0":1200}}\'.'
    )
