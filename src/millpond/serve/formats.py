"""The forms of an answer: chosen by Accept, written in pieces, packed if the client takes gzip.

JSON is one object with the cut and the rows.  The other forms have rows only, and the header
`Millpond-Cut` has the cut.  If an error breaks an answer off, its last piece is missing, so that no
client takes a part for the whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import SparkType
from millpond.schema.values import encode_json, to_text
from millpond.tables.answer import Rows
from millpond.tables.failed import FailedValue
from millpond.tables.table import Table
from millpond.wire.rows import columns_writer, typed_columns

# The approximate size of a piece.
PIECE_BYTES = 1 << 16


class Format(NamedTuple):
    """A form that answers come in; `charset` as the header names it."""

    name: str
    media_type: str
    charset: str = ""

    @property
    def content_type(self) -> str:
        """The header Content-Type."""
        return self.media_type + self.charset


JSON = Format("json", "application/json")
NDJSON = Format("ndjson", "application/x-ndjson")
CSV = Format("csv", "text/csv", "; charset=utf-8; header=present")
ARROW = Format("arrow", "application/vnd.apache.arrow.stream")
EVENTS = Format("events", "text/event-stream")
HTML = Format("html", "text/html", "; charset=utf-8")
JAVASCRIPT = Format("javascript", "text/javascript", "; charset=utf-8")
STYLES = Format("css", "text/css", "; charset=utf-8")
SVG = Format("svg", "image/svg+xml")
ROW_FORMATS = (JSON, NDJSON, CSV, ARROW)


def choose_format(accept: str, offered: tuple[Format, ...]) -> Format:
    """The offered form that an Accept header prefers; the first of equals, and without a header the first.

    Raises:  NOT_ACCEPTABLE if it accepts none.
    """
    if not accept.strip():
        return offered[0]
    ranges = [_parse_range(part) for part in accept.split(",")]
    best = max(offered, key=lambda f: _quality(f, ranges))
    if _quality(best, ranges) <= 0:
        raise RequestError(
            "NOT_ACCEPTABLE",
            f"There is no answer of the type {accept[:80]!r}.",
            hint=f"Accept one of: {', '.join(f.media_type for f in offered)}.",
            offered=[f.media_type for f in offered],
        )
    return best


def takes_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header names gzip, or anything."""
    qualities = dict(_parse_range(part) for part in accept_encoding.split(",") if part.strip())
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def _parse_range(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return name, float(parameter[2:])
            except ValueError:
                return name, 0.0
    return name, 1.0


def _quality(form: Format, ranges: list[tuple[str, float]]) -> float:
    kind = form.media_type.partition("/")[0]
    for wanted in (form.media_type, f"{kind}/*", "*/*"):
        found = [quality for name, quality in ranges if name == wanted]
        if found:
            return max(found)
    return 0.0


def write_pages(form: Format, definition: TableDefinition, pages: Iterable[Rows]) -> Iterator[bytes]:
    """Pages of rows, one after the other, in a form with rows only.

    A missing row is `null` in NDJSON, and left out in the other forms.

    Raises:  LIBRARY_MISSING, WRONG_TYPE, VALUE_OUT_OF_RANGE for Arrow.
    """
    if form is ARROW:
        from millpond.tables.forms.arrow import ipc_stream, to_arrow

        return ipc_stream(to_arrow(definition, Rows([row for row in rows if row], rows.cut)) for rows in pages)
    return write_columns(form, typed_columns(definition), chain.from_iterable(pages))


def write_columns(form: Format, columns: list[tuple[str, SparkType]], rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Rows as NDJSON or CSV.

    columns:  name and type of each
    """
    return _pieces(_ndjson(columns, rows) if form is NDJSON else _csv(columns, rows))


def write_json_rows(columns: list[tuple[str, SparkType]], rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Rows as JSON objects, with commas between them."""
    write = columns_writer(columns)
    return _pieces((b"," if number else b"") + encode_json(write(row) or {}) for number, row in enumerate(rows))


def write_table(table: Table) -> Iterator[bytes]:
    """All rows of a table as Arrow, made many at a time.  Raises as `Table.to_arrow`."""
    from millpond.tables.forms.arrow import ipc_stream

    yield from ipc_stream([table.to_arrow()])


def _pieces(lines: Iterator[bytes]) -> Iterator[bytes]:
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def _ndjson(columns: list[tuple[str, SparkType]], rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    write = columns_writer(columns)
    return (encode_json(write(row)) + b"\n" for row in rows)


def _csv(columns: list[tuple[str, SparkType]], rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """RFC 4180; NULL is empty, the empty text is two quotes.

    # and a condition, without quotes, is a value that can't be computed.
    """
    writers = [(name, _csv_field(to_text(type_))) for name, type_ in columns]
    yield _csv_line([_quoted(name) for name, _ in writers])
    for row in rows:
        if row:
            yield _csv_line([write(dict.__getitem__(row, name)) for name, write in writers])


def _csv_field(write: Callable[[Any], str]) -> Callable[[Any], str]:
    def field(value: Any) -> str:
        if type(value) is FailedValue:
            return f"#{value.error.condition}"
        return "" if value is None else _quoted(write(value))

    return field


def _csv_line(fields: list[str]) -> bytes:
    return (",".join(fields) + "\r\n").encode("utf-8", "surrogateescape")


def _quoted(text: str) -> str:
    if text and text[0] != "#" and not any(c in text for c in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def packed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same, as one gzip stream, at zlib's fastest level."""
    pack = zlib.compressobj(1, zlib.DEFLATED, 31)
    for piece in pieces:
        if out := pack.compress(piece):
            yield out
    yield pack.flush()


def bounded(pieces: Iterable[bytes], maximum: int, too_large: Callable[[], RequestError]) -> Iterator[bytes]:
    """The same, up to so many bytes.  Raises the error of `too_large` if there are more."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > maximum:
            raise too_large()
        yield piece
