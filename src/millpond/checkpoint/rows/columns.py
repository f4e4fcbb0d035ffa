"""Decodes many UnsafeRows to columns at once, in Arrow's form, with the same values as `unsaferow`.

1. Rows lie anywhere in one buffer; one step fetches a column's slots of all rows.
2. Bounds are checked for all rows before any slot is followed.
3. A struct is decoded as rows; if it is NULL, so are its members.
4. For arrays, maps and other composed values, `unsaferow` decodes that column value by value.

Texts aren't copied: their column has positions in the buffer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from millpond.checkpoint.files.codecs import corrupt
from millpond.checkpoint.rows.unsaferow import part_reader
from millpond.native import calls
from millpond.native.memory import Memory
from millpond.schema.types import Field, SparkType

# kind -> numpy's type of the value, which is at the beginning of its slot
_NUMBERS = {
    "boolean": "u1",
    "byte": "i1",
    "short": "<i2",
    "integer": "<i4",
    "date": "<i4",
    "year_month_interval": "<i4",
    "float": "<f4",
    "long": "<i8",
    "double": "<f8",
    "timestamp": "<i8",
    "timestamp_ntz": "<i8",
    "day_time_interval": "<i8",
    "time": "<i8",
}
_SMALL_DECIMAL = 18
_WIDE_DECIMAL_BYTES = 16
_WORD = 1 << 64
# Fewer are cut sooner by Python.
_FEW_PIECES = 16
Array = Any
"""A numpy array"""
Data = calls.Data


class Spans(NamedTuple):
    """Pieces of a buffer.

    data:         bytes, or a view of memory that is reused after all views of it are gone
    begin, size:  int64 arrays
    """

    data: Data
    begin: Array
    size: Array

    def select(self, chosen: Array) -> Spans:
        """Some of them, by mask or by index."""
        return Spans(self.data, self.begin[chosen], self.size[chosen])

    def slice(self, first: int, end: int) -> Spans:
        """Those from `first` on, before `end`."""
        return Spans(self.data, self.begin[first:end], self.size[first:end])

    def shift(self, by: int) -> Spans:
        """The same without their first bytes.  All pieces must be long enough."""
        return Spans(self.data, self.begin + by, self.size - by) if by else self

    def tolist(self, tail: bytes = b"") -> list[bytes]:
        """The pieces, each followed by the tail."""
        data = self.data
        pieces = calls.to_list(data, self.begin, self.size, tail) if len(self.size) > _FEW_PIECES else None
        if pieces is not None:
            return pieces
        return [bytes(data[a : a + n]) + tail for a, n in zip(self.begin.tolist(), self.size.tolist(), strict=True)]


def span(pieces: Iterable[bytes]) -> Spans:
    """The pieces in one buffer."""
    import numpy as np

    pieces = list(pieces)
    size = np.fromiter(map(len, pieces), np.int64, len(pieces))
    return Spans(b"".join(pieces), np.cumsum(size) - size, size)


def join_spans(parts: list[Spans]) -> Spans:
    """All pieces of several buffers in one."""
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    if not parts:
        return span(())
    shift = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
    begin = np.concatenate([part.begin + by for part, by in zip(parts, shift.tolist(), strict=True)])
    return Spans(b"".join(part.data for part in parts), begin, np.concatenate([part.size for part in parts]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of many rows; one of the last four fields has the values.

    valid:    bool array, False if the value is NULL; None if no value is NULL
    numbers:  values of fixed width: booleans as uint8, decimals as rows of two int64 (low and high
              half), others unchanged; the number of a NULL means nothing
    texts:    strings and binary, of size 0 where NULL
    members:  of structs; NULL if the struct is
    stored:   all else, in stored form
    """

    type: SparkType
    size: int
    valid: Array | None
    numbers: Array | None = None
    texts: Spans | None = None
    members: tuple[Column, ...] = ()
    stored: list[Any] | None = None


def read_columns(
    fields: tuple[Field, ...], rows: Spans, wanted: Collection[int] | None = None, memory: Memory | None = None
) -> dict[int, Column]:
    """The columns of rows of these fields, by their place.

    wanted:  places of columns; None for all
    memory:  where large arrays are written; it must stay
    Raises:  CORRUPT_FILE if a length or an offset points outside of its row, or a decimal has more
             digits than its type.
    Source:  as `unsaferow`; a property test compares both.
    """
    places = range(len(fields)) if wanted is None else sorted(wanted)
    return _Buffer(rows.data, memory).columns(fields, places, rows.begin, rows.size, None)


class _Slot(NamedTuple):
    """The place of a column's slot in each row.

    words:  the slots' contents, if they were fetched
    """

    offset: int
    words: Array | None


class _Buffer:
    """The buffer of the rows."""

    def __init__(self, data: Data, memory: Memory | None) -> None:
        import numpy as np

        self._np = np
        self._data = data
        self._memory = memory
        self._bytes = np.frombuffer(data, np.uint8)

    def columns(
        self, fields: tuple[Field, ...], places: Iterable[int], begin: Array, room: Array, dead: Array | None
    ) -> dict[int, Column]:
        """Columns of rows.

        room:  how many bytes each row may use from its beginning
        dead:  mask of missing rows (NULL structs); their `begin` is that of another row
        """
        words = (len(fields) + 63) // 64
        least = words + len(fields)
        nulls: dict[int, Array | None] = {}
        found = {}
        places = list(places)
        # With the compiled library all slots are fetched here; without it, each when it is needed.
        flags = sorted({i // 64 for i in places})
        slots = calls.read_words(self._data, begin, room, least, flags, [words + i for i in places], self._memory)
        if slots is None and (short := room < 8 * least).any():
            at = int(self._np.flatnonzero(short)[0])
            raise corrupt(f"a row of {int(room[at])} bytes has less than its {len(fields)} columns", int(begin[at]))
        for i in places:
            if i // 64 not in nulls:
                word = self._numbers("<u8", begin + i // 64 * 8) if slots is None else slots[i // 64]
                nulls[i // 64] = word if word is not None and word.any() else None
            word = nulls[i // 64]
            null = None if word is None else (word >> self._np.uint64(i % 64)) & self._np.uint64(1) != 0
            if dead is not None:
                null = dead if null is None else null | dead
            slot = _Slot(8 * (words + i), None if slots is None else slots[words + i])
            found[i] = self._column(fields[i].type, begin, room, null, slot)
        return found

    def _numbers(self, code: str, at: Array) -> Array:
        """Numbers of a type that begin at these bytes; all must lie inside."""
        np, dtype = self._np, self._np.dtype(code)
        if not len(at):
            return np.empty(0, dtype)
        return np.ndarray((len(self._data) - dtype.itemsize + 1,), dtype, self._data, strides=(1,))[at]

    def _slot(self, code: str, begin: Array, slot: _Slot) -> Array:
        """The numbers of a type with which the slots of a column begin."""
        if slot.words is None:
            return self._numbers(code, begin + slot.offset)
        found = slot.words.astype("<u8", copy=False).view(code)
        return found[:: 8 // found.dtype.itemsize]

    def _column(self, type_: SparkType, begin: Array, room: Array, null: Array | None, slot: _Slot) -> Column:
        np, kind, count = self._np, type_.kind, len(begin)
        if kind == "void":
            return Column(type=type_, size=count, valid=np.zeros(count, bool))
        valid = None if null is None or not null.any() else ~null
        if kind in _NUMBERS:
            numbers = self._slot(_NUMBERS[kind], begin, slot)
            return Column(type=type_, size=count, valid=valid, numbers=numbers)
        if kind == "decimal" and type_.precision <= _SMALL_DECIMAL:
            numbers = self._small_decimals(type_, self._slot("<i8", begin, slot), valid, begin)
            return Column(type=type_, size=count, valid=valid, numbers=numbers)
        part, size = self._parts(begin, room, self._slot("<u8", begin, slot), valid)
        if kind in ("string", "binary"):
            return Column(type=type_, size=count, valid=valid, texts=Spans(self._data, part, size))
        if kind == "decimal":
            self._check(size > _WIDE_DECIMAL_BYTES, "a decimal", begin)
            numbers = self._wide_decimals(type_, part, size, valid, begin)
            return Column(type=type_, size=count, valid=valid, numbers=numbers)
        if kind == "struct":
            members = self._members(type_, part, begin + room - part, valid)
            return Column(type=type_, size=count, valid=valid, members=members)
        read, stored = part_reader(type_), [None] * count
        chosen = range(count) if valid is None else np.flatnonzero(valid).tolist()
        data, begins, sizes = self._data, part.tolist(), size.tolist()
        for i in chosen:
            stored[i] = read(bytes(data[begins[i] : begins[i] + sizes[i]]))
        return Column(type=type_, size=count, valid=valid, stored=stored)

    def _parts(self, begin: Array, room: Array, slots: Array, valid: Array | None) -> tuple[Array, Array]:
        """The places and sizes of the values to which these slots point; 0 without a value."""
        np = self._np
        found = calls.find_parts(begin, room, slots, valid, self._memory)
        if found is not None:
            return found
        size = (slots & np.uint64(0xFFFFFFFF)).astype(np.int64)
        offset = (slots >> np.uint64(32)).astype(np.int64)
        if valid is not None:
            size[~valid] = 0
            offset[~valid] = 0
        self._check(offset + size > room, "a value", begin)
        return begin + offset, size

    def _check(self, wrong: Array, what: str, begin: Array) -> None:
        if wrong.any():
            raise corrupt(f"{what} claims bytes outside of its row", int(begin[int(self._np.flatnonzero(wrong)[0])]))

    def _members(self, type_: SparkType, part: Array, room: Array, valid: Array | None) -> tuple[Column, ...]:
        np, fields = self._np, type_.fields
        dead = None
        if valid is not None:
            if not valid.any():
                return tuple(_nothing(f.type, len(part)) for f in fields)
            # Missing rows are read from an existing one, and then marked.
            dead, first = ~valid, int(np.flatnonzero(valid)[0])
            part, room = np.where(valid, part, part[first]), np.where(valid, room, room[first])
        found = self.columns(fields, range(len(fields)), part, room, dead)
        return tuple(found[i] for i in range(len(fields)))

    def _small_decimals(self, type_: SparkType, low: Array, valid: Array | None, begin: Array) -> Array:
        np, bound = self._np, 10**type_.precision
        if valid is not None:
            low[~valid] = 0
        self._check((low >= bound) | (low <= -bound), "a decimal", begin)
        out = np.empty((len(low), 2), "<i8")
        out[:, 0], out[:, 1] = low, low >> 63
        return out

    def _wide_decimals(self, type_: SparkType, part: Array, size: Array, valid: Array | None, begin: Array) -> Array:
        """Big-endian two's complement of `size` bytes to little-endian of sixteen."""
        np, count = self._np, len(part)
        out = np.zeros((count, _WIDE_DECIMAL_BYTES), np.uint8)
        some = np.flatnonzero(size)
        if len(some):
            negative = self._bytes[part[some]] >= 0x80
            out[some[negative]] = 0xFF
            last = part + size - 1
            for place in range(int(size.max())):
                long_enough = np.flatnonzero(size > place)
                out[long_enough, place] = self._bytes[last[long_enough] - place]
        halves = out.view("<u8")
        low, high = halves[:, 0], halves[:, 1].view("<i8")
        top, bottom = 10**type_.precision, -(10**type_.precision)
        above = (high > top >> 64) | ((high == top >> 64) & (low >= np.uint64(top % _WORD)))
        below = (high < bottom >> 64) | ((high == bottom >> 64) & (low <= np.uint64(bottom % _WORD)))
        wrong = above | below
        self._check(wrong if valid is None else wrong & valid, "a decimal", begin)
        return out.view("<i8")


def _nothing(type_: SparkType, count: int) -> Column:
    """A column of NULLs."""
    import numpy as np

    none: Array = np.zeros(count, bool)
    zeros: Array = np.zeros(count, np.int64)
    kind = type_.kind
    if kind == "void":
        return Column(type=type_, size=count, valid=none)
    if kind in _NUMBERS:
        return Column(type=type_, size=count, valid=none, numbers=np.zeros(count, _NUMBERS[kind]))
    if kind == "decimal":
        return Column(type=type_, size=count, valid=none, numbers=np.zeros((count, 2), "<i8"))
    if kind in ("string", "binary"):
        return Column(type=type_, size=count, valid=none, texts=Spans(b"", zeros, zeros))
    if kind == "struct":
        return Column(type=type_, size=count, valid=none, members=tuple(_nothing(f.type, count) for f in type_.fields))
    return Column(type=type_, size=count, valid=none, stored=[None] * count)
