"""`millpond inspect`: the contents of a checkpoint, and what can't be read."""

from __future__ import annotations

from dataclasses import asdict

import click

from millpond.catalogue import read_catalogue
from millpond.cli import options
from millpond.cli.output import write_grid
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.operate.units import moment, size_text
from millpond.schema.values import encode_json
from millpond.storage.places import Places
from millpond.tables.cold.report import JobReport, StoreReport, inspect_job


@click.command()
@options.pond_argument
@options.allow_option
@options.json_option
@click.option("--batches", type=click.IntRange(min=1), default=5, show_default=True, help="How many of the last batches to show.")
@click.option("--checksums", is_flag=True, help="Compare every file, older versions too, with the checksum beside it.")
def inspect(place: str, allow: tuple[str, ...], as_json: bool, batches: int, checksums: bool) -> None:
    """Show a checkpoint's settings, sources, stores, sizes, last batches, and what can't be read.

    This reads Spark's files alone, and the whole state of the newest batch once.  It builds no
    replica.

    \b
    Examples:
      millpond inspect /data/checkpoints/page-views
      millpond inspect ./pond --json
      millpond inspect ./pond --checksums
      millpond inspect s3://my-bucket/checkpoints/page-views
    """
    found = read_catalogue(place, Places.of(allow))
    for job, error in found.broken.items():
        say(f"{job}: {error}")
    for i, folder in enumerate(found.jobs):
        report = inspect_job(folder, batches=batches, checksums=checksums)
        if as_json:
            write_json(asdict(report))
            continue
        if i:
            write_line("")
        _write(report)
    if found.broken and not found.jobs:
        raise next(iter(found.broken.values()))


def _write(report: JobReport) -> None:
    _line("job", f"{report.job} ({report.job_state})")
    _line("checkpoint", report.checkpoint)
    _line("job id", report.job_id or "not read")
    _line("batches", f"{report.batches} committed in the log")
    _line("watermark", "none" if report.watermark_ms is None else moment(report.watermark_ms))
    if (settings := report.settings) is not None:
        checksum = "row checksums" if settings.row_checksum else "no row checksums"
        written = f"provider {settings.provider}, codec {settings.codec}, {settings.partitions} partitions, "
        _line("state", written + f"encoding {settings.encoding}, {checksum}, checkpoint format {report.format}")
    for name, value in sorted(report.conf.items()):
        _line("setting", f"{name} = {value}")
    for name, offset in report.sources.items():
        _line(f"source {name}", "nothing yet" if offset is None else encode_json(offset).decode())
    for store in report.stores:
        _write_store(store)
    for hot in report.hot_keys:
        named = "not named yet" if hot.key is None else encode_json(hot.key).decode()
        _line("hot key", f"{named}: {hot.share:.0%} of the rows, found in batch {hot.found_in_batch}")
    if report.replica_bytes is not None:
        _line("replica", f"about {size_text(report.replica_bytes, 'bytes')} on disk, three times that while it is built again")
    if report.newest:
        write_line("")
        rows = [[str(b.batch), moment(b.started_ms), _committed(b.committed_ms), _watermark(b.watermark_ms)] for b in report.newest]
        write_grid(["batch", "started", "committed", "watermark"], rows)
        if any(batch.committed_ms is None for batch in report.newest):
            _line("copied", "these files have the time of a copy, so the times of commits aren't known")
    if (verified := report.checksums) is not None:
        _line("checksums", f"{verified.checked} of {verified.files} files have one; files that don't match are listed below")
    if report.requests:
        _line("requests", ", ".join(f"{number} {kind}" for kind, number in sorted(report.requests.items())))
    for unread in report.unread:
        _line("not read", f"{unread.part}: [{unread.condition}] {unread.message} Hint: {unread.hint}")


def _write_store(store: StoreReport) -> None:
    write_line("")
    _line(
        f"operator {store.operator}", f"{store.operator_name}, store {store.store}" + (f", {store.family}" if store.family else "")
    )
    _line("tables", ", ".join(store.tables) or "none")
    if store.kept is not None:
        _line("kept", store.kept.words())
    for kind, columns in (("key", store.key), ("value", store.value)):
        if columns:
            _line(kind, ", ".join(f"{name} {type_}" for name, type_ in columns))
    if store.partitions:
        rows = [[str(p.partition), _count(p.rows), _count(p.row_bytes), str(p.files), str(p.file_bytes)] for p in store.partitions]
        write_grid(["partition", "rows", "row bytes", "files", "file bytes"], rows)


def _line(name: str, text: str) -> None:
    write_line(f"{visible(name):<12}{visible(text)}")


def _count(number: int | None) -> str:
    return "not read" if number is None else str(number)


def _committed(milliseconds: int | None) -> str:
    return "not known" if milliseconds is None else moment(milliseconds)


def _watermark(milliseconds: int | None) -> str:
    return "none" if milliseconds is None else moment(milliseconds)
