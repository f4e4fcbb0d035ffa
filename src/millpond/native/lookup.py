"""Reads of one key by the compiled library: see lookup.c.

A `Reader` reads one batch of a replica for as long as its user allows; a `TableLookup` is one of
its tables.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.native.library import Library, library
from millpond.native.rows import Member, packed_members

# A key that is one text; else the bytes of a whole number.
TEXT_KEY = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What the library must know of a table.

    name:      of the table in the replica
    columns:   of its stored rows
    members:   of its JSON, after the key
    names:     of the columns, the key first
    key_width: TEXT_KEY, or bytes
    head:      the JSON before the key
    lasts:     whether no row expires or lies elsewhere, so that one that isn't there never was
    row_type:  the class of rows
    cut_name, stored_name, evicted_name:  of three attributes of rows: `(frame, time)`, the stamp,
                                          and False
    """

    name: str
    columns: int
    members: Sequence[Member]
    names: tuple[str, ...]
    key_width: int
    head: bytes
    lasts: bool
    row_type: type
    cut_name: str
    stored_name: str
    evicted_name: str


@dataclass(frozen=True, slots=True)
class TableLookup:
    """The functions of lookup.c for one table; each returns None if Python must answer.

    reader:  of the table's replica
    http:    (transaction, value in a URL, head, beginning, end, limit) -> answer; a negative number
             of the transaction means: as long as `Reader.allow` says
    redis:   (bytes that have come, where to begin, name with a colon, reply for no row)
             -> (replies, where they end, how many)
    row:     (key, a dict of it or None, columns) -> row
    """

    reader: Reader
    http: Callable[[int, bytes, bytes, bytes, bytes, int], bytes | None]
    redis: Callable[[bytearray, int, bytes, bytes], tuple[bytes, int, int] | None]
    row: Callable[[Any, dict[str, Any]], Any]


class Reader:
    """Reads a replica in a transaction of its own."""

    def __init__(self, native: Library, capsule: Any) -> None:
        self._native, self._capsule = native, capsule

    def allow(self, transaction: int, until: float, frame: Any) -> None:
        """Read this transaction until then, by the monotonic clock.

        frame:  what its answers have in common
        """
        self._native.allow_reader(self._capsule, transaction, until, frame)

    def end(self) -> None:
        """Read no more, and let go of the environment."""
        self._native.end_reader(self._capsule)

    def table(self, facts: TableFacts) -> TableLookup | None:
        """A table; None if the replica has none of this name."""
        at, alive = packed_members(facts.members)
        kept = (
            facts.names,
            facts.row_type,
            facts.cut_name,
            facts.stored_name,
            facts.evicted_name,
            (),
            facts.head,
            alive,
        )
        numbers = (ctypes.c_int64 * 5)(facts.columns, len(facts.members), len(facts.head), facts.key_width, facts.lasts)
        functions = self._native.new_table(self._capsule, facts.name.encode(), numbers, at, facts.head, kept)
        return None if functions is None else TableLookup(self, *functions)


def open_reader(environment: object, transaction: int, functions: Sequence[int]) -> Reader | None:
    """A reader of the environment of one of LMDB's open transactions; None without the library.

    environment:  an object that closes LMDB's at its end
    functions:    their addresses, in the order of `Lmdb` in lookup.c
    """
    native = library()
    if native is None:
        return None
    capsule = native.new_reader(environment, (ctypes.c_void_p * len(functions))(*functions), transaction)
    return None if capsule is None else Reader(native, capsule)
