"""Access logs as a streaming source: `spark.readStream.format("accesslog")`, or `log_stream(spark, path)`.

The offset of a batch has, per log file, the number of lines read so far.  So offsets/N alone says
which lines an answer of batch N is based on: all lines up to there.

    {"files": {"/logs/access.log": {"line": 3000, "byte": 226113, "tail": "9f86d081884c7d65"}}}

Workers import this module by its name: on a cluster `millpond[spark]` is installed on every
machine, and every machine sees the logs under the same path.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from millpond.errors import RequestError
from millpond.spark.accesslog.files import (
    Place,
    advance,
    check_place,
    find_logs,
    open_text,
    parse_place,
    read_line,
    resume_byte,
    size_of,
)
from millpond.spark.accesslog.lines import (
    SCHEMA,
    TSV_COLUMNS,
    Request,
    decode_line,
    iter_arrow,
    parse_line,
    tsv_header,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "accesslog"
FORMATS = ("auto", "ncsa", "tsv")
Offset = dict[str, Any]
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How logs are read; as Spark options: path, rowsPerBatch, speed, partitions, logFormat.

    path:            a file, a folder or a glob; files are read in the order of their names, each to
                     its end
    rows_per_batch:  most rows in one batch.  3,000 cut a day of a small server's log (some 30,000
                     requests) into more than ten batches, so that a watcher sees it grow, and one
                     batch stays well under a second on two cores.
    speed:           None as fast as possible; 60.0 replays an hour in a minute, by the events' own
                     times
    partitions:      tasks that read one batch; two, since a task that parses 1,500 lines costs less
                     than starting it
    log_format:      ncsa (common and combined, line by line), tsv, or auto: tsv if the first line
                     is its header, else ncsa
    """

    path: str
    rows_per_batch: int = 3000
    speed: float | None = None
    partitions: int = 2
    log_format: str = "auto"


def log_stream(
    spark: SparkSession,
    path: str,
    *,
    rows_per_batch: int = 3000,
    speed: float | None = None,
    partitions: int = 2,
    log_format: str = "auto",
) -> DataFrame:
    """A streaming DataFrame of the requests in a log.

    The columns are those of `lines.Request`, the options those of `LogOptions`.  A file that grows
    is followed.  A last line without its line end waits for it; with the trigger available-now, the
    input counts as complete, and the line is read.  If a log is cut or replaced, the query ends
    with LOG_REPLACED; if it disappears after a batch over it was planned, with FILE_MISSING.
    """
    spark.dataSource.register(AccessLogSource)
    reader = spark.readStream.format(NAME).option("path", path).option("rowsPerBatch", rows_per_batch)
    reader = reader.option("partitions", partitions).option("logFormat", log_format)
    return (reader if speed is None else reader.option("speed", speed)).load()


def parse_options(options: dict[str, str]) -> LogOptions:
    """Turn Spark's options (text; names in any case) into ours.

    Raises:  INVALID_REQUEST if one is missing or wrong.
    """
    given = {name.lower(): value for name, value in options.items()}
    if not given.get("path"):
        raise _invalid("path", given.get("path"), "a file, a folder or a glob")
    found = LogOptions(
        path=given["path"],
        rows_per_batch=positive(given, "rowsPerBatch", 3000),
        speed=positive(given, "speed", 0.0) or None,
        partitions=positive(given, "partitions", 2),
        log_format=given.get("logformat", "auto"),
    )
    if found.log_format not in FORMATS:
        raise _invalid("logFormat", found.log_format, "one of " + ", ".join(FORMATS))
    return found


def positive(given: dict[str, str], name: str, default: Number) -> Number:
    """The option as a number above zero, of the default's type, or the default.  Raises INVALID_REQUEST."""
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = type(default)(text)
    except ValueError:
        value = type(default)(0)
    if not 0 < value < float("inf"):
        raise _invalid(name, text, "a number above zero")
    return value


def _invalid(name: str, value: object, wanted: str) -> RequestError:
    return RequestError(
        "INVALID_REQUEST",
        f"The option {name} is {value!r}.",
        hint=f"Give {name} as {wanted}.",
        option=name,
    )


class AccessLogSource(DataSource):  # type: ignore[misc]
    """The data source `accesslog`: for streams, and for batch queries over the present logs."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> AccessLogStream:  # noqa: ARG002 - Spark's signature
        return AccessLogStream(parse_options(self.options))

    def reader(self, schema: Any) -> AccessLogTable:  # noqa: ARG002 - Spark's signature
        return AccessLogTable(parse_options(self.options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive lines of one log.

    byte:     where the first one begins
    end_byte: where the last one ends; its line end may follow
    line:     lines before it
    lines:    how many
    columns:  of a TSV log, None for the NCSA formats
    """

    path: str
    byte: int
    end_byte: int
    line: int
    lines: int
    columns: tuple[str, ...] | None


class Spans(InputPartition):  # type: ignore[misc]
    """The spans that one task reads."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)
        self.spans = spans


class AccessLogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans batches in one long-lived process per query; `read` runs in the workers."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        # available-now: where each log ends for this run (bytes of text); None without that
        # trigger.
        self._ends: dict[str, int] | None = None
        # replay: wall clock and event time of its first line.
        self._clock: tuple[float, int] | None = None

    def initialOffset(self) -> Offset:
        return {"files": {}}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends = {}
        for path in find_logs(self._options.path):
            with open_text(path) as file:
                self._ends[path] = size_of(file)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The offset of the next batch; equal to `start` if there is no new line (or none due, in a replay)."""
        left = None if isinstance(limit, ReadAllAvailable) else self._options.rows_per_batch
        if isinstance(limit, ReadMaxRows):
            left = limit.max_rows
        places: dict[str, Any] = dict(start["files"])
        for path in find_logs(self._options.path) if self._ends is None else sorted(self._ends):
            if left == 0:
                break
            place = parse_place(places.get(path))
            end = self._advance(path, place, left)
            if end != place:
                places[path] = end.to_json()
                left = None if left is None else left - (end.line - place.line)
        return {"files": places}

    def _advance(self, path: str, place: Place, max_lines: int | None) -> Place:
        with open_text(path) as file:
            check_place(file, place, path)
            if self._ends is not None:
                # The input counts as complete, and as due: a replay at real time would never end.
                return advance(file, place, max_lines=max_lines, end_byte=self._ends[path], complete=True)
            if self._options.speed is None:
                return advance(file, place, max_lines=max_lines)
            columns = _columns(file, self._options.log_format)
            return advance(
                file, place, max_lines=max_lines, wanted=lambda data, line: self._due(data, line, columns, self._options.speed)
            )

    def _due(self, data: bytes, line: int, columns: tuple[str, ...] | None, speed: float | None) -> bool:
        """Whether this line is due in a replay; a late line, or one without a time, comes with its neighbours."""
        event = parse_line(data, file="", line=line, columns=columns).time
        if event is None or speed is None:
            return True
        now = time.monotonic()
        if self._clock is None:
            self._clock = (now, event)
        began, first = self._clock
        return event - first <= (now - began) * speed * 1_000_000

    def partitions(self, start: Offset, end: Offset) -> Sequence[Spans]:
        return plan_spans(start, end, self._options)

    def read(self, partition: Spans) -> Iterator[Any]:
        return iter_arrow(row for span in partition.spans for row in read_span(span))


class AccessLogTable(DataSourceReader):  # type: ignore[misc]
    """All lines of the present logs."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[Spans]:
        stream = AccessLogStream(self._options)
        stream.prepareForTriggerAvailableNow()
        start = stream.initialOffset()
        return plan_spans(start, stream.latestOffset(start, ReadAllAvailable()), self._options)

    def read(self, partition: Spans) -> Iterator[Any]:
        return iter_arrow(row for span in partition.spans for row in read_span(span))


def plan_spans(start: Offset, end: Offset, options: LogOptions) -> list[Spans]:
    """Cut the lines between two offsets into tasks of equal numbers of lines; nothing if the offsets are equal.

    Raises:  LOG_REPLACED, FILE_MISSING if a log is no longer the file of the offsets.
    """
    moved = []
    for path, place in sorted(end["files"].items()):
        before, after = parse_place(start["files"].get(path)), parse_place(place)
        if after.line > before.line:
            moved.append((path, before, after))
    total = sum(after.line - before.line for _, before, after in moved)
    share = -(-total // options.partitions)
    tasks: list[list[Span]] = [[]]
    room = share
    for path, place, after in moved:
        with open_text(path) as file:
            check_place(file, after, path)
            columns = _columns(file, options.log_format)
            while place.line < after.line:
                if room == 0:
                    tasks.append([])
                    room = share
                lines = min(room, after.line - place.line)
                to = advance(file, place, max_lines=lines, end_byte=after.byte, complete=True)
                begin = resume_byte(file, place)
                span = Span(path=path, byte=begin, end_byte=to.byte, line=place.line, lines=lines, columns=columns)
                tasks[-1].append(span)
                room -= lines
                place = to
    return [Spans(tuple(spans)) for spans in tasks if spans]


def read_span(span: Span) -> Iterator[Request]:
    """The requests of a span, in the order of the file; empty lines and the header line yield none.

    Raises:  LOG_REPLACED if the file has ended before the span.
    """
    with open_text(span.path) as file:
        at = file.seek(span.byte)
        for line in range(span.line + 1, span.line + span.lines + 1):
            data, length = read_line(file)
            if length == 0:
                check_place(file, Place(line=line, byte=span.end_byte, tail=""), span.path)
            data = data[: span.end_byte - at]
            at += length
            if not data.strip() or (line == 1 and span.columns is not None and tsv_header(decode_line(data)) is not None):
                continue
            yield parse_line(data, file=span.path, line=line, columns=span.columns)


def _columns(file: Any, log_format: str) -> tuple[str, ...] | None:
    """The columns of a TSV log from its header line, None for the NCSA formats.

    Only the first line decides, which never changes: a batch that is read again after a restart is
    parsed the same way.
    """
    if log_format == "ncsa":
        return None
    file.seek(0)
    header = tsv_header(decode_line(read_line(file)[0]))
    if header is None and log_format == "tsv":
        return TSV_COLUMNS
    return header
