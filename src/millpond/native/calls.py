"""What the library does, with numpy's arrays for memory.  Each gives None where there is no library, or where it says no."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Sequence
from typing import Any

from millpond.native.library import Library, library

Array = Any
"""A numpy array"""
Pieces = tuple[bytes, Array, Array]
"""A buffer, and int64 arrays: where pieces begin in it, and their sizes"""
Records = tuple[Array, Array, Array, Array, Array]
"""Kinds, begins and sizes of keys, begins and sizes of values"""
MergedPart = tuple[Pieces, Array, Pieces, int, int]
"""(user keys, uint64 tags, values, first entry, end) of a run in key order"""
# Blocks that claim to be larger together than so many times what they are packed aren't unpacked together.
_MOST_TIMES = 32
_SEED = secrets.randbits(63)


class _Run(ctypes.Structure):
    """See `Run` in runs.c."""

    _fields_ = (
        ("keys", ctypes.c_char_p),
        ("keys_total", ctypes.c_int64),
        ("key_begin", ctypes.c_void_p),
        ("key_size", ctypes.c_void_p),
        ("tags", ctypes.c_void_p),
        ("values", ctypes.c_char_p),
        ("values_total", ctypes.c_int64),
        ("begin", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("at", ctypes.c_int64),
        ("end", ctypes.c_int64),
    )


class _Keys(ctypes.Structure):
    """See `Keys` in keys.c."""

    _fields_ = (
        ("data", ctypes.c_char_p),
        ("total", ctypes.c_int64),
        ("begin", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("newest", ctypes.c_void_p),
    )


class NotMerged(Exception):
    """Runs that can't be merged: `reason` is one of those in runs.c."""

    def __init__(self, reason: int) -> None:
        super().__init__(reason)
        self.reason = reason


NOT_IN_ORDER, ONE_SEQUENCE_NUMBER, UNKNOWN_KIND = -1, -2, -4


def find_records(data: bytes, start: int, *, typed: bool) -> Records | None:
    """All records up to the end mark."""
    native = library()
    if native is None:
        return None
    count = native.c.find_records(data, len(data), start, typed, 0, None, None, None, None, None)
    return None if count < 0 else _records(native, data, start, count, typed=typed)


def find_whole_records(data: bytes, *, typed: bool) -> tuple[Records, int] | None:
    """The records from the begin that are there as a whole, and where the last one ends."""
    native = library()
    if native is None:
        return None
    end = ctypes.c_int64(0)
    count = native.c.find_whole_records(data, len(data), typed, ctypes.addressof(end))
    return _records(native, data, 0, count, typed=typed), end.value


def _records(native: Library, data: bytes, start: int, count: int, *, typed: bool) -> Records:
    import numpy as np

    kinds: Array = np.empty(count, np.uint8)
    key_begin, key_size, begin, size = _places(count), _places(count), _places(count), _places(count)
    if count:
        places = (_at(kinds), _at(key_begin), _at(key_size), _at(begin), _at(size))
        native.c.find_records(data, len(data), start, typed, count, *places)
    return kinds, key_begin, key_size, begin, size


def find_last(data: bytes, start: int, key: bytes, *, typed: bool) -> tuple[int, bytes] | None:
    """The kind of a key's last record, 0 where there is none, and its value.  Needs no numpy."""
    native = library()
    if native is None:
        return None
    value = (ctypes.c_int64 * 2)()
    kind = native.c.find_last(data, len(data), start, typed, key, len(key), ctypes.addressof(value))
    return None if kind < 0 else (kind, data[value[0] : value[0] + value[1]])


def unpack_blocks(file: bytes, begin: Array, size: Array) -> tuple[bytes, Array] | None:
    """The content of blocks, one after the other, and the size of each."""
    native = library()
    if native is None:
        return None
    sizes = _places(len(begin))
    total = native.c.measure_blocks(file, len(file), len(begin), _at(begin), _at(size), _at(sizes))
    if not 0 <= total <= _MOST_TIMES * len(file):
        return None
    out = native.new_bytes(None, total)
    if native.c.unpack_blocks(file, len(begin), _at(begin), _at(size), _at(sizes), out):
        return None
    return out, sizes


def find_entries(data: bytes, sizes: Array) -> tuple[Pieces, Array, Array, Array] | None:
    """Of blocks' entries: the user keys, uint64 tags, begins and sizes of the values in `data`."""
    native = library()
    if native is None:
        return None
    import numpy as np

    key_bytes = ctypes.c_int64(0)
    find, room = native.c.find_entries, ctypes.addressof(key_bytes)
    count = find(data, len(sizes), _at(sizes), room, None, None, None, None, None, None)
    if count < 0:
        return None
    keys = native.new_bytes(None, key_bytes.value)
    tags = np.empty(count, np.uint64)
    key_begin, key_size, begin, size = _places(count), _places(count), _places(count), _places(count)
    find(data, len(sizes), _at(sizes), room, keys, _at(key_begin), _at(key_size), _at(tags), _at(begin), _at(size))
    return (keys, key_begin, key_size), tags, begin, size


def merge_runs(parts: Sequence[MergedPart], delimiter: bytes) -> tuple[Pieces, Pieces]:
    """Keys and values of all parts as one run, each key once, deleted ones left out.  Raises NotMerged."""
    return _merge(parts, delimiter, None)


def merge_with_deleted(parts: Sequence[MergedPart]) -> tuple[Pieces, Pieces, Array]:
    """The same of puts and deletes with the deleted keys, and a mask of these.  Raises NotMerged."""
    import numpy as np

    gone: Array = np.empty(sum(end - first for *_, first, end in parts), np.uint8)
    keys, values = _merge(parts, b"", gone)
    return keys, values, gone[: len(keys[1])].view(bool)


def _merge(parts: Sequence[MergedPart], delimiter: bytes, gone: Array | None) -> tuple[Pieces, Pieces]:
    native = library()
    assert native is not None
    import numpy as np

    # The arrays that a structure points into are held by `parts`, or here.
    held = [[_held(array) for array in (key_at, key_n, tags, at, n)] for (_, key_at, key_n), tags, (_, at, n), _, _ in parts]
    runs = (_Run * len(parts))()
    entries = key_room = room = 0
    for i, ((keys, _, key_size), _, (values, _, size), first, end) in enumerate(parts):
        key_at, key_n, tags_at, at, n = (_at(array) for array in held[i])
        runs[i] = _Run(keys, len(keys), key_at, key_n, tags_at, values, len(values), at, n, first, end)
        entries += end - first
        key_room += int(key_size[first:end].sum())
        room += int(size[first:end].sum()) + len(delimiter) * (end - first)
    out_keys, out_values = native.new_bytes(None, key_room), native.new_bytes(None, room)
    key_end, value_end = _places(entries), _places(entries)
    rooms = np.array([key_room, room], np.int64)
    rows = native.c.merge_runs(
        len(parts),
        ctypes.addressof(runs),
        delimiter,
        len(delimiter),
        _at(rooms),
        out_keys,
        _at(key_end),
        out_values,
        _at(value_end),
        None if gone is None else _at(gone),
    )
    if rows < 0:
        raise NotMerged(rows)
    return (out_keys, *_between(key_end[:rows])), (out_values, *_between(value_end[:rows]))


def lower_bound(keys: Pieces, first: int, key: bytes) -> int:
    """Where the first key that isn't below `key` stands among keys in order, from `first` on."""
    native = library()
    assert native is not None
    data, begin, size = keys
    found: int = native.c.lower_bound(data, _at(begin), _at(size), first, len(begin), key, len(key))
    return found


def find_elements(data: bytes, begin: Array, size: Array, delimiter: bytes) -> tuple[Array, Array, Array] | None:
    """Of lists: how many elements each has; begins and sizes of their rows."""
    native = library()
    if native is None:
        return None
    begin, size = _held(begin), _held(size)
    find, lists, counts = native.c.find_elements, (_at(begin), _at(size)), _places(len(begin))
    count = find(data, len(data), len(begin), *lists, delimiter, len(delimiter), _at(counts), None, None)
    if count < 0:
        return None
    places, sizes = _places(count), _places(count)
    find(data, len(data), len(begin), *lists, delimiter, len(delimiter), _at(counts), _at(places), _at(sizes))
    return counts, places, sizes


def mark_newest(parts: Sequence[Pieces], *, unique: bool) -> list[Array] | None:
    """For each part a mask of the keys that are in no later part, and no later in their own.

    unique:  whether no key is twice in the first part
    """
    native = library()
    if native is None:
        return None
    import numpy as np

    masks: list[Array] = [np.empty(len(begin), np.uint8) for _, begin, _ in parts]
    held = [(_held(begin), _held(size)) for _, begin, size in parts]
    keys = (_Keys * len(parts))()
    for i, ((data, _, _), (begin, size), mask) in enumerate(zip(parts, held, masks, strict=True)):
        keys[i] = _Keys(data, len(data), _at(begin), _at(size), len(begin), _at(mask))
    if native.c.mark_newest(len(parts), ctypes.addressof(keys), unique, _SEED) < 0:
        return None
    return [mask.view(bool) for mask in masks]


def read_words(data: bytes, begin: Array, end: Array, places: Sequence[int]) -> dict[int, Array] | None:
    """The words of eight bytes at these places of rows, counted from where each begins, as uint64."""
    native = library()
    if native is None:
        return None
    import numpy as np

    begin, end, wanted = _held(begin), _held(end), np.array(places, np.int64)
    out: Array = np.empty((len(places), len(begin)), np.uint64)
    if native.c.read_words(data, len(data), len(begin), _at(begin), _at(end), len(places), _at(wanted), _at(out)):
        return None
    return dict(zip(places, out, strict=True))


def order_keys(data: bytes, begin: Array, size: Array, columns: Array, least: int) -> Pieces | None:
    """Keys of a replica from rows of a key.

    columns:  int64 rows of five, as `Column` in order.c
    least:    what a row has at least
    """
    native = library()
    if native is None:
        return None
    begin, size, ends = _held(begin), _held(size), _places(len(begin))
    # A text may double, and each column has marks of its own; more is needed only where columns overlap.
    room = 2 * int(size.sum()) + 16 * (len(columns) + 1) * len(begin)
    out = native.new_bytes(None, room)
    rows = (data, len(data), len(begin), _at(begin), _at(size))
    if native.c.order_keys(*rows, _at(columns), len(columns), least, out, room, _at(ends)):
        return None
    return out, *_between(ends)


def sort_newest(data: bytes, begin: Array, size: Array) -> Array | None:
    """The places of keys in order of their bytes, of equal ones the last only."""
    native = library()
    if native is None:
        return None
    begin, size, order = _held(begin), _held(size), _places(len(begin))
    count = native.c.sort_newest(data, len(data), len(begin), _at(begin), _at(size), _at(order))
    return None if count < 0 else order[:count]


def gather(data: bytes, begin: Array, size: Array) -> bytes | None:
    """All pieces, one after the other."""
    native = library()
    if native is None:
        return None
    begin, size, total = _held(begin), _held(size), int(size.sum())
    out: bytes = native.new_bytes(None, total)
    return None if native.c.gather(data, len(data), len(begin), _at(begin), _at(size), out, total) else out


def to_list(data: bytes, begin: Array, size: Array, tail: bytes = b"") -> list[bytes] | None:
    """Each piece as bytes of its own, with the tail behind it."""
    native = library()
    if native is None:
        return None
    begin, size = _held(begin), _held(size)
    found: list[bytes] = native.to_list(data, len(data), len(begin), _at(begin), _at(size), tail, len(tail))
    return found


def _between(ends: Array) -> tuple[Array, Array]:
    """Begins and sizes of pieces that follow each other."""
    import numpy as np

    begin = np.empty_like(ends)
    begin[:1], begin[1:] = 0, ends[:-1]
    return begin, ends - begin


def _places(count: int) -> Array:
    import numpy as np

    return np.empty(count, np.int64)


def _held(array: Array) -> Array:
    """The same numbers, one behind the other in memory."""
    import numpy as np

    return np.ascontiguousarray(array)


def _at(array: Array) -> int:
    assert array.flags.c_contiguous
    address: int = array.ctypes.data
    return address
