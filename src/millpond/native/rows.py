"""Rows written as JSON by the library: which columns, made once for a table.

The structures point into memory that Python owns, so whoever writes rows holds all of it.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millpond.native.library import library

NUMBER, BOOLEAN, TEXT, FLOATING, DISTINCT, AVERAGE = range(6)
WriteRow = Callable[[bytes, bytes, bytes | None], bytes | None]
"""See `row_json` in shown.c: (row with its stamp, head, key or None) -> JSON; None if Python is to write it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """See `Sketch` in shown.c.  `linear` is by the number of registers that are zero, from 0."""

    neighbours: int
    alpha_m2: float
    threshold: float
    estimates: Sequence[float]
    biases: Sequence[float]
    linear: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of the object.

    name:   with all that stands around it: `,"hits":`
    kind:   one of the above
    place:  of its first column in the row
    width:  of a number in bytes, of a sketch in words; of an average the place of its count
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
    """A function that writes these members of rows with so many columns; None if there is no library."""
    native = library()
    if native is None:
        return None
    alive: list[object] = []
    table = (_Member * len(members))()
    for place, member in enumerate(members):
        sketch = _sketch(member.sketch, alive) if member.sketch is not None else None
        table[place] = _Member(member.kind, member.place, member.width, len(member.name), member.name, sketch)
    alive += [table, *members]
    write_row, at, count = native.row_json, ctypes.addressof(table), len(members)

    def write(row: bytes, head: bytes, key: bytes | None, _held: object = alive) -> bytes | None:
        size = -1 if key is None else len(key)
        written: bytes | None = write_row(row, len(row), columns, at, count, head, len(head), key, size)
        return written

    return write


def _sketch(sketch: Sketch, alive: list[object]) -> int:
    numbers = [array("d", part) for part in (sketch.estimates, sketch.biases, sketch.linear)]
    places = [part.buffer_info()[0] for part in numbers]
    facts = _Sketch(len(sketch.linear) - 1, sketch.neighbours, len(sketch.estimates), sketch.alpha_m2, sketch.threshold, *places)
    alive += [*numbers, facts]
    return ctypes.addressof(facts)
