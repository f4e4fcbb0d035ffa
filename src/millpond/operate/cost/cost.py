"""What a job costs a month: what it takes, by a table of prices."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path

import msgspec

from millpond.catalogue import JobFolder, find_job, open_jobs
from millpond.operate.cost.facts import Fact, Known
from millpond.operate.cost.prices import Prices, StoragePrices, read_prices
from millpond.operate.cost.usage import Measured, Usage
from millpond.settings import parse_length

GIB = 1 << 30
_THOUSAND = 1000


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One part of what a job costs.

    what:      of which thing
    quantity:  of the unit, a month
    unit:      GiB, or 1,000 requests
    price:     of one unit
    cost:      quantity times price
    known:     how the quantity is known: measured, sample, or estimate
    source:    where, in words
    """

    what: str
    quantity: float
    unit: str
    price: float
    cost: float
    known: Known
    source: str


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a job costs a month.

    checkpoint:  its URI
    storage:     that the checkpoint is counted as, by its name in the table
    currency, region, as_of: of the prices
    a_month:     the sum of the lines
    unknown:     what isn't in it, since nothing measured it
    """

    job: str
    checkpoint: str
    storage: str
    currency: str
    region: str
    as_of: dt.date
    a_month: float
    lines: tuple[CostLine, ...]
    unknown: tuple[str, ...]


def read_cost(
    place: str | Path,
    job: str | None = None,
    *,
    prices: str | Path | None = None,
    storage: str | None = None,
    last: str = "7d",
    replica_dir: str | Path | None = None,
    allow: Iterable[str | Path] = (),
) -> Cost:
    """What a job costs a month, by what was measured of it.

    place:       a pond or a checkpoint
    job:         None for the only job there
    prices:      a TOML file; None for the shipped table
    storage:     count the checkpoint as if it were on this storage of the table; None: where it is
    last:        by the samples of so long, as 24h or 7d
    replica_dir: where replicas are, as in `millpond.open`
    allow:       places outside of it where checkpoints may lie
    Raises:      NO_CHECKPOINT, NO_COMMITTED_BATCH, INVALID_REQUEST, INVALID_CONFIG, FILE_MISSING; what
                 reading the checkpoint raises.
    """
    table, folder = read_prices(prices), find_job(place, job, allow=allow)
    return cost_of(folder, table, storage=storage, last_seconds=parse_length("last", last), replica_dir=replica_dir)


def read_costs(
    place: str | Path,
    prices: Prices,
    *,
    job: str | None = None,
    storage: str | None = None,
    last_seconds: float | None = None,
    replica_dir: str | Path | None = None,
    allow: Iterable[str | Path] = (),
) -> Iterable[Cost]:
    """The same of each job of a place, or of one of them."""
    for folder in open_jobs(place, allow=allow) if job is None else [find_job(place, job, allow=allow)]:
        yield cost_of(folder, prices, storage=storage, last_seconds=last_seconds, replica_dir=replica_dir)


def cost_of(
    folder: JobFolder,
    prices: Prices,
    *,
    storage: str | None = None,
    last_seconds: float | None = None,
    replica_dir: str | Path | None = None,
) -> Cost:
    """The same of a job's folder."""
    prices.storage_of(folder.checkpoint, storage)
    return bill(folder, Measured(folder, last_seconds, replica_dir).usage(), prices, storage)


def bill(folder: JobFolder, usage: Usage, prices: Prices, storage: str | None = None) -> Cost:
    """The cost of what a job takes.

    storage:  as in `read_cost`
    Raises:   INVALID_REQUEST for a storage that the table doesn't have.
    """
    name, of = prices.storage_of(folder.checkpoint, storage)
    lines = [_bytes_line("state files", usage.bytes, of)]
    if of.has_requests:
        lines += _request_lines("Spark", usage.puts, usage.gets, of)
        lines += _request_lines("followers", usage.followed_puts, usage.followed_gets, of)
    if usage.replica is not None:
        lines.append(_bytes_line("replicas", usage.replica, prices.storage[prices.replica.storage]))
    return Cost(
        job=folder.job,
        checkpoint=folder.checkpoint,
        storage=name,
        currency=prices.currency,
        region=prices.region,
        as_of=prices.as_of,
        a_month=sum(line.cost for line in lines),
        lines=tuple(lines),
        unknown=usage.unknown,
    )


def _bytes_line(what: str, size: Fact, prices: StoragePrices) -> CostLine:
    copies = "" if prices.copies == 1 else f", {prices.copies} copies"
    return _line(what + copies, size.times(prices.copies / GIB), "GiB", prices.gib_month)


def _request_lines(of: str, puts: Fact | None, gets: Fact | None, prices: StoragePrices) -> list[CostLine]:
    each = [("PUT, COPY, LIST", puts, prices.put_per_1000), ("GET, HEAD", gets, prices.get_per_1000)]
    return [
        _line(f"{of}: {kind}", count.times(1 / _THOUSAND), "1,000 requests", price)
        for kind, count, price in each
        if count is not None and price is not None
    ]


def _line(what: str, quantity: Fact, unit: str, price: float) -> CostLine:
    return CostLine(
        what=what,
        quantity=quantity.value,
        unit=unit,
        price=price,
        cost=quantity.value * price,
        known=quantity.known,
        source=quantity.source,
    )
