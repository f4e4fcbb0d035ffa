"""COPY … TO STDOUT: rows of texts as lines, in PostgreSQL's forms text and csv.

Source:  PostgreSQL 15, src/backend/commands/copyto.c
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from millpond.serve.postgres import wire
from millpond.serve.postgres.errors import NOT_SUPPORTED, PgError

_ESCAPED = {b: b"\\" + c for b, c in zip(b"\b\f\n\r\t\v\\", (b"b", b"f", b"n", b"r", b"t", b"v", b"\\"), strict=True)}
_NO_DELIMITERS = "\\.abcdefghijklmnopqrstuvwxyz0123456789\r\n"
_BOOLEANS = dict.fromkeys(("true", "on", "1"), True) | dict.fromkeys(("false", "off", "0"), False)


@dataclass(frozen=True, slots=True)
class CopyForm:
    """How lines are written.

    null:  stands for NULL
    """

    is_csv: bool
    has_header: bool
    delimiter: bytes
    null: bytes

    @classmethod
    def of(cls, options: Mapping[str, str | None]) -> CopyForm:
        """Of the options' values by their names.  Raises PgError."""
        form = (options.get("format", "text") or "").lower()
        if form not in ("text", "csv"):
            raise PgError(NOT_SUPPORTED, f"COPY format {form[:80]!r} is not answered here", hint="Write FORMAT text or FORMAT csv.")
        header = _BOOLEANS.get((options.get("header", "off") or "on").lower())
        delimiter = options.get("delimiter", "," if form == "csv" else "\t")
        null = options.get("null", "" if form == "csv" else "\\N")
        if header is None:
            raise PgError("42601", "header requires a Boolean value")
        if (options.get("encoding", "utf8") or "").lower().replace("-", "") != "utf8":
            raise PgError(NOT_SUPPORTED, "COPY is written in UTF8 here")
        if delimiter is None or len(delimiter.encode("utf-8", "replace")) != 1:
            raise PgError(NOT_SUPPORTED, "COPY delimiter must be a single one-byte character")
        if null is None or "\n" in null or "\r" in null:
            raise PgError("22023", "COPY null representation cannot use newline or carriage return")
        if delimiter in ("\r\n" if form == "csv" else _NO_DELIMITERS):
            raise PgError("22023", f'COPY delimiter cannot be "{delimiter}"')
        if form == "csv" and delimiter == '"':
            raise PgError("22023", "COPY delimiter and quote must be different")
        if delimiter in null:
            raise PgError("22023", "COPY delimiter must not appear in the NULL specification")
        if form == "csv" and '"' in null:
            raise PgError("22023", "CSV quote character must not appear in the NULL specification")
        return cls(form == "csv", header, delimiter.encode(), null.encode("utf-8", "surrogateescape"))

    def begin(self, names: Sequence[str]) -> bytes:
        """CopyOutResponse, and the line of names."""
        out = wire.message(b"H", struct.pack(f">bh{len(names)}h", 0, len(names), *([0] * len(names))))
        if self.has_header:
            out += self._line([name.encode("utf-8", "surrogateescape") for name in names])
        return out

    def lines(self, rows: bytes) -> bytes:
        """Messages CopyData of messages DataRow."""
        return b"".join(map(self._line, _fields(rows)))

    def _line(self, fields: list[bytes | None]) -> bytes:
        write = self._csv if self.is_csv else self._text
        is_single = len(fields) == 1
        shown = [self.null if each is None else write(each, is_single) for each in fields]
        return wire.message(b"d", self.delimiter.join(shown) + b"\n")

    def _text(self, value: bytes, _: bool) -> bytes:
        delimiter = self.delimiter[0]
        if not any(each in value for each in (*_ESCAPED, delimiter)):
            return value
        escaped = {delimiter: b"\\" + self.delimiter, **_ESCAPED}
        return b"".join(escaped.get(each) or bytes((each,)) for each in value)

    def _csv(self, value: bytes, is_single: bool) -> bytes:
        is_quoted = value == self.null or (is_single and value == b"\\.")
        if is_quoted or any(each in value for each in (*b'\n\r"', self.delimiter[0])):
            return b'"' + value.replace(b'"', b'""') + b'"'
        return value


def _fields(rows: bytes) -> Iterator[list[bytes | None]]:
    """The fields of messages DataRow."""
    at = 0
    while at < len(rows):
        count = int.from_bytes(rows[at + 5 : at + 7])
        at += 7
        fields = list[bytes | None]()
        for _ in range(count):
            size = int.from_bytes(rows[at : at + 4], signed=True)
            at += 4
            fields.append(None if size < 0 else rows[at : at + size])
            at += max(0, size)
        yield fields


END = wire.message(b"c")
