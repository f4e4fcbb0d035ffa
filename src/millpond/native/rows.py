"""Writes rows as JSON by the compiled library; a table's columns become C structures once.

The structures point into memory that Python owns, so the function that writes rows keeps references
to all of it.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millpond.native.library import library

NUMBER, BOOLEAN, TEXT, FLOATING, DISTINCT, AVERAGE = range(6)
WriteRow = Callable[[bytes, bytes, bytes | None], bytes | None]
"""As `row_json` in row_json.c: (row with its stamp, head, key or None) -> JSON; None if Python must write it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """As `Sketch` in row_json.c.  `linear` has an estimate for each number of zero registers, from 0."""

    neighbours: int
    alpha_m2: float
    threshold: float
    estimates: Sequence[float]
    biases: Sequence[float]
    linear: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of the JSON object.

    name:   the name with the characters around it: `,"hits":`
    kind:   one of the numbers above
    place:  the place of its first column in the row
    width:  bytes of a number, words of a sketch, or the place of an average's count
    """

    name: bytes
    kind: int
    place: int
    width: int = 8
    sketch: Sketch | None = field(default=None)


class _Sketch(ctypes.Structure):
    _fields_ = (
        ("registers", ctypes.c_int64),
        ("neighbours", ctypes.c_int64),
        ("measured", ctypes.c_int64),
        ("alpha_m2", ctypes.c_double),
        ("threshold", ctypes.c_double),
        ("estimates", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("linear", ctypes.c_void_p),
    )


class _Member(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("place", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("name_size", ctypes.c_int64),
        ("name", ctypes.c_char_p),
        ("sketch", ctypes.c_void_p),
    )


def row_writer(columns: int, members: Sequence[Member]) -> WriteRow | None:
    """A function that writes these members of rows with so many columns; None without the library."""
    native = library()
    if native is None:
        return None
    at, alive = packed_members(members)
    write_row, count = native.row_json, len(members)

    def write(row: bytes, head: bytes, key: bytes | None, _alive: object = alive) -> bytes | None:
        size = -1 if key is None else len(key)
        written: bytes | None = write_row(row, len(row), columns, at, count, head, len(head), key, size)
        return written

    return write


def packed_members(members: Sequence[Member]) -> tuple[int, list[object]]:
    """The address of the members as an array in C, and all that it points into."""
    alive: list[object] = []
    table = (_Member * len(members))()
    for place, member in enumerate(members):
        sketch = _sketch(member.sketch, alive) if member.sketch is not None else None
        table[place] = _Member(member.kind, member.place, member.width, len(member.name), member.name, sketch)
    alive += [table, *members]
    return ctypes.addressof(table), alive


def _sketch(sketch: Sketch, alive: list[object]) -> int:
    numbers = [array("d", part) for part in (sketch.estimates, sketch.biases, sketch.linear)]
    places = [part.buffer_info()[0] for part in numbers]
    facts = _Sketch(len(sketch.linear) - 1, sketch.neighbours, len(sketch.estimates), sketch.alpha_m2, sketch.threshold, *places)
    alive += [*numbers, facts]
    return ctypes.addressof(facts)
