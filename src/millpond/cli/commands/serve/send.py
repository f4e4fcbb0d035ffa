"""`millpond send`: a table's changes to Kafka, files, a database or a webhook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

import millpond
from millpond.cli import options
from millpond.cli.place import Reading, is_server, open_table, which_table
from millpond.cli.worker import WorkerCommand
from millpond.errors import RequestError
from millpond.sending.address import read_options
from millpond.sending.metrics import metrics_text
from millpond.sending.sender import Begin, Sender, SenderStatus
from millpond.settings import RetentionWords
from millpond.tables.cold.table import find_tables


@click.command()
@options.pond_argument
@options.table_argument
@click.option(
    "--to",
    required=True,
    metavar="URL",
    help="kafka://HOST:PORT/TOPIC, file:///DIR, postgresql://HOST/DATABASE, sqlite:///FILE, or https://… for a webhook.",
)
@click.option("--name", metavar="NAME", help="The sender's name: the target keeps a position for each. [default: the table's]")
@click.option(
    "--from",
    "begin",
    type=click.Choice(["start", "now"]),
    default="start",
    show_default=True,
    help="What a target without a position gets first: the whole table, or only changes from now on.",
)
@click.option("--resync", is_flag=True, help="Send the whole table again if history is gone or the job was replaced.")
@click.option("--keep-expired", is_flag=True, help="Leave expired rows at the target.")
@click.option(
    "--target-options",
    "options_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Options of the target, passwords among them: a line name=value for each.",
)
@click.option("--history", metavar="24h|100", help="Which changes to keep, if this command follows the job: a time or batches.")
@click.option("--once", is_flag=True, help="End when all that is committed is sent.")
@click.option(
    "--metrics",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write lag and errors to this file every five seconds, in Prometheus' text format.",
)
@options.place_options
def send(
    place: str,
    table_name: str | None,
    to: str,
    name: str | None,
    begin: Begin,
    resync: bool,
    keep_expired: bool,
    options_file: Path | None,
    history: str | None,
    once: bool,
    metrics: Path | None,
    reading: Reading,
) -> None:
    """Send the changes of TABLE to a target, each batch as it commits, until Ctrl-C.

    First the whole table is sent, then each batch's changes.  The target stores the position with
    them, so that after a crash nothing is missing and nothing is there twice.  The process that
    follows the job must keep history.

    \b
    Examples:
      millpond send ./pond page_views --to kafka://localhost:9092/page_views
      millpond send ./pond page_views \\
        --to 'file:///data/changes?format=parquet' --history 7d
      millpond send ./pond page_views \\
        --to postgresql://app@db/shop --resync --metrics send.prom
    """
    given = read_options(options_file) if options_file is not None else {}
    with _open(place, table_name, reading, history) as table:
        sender = Sender(table, to, name=name, begin=begin, resync=resync, keep_expired=keep_expired, options=given)
        command = WorkerCommand("send", sender, _words, metrics_text, metrics)
        if once:
            command.once()
        else:
            command.follow()


@contextmanager
def _open(place: str, table: str | None, reading: Reading, history: str | None) -> Iterator[Any]:
    if history is None:
        with open_table(place, table, reading) as opened:
            yield opened
        return
    if is_server(place):
        raise RequestError("INVALID_REQUEST", "The server keeps history.", hint="Give --history to `millpond serve`.")
    table = table or which_table(None, find_tables(place, allow=reading.allow))
    retention = {table: RetentionWords(history=history)}
    with millpond.open(
        place, replica_dir=reading.replica_dir, retention=retention, allow=reading.allow, wait_seconds=reading.wait
    ) as pond:
        yield pond[table]


def _words(status: SenderStatus) -> str:
    if status.batch is None:
        where = "nothing sent yet"
    else:
        behind = f"{status.behind_batches} behind for {status.behind_seconds:.1f} s" if status.behind_batches else "up to date"
        where = f"batch {status.batch}, {behind}"
    failed = f"; {status.last_error.condition}, tries again" if status.last_error is not None else ""
    return f"{where}; {status.changes:,} changes in {status.transactions:,} transactions{failed}"
