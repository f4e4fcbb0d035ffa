"""SCAN: its options, globs, and cursors, which a process remembers for a while."""

from __future__ import annotations

import fnmatch
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from millpond.serve.redis.keyspace import plain_part
from millpond.serve.redis.wire import Error

_MOST_SCANNED = 1000
_SCANNED = 10
_CURSORS, _CURSOR_SECONDS = 10_000, 600.0


@dataclass(slots=True)
class Place:
    """Where a scan goes on: in which table, and the token of its next page; None for its first."""

    table: str
    token: str | None
    since: float = field(default_factory=time.monotonic)


class Cursors:
    """Numbers of places; of many, the newest stay."""

    def __init__(self) -> None:
        self._places: OrderedDict[int, Place] = OrderedDict()

    def to(self, place: Place) -> bytes:
        """A new cursor."""
        number = secrets.randbits(62) | 1
        self._places[number] = place
        while len(self._places) > _CURSORS:
            self._places.popitem(last=False)
        return b"%d" % number

    def place(self, cursor: int) -> Place | Error | None:
        """Where a cursor goes on; None for the first one."""
        if cursor == 0:
            return None
        place = self._places.get(cursor)
        if place is None or time.monotonic() - place.since > _CURSOR_SECONDS:
            return Error("ERR invalid cursor: it is too old, or of another process. Begin again with 0")
        return place


def scan_options(words: list[bytes]) -> tuple[int, bytes | None, int, bytes | None] | Error:
    """Cursor, pattern, most rows to look at, and type."""
    if not words[0].isdigit() or len(words[0]) > 20:
        return Error("ERR invalid cursor")
    pattern, count, kind = None, _SCANNED, None
    rest = words[1:]
    if len(rest) % 2:
        return Error("ERR syntax error")
    for option, value in zip(rest[::2], rest[1::2], strict=True):
        match option.lower():
            case b"match":
                pattern = value
            case b"count":
                if not value.isdigit() or not int(value[:18]) >= 1:
                    return Error("ERR value is not an integer or out of range")
                count = min(int(value[:18]), _MOST_SCANNED)
            case b"type":
                kind = value.lower()
            case _:
                return Error("ERR syntax error")
    return int(words[0]), pattern, count, kind


def matcher(pattern: bytes | None) -> Callable[[bytes], bool]:
    """Whether a key matches a glob of Redis."""
    if pattern is None or pattern == b"*":
        return lambda _: True
    if pattern.endswith(b"*") and len(plain_part(pattern)) == len(pattern) - 1:
        return lambda key: key.startswith(pattern[:-1])
    # Python's globs have no backslash, and negate by `!`.
    text = pattern.decode("latin-1")
    out, at = "", 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            out += f"[{text[at]}]" if text[at] in "*?[" else text[at]
        else:
            out += "[!" if text.startswith("[^", at) else text[at]
            at += text.startswith("[^", at)
        at += 1
    return lambda key: fnmatch.fnmatchcase(key.decode("latin-1"), out)


def may_match(pattern: bytes | None, prefix: bytes) -> bool:
    """Whether keys that begin so may match."""
    if pattern is None:
        return True
    head = plain_part(pattern)
    return head.startswith(prefix) or prefix.startswith(head)
