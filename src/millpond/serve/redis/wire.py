"""Redis' protocol (RESP2 and RESP3): commands from bytes, replies to bytes.

Source:  https://redis.io/docs/latest/develop/reference/protocol-spec/, and Redis 7's networking.c for limits and words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_INLINE_BYTES = 64 << 10
MAX_WORDS = 1 << 20
# Of a client that hasn't given its token.
_STRANGER_WORDS, _STRANGER_BYTES = 10, 16_384
_MAX_NUMBER = 20


class BrokenProtocol(Exception):
    """What a client sent is no command; the connection ends with this error."""


class Commands:
    """Takes the bytes of one connection and gives commands.

    max_bytes:    of one command
    is_stranger:  whether the client must still give its token
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.is_stranger = False
        self._data = bytearray()
        self._at = 0
        # The words of a command that hasn't come whole, and how many are to come.
        self._words: list[bytes] = []
        self._left = 0
        self._size: int | None = None  # of the next word
        self._taken = 0

    @property
    def is_partial(self) -> bool:
        """Whether a part of a command has come."""
        return self._at < len(self._data) or self._left > 0

    def pending(self) -> tuple[bytearray, int] | None:
        """The bytes that have come and where the next command begins; None in the middle of one, and for strangers."""
        return None if self._left or self.is_stranger or self.max_bytes < _STRANGER_BYTES else (self._data, self._at)

    def skip(self, at: int) -> None:
        """The commands before this place were answered."""
        self._at = at

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def next(self) -> list[bytes] | None:
        """The next command, at least one word; None if none has come whole.  Raises BrokenProtocol."""
        while True:
            if not self._left:
                begun = self._begin()
                if begun is None or isinstance(begun, list):
                    return begun
            if not self._fill():
                return None
            words, self._words, self._taken = self._words, [], 0
            return words

    def _begin(self) -> list[bytes] | bool | None:
        """A whole inline command; True if an array of words begins; None if neither has come whole."""
        while True:
            line = self._line()
            if line is None:
                return None
            if not line.startswith(b"*"):
                words = line.split()
                if words:
                    return words
                continue
            count = _number(line[1:], "invalid multibulk length")
            if count > MAX_WORDS:
                raise BrokenProtocol("invalid multibulk length")
            if self.is_stranger and count > _STRANGER_WORDS:
                raise BrokenProtocol("unauthenticated multibulk length")
            if count > 0:
                self._left, self._size = count, None
                return True

    def _fill(self) -> bool:
        """Whether the command's words have all come."""
        while self._left:
            if self._size is None:
                line = self._line()
                if line is None:
                    return False
                if not line.startswith(b"$"):
                    raise BrokenProtocol(f"expected '$', got '{chr(line[0]) if line else ' '}'")
                size = _number(line[1:], "invalid bulk length")
                self._taken += size
                if size < 0 or self._taken > self.max_bytes:
                    raise BrokenProtocol("invalid bulk length")
                if self.is_stranger and size > _STRANGER_BYTES:
                    raise BrokenProtocol("unauthenticated bulk length")
                self._size = size
            end = self._at + self._size
            if len(self._data) < end + 2:
                return False
            self._words.append(bytes(self._data[self._at : end]))
            self._at, self._size = end + 2, None
            self._left -= 1
        return True

    def _line(self) -> bytes | None:
        end = self._data.find(b"\n", self._at, self._at + MAX_INLINE_BYTES)
        if end < 0:
            if len(self._data) - self._at >= MAX_INLINE_BYTES:
                raise BrokenProtocol("too big inline request")
            return None
        line = bytes(self._data[self._at : end]).removesuffix(b"\r")
        self._at = end + 1
        return line


def _number(text: bytes, what: str) -> int:
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(text) > _MAX_NUMBER:
        raise BrokenProtocol(what)
    return int(text)


@dataclass(frozen=True, slots=True)
class Simple:
    """A short reply such as OK."""

    text: str


@dataclass(frozen=True, slots=True)
class Error:
    """An error: its first word is the code."""

    text: str


@dataclass(frozen=True, slots=True)
class Lines:
    """A text for people."""

    text: str


class Encoded(bytes):
    """A reply that is written as it is."""


class NullArray:
    """No array, where one might have been."""


class Push(list["Reply"]):
    """A message that no command asks for, and the confirmation of a subscription."""


class Replies(list["Reply"]):
    """Several replies to one command."""


OK = Simple("OK")
Reply = Any
"""bytes, int, None, list, dict, Simple, Error, Lines, Encoded, NullArray, Push or Replies; lists and dicts of such"""


def encode(reply: Reply, protocol: int) -> bytes:
    """A reply in RESP2 or RESP3."""
    out: list[bytes] = []
    _write(reply, protocol, out)
    return b"".join(out)


def _write(reply: Reply, protocol: int, out: list[bytes]) -> None:
    match reply:
        case Encoded():
            out.append(reply)
        case NullArray():
            out.append(b"_\r\n" if protocol == 3 else b"*-1\r\n")
        case bytes():
            out += (b"$%d\r\n" % len(reply), reply, b"\r\n")
        case int():
            out.append(b":%d\r\n" % reply)
        case None:
            out.append(b"_\r\n" if protocol == 3 else b"$-1\r\n")
        case Replies():
            for each in reply:
                _write(each, protocol, out)
        case list():
            out.append(b"%b%d\r\n" % (b">" if protocol == 3 and isinstance(reply, Push) else b"*", len(reply)))
            for each in reply:
                _write(each, protocol, out)
        case dict():
            out.append(b"%%%d\r\n" % len(reply) if protocol == 3 else b"*%d\r\n" % (2 * len(reply)))
            for name, value in reply.items():
                _write(name, protocol, out)
                _write(value, protocol, out)
        case Simple():
            out.append(b"+%b\r\n" % _one_line(reply.text))
        case Error():
            out.append(b"-%b\r\n" % _one_line(reply.text))
        case Lines():
            data = reply.text.encode("utf-8", "surrogateescape")
            if protocol == 3:
                out.append(b"=%d\r\ntxt:%b\r\n" % (len(data) + 4, data))
            else:
                _write(data, protocol, out)


def _one_line(text: str) -> bytes:
    return " ".join(text.splitlines()).encode("utf-8", "surrogateescape")
