"""What the rows of a store are like: their bytes, texts that are numbers or times, and the heaviest key.

1. Partitions are read whole, one after the other in an order drawn from a fixed seed, until the time is
   up.  Which key has how many rows is a matter of a hash, so some partitions tell of all.
2. The bytes of every row that is read count; of texts some are tried, the same at each call.
3. Rows of one key are those that Spark hashes alike: of a join, a list or a map there are many.  The
   heaviest of all keys is known only if every partition was read.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.partition import hashed_fields
from millpond.checkpoint.rows.columns import Spans, read_columns
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.native.memory import Memory
from millpond.operate.doctor.texts import TextColumn
from millpond.schema.convert import to_python
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field
from millpond.schema.values import encode_json, to_json
from millpond.tables.cold.table_batch import iter_partition

# Of so many rows of each partition the texts are tried.
_TRIED_ROWS = 2000
# The texts of a row of these many bytes would take long.
_WORD = 8
_VARIABLE = frozenset({"string", "binary", "struct", "array", "map", "variant", "calendar_interval", "decimal"})
_SHOWN_KEY = 200


@dataclass(slots=True)
class Heaviest:
    """The key with the most bytes among those that were read.

    key:   the bytes that its rows have, and rows of other keys don't
    row:   one of its key rows
    """

    partition: int
    key: bytes
    row: bytes
    rows: int
    bytes: int


@dataclass(slots=True)
class StoreRows:
    """The rows of one store that were read.

    partitions, read:  how many it has, and how many of them were read, in `order`
    rows, key_bytes, value_bytes: of these
    texts:      by ("key" or "value", column)
    ended:      how many ended up to the watermark that was given; None without a column to tell
    seconds:    how long reading took
    """

    store: StoreSchema
    partitions: int
    order: list[int] = field(default_factory=list)
    rows: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    texts: dict[tuple[str, str], TextColumn] = field(default_factory=dict)
    heaviest: Heaviest | None = None
    ended: int | None = None
    seconds: float = 0.0

    @property
    def read(self) -> int:
        """How many partitions were read."""
        return len(self.order)

    @property
    def is_whole(self) -> bool:
        """Whether every partition was read."""
        return self.read == self.partitions

    @property
    def row_bytes(self) -> int:
        """The bytes of keys and values that were read."""
        return self.key_bytes + self.value_bytes

    def scaled(self, number: float) -> int:
        """A number of the partitions that were read, for all of them."""
        return int(number * self.partitions / self.read) if self.read else 0

    @property
    def words(self) -> str:
        """Which part was read."""
        return "all rows" if self.is_whole else f"{self.rows} rows of {self.read} of {self.partitions} partitions"


def read_rows(reader: StateReader, batch: CommittedBatch, store: StoreSchema, until: float) -> StoreRows:
    """The rows of a store, as far as the time allows; at least one partition is read.

    batch:   rows that end up to the watermark with which it was planned are counted
    until:   by `time.monotonic`
    Raises:  what damaged files raise; FILE_GONE.
    """
    partitions = list(partitions_of(batch, store))
    found, memory, began = StoreRows(store, len(partitions)), Memory(), time.monotonic()
    random.Random(0).shuffle(partitions)  # noqa: S311 - an order, the same at each call
    for partition in partitions:  # 1
        if found.read and time.monotonic() >= until:
            break
        groups = _Groups(store)
        for chunk in iter_partition(reader, batch, store, partition, memory):
            _count(found, chunk)
            _count_ended(found, chunk.keys, batch.planned_watermark_ms)
            groups.add(chunk)
        _keep_heaviest(found, partition, groups)
        found.order.append(partition)
    found.seconds = time.monotonic() - began
    return found


def bytes_of_key(store: StoreSchema, chunks: Iterable[RowChunk], key: bytes) -> int:
    """The bytes of one key's rows among those of a partition; 0 if it has none."""
    groups = _Groups(store)
    for chunk in chunks:
        groups.add(chunk)
    return groups.bytes_of(key)


def shown_key(store: StoreSchema, row: bytes) -> str:
    """The columns that Spark hashes of a key row, as JSON."""
    fields = store.key[: hashed_fields(store)]
    values = zip(fields, decoder(store.key)(row), strict=False)
    shown = {f.name: to_json(f.type)(to_python(f.type)(value)) for f, value in values}
    text = encode_json(shown).decode()
    return text if len(text) <= _SHOWN_KEY else text[:_SHOWN_KEY] + " …"


def _count(found: StoreRows, chunk: RowChunk) -> None:  # 2
    found.rows += len(chunk)
    found.key_bytes += int(_key_sizes(chunk).sum())
    found.value_bytes += int(chunk.values.size.sum())
    some = _some(len(chunk))
    for side, fields, rows in (("key", found.store.key, chunk.keys), ("value", found.store.value, chunk.values)):
        _try_texts(found.texts, side, fields, rows.select(some) if len(some) < len(chunk) else rows)


def _key_sizes(chunk: RowChunk) -> Any:
    """The bytes of each row's key; the key of a list is there once."""
    return chunk.keys.size if chunk.places is None else chunk.keys.size * (chunk.places == 0)


def _count_ended(found: StoreRows, keys: Spans, watermark_ms: int) -> None:
    """Count the rows that Spark removes at a watermark, by the condition of Spark's WatermarkSupport, Spark 4.3."""
    places = found.store.watermarked
    if len(places) != 1 or not watermark_ms or not len(keys.begin):
        return
    column = read_columns(found.store.key, keys, places)[places[0]]
    times = column.members[1] if len(column.members) == 2 else column
    if times.numbers is None or times.type.kind not in ("timestamp", "timestamp_ntz"):
        return
    ended = times.numbers <= watermark_ms * 1000
    found.ended = (found.ended or 0) + int((ended if times.valid is None else ended & times.valid).sum())


def _some(count: int) -> Any:
    """Places of some of so many rows, the same at each call."""
    import numpy as np

    if count <= _TRIED_ROWS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, _TRIED_ROWS, replace=False))


def _try_texts(texts: dict[tuple[str, str], TextColumn], side: str, fields: tuple[Field, ...], rows: Spans) -> None:
    wanted = [place for place, f in enumerate(fields) if f.type.kind == "string"]
    columns = read_columns(fields, rows, wanted) if wanted and len(rows.begin) else {}
    for place, column in columns.items():
        assert column.texts is not None
        values = column.texts if column.valid is None else column.texts.select(column.valid)
        texts.setdefault((side, fields[place].name), TextColumn()).add(column.size, values.tolist())


def _keep_heaviest(found: StoreRows, partition: int, groups: _Groups) -> None:  # 3
    heaviest = groups.heaviest(partition)
    if heaviest is not None and (found.heaviest is None or heaviest.bytes > found.heaviest.bytes):
        found.heaviest = heaviest


class _Groups:
    """The bytes of each key in one partition; of stores where each row is a key, of the heaviest only."""

    def __init__(self, store: StoreSchema) -> None:
        self._hashed, self._columns = hashed_fields(store), len(store.key)
        self._single = self._hashed == self._columns and not store.many
        self._variable = [i for i, f in enumerate(store.key[: self._hashed]) if f.type.kind in _VARIABLE]
        self._chunks: list[RowChunk] = []
        self._row: tuple[bytes, int] | None = None
        self._bytes: Counter[bytes] = Counter()
        self._rows: Counter[bytes] = Counter()
        self._a_row: dict[bytes, bytes] = {}

    def add(self, chunk: RowChunk) -> None:
        if not len(chunk):
            return
        if self._single:
            sizes = chunk.keys.size + chunk.values.size
            place = int(sizes.argmax())
            if self._row is None or sizes[place] > self._row[1]:
                self._row = chunk.keys.slice(place, place + 1).tolist()[0], int(sizes[place])
            self._chunks.append(chunk)
            return
        weights = (_key_sizes(chunk) + chunk.values.size).tolist()
        for row, weight in zip(chunk.keys.tolist(), weights, strict=True):
            key = self._key(row)
            self._bytes[key] += weight
            self._rows[key] += 1
            self._a_row[key] = row

    def _key(self, row: bytes) -> bytes:
        """The part of a key row that Spark hashes: the bits of NULLs, its slots, and what these point to."""
        if self._hashed == self._columns:
            return row
        words = (self._columns + 63) // 64 * _WORD
        end = words + self._columns * _WORD
        reach = end
        for place in self._variable:
            slot = int.from_bytes(row[words + place * _WORD : words + (place + 1) * _WORD], "little")
            reach = max(reach, (slot >> 32) + (slot & 0xFFFFFFFF))
        return row[: words + self._hashed * _WORD] + row[end:reach]

    def heaviest(self, partition: int) -> Heaviest | None:
        if self._single:
            if self._row is None:
                return None
            row, size = self._row
            return Heaviest(partition, row, row, 1, size)
        if not self._bytes:
            return None
        key, size = max(self._bytes.items(), key=lambda pair: (pair[1], pair[0]))
        return Heaviest(partition, key, self._a_row[key], self._rows[key], size)

    def bytes_of(self, key: bytes) -> int:
        if not self._single:
            return self._bytes[key]
        for chunk in self._chunks:
            for place in ((chunk.keys.size == len(key)).nonzero()[0]).tolist():
                if chunk.keys.slice(place, place + 1).tolist()[0] == key:
                    return int(chunk.keys.size[place] + chunk.values.size[place])
        return 0
