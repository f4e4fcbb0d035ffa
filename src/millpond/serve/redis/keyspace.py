"""Redis' keys of rows: the table's name, a colon, and the values of the key's columns with colons between.

    page_views:/index.html                    a key of one column: the rest is its value, colons and all
    page_minutes:/a%3Ab:2026-03-01T12:00Z     of several: a value's own colons are %3A, its percent signs %25

Values are texts as in URLs, and %NULL stands for NULL.  The columns are in the order of the key.  The
end of a window may be left out if only one window begins at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import from_text, to_text

NULL = b"%NULL"
_GLOB = b"*?[\\"
Key = dict[str, Any]


def split_key(key: bytes) -> tuple[str, bytes]:
    """The table's name in a Redis key, and the rest.  The rest of a key without a colon is empty."""
    name, _, rest = key.partition(b":")
    return name.decode("utf-8", "surrogateescape"), rest


def plain_part(pattern: bytes) -> bytes:
    """The beginning of a glob in which nothing has a meaning of its own."""
    return pattern[: next((n for n, mark in enumerate(pattern) if mark in _GLOB), len(pattern))]


class RedisKeys:
    """The Redis keys of one table's rows."""

    def __init__(self, name: str, definition: TableDefinition) -> None:
        self._name = name.encode("utf-8", "surrogateescape") + b":"
        self._columns = [c.name for c in definition.key]
        self._readers = {c.name: from_text(c.type, column=c.name) for c in definition.key}
        self._writers: dict[str, Callable[[Any], str]] = {c.name: to_text(c.type) for c in definition.key}
        self._is_text = [c.type.name for c in definition.key] == ["string"] and not definition.key[0].path
        # The end of a window may be left out.
        self._without_ends = [c.name for c in definition.key if not (c.path and c.path[-1] == "end")]

    def parse(self, rest: bytes) -> Key | None:
        """The columns of a key from what follows the table's name; None if it names no row.  Raises WRONG_TYPE."""
        if not self._columns:
            return None if rest else {}
        parts = [rest] if len(self._columns) == 1 else rest.split(b":")
        names = self._columns if len(parts) == len(self._columns) else self._without_ends
        if len(parts) != len(names):
            raise RequestError(
                "WRONG_TYPE",
                f"A key of {self._name[:-1].decode()} has {', '.join(self._columns)}, and {len(parts)} values are given.",
                hint="Put a colon between them, and write a value's own colons as %3A.",
            )
        out: Key = {}
        for name, part in zip(names, parts, strict=True):
            text = unquote_to_bytes(part).decode("utf-8", "surrogateescape")
            out[name] = None if part == NULL else self._readers[name](text)
        return out

    def start(self, pattern: bytes | None) -> Key | None:
        """Where the keys that match a glob begin; None if that isn't known: of keys that aren't one text."""
        head = b"" if pattern is None else plain_part(pattern)
        if not self._is_text or len(head) <= len(self._name) or b"%" in head:
            return None
        return {self._columns[0]: head[len(self._name) :].decode("utf-8", "surrogateescape")}

    def is_after(self, key: bytes, pattern: bytes | None) -> bool:
        """Whether a key, at or after `start`, comes after all keys that match."""
        head = b"" if pattern is None else plain_part(pattern)
        return b"%" not in key and not key.startswith(head) and key > head

    def write(self, row: Any) -> bytes:
        """The Redis key of a row."""
        return self._name + b":".join([self._value(name, row[name]) for name in self._columns])

    def _value(self, name: str, value: Any) -> bytes:
        if value is None:
            return NULL
        text = self._writers[name](value).encode("utf-8", "surrogateescape").replace(b"%", b"%25")
        return text if len(self._columns) == 1 else text.replace(b":", b"%3A")
