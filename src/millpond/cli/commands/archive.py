"""`millpond archive`: every batch of a job, as it commits, in another folder or bucket."""

from __future__ import annotations

import time
from pathlib import Path

import click

from millpond.cli import options
from millpond.cli.commands.savepoint import local_place
from millpond.cli.complete import complete_place
from millpond.cli.progress import Progress
from millpond.cli.terminal import say
from millpond.savepoint.archive.archiver import Archiver, ArchiverStatus
from millpond.savepoint.archive.metrics import metrics_text
from millpond.signals import stop_signals
from millpond.storage import open_storage

_LOOK_SECONDS = 0.2
_METRICS_SECONDS = 5.0


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("job", required=False)
@click.option(
    "--to", required=True, metavar="DIR|URI", help="The archive: an empty folder or bucket, or one that has this job's batches."
)
@click.option("--keep-for", metavar="12h|7d", help="How long batches stay restorable. [default: for ever]")
@click.option("--once", is_flag=True, help="End when the newest committed batch is archived.")
@click.option(
    "--metrics",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write lag and cost to this file every five seconds, in Prometheus' text format.",
)
@options.allow_option
@local_place
def archive(
    place: str, job: str | None, to: str, keep_for: str | None, once: bool, metrics: Path | None, allow: tuple[str, ...]
) -> None:
    """Archive every batch of JOB in DIR as it commits, until Ctrl-C.

    The job isn't touched.  Any batch of the archive can be restored with `millpond savepoint
    restore`.  JOB may be left out if there is only one.

    \b
    Examples:
      millpond archive ./pond page_views --to s3://my-bucket/archive --keep-for 7d
      millpond savepoint list s3://my-bucket/archive
      millpond savepoint restore s3://my-bucket/archive newest --to ./restored
    """
    archiver = Archiver(place, to, job=job, keep_for=keep_for, allow=allow)
    if once:
        try:
            archiver.run(once=True)
        finally:
            write_metrics(metrics, metrics_text(archiver.status()))
        say(_words(archiver.status()))
        return
    with stop_signals() as ending, Progress("archive") as line, archiver.start():
        lost, failing, metrics_at = 0, "", 0.0
        while not ending.wait(_LOOK_SECONDS):
            status = archiver.status()
            line(_words(status))
            for first, last in status.lost[lost:]:
                say(f"batches {first} to {last} are lost: Spark deleted their files before they were archived")
            lost = len(status.lost)
            now_failing = "" if status.last_error is None else status.last_error.condition
            if status.last_error is not None and now_failing != failing:
                say(str(status.last_error))
            failing = now_failing
            if time.monotonic() >= metrics_at:
                write_metrics(metrics, metrics_text(status))
                metrics_at = time.monotonic() + _METRICS_SECONDS
            if status.state == "ended":
                break
    status = archiver.status()
    write_metrics(metrics, metrics_text(status))
    if not ending.is_set() and status.last_error is not None:
        raise status.last_error
    say(_words(status))


def write_metrics(file: Path | None, text: str) -> None:
    """Write a file that a collector reads, at once."""
    if file is not None:
        open_storage(file.absolute().parent).write(file.name, text.encode())


def _words(status: ArchiverStatus) -> str:
    if status.batch is None:
        where = "nothing archived yet"
    else:
        behind = f"{status.behind_batches} behind for {status.behind_seconds:.1f} s" if status.behind_batches else "up to date"
        where = f"batch {status.batch}, {behind}"
    cost = f"{status.batches:,} batches, {status.files:,} files, {status.size_bytes:,} bytes written"
    requests = f", {sum(status.requests.values()):,} requests" if status.requests else ""
    failed = f"; {status.last_error.condition}, tries again" if status.last_error is not None else ""
    return f"{where}; {cost}{requests}{failed}"
