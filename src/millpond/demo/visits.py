"""A seeded stream of web requests with the columns of an access log, if no log is at hand.

Row i of a seed is always the same row: its numbers come from a hash of (seed, i), not from a
generator with a state, so a batch that is read again after a failure, by any worker and in any
number of tasks, holds exactly the same rows.

    offset: {"row": 4200}      rows read so far
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from millpond.errors import RequestError
from millpond.spark.accesslog.lines import SCHEMA, Request, iter_arrow, page_of, parse_line
from millpond.spark.accesslog.source import positive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "visits"
Offset = dict[str, Any]
Array = np.ndarray[Any, Any]

# 2026-01-01T00:00:00Z; event time runs from here by row number, so that it is part of the seed's
# promise.
_EPOCH_SECONDS = 1_767_225_600
# Popularity falls with rank to this power: steeply for pages of a site, less so for visitors.
_PAGE_SKEW, _HOST_SKEW = 1.1, 0.6
# Shares of rows that are late, repeat an earlier row, or don't parse: typical of a web server
# behind a slow link.
_LATE, _DUPLICATE, _BROKEN = 0.02, 0.01, 0.001
_LATE_SECONDS = 900
_DUPLICATE_ROWS = 50
_STATUS = np.array([200, 200, 200, 200, 200, 200, 200, 200, 304, 304, 302, 404, 404, 500])
_SECTIONS = ("news", "shop", "docs", "blog", "images", "people")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitOptions:
    """The generated stream; as Spark options: seed, rows, rowsPerSecond, rowsPerBatch, partitions, pages, hosts.

    seed:             another seed, another stream
    rows:             the stream ends after so many; None for one without an end
    rows_per_second:  pace by the wall clock from the query's start; None as fast as batches go.
                      Event time isn't touched by it: row i happens i/100 s after 2026-01-01T00:00Z,
                      late rows up to 15 minutes earlier.
    rows_per_batch:   most rows in one batch
    partitions:       tasks that make one batch
    pages, hosts:     how many different ones there are
    """

    seed: int = 1
    rows: int | None = None
    rows_per_second: float | None = None
    rows_per_batch: int = 3000
    partitions: int = 2
    pages: int = 500
    hosts: int = 20_000


def visit_stream(
    spark: SparkSession,
    *,
    seed: int = 1,
    rows: int | None = None,
    rows_per_second: float | None = None,
    rows_per_batch: int = 3000,
    partitions: int = 2,
    pages: int = 500,
    hosts: int = 20_000,
) -> DataFrame:
    """A streaming DataFrame of generated requests; columns as in `accesslog_lines.Request`, options as in `VisitOptions`.

    The trigger available-now needs `rows`: a stream without an end has no "now" to stop at
    (INVALID_REQUEST).
    """
    spark.dataSource.register(VisitSource)
    reader = spark.readStream.format(NAME).option("seed", seed).option("rowsPerBatch", rows_per_batch)
    reader = reader.option("partitions", partitions).option("pages", pages).option("hosts", hosts)
    if rows is not None:
        reader = reader.option("rows", rows)
    if rows_per_second is not None:
        reader = reader.option("rowsPerSecond", rows_per_second)
    return reader.load()


def parse_options(options: dict[str, str]) -> VisitOptions:
    """Turn Spark's options (text; names in any case) into ours.  Raises INVALID_REQUEST if one is wrong."""
    given = {name.lower(): value for name, value in options.items()}
    return VisitOptions(
        seed=positive(given, "seed", 1),
        rows=positive(given, "rows", 0) or None,
        rows_per_second=positive(given, "rowsPerSecond", 0.0) or None,
        rows_per_batch=positive(given, "rowsPerBatch", 3000),
        partitions=positive(given, "partitions", 2),
        pages=positive(given, "pages", 500),
        hosts=positive(given, "hosts", 20_000),
    )


class VisitSource(DataSource):  # type: ignore[misc]
    """The data source `visits`, for streams and, with `rows`, for batch queries."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> VisitStream:  # noqa: ARG002 - Spark's signature
        return VisitStream(parse_options(self.options))

    def reader(self, schema: Any) -> VisitTable:  # noqa: ARG002 - Spark's signature
        return VisitTable(parse_options(self.options))


class RowRange(InputPartition):  # type: ignore[misc]
    """Rows start <= i < end."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class VisitStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans batches in one long-lived process per query; `read` runs in the workers."""

    def __init__(self, options: VisitOptions) -> None:
        self._options = options
        self._available_now = False
        # Wall clock and row at the first batch of this run.
        self._clock: tuple[float, int] | None = None

    def initialOffset(self) -> Offset:
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        _needs_rows(self._options)
        self._available_now = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The offset of the next batch; equal to `start` if nothing is due or the stream has ended."""
        row = start["row"]
        # A stream without an end has no "all": return it batch by batch for any limit.
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.rows_per_batch
        if isinstance(limit, ReadAllAvailable) and self._options.rows is not None:
            most = self._options.rows
        end = row + most
        if self._options.rows_per_second is not None and not self._available_now:
            now = time.monotonic()
            self._clock = self._clock or (now, row)
            began, first = self._clock
            end = min(end, first + int((now - began) * self._options.rows_per_second))
        if self._options.rows is not None:
            end = min(end, self._options.rows)
        return {"row": max(row, end)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[RowRange]:
        return plan_ranges(start["row"], end["row"], self._options.partitions)

    def read(self, partition: RowRange) -> Iterator[Any]:
        return iter_arrow(iter_visits(self._options, partition.start, partition.end))


class VisitTable(DataSourceReader):  # type: ignore[misc]
    """All rows of a stream that has an end."""

    def __init__(self, options: VisitOptions) -> None:
        self._rows = _needs_rows(options)
        self._options = options

    def partitions(self) -> Sequence[RowRange]:
        return plan_ranges(0, self._rows, self._options.partitions)

    def read(self, partition: RowRange) -> Iterator[Any]:
        return iter_arrow(iter_visits(self._options, partition.start, partition.end))


def _needs_rows(options: VisitOptions) -> int:
    if options.rows is not None:
        return options.rows
    raise RequestError(
        "INVALID_REQUEST",
        "A stream of visits without an end can't be read to its end.",
        hint="Set the option rows to where it should end.",
        option="rows",
    )


def plan_ranges(start: int, end: int, partitions: int) -> list[RowRange]:
    """Cut rows start <= i < end into tasks of equal size; nothing if there are none."""
    share = max(1, -(-(end - start) // partitions))
    return [RowRange(at, min(end, at + share)) for at in range(start, end, share)]


def iter_visits(options: VisitOptions, start: int, end: int) -> Iterator[Request]:
    """Rows start <= i < end of the stream."""
    rows: Array = np.arange(start, end, dtype=np.uint64)
    # A duplicate is an earlier row repeated under its own line number.
    back: Array = 1 + (_uniform(options.seed, rows, 1) * _DUPLICATE_ROWS).astype(np.uint64)
    repeats = (_uniform(options.seed, rows, 2) < _DUPLICATE) & (rows >= back)
    source = np.where(repeats, rows - back, rows)

    page = np.searchsorted(_popularity(options.pages, _PAGE_SKEW), _uniform(options.seed, source, 3))
    host = np.searchsorted(_popularity(options.hosts, _HOST_SKEW), _uniform(options.seed, source, 4))
    status = _STATUS[(_uniform(options.seed, source, 5) * len(_STATUS)).astype(np.int64)]
    size: Array = 200 + (_uniform(options.seed, source, 6) ** 4 * 200_000).astype(np.int64)
    size[(status == 304) | (status == 302)] = 0
    late = _uniform(options.seed, source, 7) < _LATE
    behind = np.where(late, _uniform(options.seed, source, 8) * _LATE_SECONDS, 0).astype(np.int64)
    seconds = _EPOCH_SECONDS + source.astype(np.int64) // 100 - behind
    broken = _uniform(options.seed, rows, 9) < _BROKEN

    file = f"visits-{options.seed}"
    columns = (x.tolist() for x in (rows, page, host, status, size, seconds, broken))
    for row, page_rank, host_rank, code, length, second, is_broken in zip(*columns, strict=True):
        name = f"host{host_rank}.example.net"
        url = f"/{_SECTIONS[page_rank % len(_SECTIONS)]}/{page_rank}.html"
        if is_broken:
            # A line that is cut off, as after a crash; the real parser turns it into a row.
            yield parse_line(f'{name} - - [{second}] "GET {url}'.encode(), file=file, line=row + 1, columns=None)
            continue
        yield Request(
            host=name,
            time=second * 1_000_000,
            method="GET",
            url=url,
            page=page_of(url),
            protocol="HTTP/1.1",
            status=code,
            bytes=length,
            file=file,
            line=row + 1,
        )


@lru_cache(maxsize=8)
def _popularity(count: int, skew: float) -> Array:
    """Cumulated probability by rank, for a Zipf distribution over `count` things."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    summed: Array = np.cumsum(weights) / weights.sum()
    summed[-1] = 1.0  # rounding must not leave a number beyond the last rank
    return summed


def _uniform(seed: int, rows: Array, lane: int) -> Array:
    """A number in [0, 1) for each row, independent per lane.

    Source:  splitmix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number
             generators, 2014).  NumPy's own generators promise no stable stream across versions.
    """
    mask = (1 << 64) - 1
    start = np.uint64((seed * 0x9E3779B97F4A7C15 + lane * 0xD1B54A32D192ED03) & mask)
    x = rows * np.uint64(0x9E3779B97F4A7C15) + start
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    uniform: Array = (x >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return uniform
