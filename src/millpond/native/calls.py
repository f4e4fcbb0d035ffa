"""What the library does, with numpy's arrays for memory.  Each gives None if there is no library, or where it says no."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from millpond.native.library import Library, library
from millpond.native.memory import Memory

Array = Any
"""A numpy array"""
Data = bytes | memoryview
Pieces = tuple[Data, Array, Array]
"""A buffer, and int64 arrays: where pieces begin in it, and their sizes"""
Records = tuple[Array, Array, Array, Array, Array]
"""Kinds, begins and sizes of keys, begins and sizes of values"""
MergedPart = tuple[Pieces, Array, Pieces, int, int]
"""(user keys, uint64 tags, values, first entry, end) of a run in key order"""
# Blocks that claim to be larger together than so many times what they are packed aren't unpacked together.
_MOST_TIMES = 32
# Two lengths.
_LEAST_RECORD = 8
# Three numbers, and what stands behind a key.
_LEAST_ENTRY = 11
_SAMPLE_BYTES = 64 << 10
_MORE_ROOM = -2
_SEED = secrets.randbits(63)


class _RunStruct(ctypes.Structure):
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


class _Sorted(ctypes.Structure):
    """See `Sorted` in sorted.c."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("keys_total", ctypes.c_int64),
        ("key_begin", ctypes.c_void_p),
        ("key_size", ctypes.c_void_p),
        ("tags", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("values_total", ctypes.c_int64),
        ("begin", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("kept", ctypes.c_int64),
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


def unpack_stream(data: bytes) -> bytes | None:
    """The content of a stream of LZ4 blocks, all of which match their checksums."""
    native = library()
    if native is None:
        return None
    total = native.c.measure_stream(data, len(data))
    if not 0 <= total <= _MOST_TIMES * len(data):
        return None
    out: bytes = native.new_bytes(None, total)
    return None if native.c.unpack_stream(data, len(data), out) else out


def unpack_streams(streams: Sequence[Data], memory: Memory) -> tuple[memoryview, list[int]] | None:
    """The contents of several, one after the other, and where each ends."""
    native = library()
    if native is None:
        return None
    sizes = [native.c.measure_stream(_pointer(data), len(data)) for data in streams]
    if any(not 0 <= size <= _MOST_TIMES * len(data) for size, data in zip(sizes, streams, strict=True)):
        return None
    ends = list(accumulate(sizes))
    out = memory.take(sum(sizes))
    at = _start(out)
    for data, size, end in zip(streams, sizes, ends, strict=True):
        if native.c.unpack_stream(_pointer(data), len(data), at + end - size):
            return None
    return out, ends


def newest_records(
    data: Data, files: Sequence[tuple[int, int, bool]], family: bytes, before: tuple[int, int], memory: Memory
) -> tuple[Array, Array, Array, Array] | None:
    """Of each key its last record that isn't a delete: begins and sizes of bare keys and of bare values.

    files:   where each one's records start, where it ends, whether they begin with their types; oldest first
    family:  what the keys that are wanted begin with
    before:  how many bytes stand before each key and each value
    """
    native = library()
    if native is None or not files or not all(0 <= first <= end <= len(data) for first, end, _ in files):
        return None
    import numpy as np

    bounds, stood, begin = np.array(files, np.int64), np.array(before, np.int64), _start(data)
    fixed = (begin, len(data), len(files), _at(bounds), family, len(family), _at(stood), _SEED)
    # Most rows are about as large as those that begin the first file.
    (first, end, typed), sampled = files[0], ctypes.c_int64(0)
    count = native.c.find_whole_records(begin + first, min(end - first, _SAMPLE_BYTES), typed, ctypes.addressof(sampled))
    capacity = len(data) // max(sampled.value // max(count, 1), _LEAST_RECORD) * 9 // 8 + 1
    while True:
        key_begin, key_size, begin, size = places = memory.numbers(4, capacity)
        # As many places for keys as may be needed so that a third of them is empty.
        table = memory.take(4 << (capacity + capacity // 2).bit_length())
        count = native.c.newest_records(*fixed, _start(table), len(table) // 4, capacity, *map(_at, places))
        if count != _MORE_ROOM:
            return None if count < 0 else (key_begin[:count], key_size[:count], begin[:count], size[:count])
        capacity *= 2


def check_blocks(file: Data, begin: Array, size: Array) -> Array | None:
    """A mask of the SST's blocks that match their XXH3; short blocks aren't told."""
    native = library()
    if native is None:
        return None
    import numpy as np

    right: Array = np.empty(len(begin), np.uint8)
    found = native.c.check_blocks(_pointer(file), len(file), len(begin), _at(begin), _at(size), _at(right))
    return None if found < 0 else right.view(bool)


def unpack_blocks(file: Data, begin: Array, size: Array, memory: Memory | None = None) -> tuple[Data, Array] | None:
    """The content of blocks, one after the other, and the size of each."""
    native = library()
    if native is None:
        return None
    sizes = _places(len(begin))
    total = native.c.measure_blocks(_pointer(file), len(file), len(begin), _at(begin), _at(size), _at(sizes))
    if not 0 <= total <= _MOST_TIMES * len(file):
        return None
    out = _room(native, total, memory)
    if native.c.unpack_blocks(_pointer(file), len(begin), _at(begin), _at(size), _at(sizes), _start(out)):
        return None
    return out, sizes


def find_entries(
    data: Data, sizes: Array, expected: tuple[int, int] = (0, 0), memory: Memory | None = None
) -> tuple[Pieces, Array, Array, Array] | None:
    """Of blocks' entries: the user keys, uint64 tags, begins and sizes of the values in `data`.

    expected:  how many entries there may be, and bytes of keys; a guess
    """
    native = library()
    if native is None:
        return None
    # However wrong a guess is, it takes no more memory than entries can.
    count, room = min(expected[0], len(data) // _LEAST_ENTRY), min(expected[1], _MOST_TIMES * len(data))
    while True:
        keys, key_bytes = _room(native, room, memory), ctypes.c_int64(room)
        tags, key_begin, key_size, begin, size = [_places(count) for _ in range(5)] if memory is None else memory.numbers(5, count)
        arrays = (_at(key_begin), _at(key_size), _at(tags), _at(begin), _at(size))
        start, capacity = _start(data), count
        count = native.c.find_entries(start, len(sizes), _at(sizes), capacity, ctypes.addressof(key_bytes), _start(keys), *arrays)
        if count < 0:
            return None
        if count <= capacity and key_bytes.value <= room:
            found = (keys[: key_bytes.value], key_begin[:count], key_size[:count])
            return found, tags[:count].view("u8"), begin[:count], size[:count]
        room = key_bytes.value


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
    arrays = [[_held(array) for array in (key_at, key_n, tags, at, n)] for (_, key_at, key_n), tags, (_, at, n), _, _ in parts]
    runs = (_RunStruct * len(parts))()
    entries = key_room = room = 0
    for i, ((keys, _, key_size), _, (values, _, size), first, end) in enumerate(parts):
        key_at, key_n, tags_at, at, n = (_at(array) for array in arrays[i])
        runs[i] = _RunStruct(keys, len(keys), key_at, key_n, tags_at, values, len(values), at, n, first, end)
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


def newest_entries(
    runs: Sequence[tuple[Pieces, Array, Pieces]], family: bytes, before: tuple[int, int]
) -> list[tuple[Pieces, Pieces]] | None:
    """Of user keys in order, their tags and values: for each run the bare keys and bare values of the entries that count.

    runs:            the arrays are used for the answer, and spoilt where there is none
    family, before:  as for `newest_records`
    """
    native = library()
    if native is None:
        return None
    import numpy as np

    stood = np.array(before, np.int64)
    arrays = [[_held(array) for array in (*keys[1:], tags, *values[1:])] for keys, tags, values in runs]
    entries = (_Sorted * len(runs))()
    for i, ((keys, _, values), (key_begin, key_size, tags, begin, size)) in enumerate(zip(runs, arrays, strict=True)):
        key_places = (_start(keys[0]), len(keys[0]), _at(key_begin), _at(key_size), _at(tags))
        entries[i] = _Sorted(*key_places, _start(values[0]), len(values[0]), _at(begin), _at(size), len(tags), 0)
    if native.c.newest_entries(len(runs), ctypes.addressof(entries), family, len(family), _at(stood)) < 0:
        return None
    found = []
    for entry, (keys, _, values), (key_begin, key_size, _, begin, size) in zip(entries, runs, arrays, strict=True):
        n = entry.kept
        found.append(((keys[0], key_begin[:n], key_size[:n]), (values[0], begin[:n], size[:n])))
    return found


def lower_bound(keys: Pieces, first: int, key: bytes) -> int:
    """Where the first key that isn't below `key` stands among keys in order, from `first` on."""
    native = library()
    assert native is not None
    data, begin, size = keys
    found: int = native.c.lower_bound(data, _at(begin), _at(size), first, len(begin), key, len(key))
    return found


def find_elements(data: Data, begin: Array, size: Array, delimiter: bytes) -> tuple[Array, Array, Array] | None:
    """Of lists: how many elements each has; begins and sizes of their rows."""
    native = library()
    if native is None:
        return None
    begin, size = _held(begin), _held(size)
    find, lists, counts = native.c.find_elements, (_at(begin), _at(size)), _places(len(begin))
    rows = (_pointer(data), len(data), len(begin))
    count = find(*rows, *lists, delimiter, len(delimiter), _at(counts), None, None)
    if count < 0:
        return None
    places, sizes = _places(count), _places(count)
    find(*rows, *lists, delimiter, len(delimiter), _at(counts), _at(places), _at(sizes))
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
    arrays = [(_held(begin), _held(size)) for _, begin, size in parts]
    keys = (_Keys * len(parts))()
    for i, ((data, _, _), (begin, size), mask) in enumerate(zip(parts, arrays, masks, strict=True)):
        keys[i] = _Keys(data, len(data), _at(begin), _at(size), len(begin), _at(mask))
    if native.c.mark_newest(len(parts), ctypes.addressof(keys), unique, _SEED) < 0:
        return None
    return [mask.view(bool) for mask in masks]


def read_words(
    data: Data, begin: Array, size: Array, least: int, flags: Sequence[int], places: Sequence[int], memory: Memory | None = None
) -> dict[int, Array | None] | None:
    """The words of eight bytes at these places of rows, counted from where each begins, as uint64.

    least:   how many each row must have
    flags:   places whose words are nearly always 0 in all rows: None if they are
    memory:  where they are put, to stay
    """
    native = library()
    if native is None:
        return None
    import numpy as np

    begin, size, count = _held(begin), _held(size), len(begin)
    together: Array = np.empty(len(flags) + len(places), np.uint64)

    def read(flags: Sequence[int], places: Sequence[int]) -> dict[int, Array] | None:
        wanted, room_bytes = np.array([*flags, *places], np.int64), 8 * len(places) * count
        room = _bytes(room_bytes) if memory is None else memory.keep(room_bytes)
        out = room.view(np.uint64).reshape(len(places), count)
        rows = (_pointer(data), len(data), count, _at(begin), _at(size), least)
        if native.c.read_words(*rows, len(wanted), _at(wanted), len(flags), _at(together), _at(out)):
            return None
        return dict(zip(places, out, strict=True))

    found = read(flags, places)
    if found is None:
        return None
    some = [place for place, bits in zip(flags, together.tolist(), strict=False) if bits]
    more = read([], some) if some else {}
    return None if more is None else {**dict.fromkeys(flags), **found, **more}


def order_keys(data: Data, begin: Array, size: Array, columns: Array, least: int) -> Pieces | None:
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
    rows = (_pointer(data), len(data), len(begin), _at(begin), _at(size))
    if native.c.order_keys(*rows, _at(columns), len(columns), least, out, room, _at(ends)):
        return None
    return out, *_between(ends)


def sort_newest(data: Data, begin: Array, size: Array) -> Array | None:
    """The places of keys in order of their bytes, of equal ones the last only."""
    native = library()
    if native is None:
        return None
    begin, size, order = _held(begin), _held(size), _places(len(begin))
    count = native.c.sort_newest(_pointer(data), len(data), len(begin), _at(begin), _at(size), _at(order))
    return None if count < 0 else order[:count]


def find_parts(
    begin: Array, size: Array, slots: Array, valid: Array | None, memory: Memory | None = None
) -> tuple[Array, Array] | None:
    """Where the values lie that slots of rows point to, and their sizes.

    valid:   False if there is none
    memory:  where the answer is put; used again when nobody looks into it any more
    """
    native = library()
    if native is None:
        return None
    begin, size, slots, count = _held(begin), _held(size), _held(slots), len(begin)
    part, part_size = (_places(count), _places(count)) if memory is None else memory.numbers(2, count)
    valid_at = None if valid is None else _at(valid)
    if native.c.find_parts(count, _at(begin), _at(size), _at(slots), valid_at, _at(part), _at(part_size)):
        return None
    return part, part_size


def gather(data: Data, begin: Array, size: Array) -> bytes | None:
    """All pieces, one after the other."""
    native = library()
    if native is None:
        return None
    begin, size, total = _held(begin), _held(size), int(size.sum())
    out: bytes = native.new_bytes(None, total)
    return None if native.c.gather(_pointer(data), len(data), len(begin), _at(begin), _at(size), out, total, None) else out


def gather_texts(data: Data, begin: Array, size: Array, memory: Memory | None = None) -> tuple[Array, Array] | None:
    """The same as an array, and int32 where each piece begins and the last one ends.

    memory:  where they are put, to stay
    """
    native = library()
    if native is None:
        return None
    begin, size, total = _held(begin), _held(size), int(size.sum())
    out, offsets = (_bytes(n) if memory is None else memory.keep(n) for n in (total, 4 * len(begin) + 4))
    pieces = (_pointer(data), len(data), len(begin), _at(begin), _at(size))
    return None if native.c.gather(*pieces, _at(out), total, _at(offsets)) else (out, offsets.view("i4"))


def to_list(data: Data, begin: Array, size: Array, tail: bytes = b"") -> list[bytes] | None:
    """Each piece as bytes of its own, with the tail behind it."""
    native = library()
    if native is None:
        return None
    begin, size = _held(begin), _held(size)
    found: list[bytes] = native.to_list(_pointer(data), len(data), len(begin), _at(begin), _at(size), tail, len(tail))
    return found


def _between(ends: Array) -> tuple[Array, Array]:
    """Begins and sizes of pieces that follow each other."""
    import numpy as np

    begin = np.empty_like(ends)
    begin[:1], begin[1:] = 0, ends[:-1]
    return begin, ends - begin


def _room(native: Library, size: int, memory: Memory | None) -> Data:
    """Bytes to be filled; of their own where there is no memory to use again."""
    if memory is not None:
        return memory.take(size)
    room: bytes = native.new_bytes(None, size)
    return room


def _bytes(size: int) -> Array:
    import numpy as np

    return np.empty(size, np.uint8)


def _places(count: int) -> Array:
    import numpy as np

    return np.empty(count, np.int64)


def _held(array: Array) -> Array:
    """The same numbers, one behind the other in memory."""
    import numpy as np

    return np.ascontiguousarray(array)


def _pointer(data: Data) -> bytes | int:
    """What ctypes takes for a pointer to it."""
    return data if isinstance(data, bytes) else _start(data)


def _start(data: Data) -> int:
    """Where a buffer begins in memory, which whoever asks must hold."""
    import numpy as np

    return _at(np.frombuffer(data, np.uint8))


def _at(array: Array) -> int:
    assert array.flags.c_contiguous
    address: int = array.ctypes.data
    return address
