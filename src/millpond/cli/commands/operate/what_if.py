"""`millpond what-if`: rows, bytes, files and cost of a job under another TTL, codec, number of partitions and so on."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.output import write_grid
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.errors import RequestError
from millpond.operate.cost.facts import Fact
from millpond.operate.units import money, seconds_text, size_text
from millpond.operate.what_if.answer import PartitionSizes, WhatIf
from millpond.operate.what_if.what_if import MOST_BYTES
from millpond.operate.what_if.what_if import what_if as ask
from millpond.savepoint.rewrite.form import PROVIDERS

_MIB = 1 << 20
_FIGURES = ("what", "now", "then", "between", "known", "source")
_PARTITIONS = ("operator", "partitions", "bytes", "rows")
_EVER = ("ever", "forever")


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("job", required=False)
@click.option("--ttl", metavar="24h|7d", help="The TTL of state variables, and how far the watermark is behind the latest event.")
@click.option(
    "--retention",
    metavar="[RESOLUTION=]TIME",
    multiple=True,
    help='How long a declared aggregate keeps its buckets: "30 days" for all, "1 minute=12 hours" for one; may be repeated.',
)
@click.option("--provider", type=click.Choice(PROVIDERS), help="The state store provider.")
@click.option("--codec", metavar="lz4|zstd|snappy", help="The codec of state files.")
@click.option("--trigger", metavar="30s|5m", help="The time between two batches.")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="The number of partitions of the state.")
@click.option(
    "--sample-mib",
    type=click.IntRange(min=0),
    default=MOST_BYTES // _MIB,
    show_default=True,
    help="Of a larger state read a part of so many MiB; 0: always all of it.",
)
@options.prices_option
@options.storage_option
@options.last_option
@options.replica_option
@options.allow_option
@options.json_option
def what_if(
    place: str,
    job: str | None,
    ttl: str | None,
    retention: tuple[str, ...],
    provider: str | None,
    codec: str | None,
    trigger: str | None,
    partitions: int | None,
    sample_mib: int,
    prices: Path | None,
    storage: str | None,
    last: str,
    replica_dir: str | None,
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what a job would be with another TTL, retention, provider, codec, trigger or number of partitions.

    The state is really written in the other form, in a temporary folder. Of a large state, only a
    part is written. Each figure says how it is known: measured, by a sample, or estimated. The job
    is only read, and may run. Several options together are one change.

    \b
    Examples:
      millpond what-if ./pond page_views --partitions 32 --codec zstd
      millpond what-if ./pond visits --ttl 7d
      millpond what-if ./pond page_views --retention "1 minute=12 hours"
      millpond what-if s3://my-bucket/pond page_views --trigger 1m --json
    """
    found = ask(
        place,
        job,
        ttl=ttl,
        retention=dict(map(_parse, retention)),
        provider=provider,
        codec=codec,
        trigger=trigger,
        partitions=partitions,
        prices=prices,
        storage=storage,
        last=last,
        most_bytes=sample_mib * _MIB or 1 << 62,
        replica_dir=replica_dir,
        allow=allow,
    )
    if as_json:
        write_json(msgspec.to_builtins(found))
    else:
        _write(found)


def _parse(word: str) -> tuple[str, str | None]:
    name, equals, length = word.rpartition("=")
    if not length or (equals and not name):
        raise RequestError("INVALID_REQUEST", f"{word!r:.80} isn't a time.", hint='Write "30 days", or "1 hour=30 days", or ever.')
    return name, None if length in _EVER else length


def _write(found: WhatIf) -> None:
    write_line(visible(f"{found.job}, batch {found.batch}: {found.change}"))
    rows = [
        [
            figure.what,
            _shown(figure.now.value, figure.unit),
            _shown(figure.then.value, figure.unit),
            _between(figure.then, figure.unit),
            figure.then.known,
            figure.then.source,
        ]
        for figure in found.figures
    ]
    now, then = found.cost_now, found.cost_then
    words = f"{then.storage}, by prices of {then.region}, {then.as_of}"
    cost = [f"{money(each.a_month)} {each.currency}" for each in (now, then)]
    write_grid(_FIGURES, [*rows, ["cost a month", *cost, "", "estimate", words]])
    if found.partitions:
        write_grid(_PARTITIONS, [cells for each in found.partitions for cells in _partition_cells(each)])
    for sentence in dict.fromkeys((*found.unknown, *then.unknown)):
        say(f"Not in it: {sentence}")


def _shown(value: float, unit: str) -> str:
    if unit == "B":
        return size_text(value)
    if unit == "s":
        return seconds_text(value)
    return f"{value:,.1f}" if value != round(value) else f"{value:,.0f}"


def _between(known: Fact, unit: str) -> str:
    return "" if known.low is None or known.high is None else f"{_shown(known.low, unit)} to {_shown(known.high, unit)}"


def _partition_cells(of: PartitionSizes) -> list[list[str]]:
    return [
        [
            f"{of.operator} ({of.name}), {when}",
            f"{len(sizes):,}",
            f"{size_text(min(sizes, default=0))} to {size_text(max(sizes, default=0))}",
            f"{min(rows, default=0):,} to {max(rows, default=0):,}",
        ]
        for when, sizes, rows in (("now", of.now_bytes, of.now_rows), ("then", of.then_bytes, of.then_rows))
    ]
