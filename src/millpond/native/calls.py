"""A function for each entry point of the compiled library, with numpy arrays for memory.

Each returns None without the library, or if the library rejects the input.
"""

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
"""A buffer, and int64 arrays of where pieces begin in it and of their sizes"""
Records = tuple[Array, Array, Array, Array, Array]
"""Arrays: kinds, begins and sizes of keys, begins and sizes of values"""
MergedPart = tuple[Pieces, Array, Pieces, int, int]
"""(user keys, uint64 tags, values, first entry, end) of a run in key order"""
# Blocks that claim to unpack to more than so many times their size aren't unpacked together.
_MOST_TIMES = 32
# The bytes of the two lengths of a record.
_LEAST_RECORD = 8
# The bytes of the three numbers of an entry, and of its key's tail.
_LEAST_ENTRY = 11
_SAMPLE_BYTES = 64 << 10
_MORE_ROOM = -2
_SEED = secrets.randbits(63)


class _RunStruct(ctypes.Structure):
    """As `Run` in merge_runs.c."""

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
    """As `Keys` in keys.c."""

    _fields_ = (
        ("data", ctypes.c_char_p),
        ("total", ctypes.c_int64),
        ("begin", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("newest", ctypes.c_void_p),
    )


class _Sorted(ctypes.Structure):
    """As `Sorted` in newest_entries.c."""

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
    """The runs can't be merged.  `reason` is one of the numbers in merge_runs.c."""

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
    """The whole records from the beginning on, and where the last one ends."""
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
    """The kind of a key's last record, 0 if it has none, and its value.  Needs no numpy."""
    native = library()
    if native is None:
        return None
    value = (ctypes.c_int64 * 2)()
    kind = native.c.find_last(data, len(data), start, typed, key, len(key), ctypes.addressof(value))
    return None if kind < 0 else (kind, data[value[0] : value[0] + value[1]])


def unpack_stream(data: bytes) -> bytes | None:
    """The content of a stream of LZ4 blocks, after their checksums were compared."""
    native = library()
    if native is None:
        return None
    total = native.c.measure_stream(data, len(data))
    if not 0 <= total <= _MOST_TIMES * len(data):
        return None
    out: bytes = native.new_bytes(None, total)
    return None if native.c.unpack_stream(data, len(data), out) else out


def unpack_streams(streams: Sequence[Data], memory: Memory) -> tuple[memoryview, list[int]] | None:
    """The contents of several streams, one after the other, and where each ends."""
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
    """The last record of each key, without deleted keys: begins and sizes of bare keys and of bare values.

    files:   of each file, oldest first: where its records start, where it ends, whether each begins with its type
    family:  the first bytes of the store's keys; other keys are ignored
    before:  the number of bytes before each bare key and each bare value
    """
    native = library()
    if native is None or not files or not all(0 <= first <= end <= len(data) for first, end, _ in files):
        return None
    import numpy as np

    bounds, stood, begin = np.array(files, np.int64), np.array(before, np.int64), _start(data)
    fixed = (begin, len(data), len(files), _at(bounds), family, len(family), _at(stood), _SEED)
    # Guess the number of rows from the size of the first ones.
    (first, end, typed), sampled = files[0], ctypes.c_int64(0)
    count = native.c.find_whole_records(begin + first, min(end - first, _SAMPLE_BYTES), typed, ctypes.addressof(sampled))
    capacity = len(data) // max(sampled.value // max(count, 1), _LEAST_RECORD) * 9 // 8 + 1
    while True:
        key_begin, key_size, begin, size = places = memory.numbers(4, capacity)
        # A power of two of slots, of which at least a third stays empty.
        table = memory.take(4 << (capacity + capacity // 2).bit_length())
        count = native.c.newest_records(*fixed, _start(table), len(table) // 4, capacity, *map(_at, places))
        if count != _MORE_ROOM:
            return None if count < 0 else (key_begin[:count], key_size[:count], begin[:count], size[:count])
        capacity *= 2


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
    """The entries of blocks: user keys, uint64 tags, begins and sizes of the values in `data`.

    expected:  a guess of the number of entries, and of the bytes of all keys
    """
    native = library()
    if native is None:
        return None
    # A wrong guess takes no more memory than the entries may.
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
    """Keys and values of all parts as one run, each key once, without deleted keys.  Raises NotMerged."""
    return _merge(parts, delimiter, None)


def merge_with_deleted(parts: Sequence[MergedPart]) -> tuple[Pieces, Pieces, Array]:
    """The same of puts and deletes, but with the deleted keys, and a mask of them.  Raises NotMerged."""
    import numpy as np

    gone: Array = np.empty(sum(end - first for *_, first, end in parts), np.uint8)
    keys, values = _merge(parts, b"", gone)
    return keys, values, gone[: len(keys[1])].view(bool)


def _merge(parts: Sequence[MergedPart], delimiter: bytes, gone: Array | None) -> tuple[Pieces, Pieces]:
    native = library()
    assert native is not None
    import numpy as np

    # The structures point into these arrays, so keep references to them.
    arrays = [[_contiguous(array) for array in (*keys[1:], tags, *values[1:])] for keys, tags, values, _, _ in parts]
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
    """The newest entry of each key, without deleted keys: for each run, its bare keys and bare values.

    runs:            user keys in order, with tags and values; the answer overwrites these arrays, also if it is None
    family, before:  as for `newest_records`
    """
    native = library()
    if native is None:
        return None
    import numpy as np

    stood = np.array(before, np.int64)
    arrays = [[_contiguous(array) for array in (*keys[1:], tags, *values[1:])] for keys, tags, values in runs]
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
    """The place of the first key that isn't below `key`, among sorted keys from `first` on."""
    native = library()
    assert native is not None
    data, begin, size = keys
    found: int = native.c.lower_bound(data, _at(begin), _at(size), first, len(begin), key, len(key))
    return found


def find_elements(data: Data, begin: Array, size: Array, delimiter: bytes) -> tuple[Array, Array, Array] | None:
    """The elements of lists: how many each list has, begins and sizes of their rows."""
    native = library()
    if native is None:
        return None
    begin, size = _contiguous(begin), _contiguous(size)
    find, lists, counts = native.c.find_elements, (_at(begin), _at(size)), _places(len(begin))
    rows = (_pointer(data), len(data), len(begin))
    count = find(*rows, *lists, delimiter, len(delimiter), _at(counts), None, None)
    if count < 0:
        return None
    places, sizes = _places(count), _places(count)
    find(*rows, *lists, delimiter, len(delimiter), _at(counts), _at(places), _at(sizes))
    return counts, places, sizes


def mark_newest(parts: Sequence[Pieces], *, unique: bool) -> list[Array] | None:
    """For each part, a mask of the keys that don't come again: neither later in the part nor in a later part.

    unique:  whether all keys of the first part differ
    """
    native = library()
    if native is None:
        return None
    import numpy as np

    masks: list[Array] = [np.empty(len(begin), np.uint8) for _, begin, _ in parts]
    arrays = [(_contiguous(begin), _contiguous(size)) for _, begin, size in parts]
    keys = (_Keys * len(parts))()
    for i, ((data, _, _), (begin, size), mask) in enumerate(zip(parts, arrays, masks, strict=True)):
        keys[i] = _Keys(data, len(data), _at(begin), _at(size), len(begin), _at(mask))
    if native.c.mark_newest(len(parts), ctypes.addressof(keys), unique, _SEED) < 0:
        return None
    return [mask.view(bool) for mask in masks]


def read_words(
    data: Data, begin: Array, size: Array, least: int, flags: Sequence[int], places: Sequence[int], memory: Memory | None = None
) -> dict[int, Array | None] | None:
    """The words of eight bytes at these places of each row, as uint64 arrays.

    least:   how many words a row must have
    flags:   places of words that are usually 0 in all rows; their result is None in that case
    memory:  where the arrays are written; it must stay
    """
    native = library()
    if native is None:
        return None
    import numpy as np

    begin, size, count = _contiguous(begin), _contiguous(size), len(begin)
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
    """A replica's ordered keys from key rows.

    columns:  int64 rows of five numbers, as `Column` in order.c
    least:    the least bytes of a row
    """
    native = library()
    if native is None:
        return None
    begin, size, ends = _contiguous(begin), _contiguous(size), _places(len(begin))
    # Escapes may double a text, and each column has marks.  Only rows whose columns overlap need more.
    room = 2 * int(size.sum()) + 16 * (len(columns) + 1) * len(begin)
    out = native.new_bytes(None, room)
    rows = (_pointer(data), len(data), len(begin), _at(begin), _at(size))
    if native.c.order_keys(*rows, _at(columns), len(columns), least, out, room, _at(ends)):
        return None
    return out, *_between(ends)


def sort_newest(data: Data, begin: Array, size: Array) -> Array | None:
    """The places of keys in the order of their bytes; of equal keys, only the last."""
    native = library()
    if native is None:
        return None
    begin, size, order = _contiguous(begin), _contiguous(size), _places(len(begin))
    count = native.c.sort_newest(_pointer(data), len(data), len(begin), _at(begin), _at(size), _at(order))
    return None if count < 0 else order[:count]


def find_parts(
    begin: Array, size: Array, slots: Array, valid: Array | None, memory: Memory | None = None
) -> tuple[Array, Array] | None:
    """Where the values that slots of rows point to begin, and their sizes.

    valid:   a mask; False for rows without a value
    memory:  where the answer is written; it is used again when no view of it is left
    """
    native = library()
    if native is None:
        return None
    begin, size, slots, count = _contiguous(begin), _contiguous(size), _contiguous(slots), len(begin)
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
    begin, size, total = _contiguous(begin), _contiguous(size), int(size.sum())
    out: bytes = native.new_bytes(None, total)
    return None if native.c.gather(_pointer(data), len(data), len(begin), _at(begin), _at(size), out, total, None) else out


def gather_texts(data: Data, begin: Array, size: Array, memory: Memory | None = None) -> tuple[Array, Array] | None:
    """The same as an array, and int32 offsets of where each piece begins and the last one ends.

    memory:  where both are written; it must stay
    """
    native = library()
    if native is None:
        return None
    begin, size, total = _contiguous(begin), _contiguous(size), int(size.sum())
    out, offsets = (_bytes(n) if memory is None else memory.keep(n) for n in (total, 4 * len(begin) + 4))
    pieces = (_pointer(data), len(data), len(begin), _at(begin), _at(size))
    return None if native.c.gather(*pieces, _at(out), total, _at(offsets)) else (out, offsets.view("i4"))


def to_list(data: Data, begin: Array, size: Array, tail: bytes = b"") -> list[bytes] | None:
    """Each piece as bytes, followed by the tail."""
    native = library()
    if native is None:
        return None
    begin, size = _contiguous(begin), _contiguous(size)
    found: list[bytes] = native.to_list(_pointer(data), len(data), len(begin), _at(begin), _at(size), tail, len(tail))
    return found


def _between(ends: Array) -> tuple[Array, Array]:
    """Begins and sizes of pieces that follow each other."""
    import numpy as np

    begin = np.empty_like(ends)
    begin[:1], begin[1:] = 0, ends[:-1]
    return begin, ends - begin


def _room(native: Library, size: int, memory: Memory | None) -> Data:
    """Room for so many bytes: from `memory` if there is one, else new bytes."""
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


def _contiguous(array: Array) -> Array:
    """The same numbers, contiguous in memory."""
    import numpy as np

    return np.ascontiguousarray(array)


def _pointer(data: Data) -> bytes | int:
    """A pointer to the data, in a form that ctypes takes."""
    return data if isinstance(data, bytes) else _start(data)


def _start(data: Data) -> int:
    """The address of a buffer; the caller must keep a reference to the buffer."""
    import numpy as np

    return _at(np.frombuffer(data, np.uint8))


def _at(array: Array) -> int:
    assert array.flags.c_contiguous
    address: int = array.ctypes.data
    return address
