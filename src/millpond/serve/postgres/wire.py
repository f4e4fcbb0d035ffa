"""PostgreSQL's protocol, version 3: messages from bytes, and replies to bytes.

Shape:   the first message is int32 length (with itself), int32 code, and a body; the others are a
         letter, int32 length (without the letter), and a body.
Source:  https://www.postgresql.org/docs/15/protocol-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.serve.sql.postgres.types import BY_OID

PROTOCOL_3, CANCEL, SSL, GSS = 196_608, 80_877_102, 80_877_103, 80_877_104
# Of a client that hasn't given its token: PostgreSQL's own limit of the first message.
STRANGER_BYTES = 10_000
MOST_PARAMETERS = 65_535
_int2, _int4 = struct.Struct(">h"), struct.Struct(">i")
_head = struct.Struct(">ci").pack


class BrokenProtocol(Exception):
    """What a client sent is no message; the connection ends with this error."""


class Messages:
    """Takes the bytes of one connection and gives messages.

    max_bytes:  of one message
    has_begun:  whether the first message, which has no letter, has come
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.has_begun = False
        self._data = bytearray()
        self._at = 0

    @property
    def is_partial(self) -> bool:
        """Whether bytes have come that `next` hasn't given."""
        return self._at < len(self._data)

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def next(self) -> tuple[bytes, bytes] | None:
        """The letter and the body of the next message; None if none has come whole.

        The first message has no letter, and its body begins with the code.
        Raises:  BrokenProtocol.
        """
        front = int(self.has_begun)
        if len(self._data) - self._at < front + 4:
            return None
        size = _int4.unpack_from(self._data, self._at + front)[0]
        if not (4 if front else 8) <= size <= self.max_bytes:
            raise BrokenProtocol("invalid message length")
        end = self._at + front + size
        if len(self._data) < end:
            return None
        letter = bytes(self._data[self._at : self._at + front])
        body = bytes(self._data[self._at + front + 4 : end])
        self._at = end
        return letter, body

    def bound_once(self) -> tuple[bytes, bool, int] | None:
        """A Bind and what follows it, if that executes it once and has come whole: so most clients ask a prepared statement.

        Returns:  the body of Bind, whether its answer is described, and the place after it for `skip_to`
        """
        data, at = self._data, self._at
        if len(data) - at < _LEAST_BOUND or data[at] != _BIND:
            return None
        size = _int4.unpack_from(data, at + 1)[0]
        end = at + 1 + size
        if not 4 <= size <= self.max_bytes:
            return None
        for after, is_described in _ONCE:
            if data.startswith(after, end):
                return bytes(data[at + 5 : end]), is_described, end + len(after)
        return None

    def skip_to(self, place: int) -> None:
        """The messages up to a place of `bound_once` are answered."""
        self._at = place


class Body:
    """Reads the parts of a message.  All methods raise BrokenProtocol if it is too short."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def int2(self) -> int:
        """A number from 0 to 65,535."""
        return int.from_bytes(self.take(2))

    def int4(self) -> int:
        """A number with a sign."""
        return int.from_bytes(self.take(4), signed=True)

    def take(self, size: int) -> bytes:
        """So many bytes."""
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise BrokenProtocol("insufficient data left in message")
        found = self._data[self._at : end]
        self._at = end
        return found

    def text(self) -> str:
        """A text that ends with a zero byte.  It may have bytes that aren't UTF-8."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise BrokenProtocol("invalid string in message")
        found = self._data[self._at : end]
        self._at = end + 1
        return found.decode("utf-8", "surrogateescape")

    def rest(self) -> bytes:
        """All that is left."""
        found = self._data[self._at :]
        self._at = len(self._data)
        return found

    def end(self) -> None:
        """Raise BrokenProtocol if something is left."""
        if self._at < len(self._data):
            raise BrokenProtocol("invalid message format")


@dataclass(frozen=True, slots=True)
class Bind:
    """A Bind message.

    formats, values:  of the parameters; None for NULL
    results:          the formats of the columns
    """

    portal: str
    statement: str
    formats: list[int]
    values: list[bytes | None]
    results: list[int]


def read_startup(body: bytes) -> dict[str, str]:
    """The parameters of the first message, after the code.  Raises BrokenProtocol."""
    rest, found = Body(body), dict[str, str]()
    while name := rest.text():
        found[name] = rest.text()
    rest.end()
    return found


def read_parse(body: bytes) -> tuple[str, str, list[int]]:
    """Name, text, and the types of parameters.  Raises BrokenProtocol."""
    rest = Body(body)
    name, text = rest.text(), rest.text()
    types = [rest.int4() & 0xFFFFFFFF for _ in range(rest.int2())]
    rest.end()
    return name, text, types


def read_bind(body: bytes) -> Bind:
    """Raises BrokenProtocol."""
    rest = Body(body)
    portal, statement = rest.text(), rest.text()
    formats = _read_formats(rest)
    values = [None if (size := rest.int4()) == -1 else rest.take(size) for _ in range(rest.int2())]
    results = _read_formats(rest)
    rest.end()
    if len(formats) > 1 and len(formats) != len(values):
        raise BrokenProtocol(f"bind message has {len(formats)} parameter formats but {len(values)} parameters")
    return Bind(portal, statement, formats if len(formats) == len(values) else (formats or [0]) * len(values), values, results)


def _read_formats(rest: Body) -> list[int]:
    found = [rest.int2() for _ in range(rest.int2())]
    if any(each not in (0, 1) for each in found):
        raise BrokenProtocol("unsupported format code")
    return found


def read_named(body: bytes) -> tuple[bytes, str]:
    """The kind (S or P) and the name of Describe and Close.  Raises BrokenProtocol."""
    rest = Body(body)
    kind, name = rest.take(1), rest.text()
    rest.end()
    if kind not in (b"S", b"P"):
        raise BrokenProtocol("invalid DESCRIBE or CLOSE message subtype")
    return kind, name


# ---------------------------------------------------------------- replies


def message(letter: bytes, body: bytes = b"") -> bytes:
    """A message."""
    return _head(letter, len(body) + 4) + body


def zero_ended(text: str) -> bytes:
    """A text with its zero byte."""
    return text.encode("utf-8", "surrogateescape").replace(b"\0", b"") + b"\0"


PARSE_COMPLETE, BIND_COMPLETE, CLOSE_COMPLETE = message(b"1"), message(b"2"), message(b"3")
NO_DATA, EMPTY_QUERY, SUSPENDED = message(b"n"), message(b"I"), message(b"s")
AUTHENTICATED = message(b"R", _int4.pack(0))
CLEARTEXT = message(b"R", _int4.pack(3))


# Describe, Execute and Sync of the portal without a name.
_BIND, _LEAST_BOUND = ord("B"), 25
_EXECUTED = message(b"E", b"\0" + _int4.pack(0)) + message(b"S")
_ONCE = ((message(b"D", b"P\0") + _EXECUTED, True), (_EXECUTED, False))


def sasl(mechanisms: Sequence[str]) -> bytes:
    """AuthenticationSASL."""
    return message(b"R", _int4.pack(10) + b"".join(map(zero_ended, mechanisms)) + b"\0")


def sasl_step(data: bytes, *, is_last: bool) -> bytes:
    """AuthenticationSASLContinue, or AuthenticationSASLFinal."""
    return message(b"R", _int4.pack(12 if is_last else 11) + data)


def parameter_status(name: str, value: str) -> bytes:
    """A setting as the server has it now."""
    return message(b"S", zero_ended(name) + zero_ended(value))


def key_data(process: int, secret: int) -> bytes:
    """What a client sends to cancel a statement."""
    return message(b"K", struct.pack(">II", process, secret))


def ready(status: bytes) -> bytes:
    """The server waits for a query; status is I, T or E."""
    return message(b"Z", status)


def complete(tag: str) -> bytes:
    """A statement has ended."""
    return message(b"C", zero_ended(tag))


def row_description(columns: Iterable[tuple[str, int, int]], formats: Sequence[int]) -> bytes:
    """Names, types and modifiers of columns.

    formats:  as in Bind
    """
    parts = list[bytes]()
    for place, (name, oid, modifier) in enumerate(columns):
        form = formats[place] if len(formats) > 1 and place < len(formats) else (formats or [0])[0]
        length = BY_OID[oid].length if oid in BY_OID else -1
        parts.append(zero_ended(name) + struct.pack(">IhIhih", 0, 0, oid, length, modifier, form))
    return message(b"T", _int2.pack(len(parts)) + b"".join(parts))


def parameter_description(types: Sequence[int]) -> bytes:
    """The types of a statement's parameters."""
    return message(b"t", struct.pack(">H", len(types)) + struct.pack(f">{len(types)}I", *types))


def data_row(values: Sequence[str | None]) -> bytes:
    """A row of texts."""
    parts = [b"\xff\xff\xff\xff" if v is None else _int4.pack(len(d := v.encode("utf-8", "surrogateescape"))) + d for v in values]
    return message(b"D", _int2.pack(len(parts)) + b"".join(parts))


def notice(fields: dict[str, Any], *, is_error: bool) -> bytes:
    """ErrorResponse or NoticeResponse, of its fields by their letters."""
    body = b"".join(name.encode() + zero_ended(str(value)) for name, value in fields.items() if value not in (None, ""))
    return message(b"E" if is_error else b"N", body + b"\0")
