"""`millpond archive`: every batch of a job, as it commits, in another folder or bucket."""

from __future__ import annotations

from pathlib import Path

import click

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.plans import local_place
from millpond.cli.terminal import say
from millpond.cli.worker import WorkerCommand
from millpond.savepoint.archive.archiver import Archiver, ArchiverStatus
from millpond.savepoint.archive.metrics import metrics_text


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
    command = WorkerCommand("archive", archiver, _words, metrics_text, metrics)
    if once:
        command.once()
        return
    shown = 0

    def note(status: ArchiverStatus) -> None:
        nonlocal shown
        for first, last in status.lost[shown:]:
            say(f"batches {first} to {last} are lost: Spark deleted their files before they were archived")
        shown = len(status.lost)

    command.follow(note)


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
