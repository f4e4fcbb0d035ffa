"""What a rewrite of a state does with many rows at once, in the compiled library.

Records are those of snapshots of the HDFS-backed provider.  Each function raises Declined if the
library rejects the input.  Only with the library.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millpond.native.calls import Array, Pieces, _at, _contiguous, _places, _pointer, _start
from millpond.native.library import Library, library

# kind of a column -> its number in rewrite.c
KINDS = {
    "byte": 0,
    "short": 1,
    **dict.fromkeys(("integer", "date", "year_month_interval"), 2),
    **dict.fromkeys(("long", "timestamp", "timestamp_ntz", "day_time_interval", "time"), 3),
    "boolean": 4,
    "float": 5,
    "double": 6,
    **dict.fromkeys(("string", "binary"), 7),
}
_LENGTHS_BYTES = 8
_PIECE_BYTES = 64 << 10
_MERGED_BYTES = 1 << 20
_NO_ROOM, _NOT_IN_ORDER = -2, -3


class Declined(Exception):
    """The library has rejected the input."""


class _Run(ctypes.Structure):
    """As `Run` in rewrite.c."""

    _fields_ = (
        ("data", ctypes.c_char_p),
        ("total", ctypes.c_int64),
        ("at", ctypes.c_int64),
        ("more", ctypes.c_int64),
        ("key_begin", ctypes.c_int64),
        ("key_size", ctypes.c_int64),
        ("next", ctypes.c_int64),
    )


class Chunk(NamedTuple):
    """Keys and values of some rows.

    gone:  a mask of deletions, whose values mean nothing; None if there are none
    """

    keys: Pieces
    values: Pieces
    gone: Array | None = None


@dataclass(slots=True)
class RowSums:
    """Rows in any order: how many, and two sums of their hashes.

    Equal sums of other rows are as likely as a guess of 128 bits: nobody knows the seeds.
    """

    count: int = 0
    sums: Array = field(default_factory=lambda: _numbers([0, 0]))

    def add(self, chunk: Chunk) -> None:
        """More rows."""
        rows = _Rows(chunk)
        if _native().c.sum_rows(*rows.arguments, _at(_SEEDS), _at(self.sums)):
            raise Declined
        self.count += rows.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSums) and self.count == other.count and bool((self.sums == other.sums).all())


def _numbers(numbers: Sequence[int]) -> Array:
    import numpy as np

    return np.array(numbers, np.uint64)


def _native() -> Library:
    native = library()
    assert native is not None
    return native


class _Rows:
    """The arguments for a chunk's rows, and references to all of them."""

    def __init__(self, chunk: Chunk) -> None:
        import numpy as np

        (keys, *key_places), (values, *places), gone = chunk
        arrays = [_contiguous(array) for array in (*key_places, *places)]
        mask = None if gone is None else np.ascontiguousarray(gone, np.uint8)
        self._alive = keys, values, arrays, mask
        self.count = len(arrays[0])
        key_begin, key_size, begin, size = map(_at, arrays)
        keyed, valued = (_pointer(keys), len(keys), key_begin, key_size), (_pointer(values), len(values), begin, size)
        self.arguments = (*keyed, *valued, None if mask is None else _at(mask), self.count)


def hash_rows(keys: Pieces, before: int, fields: int, kinds: Sequence[int]) -> Array:
    """Spark's hash of each key, as int32.

    before:  the bytes in front of a key's row
    fields:  of the row; the first ones are hashed
    kinds:   of these, as in `KINDS`
    """
    import numpy as np

    data, begin, size = keys
    begin, size, numbers = _contiguous(begin), _contiguous(size), np.array(kinds, np.int64)
    out: Array = np.empty(len(begin), np.int32)
    rows = (_pointer(data), len(data), len(begin), _at(begin), _at(size))
    if _native().c.hash_rows(*rows, before, fields, len(kinds), _at(numbers), _at(out)):
        raise Declined
    return out


def write_records(chunk: Chunk, places: Array, areas: int) -> list[memoryview]:
    """The rows as records, area by area.

    places:  of each row, the area that it belongs to
    """
    import numpy as np

    rows, places = _Rows(chunk), np.ascontiguousarray(places, np.int64)
    sizes = chunk.keys[2] + _LENGTHS_BYTES + (chunk.values[2] if chunk.gone is None else np.where(chunk.gone, 0, chunk.values[2]))
    # Sums of whole numbers below 2 ** 53 are exact.
    end = np.cumsum(np.bincount(places, sizes, areas)).astype(np.int64)
    begin = np.concatenate(([0], end[:-1]))
    at, out = begin.copy(), memoryview(bytearray(int(end[-1])))
    if _native().c.write_records(*rows.arguments, areas, _at(places), _at(at), _at(end), _start(out) if len(out) else None):
        raise Declined
    assert (at == end).all()
    return [out[first:last] for first, last in zip(begin.tolist(), end.tolist(), strict=True)]


def iter_merged(runs: Sequence[Callable[[int], bytes]]) -> Iterator[bytes]:
    """Sorted runs of records as one, in pieces of whole records.

    runs:  each gives at least one of its next bytes, about as many as asked for, and none at its end
    """
    native, structures, heap = _native(), (_Run * len(runs))(), (ctypes.c_void_p * len(runs))()
    ahead: list[bytes] = [b""] * len(runs)
    room, needed = _MERGED_BYTES, ctypes.c_int64(0)

    def fill(number: int) -> None:
        run = structures[number]
        rest = ahead[number][run.at :]
        piece = runs[number](max(_PIECE_BYTES, len(rest)))
        ahead[number] = data = rest + piece
        run.data, run.total, run.at, run.more = data, len(data), 0, bool(piece)

    for number in range(len(runs)):
        fill(number)
    out = ctypes.create_string_buffer(room)
    while True:
        used = native.c.merge_records(
            len(runs), ctypes.addressof(structures), ctypes.addressof(heap), out, room, ctypes.addressof(needed)
        )
        if used == _NO_ROOM:
            room *= 2
            out = ctypes.create_string_buffer(room)
            continue
        if used < 0:
            raise Declined
        if used:
            yield ctypes.string_at(out, used)
        if needed.value >= 0:
            fill(needed.value)
        elif not used:
            return


class Block(NamedTuple):
    """A block of an SST.

    content:    with its restart points
    next:       where in the records the next block begins
    entries:    how many it has, with so many bytes of keys and of values
    last:       its last key
    """

    content: bytes
    next: int
    entries: int
    key_bytes: int
    value_bytes: int
    last: bytes


def build_block(records: bytes, at: int, last: bytes | None, least_bytes: int, interval: int, *, is_last: bool) -> Block | None:
    """The next block of some records; None if there are too few.

    last:  the key before; None if there is none
    Raises:  ValueError if the keys aren't in order; Declined.
    """
    room, found = 4 * least_bytes, _places(6)
    while True:
        out = ctypes.create_string_buffer(room)
        before = (b"", -1) if last is None else (last, len(last))
        used = _native().c.build_block(records, len(records), at, least_bytes, interval, is_last, *before, out, room, _at(found))
        if used == _NO_ROOM and room < 2 * len(records) + 4 * least_bytes:
            room *= 4
            continue
        if used == _NOT_IN_ORDER:
            raise ValueError("keys aren't in order")
        if used < 0:
            raise Declined
        if not used:
            return None
        end, entries, keys, values, begin, size = found.tolist()
        return Block(ctypes.string_at(out, used), end, entries, keys, values, records[begin : begin + size])


_SEEDS = _numbers([secrets.randbits(64), secrets.randbits(64)])
