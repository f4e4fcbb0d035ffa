"""What a client's bytes of HTTP/2 ask for: how many calls are open, and how many bytes each has sent.

Only the frames' heads are read, and the messages of calls, which are small.  All else is for gRPC's
own library, which gets the same bytes.

Source:  RFC 9113 (frames); gRPC over HTTP/2 (messages with 5 bytes before them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from millpond.serve.flight.messages import MESSAGES

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES, _PREFIX_BYTES = 9, 5
_DATA, _HEADERS, _RESET = 0, 1, 3
_END, _PADDED = 0x1, 0x8


class BrokenProtocol(Exception):
    """What a connection ends for."""


class Frames:
    """Cuts the bytes of one direction into frames.

    on_frame:  called with kind, flags, stream and, for DATA frames, the contents
    """

    def __init__(self, on_frame: Callable[[int, int, int, bytes], None], *, keeps: bool) -> None:
        """keeps:  whether the contents of DATA frames are wanted"""
        self._on_frame, self._keeps = on_frame, keeps
        self._head, self._left = b"", 0
        self._kind = self._flags = self._stream = 0
        self._contents: list[bytes] = []

    @property
    def is_partial(self) -> bool:
        """Whether a part of a frame has come."""
        return bool(self._head) or self._left > 0

    def feed(self, data: bytes) -> None:
        """More bytes have come."""
        place, size = 0, len(data)
        while place < size:
            if not self._left:
                need = _HEAD_BYTES - len(self._head)
                self._head += data[place : place + need]
                place += need
                if len(self._head) < _HEAD_BYTES:
                    return
                self._left = int.from_bytes(self._head[:3])
                self._kind, self._flags = self._head[3], self._head[4]
                self._stream = int.from_bytes(self._head[5:9]) & 0x7FFFFFFF
                self._head = b""
            taken = min(self._left, size - place)
            if self._keeps and self._kind == _DATA and taken:
                self._contents.append(data[place : place + taken])
            place += taken
            self._left -= taken
            if not self._left:
                contents, self._contents = b"".join(self._contents), []
                self._on_frame(self._kind, self._flags, self._stream, contents)


@dataclass(slots=True)
class _Call:
    """A call that is open.

    is_sent:  whether the client has sent all of it
    rest:     of a message that isn't whole
    """

    begun: float
    is_sent: bool = False
    bytes: int = 0
    rest: bytearray = field(default_factory=bytearray)


class OpenCalls:
    """The open calls of a connection.

    most_bytes:  that a client may send for all of its calls that it hasn't sent whole
    """

    def __init__(self, most_bytes: int, clock: Callable[[], float]) -> None:
        self._most_bytes, self._clock = most_bytes, clock
        self._open: dict[int, _Call] = {}
        self._preface = b""
        self._from_client = Frames(self._of_client, keeps=True)
        self._from_server = Frames(self._of_server, keeps=False)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def since(self) -> float | None:
        """When the oldest call began that a client hasn't sent whole."""
        return min((call.begun for call in self._open.values() if not call.is_sent), default=None)

    @property
    def is_partial(self) -> bool:
        """Whether a part of a frame has come."""
        return self._from_client.is_partial or 0 < len(self._preface) < len(_PREFACE)

    def sent(self, data: bytes) -> None:
        """The client has sent these bytes.  Raises BrokenProtocol."""
        if len(self._preface) < len(_PREFACE):
            need = len(_PREFACE) - len(self._preface)
            self._preface += data[:need]
            if not _PREFACE.startswith(self._preface):
                raise BrokenProtocol("the client doesn't speak gRPC")
            data = data[need:]
        self._from_client.feed(data)

    def answered(self, data: bytes) -> None:
        """The server has sent these bytes."""
        self._from_server.feed(data)

    def _of_client(self, kind: int, flags: int, stream: int, contents: bytes) -> None:
        if kind == _HEADERS:
            call = self._open.setdefault(stream, _Call(self._clock()))
            call.is_sent = call.is_sent or bool(flags & _END)
        elif kind == _RESET:
            self._open.pop(stream, None)
        elif kind == _DATA and (found := self._open.get(stream)) is not None:
            if flags & _PADDED:
                raise BrokenProtocol("padded frames aren't taken")
            self._take(found, contents)
            found.is_sent = found.is_sent or bool(flags & _END)
            if found.is_sent:
                found.bytes = 0

    def _of_server(self, kind: int, flags: int, stream: int, _: bytes) -> None:
        if kind == _RESET or (flags & _END and kind in (_DATA, _HEADERS)):
            self._open.pop(stream, None)

    def _take(self, call: _Call, contents: bytes) -> None:
        call.bytes += len(contents)
        if sum(each.bytes for each in self._open.values()) > self._most_bytes:
            raise BrokenProtocol(f"a call has over {self._most_bytes:,} bytes")
        rest = call.rest
        rest += contents
        while len(rest) >= _PREFIX_BYTES:
            if rest[0]:
                raise BrokenProtocol("compressed messages aren't taken")
            end = _PREFIX_BYTES + int.from_bytes(rest[1:_PREFIX_BYTES])
            if end > self._most_bytes:
                raise BrokenProtocol(f"a message has over {self._most_bytes:,} bytes")
            if len(rest) < end:
                return
            check_message(bytes(rest[_PREFIX_BYTES:end]))
            del rest[:end]


def check_message(data: bytes) -> None:
    """Raise BrokenProtocol for a record batch that is compressed: a few bytes could unpack to all memory.

    Whatever else a client sends has no such header.
    """
    try:
        header = MESSAGES["FlightData"].FromString(data).data_header
    except DecodeError:
        raise BrokenProtocol("a message isn't one of Flight") from None
    if header and is_compressed(header):
        raise BrokenProtocol("compressed record batches aren't taken")


# Where FlatBuffers has the fields that are read here: Message.header_type and header, and
# RecordBatch.compression; DictionaryBatch.data is a RecordBatch.
_HEADER_TYPE, _HEADER, _DATA_FIELD, _COMPRESSION = 1, 2, 1, 3
_DICTIONARY, _BATCH = 2, 3


def is_compressed(header: bytes) -> bool:
    """Whether Arrow's message with this header has a compressed body.

    Source:  Arrow's format/Message.fbs; FlatBuffers' tables: an offset back to a list of offsets of
             fields.
    """
    try:
        message = _number(header, 0, 4)
        kind = _field(header, message, _HEADER_TYPE)
        table = _table(header, message, _HEADER)
        if kind is None or table is None or header[kind] not in (_DICTIONARY, _BATCH):
            return False
        batch = table if header[kind] == _BATCH else _table(header, table, _DATA_FIELD)
        return batch is not None and _field(header, batch, _COMPRESSION) is not None
    except IndexError:
        return False  # Arrow refuses it as well


def _number(data: bytes, place: int, size: int) -> int:
    if place < 0 or place + size > len(data):
        raise IndexError(place)
    return int.from_bytes(data[place : place + size], "little")


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a table's field is; None for one that isn't there."""
    back = _number(data, table, 4)
    known = table - (back - (1 << 32) if back >= 1 << 31 else back)
    place = 4 + 2 * number
    if place + 2 > _number(data, known, 2):
        return None
    offset = _number(data, known + place, 2)
    return table + offset if offset else None


def _table(data: bytes, table: int, number: int) -> int | None:
    place = _field(data, table, number)
    return None if place is None else place + _number(data, place, 4)
