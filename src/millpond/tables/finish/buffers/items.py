"""Items sketches, the buffers of `approx_top_k`: the most frequent items, with how often they came at least.

    sketch    LE: u8 longs of preamble (1 if empty, else 4), u8 version, u8 family 10, u8 logarithm of the greatest size,
              u8 that of the size now, u8 flags, u16; if it isn't empty: u32 items, u32; i64 values seen, i64 offset;
              a count of i64 for each item, then the items, as their type has them
    nulls     BE: i64, how many

`offset` is how often an item may have come beyond its count, at most.

The surprising part: items of equal count come in the order of Java's hash table, which is what is
rebuilt here, slot by slot.  So a row shows the same items in the same order as Spark, and a union is
the one that Spark makes.  (The library of other sketches has another hash and another table.)

Source:  ItemsSketch and ReversePurgeItemHashMap of Java's DataSketches 6.2, ApproxTopK,
         ApproxTopKAggregateBuffer and ArrayOfDecimalsSerDe of Spark 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from millpond.native.items import KINDS, merge_items, top_items
from millpond.scalar.sketch.damage import sketches_differ
from millpond.schema.definition.expression import Expression
from millpond.schema.types import SparkType, parse_type
from millpond.tables.finish.buffers.buffer_bytes import BufferReader
from millpond.tables.finish.buffers.java_order import Hash, java_hash

Stored = Any
_LONG = (1 << 64) - 1
_GOLDEN = 2.0 / (1.0 + 5.0**0.5)
# A million items, the most that Spark tracks, take a table of 2**21.
_LOAD, _LEAST_LG, _MOST_LG, _SAMPLE = 0.75, 3, 21, 1024
_FAMILY, _EMPTY = 10, 5
_MOST_SEEN = 1 << 50
"""More than any group has, and so few that unions fit 64 bits."""
_HEADER = struct.Struct("<BBBBBB2x")
_COUNTS = struct.Struct("<I4xqq")
_NULLS = struct.Struct(">q")
# The first byte of an item among numbers says how it is written.
_NUMBERS = {2: struct.Struct("<b"), 3: struct.Struct("<h"), 9: struct.Struct("<i"), 6: struct.Struct("<f")}
_TAGS = {"byte": 2, "short": 3, "integer": 9, "date": 9, "float": 6}
_LONGS = frozenset({"long", "timestamp", "timestamp_ntz", "time"})
_I64, _F64, _I32 = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<i")
_INT_DIGITS, _LONG_DIGITS = 9, 18


class Counted(NamedTuple):
    """An item, and how often it came: at least `least` times, and at most `most` times."""

    item: Stored
    least: int
    most: int


class TopItems:
    """The function of one `approx_top_k`: its options `of` and `k` are the items' type, and how many are shown."""

    def __init__(self, expression: Expression) -> None:
        of = parse_type(expression.options["of"])
        self._k = expression.options["k"]
        self._codec = _Codec(of)
        # None: the compiled library doesn't know such items.
        self._native = KINDS.get(of.kind)
        self._hash = _java_string_hash if of.kind == "string" else java_hash(of)

    def values(self, data: bytes | None) -> list[tuple[Stored, int]] | None:
        """Items and their counts, as Spark emits them."""
        return None if data is None else [(found.item, found.most) for found in self.counted(data)]

    def counted(self, data: bytes) -> list[Counted]:
        """Those that Spark emits, with their bounds.  A count that Spark shows is the upper one."""
        pairs, offset, nulls = self._frequent(data)
        found: list[Counted] = []
        for key, count in pairs:
            if nulls > 0 and nulls > count + offset:
                found.append(Counted(None, nulls, nulls))
                nulls = 0
            found.append(Counted(key, count, count + offset))
        if nulls:
            found.append(Counted(None, nulls, nulls))
        return found[: self._k]

    def _frequent(self, data: bytes) -> tuple[list[tuple[Stored, int]], int, int]:
        """At least k items with their counts, or all; how much more often each may have come; and how many NULLs there are."""
        top = None if self._native is None else top_items(data, self._native, self._k)
        if top is not None:
            items = self._codec.read(BufferReader("approx_top_k", b"".join(top.items)), len(top.items))
            return list(zip(items, top.counts, strict=True)), top.offset, top.nulls
        sketch, nulls = self._read(data)
        # Spark merges the stored sketch into an empty one.
        merged = _Sketch(sketch.lg_most, _LEAST_LG, self._hash)
        merged.merge(sketch)
        frequent = [(key, count) for key, count in merged.table.iterate() if count >= merged.offset]
        frequent.sort(key=lambda pair: -pair[1])
        return frequent, merged.offset, nulls

    def merge(self, parts: Sequence[Sequence[Stored]]) -> list[Stored]:
        """The buffers of all parts as one.  Raises SKETCHES_DIFFER, CORRUPT_FILE."""
        found = None if self._native is None else merge_items([data for (data,) in parts], self._native)
        if found is not None:
            return [parts[0][0] if len(parts) == 1 else found]
        each = [self._read(data) for (data,) in parts]
        if len(each) == 1:
            return [parts[0][0]]
        sizes = {sketch.lg_most for sketch, _ in each}
        if len(sizes) > 1:
            raise sketches_differ("items", sizes)
        merged = _Sketch(sizes.pop(), _LEAST_LG, self._hash)
        for sketch, _ in each:
            merged.merge(sketch)
        return [self._write(merged, sum(nulls for _, nulls in each))]

    def _read(self, data: bytes) -> tuple[_Sketch, int]:
        reader = BufferReader("approx_top_k", data)
        longs, version, family, lg_most, lg_now, flags = reader.numbers(_HEADER)
        if version != 1 or family != _FAMILY or not _LEAST_LG <= lg_now <= lg_most <= _MOST_LG or longs & 63 not in (1, 4):
            raise reader.damage("has no such header")
        sketch = _Sketch(lg_most, _LEAST_LG, self._hash)
        if not flags & _EMPTY:
            count, seen, offset = reader.numbers(_COUNTS)
            if count > _LOAD * (1 << lg_now):
                raise reader.damage(f"claims {count} items")
            counts = [reader.numbers(_I64)[0] for _ in range(count)]
            items = self._codec.read(reader, count)
            if not all(0 < times <= seen for times in counts) or not 0 <= offset <= seen <= _MOST_SEEN:
                raise reader.damage("has impossible counts")
            sketch = _Sketch(lg_most, lg_now, self._hash)
            for item, times in zip(items, counts, strict=True):
                sketch.update(item, times)
            sketch.seen, sketch.offset = seen, offset
        (nulls,) = reader.numbers(_NULLS)
        if not 0 <= nulls <= _MOST_SEEN:
            raise reader.damage("has impossible counts")
        return sketch, nulls

    def _write(self, sketch: _Sketch, nulls: int) -> bytes:
        pairs = list(sketch.table.in_slots())
        lg_now = sketch.table.lg_size
        if not pairs:  # as Java has it, also if it has dropped all items
            return _HEADER.pack(1, 1, _FAMILY, sketch.lg_most, lg_now, _EMPTY) + _NULLS.pack(nulls)
        header = _HEADER.pack(4, 1, _FAMILY, sketch.lg_most, lg_now, 0) + _COUNTS.pack(len(pairs), sketch.seen, sketch.offset)
        counts = b"".join(_I64.pack(count) for _, count in pairs)
        return header + counts + self._codec.write([key for key, _ in pairs]) + _NULLS.pack(nulls)


class _Sketch:
    """A table of items, and how often items may have come that it has dropped."""

    def __init__(self, lg_most: int, lg_now: int, hash_: Hash) -> None:
        self.lg_most, self.seen, self.offset = lg_most, 0, 0
        self.table = _Table(lg_now, hash_)

    def update(self, item: Stored, times: int) -> None:
        table = self.table
        self.seen += times
        table.add(item, times)
        if len(table) > int(_LOAD * table.size):
            if table.lg_size < self.lg_most:
                table.grow()
            else:
                self.offset += table.purge(min(_SAMPLE, int(_LOAD * (1 << self.lg_most))))

    def merge(self, other: _Sketch) -> None:
        if not other.table:
            return
        seen = self.seen + other.seen
        for item, times in other.table.iterate():
            self.update(item, times)
        self.offset += other.offset
        self.seen = seen


class _Table:
    """Java's hash table: an item goes to the first free slot from its own on; `drifts` is how far that is, from 1."""

    def __init__(self, lg_size: int, hash_: Hash) -> None:
        self.lg_size, self.size = lg_size, 1 << lg_size
        self._hash = hash_
        self._keys: list[Stored] = [None] * self.size
        self._counts, self._drifts = [0] * self.size, [0] * self.size
        self._places: dict[Stored, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, key: Stored, times: int) -> None:
        name = _name(key)
        place = self._places.get(name)
        if place is not None:
            self._counts[place] += times
            return
        mask, drift = self.size - 1, 1
        place = _mixed(self._hash(key)) & mask
        while self._drifts[place]:
            place, drift = (place + 1) & mask, drift + 1
        self._keys[place], self._counts[place], self._drifts[place] = key, times, drift
        self._places[name] = place

    def in_slots(self) -> Iterator[tuple[Stored, int]]:
        """Items and counts, slot by slot."""
        return ((self._keys[p], self._counts[p]) for p in range(self.size) if self._drifts[p])

    def iterate(self) -> Iterator[tuple[Stored, int]]:
        """Items and counts in the order of Java's iterator."""
        stride, mask = int(self.size * _GOLDEN) | 1, self.size - 1
        places = (i * stride & mask for i in range(self.size))
        return ((self._keys[p], self._counts[p]) for p in places if self._drifts[p])

    def grow(self) -> None:
        """Double the size."""
        pairs = list(self.in_slots())
        self.__init__(self.lg_size + 1, self._hash)  # type: ignore[misc]
        for key, times in pairs:
            self.add(key, times)

    def purge(self, sample: int) -> int:
        """Take the median of some counts from all, and drop items that have none left; return the median."""
        counts = [count for _, count in self.in_slots()][:sample]
        median = sorted(counts)[len(counts) // 2]
        self._counts = [count - median for count in self._counts]
        free = self.size - 1
        while self._drifts[free]:
            free -= 1
        for place in (*range(free - 1, -1, -1), *range(self.size - 1, free - 1, -1)):
            if self._drifts[place] and self._counts[place] <= 0:
                self._delete(place)
        return median

    def _delete(self, place: int) -> None:
        """Free a slot, and move back the items that came after it for lack of it."""
        mask, drifts = self.size - 1, self._drifts
        del self._places[_name(self._keys[place])]
        drifts[place], self._keys[place], drift = 0, None, 1
        after = (place + drift) & mask
        while drifts[after]:
            if drifts[after] > drift:
                self._keys[place], self._counts[place] = self._keys[after], self._counts[after]
                drifts[place] = drifts[after] - drift
                self._places[_name(self._keys[place])] = place
                drifts[after], self._keys[after], place, drift = 0, None, after, 0
            after, drift = (after + 1) & mask, drift + 1


def _name(key: Stored) -> Stored:
    """What tells items apart, as Java's `equals` does: a double by its bits, all NaN alike."""
    if type(key) is float:
        return "NaN" if key != key else struct.pack("<d", key)
    return key


def _mixed(hash_: int) -> int:
    key = (hash_ - (1 << 32) if hash_ >> 31 else hash_) & _LONG
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        key = (key ^ key >> 33) * factor & _LONG
    return key ^ key >> 33


def _java_string_hash(text: str) -> int:
    out = 0
    data = text.encode("utf-16-le", "surrogatepass")
    for (unit,) in struct.iter_unpack("<H", data):
        out = (31 * out + unit) & 0xFFFFFFFF
    return out


class _Codec:
    """The items of a sketch as bytes, by their type."""

    def __init__(self, of: SparkType) -> None:
        self._read_one, self._write_one = _codec(of)
        self._is_boolean = of.kind == "boolean"

    def read(self, reader: BufferReader, count: int) -> list[Stored]:
        if self._is_boolean:
            packed = reader.bytes(-(-count // 8))
            return [bool(packed[i // 8] >> i % 8 & 1) for i in range(count)]
        return [self._read_one(reader) for _ in range(count)]

    def write(self, items: Sequence[Stored]) -> bytes:
        if self._is_boolean:
            bits: int = sum(item << i for i, item in enumerate(items))
            return bits.to_bytes(-(-len(items) // 8), "little")
        return b"".join(map(self._write_one, items))


_Read = Callable[[BufferReader], Stored]
_Write = Callable[[Stored], bytes]


def _codec(of: SparkType) -> tuple[_Read, _Write]:
    if of.kind in _TAGS:
        return _number, partial(_write_number, _TAGS[of.kind])
    if of.kind in _LONGS:
        return lambda reader: reader.numbers(_I64)[0], _I64.pack
    if of.kind == "double":
        return lambda reader: reader.numbers(_F64)[0], _F64.pack
    if of.kind == "decimal":
        return _decimals(of)
    return _text, _write_text


def _number(reader: BufferReader) -> Stored:
    layout = _NUMBERS.get(reader.bytes(1)[0])
    if layout is None:
        raise reader.damage("has a number of an unknown kind")
    return reader.numbers(layout)[0]


def _write_number(tag: int, value: Stored) -> bytes:
    return bytes([tag]) + _NUMBERS[tag].pack(value)


def _text(reader: BufferReader) -> str:
    return reader.bytes(reader.numbers(_I32)[0]).decode("utf-8", "surrogateescape")


def _write_text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return _I32.pack(len(data)) + data


def _decimals(of: SparkType) -> tuple[_Read, _Write]:
    """Unscaled whole numbers: of few digits an int or a long, else the bytes of a big one."""
    scale = of.scale

    def number(unscaled: int) -> Decimal:
        return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))

    def unscaled(value: Decimal) -> int:
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        magnitude = int("".join(map(str, digits))) * int(10 ** (exponent + scale))
        return -magnitude if sign else magnitude

    if of.precision <= _INT_DIGITS:
        return lambda reader: number(_number(reader)), lambda value: _write_number(_TAGS["integer"], unscaled(value))
    if of.precision <= _LONG_DIGITS:
        return lambda reader: number(reader.numbers(_I64)[0]), lambda value: _I64.pack(unscaled(value))

    def read(reader: BufferReader) -> Decimal:
        return number(int.from_bytes(reader.bytes(reader.numbers(_I32)[0]), "big", signed=True))

    def write(value: Decimal) -> bytes:
        whole = unscaled(value)
        data = whole.to_bytes((whole + (whole < 0)).bit_length() // 8 + 1, "big", signed=True)
        return _I32.pack(len(data)) + data

    return read, write
