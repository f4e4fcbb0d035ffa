"""`millpond savepoint`: make, list, verify, restore, move and delete savepoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.output import moment, write_grid
from millpond.cli.place import is_server
from millpond.cli.progress import Progress
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.errors import RequestError, SavepointError
from millpond.program import function_of, import_program, importable
from millpond.savepoint.archive.layout import Archive, ArchivedBatch, find_archive
from millpond.savepoint.change.redistribute import plan_redistribute
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.delete import plan_delete_savepoint
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.savepoint.manage.prune import keep_of, plan_prune
from millpond.savepoint.manage.schedule import Schedule
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.savepoint.manifest import Manifest, Savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.rewrite.form import CODECS, PROVIDERS
from millpond.savepoint.verify import verify_savepoint
from millpond.schema.strict_json import parse_json
from millpond.signals import stop_signals
from millpond.tables.edit import plan_edit_savepoint

Command = TypeVar("Command", bound=Callable[..., Any])

_FACTS = (
    *("name", "note", "job", "job_id", "checkpoint", "batch", "offsets", "watermark_ms", "created_ms"),
    *("parent", "shares_with", "origin"),
)
_place = click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
_name = click.argument("name", metavar="SAVEPOINT")
_LOOK_SECONDS = 0.2


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


def form_options(command: Command) -> Command:
    """The options that say how the state of a new checkpoint is written."""
    for option in (
        click.option("--row-checksum/--no-row-checksum", default=None, help="Write each row with a checksum or without."),
        click.option("--codec", type=click.Choice(CODECS), help="The codec of the state's files, but for RocksDB's own."),
        click.option(
            "--format", "checkpoint_format", type=click.IntRange(1, 2), help="Spark's checkpoint format; 2 is for RocksDB only."
        ),
        click.option("--provider", type=click.Choice(PROVIDERS), help="Write the state for this state store provider."),
        click.option("--partitions", type=int, help="Divide the state into so many partitions."),
    ):
        command = option(command)
    return command


def local_place(command: Command) -> Command:
    """Refuse a server's address: these commands need the files."""

    @wraps(command)
    def call(place: str, *arguments: Any, **others: Any) -> Any:
        if is_server(place):
            raise RequestError(
                "INVALID_REQUEST", f"{place} is a server.", hint="Give the pond's folder or bucket: savepoints are files there."
            )
        return command(place, *arguments, **others)

    return call  # type: ignore[return-value]


class NewSavepointPlan(Protocol):
    """A plan of a savepoint that is made of another one."""

    def describe(self) -> str:
        """What will be done."""

    def run(self, progress: Any) -> Savepoint:
        """Make it."""


def show_or_run(plan: NewSavepointPlan, *, yes: bool) -> None:
    """Show what a plan would do; with `yes`, do it and name the new savepoint."""
    for line in plan.describe().splitlines():
        say(visible(line))
    if not yes:
        say("Nothing is done yet: add --yes.")
        return
    with progress_of_files() as progress:
        made = plan.run(progress)
    write_line(visible(made.manifest.name))


@savepoint.command()
@_place
@click.argument("job", required=False)
@click.option("--name", required=True, help="The savepoint's name, unique in its pond.")
@click.option("--batch", type=click.IntRange(min=0), help="Another committed batch than the newest, if Spark still keeps it.")
@click.option("--note", default="", help="A text for people.")
@click.option("--no-count", is_flag=True, help="Don't count the rows, which decodes all of the state.")
@click.option("--sink", metavar="DIR|URI", help="Copy the log of the job's file sink as well, which writes to this folder.")
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
    plan = plan_savepoint(place, name, job=job, batch=batch, note=note, count=not no_count, sink=sink, allow=allow)
    with progress_of_files() as progress:
        made = plan.run(progress)
    _show(made, as_json=as_json)


@savepoint.command("list")
@_place
@options.json_option
@local_place
def list_(place: str, as_json: bool) -> None:
    """List the savepoints in DIR, oldest first; of an archive its generations."""
    if (archive := find_archive(place)) is not None:
        _list_archive(archive, as_json=as_json)
        return
    every = list_savepoints(place)
    if as_json:
        for found in every.found:
            write_json(_summary(found.manifest))
    elif every.found:
        columns = ["name", "job", "batch", "made", "rows", "bytes", "note"]
        write_grid(columns, [_row(found.manifest) for found in every.found])
    for name in every.incomplete:
        say(f"{name}: a command makes it now, or was killed in making it")
    for name, error in every.broken.items():
        say(f"{name}: {error}")


def _list_archive(archive: Archive, *, as_json: bool) -> None:
    began = {generation.number: generation for generation in archive.generations()}
    batches: dict[int, list[ArchivedBatch]] = {}
    for batch in archive.batches():
        batches.setdefault(batch.generation, []).append(batch)
    rows = []
    for number, found in batches.items():
        first, last, why = found[0], found[-1], began[number].why if number in began else ""
        lost = began[number].lost if number in began else None
        if as_json:
            times = {"first_committed_ms": first.committed_ms, "last_committed_ms": last.committed_ms}
            write_json({"generation": number, "first": first.batch, "last": last.batch, **times, "lost": lost, "why": why})
        words = "" if lost is None else f"{lost[0]} to {lost[1]}"
        span = f"{first.batch} to {last.batch}"
        rows.append([str(number), span, moment(first.committed_ms), moment(last.committed_ms), words, why])
    if rows and not as_json:
        write_grid(["generation", "batches", "from", "to", "lost before", "why it began"], rows)


@savepoint.command()
@_place
@_name
@options.json_option
@local_place
def show(place: str, name: str, as_json: bool) -> None:
    """Show the job, batch and contents of a savepoint."""
    _show(open_savepoint(place, name), as_json=as_json)


@savepoint.command()
@_place
@_name
@options.json_option
@local_place
def verify(place: str, name: str, as_json: bool) -> None:
    """Compare every file with its hash, and decode every row."""
    with progress_of_files() as progress:
        found = verify_savepoint(open_savepoint(place, name), progress)
    if as_json:
        write_json(asdict(found))
    else:
        for problem in found.problems:
            write_line(f"{visible(problem.path)}: [{problem.condition}] {visible(problem.message)}")
        write_line(f"{visible(name)}: {found.files} files, {found.size_bytes:,} bytes, {found.rows:,} rows")
    if not found.is_whole:
        raise SavepointError(
            "SAVEPOINT_DAMAGED",
            f"{name} has {len(found.problems)} problems.",
            hint="Restore another savepoint, or the files of this one from a copy.",
            savepoint=name,
        )


@savepoint.command()
@_place
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


@savepoint.command()
@_place
@_name
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


@savepoint.command()
@_place
@_name
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


@savepoint.command()
@_place
@_name
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


@savepoint.command()
@_place
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


@savepoint.command()
@_place
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


@savepoint.command()
@_place
@_name
@click.option("--to", required=True, metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="The tar file to write.")
@local_place
def export(place: str, name: str, to: Path) -> None:
    """Write a savepoint into one tar file."""
    with progress_of_files() as progress:
        export_savepoint(open_savepoint(place, name), to, progress)


@savepoint.command("import")
@_place
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="Another name than it had.")
@options.json_option
@local_place
def import_(place: str, file: Path, name: str | None, as_json: bool) -> None:
    """Read a savepoint from a tar file into DIR."""
    with progress_of_files() as progress:
        found = import_savepoint(place, file, name=name, progress=progress)
    _show(found, as_json=as_json)


@savepoint.command()
@_place
@local_place
def tree(place: str) -> None:
    """Show which savepoint followed which: of one job, and of a job that was restored from one."""
    children: dict[str | None, list[Manifest]] = {}
    earlier: dict[str, Manifest] = {}
    for manifest in (found.manifest for found in list_savepoints(place).found):
        # A savepoint from elsewhere may name one that isn't here, or not the one of that name.
        parent = earlier.get(manifest.parent or "")
        above = manifest.parent if parent is not None and parent.job_id == manifest.job_id else manifest.origin
        children.setdefault(above if above in earlier else None, []).append(manifest)
        earlier[manifest.name] = manifest
    _write_tree(children, None, "")


def _write_tree(children: dict[str | None, list[Manifest]], above: str | None, indent: str) -> None:
    for manifest in children.get(above, []):
        origin = ", of a job restored from it" if above is not None and manifest.origin == above != manifest.parent else ""
        write_line(f"{indent}{visible(manifest.name)}  batch {manifest.batch} of {visible(manifest.job)}{origin}")
        _write_tree(children, manifest.name, indent + "  ")


class Describes(Protocol):
    """A plan."""

    def describe(self) -> str:
        """What will be done, in a few lines."""


def show_plan(plan: Describes, *, yes: bool) -> bool:
    """Show a plan; whether it is to be run."""
    for line in plan.describe().splitlines():
        say(line)
    if not yes:
        say("Nothing is done yet: --yes does it.")
    return yes


@contextmanager
def progress_of_files() -> Iterator[Callable[[int, int], None]]:
    """Shows how many files are done."""
    with Progress("files") as line:
        yield lambda done, every: line(f"{done:,} of {every:,}")


def _show(found: Savepoint, *, as_json: bool) -> None:
    manifest = found.manifest
    if as_json:
        partitions = [asdict(partition) for partition in manifest.partitions]
        write_json({**_summary(manifest), "conf": manifest.conf, "operators": manifest.operators, "partitions": partitions})
        return
    lines = {
        "savepoint": manifest.name,
        "note": manifest.note,
        "job": f"{manifest.job}, id {manifest.job_id}",
        "checkpoint": manifest.checkpoint,
        "batch": f"{manifest.batch}, begun {moment(manifest.batch_started_ms)}",
        "watermark": "none" if manifest.watermark_ms is None else moment(manifest.watermark_ms),
        "made": f"{moment(manifest.created_ms)}, by Millpond {manifest.millpond}",
        "holds": f"{len(manifest.files)} files, {manifest.size_bytes:,} bytes, {_rows(manifest)} rows",
        "tables": ", ".join(sorted(manifest.tables)) or "none defined",
        "follows": manifest.parent or "",
        "shares": f"files with {manifest.shares_with}" if manifest.shares_with else "",
        "restored": f"from {manifest.origin}" if manifest.origin else "",
        "in": found.storage.uri,
    }
    for word, text in lines.items():
        if text:
            write_line(f"{word:<12}{visible(text)}")


def _summary(manifest: Manifest) -> dict[str, Any]:
    facts = {name: getattr(manifest, name) for name in _FACTS}
    return {**facts, "files": len(manifest.files), "size_bytes": manifest.size_bytes, "rows": manifest.rows}


def _row(manifest: Manifest) -> list[str]:
    made = moment(manifest.created_ms)
    return [manifest.name, manifest.job, str(manifest.batch), made, _rows(manifest), f"{manifest.size_bytes:,}", manifest.note]


def _rows(manifest: Manifest) -> str:
    return "not counted" if manifest.rows is None else f"{manifest.rows:,}"
