"""Savepoints listed, shown and verified."""

from __future__ import annotations

from dataclasses import asdict

import click

from millpond.cli import options
from millpond.cli.commands.savepoint.words import describe_row, name_argument, place_argument, show_savepoint, summary
from millpond.cli.output import write_grid
from millpond.cli.plans import local_place, progress_of_files
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.errors import SavepointError
from millpond.operate.units import moment
from millpond.savepoint.archive.layout import Archive, ArchivedBatch, find_archive
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.savepoint.manifest import Manifest
from millpond.savepoint.verify import verify_savepoint


@click.command("list")
@place_argument
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
            write_json(summary(found.manifest))
    elif every.found:
        columns = ["name", "job", "batch", "made", "rows", "bytes", "note"]
        write_grid(columns, [describe_row(found.manifest) for found in every.found])
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


@click.command()
@place_argument
@name_argument
@options.json_option
@local_place
def show(place: str, name: str, as_json: bool) -> None:
    """Show the job, batch and contents of a savepoint."""
    show_savepoint(open_savepoint(place, name), as_json=as_json)


@click.command()
@place_argument
@name_argument
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


@click.command()
@place_argument
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
