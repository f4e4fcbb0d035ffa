"""One line of an access log -> one request, or the reason why it isn't one.

No line raises an error here: a log has all that the internet sent, and a reader that stops at the
first odd byte never reaches the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

# Columns of the TSV form if a file has no header line.
TSV_COLUMNS = ("host", "logname", "time", "method", "url", "response", "bytes", "referer", "useragent")
_TSV_NEEDED = frozenset({"host", "time", "method", "url", "response", "bytes"})

# The columns of a request as Spark's DDL; `Request` below has the same names in the same order.
SCHEMA = (
    "host string, logname string, username string, time timestamp, method string, url string, page string, "
    "protocol string, status int, bytes long, referer string, useragent string, "
    "file string, line long, error string, text string"
)
# Rows in one Arrow batch: Spark's own default for spark.sql.execution.arrow.maxRecordsPerBatch.
_ARROW_ROWS = 10_000
# A longer line isn't a request; its text is cut here.
MAX_LINE_BYTES = 64 * 1024


class Request(NamedTuple):
    """One row: a request, or a line that isn't one (`error` says why, `text` is the line, the rest is None).

    time:    microseconds since 1970, UTC
    url:     as the client sent it
    page:    path of the URL without query and fragment; percent signs stay as they are
    bytes:   length of the body; `-` is 0, as Apache defines it
    file:    absolute path of the log
    line:    number of the line in its file as an editor counts, from 1, a header line included
    """

    host: str | None = None
    logname: str | None = None
    username: str | None = None
    time: int | None = None
    method: str | None = None
    url: str | None = None
    page: str | None = None
    protocol: str | None = None
    status: int | None = None
    bytes: int | None = None
    referer: str | None = None
    useragent: str | None = None
    file: str | None = None
    line: int | None = None
    error: str | None = None
    text: str | None = None


class LineError(ValueError):
    """Why a line isn't a request; becomes the row's `error`."""


def decode_line(data: bytes) -> str:
    r"""The text of a line: UTF-8, a byte that isn't becomes `\xhh`, as Apache itself writes such bytes."""
    return data.rstrip(b"\r\n").decode("utf-8", errors="backslashreplace")


def tsv_header(line: str) -> tuple[str, ...] | None:
    """The column names if this line is the header of a TSV log, else None."""
    names = tuple(line.split("\t"))
    return names if set(names) >= _TSV_NEEDED else None


def parse_line(data: bytes, *, file: str, line: int, columns: tuple[str, ...] | None) -> Request:
    """Turn one line into a row.

    columns:  the TSV's column names; None for the NCSA formats (common and combined may be mixed in
              one file)
    Shape:    NCSA common
              `host logname user [day/Mon/year:h:m:s zone] "METHOD url protocol" status bytes`,
              combined with ` "referer" "useragent"` after it.
    Source:   Apache mod_log_config, formats `%h %l %u %t "%r" %>s %b`,
              `"%{Referer}i" "%{User-agent}i"`.
    """
    data = data.rstrip(b"\r\n")
    text = decode_line(data[:MAX_LINE_BYTES])
    try:
        if len(data) > MAX_LINE_BYTES:
            raise LineError(f"longer than {MAX_LINE_BYTES} bytes; the text is its beginning")
        request = _parse_ncsa(text) if columns is None else _parse_tsv(text, columns)
    except LineError as reason:
        return Request(file=file, line=line, error=str(reason), text=text)
    return request._replace(file=file, line=line)


def _parse_tsv(text: str, columns: tuple[str, ...]) -> Request:
    fields = text.split("\t")
    if len(fields) != len(columns):
        raise LineError(f"{len(columns)} columns expected, {len(fields)} found")
    row = dict(zip(columns, fields, strict=True))
    if not row["host"]:
        raise LineError("no host")
    url = row["url"]
    return Request(
        host=row["host"],
        logname=_optional(row.get("logname", "")),
        username=_optional(row.get("username", "")),
        time=_number("time", row["time"], 253_402_300_799) * 1_000_000,
        method=_method(row["method"]),
        url=url,
        page=page_of(url),
        protocol=_optional(row.get("protocol", "")),
        status=_number("response", row["response"], 999),
        bytes=_size(row["bytes"]),
        referer=_optional(row.get("referer", "")),
        useragent=_optional(row.get("useragent", "")),
    )


# A quoted field ends at a quote that no backslash escapes. Some servers don't escape quotes in the
# request, so there the field ends where status and size follow; lines are at most 64 KiB, which
# bounds the search.
_NCSA = re.compile(
    r"(?P<host>\S+) (?P<logname>\S+) (?P<username>\S+(?: [^\[\s]\S*)*) \[(?P<time>[^\]]*)\] "
    r'"(?P<request>.*?)" (?P<status>\d{3}) (?P<bytes>\d+|-)'
    r'(?: "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<useragent>(?:[^"\\]|\\.)*)")?\s*'
)
_ESCAPE = re.compile(r'\\(["\\])')


def _parse_ncsa(text: str) -> Request:
    found = _NCSA.fullmatch(text)
    if found is None:
        raise LineError("not in the common or combined log format")
    method, url, protocol = _split_request(_unescape(found["request"]))
    return Request(
        host=found["host"],
        logname=_optional(found["logname"]),
        username=_optional(found["username"]),
        time=parse_time(found["time"]),
        method=method,
        url=url,
        page=page_of(url),
        protocol=protocol,
        status=int(found["status"]),
        bytes=_size(found["bytes"]),
        referer=_optional(_unescape(found["referer"] or "")),
        useragent=_optional(_unescape(found["useragent"] or "")),
    )


def _split_request(request: str) -> tuple[str, str, str | None]:
    """Method, URL and protocol; HTTP/0.9 names no protocol, and a URL may hold spaces that the client didn't encode."""
    words = request.split(" ")
    protocol = words.pop() if len(words) > 2 and words[-1].startswith("HTTP/") else None
    if len(words) < 2:
        raise LineError(f"the request {request[:80]!r} isn't a method and a URL")
    return _method(words[0]), " ".join(words[1:]), protocol


_TIME = re.compile(r"(\d{2})/([A-Z][a-z]{2})/(\d{4}):(\d{2}):(\d{2}):(\d{2}) ([+-])(\d{2})(\d{2})", re.ASCII)
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}


@lru_cache(maxsize=4096)  # neighbours share their second
def parse_time(text: str) -> int:
    """`01/Aug/1995:00:00:01 -0400` -> microseconds since 1970.

    Month names are English in every locale, unlike strptime's.
    """
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = found.groups()
        # A leap second is counted into the next minute.
        local = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), tzinfo=UTC)
        zone_seconds = (int(zone_hours) * 60 + int(zone_minutes)) * (60 if sign == "+" else -60)
        if int(second) > 60:
            raise ValueError
        return (int(local.timestamp()) + int(second) - zone_seconds) * 1_000_000
    except (ValueError, KeyError):
        raise LineError(f"the time {text[:40]!r} isn't like 01/Aug/1995:00:00:01 -0400") from None


def page_of(url: str) -> str:
    """The path of a URL, without query and fragment; for an absolute URL the part after the host."""
    if not url:
        raise LineError("no URL")
    path = re.split(r"[?#]", url, maxsplit=1)[0]
    if path.lower().startswith(("http://", "https://")):
        path = "/" + path.split("/", 3)[3] if path.count("/") > 2 else "/"
    return path


def _method(text: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text):
        raise LineError(f"{text[:40]!r} isn't an HTTP method")
    return text


def _number(name: str, text: str, most: int) -> int:
    # int() would take "1_0", " 1" and other scripts' digits as well.
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
        raise LineError(f"the {name} {text[:40]!r} isn't a whole number from 0 to {most}")
    return int(text)


def _size(text: str) -> int:
    return 0 if text in ("-", "") else _number("bytes", text, (1 << 63) - 1)


def _optional(text: str) -> str | None:
    return None if text in ("-", "") else text


def _unescape(text: str) -> str:
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


def iter_arrow(rows: Iterable[Request]) -> Iterator[Any]:
    """The rows as pyarrow record batches of SCHEMA: Spark's fastest input from a Python data source."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC"), "int": pa.int32(), "long": pa.int64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in (column.split() for column in SCHEMA.split(", "))])
    source = iter(rows)
    while block := list(islice(source, _ARROW_ROWS)):
        columns = zip(*block, strict=True)
        arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
