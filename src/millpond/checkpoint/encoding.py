"""From a provider's bytes to bare UnsafeRow bytes, which are the same for all providers.

    HDFS-backed     the rows themselves; with row checksums: CRC-32C in front of the value (of key and value) or of a deleted key
    RocksDB key     [int16 column family] key; with row checksums: CRC-32C in front of a deleted key, and of its column family.
                    The key is one of

        plain        00 row
        prefix       int32 size, (00 row of the first columns), (00 row of the rest)
        range        int32 size, (00 row of the ordered columns, each binary and sortable), (00 row of the rest, if there is any)
        time_first   int64 big-endian, sign flipped; 00 row of the other columns
        time_last    00 row of the other columns; int64 big-endian, sign flipped

    RocksDB value   00 row, or for lists (int32 size, 00 row)* with the merge operator's delimiter between; with row checksums
                    each element is CRC-32C (of the key and it), int32 size, the element
    Avro            00, int16 schema id, record instead of 00 row; parts that stand in front have no schema id

Lists come out as (int32 size, row)*.  A timer's time comes out in microseconds, as all times do.
Numbers are little-endian unless noted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from millpond.checkpoint.files.checksums import crc32c
from millpond.checkpoint.files.codecs import corrupt
from millpond.checkpoint.log import StateSettings
from millpond.checkpoint.rows.avro import avro_decoder
from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.checkpoint.rows.write_avro import avro_encoder
from millpond.errors import CheckpointError
from millpond.schema.store import KeyEncoder, StoreSchema
from millpond.schema.types import Field, SparkType

Stored = Any
Bare = Callable[[bytes], bytes]
Writers = tuple[tuple[int, tuple[Field, ...]], ...]
"""(value schema id, columns) of each value schema of a family"""
_SIZE = struct.Struct("<i")
_CHECKED = struct.Struct("<Ii")
_BINARY = SparkType("binary", "binary")
_SIGN = 1 << 63
# Whole numbers whose bytes sort: kind -> bytes
_SORTED = {"byte": 1, "short": 2, "integer": 4, "long": 8, "date": 4, "timestamp": 8, "timestamp_ntz": 8}


class RowEncoding:
    """The encoding of one store's rows.

    Raises (every method):  CORRUPT_FILE, UNKNOWN_FORMAT, without the file's name.
    Source:  RocksDBStateEncoder, StateStoreRowChecksum, Spark 4.3; golden checkpoints.
    """

    def __init__(self, store: StoreSchema, settings: StateSettings) -> None:
        self._many = store.many
        self._prefix = 2 if store.family else 0
        self._checked = settings.row_checksum
        self._hdfs = settings.provider == "hdfs"
        self._delimiter = settings.merge_delimiter
        self._key: Bare = _as_it_is if self._hdfs else _key_reader(store, avro=settings.encoding == "avro")
        self._value: Bare = _as_it_is if self._hdfs else _value_reader(store, avro=settings.encoding == "avro")
        self.is_bare = self._hdfs and not self._checked
        # How many bytes precede the row in a key, and in a value or an element of a list, the last
        # of them 00; None if the encoding is more than that.
        self.before: tuple[int, int] | None = None
        if self.is_bare:
            self.before = 0, 0
        elif not self._hdfs and not self._checked and settings.encoding != "avro" and store.encoder == "plain":
            self.before = self._prefix + 1, 1

    def put(self, key: bytes, value: bytes) -> tuple[bytes, bytes]:
        """The rows of a key and its value (a list of rows if the store has lists)."""
        if self._checked and self._hdfs:
            value = without_checksum(value, key)
        elif self._many:
            return self.key(key), self.elements(key, value)
        elif self._checked:
            (value,) = self._checked_parts(key, value)
        return self.key(key), self._value(value)

    def deleted(self, key: bytes) -> bytes:
        """The key of a deletion as puts have it: its checksum stands even in front of the column family."""
        return without_checksum(key) if self._checked else key

    def key(self, key: bytes) -> bytes:
        """The row of a key without a checksum."""
        return self._key(key[self._prefix :])

    def elements(self, key: bytes, value: bytes) -> bytes:
        """The rows of a list, or of what is appended to one."""
        parts = self._checked_parts(key, value) if self._checked else [value]
        return join_elements(self._value(raw) for part in parts for raw in _split(part, b"" if self._checked else self._delimiter))

    def _checked_parts(self, key: bytes, value: bytes) -> list[bytes]:
        return checked_parts(key, value, self._delimiter if self._many else None)


def checked_parts(key: bytes, value: bytes, delimiter: bytes | None) -> list[bytes]:
    """The parts of a value in RocksDB without their checksums: one, or those of a list.

    key:        as it is stored, with its column family
    delimiter:  between the parts; None if there is only one
    Raises:     CORRUPT_FILE if a part doesn't match its checksum.
    """
    parts: list[bytes] = []
    position = 0
    while position < len(value) or not parts:
        if position + _CHECKED.size > len(value):
            raise corrupt("a row's checksum isn't whole", position)
        expected, size = _CHECKED.unpack_from(value, position)
        position += _CHECKED.size
        part = value[position : position + size]
        if size < 0 or len(part) != size:
            raise corrupt(f"a checked row claims {size} bytes", position - 4)
        if crc32c(key + part) != expected:
            raise corrupt("a row doesn't match its checksum", position)
        parts.append(part)
        position += size
        if position < len(value):
            if delimiter is None or value[position : position + len(delimiter)] != delimiter:
                raise corrupt("bytes follow a checked row", position)
            position += len(delimiter)
    return parts


def with_checksums(key: bytes, parts: Iterable[bytes], delimiter: bytes) -> bytes:
    """The reverse of `checked_parts`."""
    return delimiter.join([_CHECKED.pack(crc32c(key + part), len(part)) + part for part in parts])


def list_parts(value: bytes, delimiter: bytes) -> list[bytes]:
    """The parts of a list in RocksDB as they are, each with its size.  Raises CORRUPT_FILE."""
    return [_SIZE.pack(len(row)) + row for row in _split(value, delimiter)]


def join_elements(rows: Iterable[bytes]) -> bytes:
    """The rows of a list in one."""
    return b"".join([_SIZE.pack(len(row)) + row for row in rows])


def iter_elements(rows: bytes) -> Iterator[bytes]:
    """The rows of a list, as `join_elements` joined them."""
    position = 0
    while position < len(rows):
        (size,) = _SIZE.unpack_from(rows, position)
        position += _SIZE.size
        yield rows[position : position + size]
        position += size


def _split(value: bytes, delimiter: bytes) -> Iterator[bytes]:
    position = 0
    while True:
        if position + _SIZE.size > len(value):
            raise corrupt("a list ends inside a size", position)
        (size,) = _SIZE.unpack_from(value, position)
        position += _SIZE.size
        if size < 0 or position + size > len(value):
            raise corrupt(f"an element claims {size} bytes", position - _SIZE.size)
        yield value[position : position + size]
        position += size
        if position == len(value):
            return
        if value[position : position + len(delimiter)] != delimiter:
            raise corrupt("an element isn't followed by the delimiter", position)
        position += len(delimiter)


def without_checksum(row: bytes, before: bytes = b"") -> bytes:
    """A row without the checksum in front of it, which is of these other bytes and of the row.

    Raises:  CORRUPT_FILE if it doesn't match.
    """
    tail = row[4:]
    if len(row) < 4 or crc32c(before + tail) != int.from_bytes(row[:4], "little"):
        raise corrupt("a row doesn't match its checksum", 0)
    return tail


def _as_it_is(data: bytes) -> bytes:
    return data


def unknown_row(first: bytes) -> CheckpointError:
    """A row that doesn't begin with the only known version of its encoding."""
    return CheckpointError(
        "UNKNOWN_FORMAT",
        f"A row begins with byte {first.hex() or 'none'}, not with encoding version 0.",
        hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
    )


def bare_row(data: bytes) -> bytes:
    """The row inside RocksDB's bytes: one byte of encoding version, always 0, then the row.

    Raises:  UNKNOWN_FORMAT.
    """
    if data[:1] != b"\x00":
        raise unknown_row(data[:1])
    return data[1:]


# ---------------------------------------------------------------- keys


def _key_reader(store: StoreSchema, *, avro: bool) -> Bare:
    if store.encoder == "plain" and not avro:
        return bare_row
    write = encoder(store.key)
    if store.variable == "timer":
        write = _in_micros(write)
    read = key_columns(store.key, store.encoder, store.ordinals, avro=avro)
    return lambda data: write(read(data))


def key_columns(
    fields: tuple[Field, ...], encoded: KeyEncoder, ordinals: tuple[int, ...], *, avro: bool
) -> Callable[[bytes], tuple[Stored, ...]]:
    """A function from a key in RocksDB, behind its column family, to its columns.

    encoded, ordinals:  as `StoreSchema.encoder` and `ordinals`
    """
    if encoded == "plain":
        return _part_reader(fields, avro=avro, named=True)
    if encoded in ("time_first", "time_last"):
        return _time_reader(fields, is_first=encoded == "time_first", avro=avro)
    front = tuple(fields[i] for i in ordinals)
    rest_places = tuple(i for i in range(len(fields)) if i not in ordinals)
    read_rest = _part_reader(tuple(fields[i] for i in rest_places), avro=avro, named=True)
    is_prefix = encoded == "prefix"
    read_front = _part_reader(front, avro=avro, named=False) if is_prefix else _range_reader(front, avro=avro)
    places = (*ordinals, *rest_places)

    def read_both(data: bytes) -> tuple[Stored, ...]:
        size = int.from_bytes(data[:4], "little", signed=True)
        if len(data) < 4 or not 0 <= size <= len(data) - 4:
            raise corrupt(f"the front of a key claims {size} bytes", 0)
        rest = data[4 + size :]
        # Only a range may be alone; Spark writes the rest of a prefix even if no column is left.
        values = read_front(data[4 : 4 + size]) + (read_rest(rest) if rest_places or rest else ())
        row: list[Stored] = [None] * len(fields)
        for place, value in zip(places, values, strict=True):
            row[place] = value
        return tuple(row)

    return read_both


def key_writer(
    fields: tuple[Field, ...], encoded: KeyEncoder, ordinals: tuple[int, ...], *, avro: int | None = None
) -> Callable[[tuple[Stored, ...]], bytes]:
    """The reverse of `key_columns`.

    avro:  the id of the key's schema, if keys are in Avro
    """
    if encoded == "plain":
        return _part_writer(fields, avro)
    if encoded in ("time_first", "time_last"):
        return _time_writer(fields, avro, is_first=encoded == "time_first")
    rest_places = tuple(i for i in range(len(fields)) if i not in ordinals)
    front, is_prefix = tuple(fields[i] for i in ordinals), encoded == "prefix"
    write_front = _part_writer(front, avro, named=False) if is_prefix else _range_writer(front, avro)
    write_rest = _part_writer(tuple(fields[i] for i in rest_places), avro)

    def write_both(columns: tuple[Stored, ...]) -> bytes:
        first = write_front(tuple(columns[i] for i in ordinals))
        rest = write_rest(tuple(columns[i] for i in rest_places)) if rest_places or is_prefix else b""
        return _SIZE.pack(len(first)) + first + rest

    return write_both


def rocksdb_key(fields: tuple[Field, ...], prefix: int) -> Bare:
    """A function from a key's row to the key in RocksDB, for stores without column families.

    prefix:  how many leading columns Spark looks keys up by; 0 for plain keys
    """
    if not prefix:
        return rocksdb_value
    read, write = decoder(fields), key_writer(fields, "prefix", tuple(range(prefix)))
    return lambda row: write(read(row))


def rocksdb_value(row: bytes) -> bytes:
    """A row in RocksDB: the reverse of `bare_row`."""
    return b"\x00" + row


def _in_micros(write: Callable[[tuple[Stored, ...]], bytes]) -> Callable[[tuple[Stored, ...]], bytes]:
    """Spark stores timers in milliseconds; the key's last column is their time."""

    def write_scaled(row: tuple[Stored, ...]) -> bytes:
        if row[-1] is None:
            raise corrupt("a timer has no time", 0)
        micros = row[-1] * 1000
        if not -_SIGN <= micros < _SIGN:
            raise corrupt(f"a timer is set to {row[-1]} milliseconds", 0)
        return write((*row[:-1], micros))

    return write_scaled


def _part_reader(fields: tuple[Field, ...], *, avro: bool, named: bool) -> Callable[[bytes], tuple[Stored, ...]]:
    """A reader for a part of a key; `named` says whether an Avro record's schema id precedes it."""
    if not avro:
        decode = decoder(fields)
        return lambda data: decode(bare_row(data))
    decode_record, begin = avro_decoder(fields, fields), 3 if named else 1
    return lambda data: decode_record(_versioned(data), begin)


def _part_writer(fields: tuple[Field, ...], avro: int | None, *, named: bool = True) -> Callable[[tuple[Stored, ...]], bytes]:
    """The reverse of `_part_reader`."""
    if avro is not None:
        return avro_writer(fields, avro if named else None)
    write = encoder(fields)
    return lambda columns: rocksdb_value(write(columns))


def avro_writer(fields: tuple[Field, ...], schema_id: int | None) -> Callable[[tuple[Stored, ...]], bytes]:
    """A function from columns to a row in Avro as RocksDB has it.

    schema_id:  which precedes the record; None: none does
    """
    write, front = avro_encoder(fields), b"\x00" if schema_id is None else b"\x00" + schema_id.to_bytes(2, "little", signed=True)
    return lambda columns: front + write(columns)


def _versioned(data: bytes) -> bytes:
    bare_row(data[:1])
    return data


def _range_reader(fields: tuple[Field, ...], *, avro: bool) -> Callable[[bytes], tuple[Stored, ...]]:
    reads = [_sorted_reader(f.type) for f in fields]
    if avro:
        read_halves = _part_reader(_halves(fields), avro=True, named=False)

        def read_avro(data: bytes) -> tuple[Stored, ...]:
            found = read_halves(data)
            return tuple(read((found[2 * i] or b"") + (found[2 * i + 1] or b"")) for i, read in enumerate(reads))

        return read_avro
    read_row = _part_reader(tuple(Field(f.name, _BINARY) for f in fields), avro=False, named=False)
    return lambda data: tuple(read(column or b"") for read, column in zip(reads, read_row(data), strict=True))


def _sorted_size(type_: SparkType) -> int:
    """How many bytes a sorted column has, after the one that says whether it is NULL or negative."""
    size = _SORTED.get(type_.kind)
    if size is None:
        raise CheckpointError(
            "UNSUPPORTED",
            f"A key is sorted by a column of type {type_}, which Spark isn't known to do.",
            hint="Report this with the job's Spark version.",
        )
    return size


def _sorted_reader(type_: SparkType) -> Callable[[bytes], Stored]:
    size = _sorted_size(type_)

    def read(data: bytes) -> Stored:
        if data[:1] == b"\x02":
            return None
        if len(data) != 1 + size or data[0] > 2:
            raise corrupt("a sorted column isn't whole", 0)
        return int.from_bytes(data[1:], "big", signed=True)

    return read


def _range_writer(fields: tuple[Field, ...], avro: int | None) -> Callable[[tuple[Stored, ...]], bytes]:
    sizes = [_sorted_size(f.type) for f in fields]

    def sortable(value: Stored, size: int) -> bytes:
        if value is None:
            return b"\x02" + bytes(size)
        return (b"\x00" if value < 0 else b"\x01") + int(value).to_bytes(size, "big", signed=True)

    if avro is not None:
        write_halves = avro_writer(_halves(fields), None)
        return lambda columns: write_halves(
            tuple([half for column in map(sortable, columns, sizes) for half in (column[:1], column[1:])])
        )
    write = _part_writer(tuple(Field(f.name, _BINARY) for f in fields), None)
    return lambda columns: write(tuple(map(sortable, columns, sizes)))


def _halves(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The columns of a range in Avro: a marker and a value each."""
    return tuple(Field(f"c{i}", _BINARY) for i in range(2 * len(fields)))


def _time_reader(fields: tuple[Field, ...], *, is_first: bool, avro: bool) -> Callable[[bytes], tuple[Stored, ...]]:
    """A reader for keys whose last column is a time, wherever that is in the bytes."""
    read = _part_reader(fields[:-1], avro=avro, named=True)

    def read_key(data: bytes) -> tuple[Stored, ...]:
        if len(data) < 8:
            raise corrupt("a key has no time", 0)
        time, rest = (data[:8], data[8:]) if is_first else (data[-8:], data[:-8])
        return (*read(rest), int.from_bytes(time, "big") - _SIGN)

    return read_key


def _time_writer(fields: tuple[Field, ...], avro: int | None, *, is_first: bool) -> Callable[[tuple[Stored, ...]], bytes]:
    write = _part_writer(fields[:-1], avro)

    def write_key(columns: tuple[Stored, ...]) -> bytes:
        time: bytes = (columns[-1] + _SIGN).to_bytes(8, "big")
        rest = write(columns[:-1])
        return time + rest if is_first else rest + time

    return write_key


# ---------------------------------------------------------------- values


def _value_reader(store: StoreSchema, *, avro: bool) -> Bare:
    if not avro:
        return bare_row
    write, read = encoder(store.value), avro_reader(store.writers, store.value)
    return lambda data: write(read(data))


def avro_reader(writers: Writers, fields: tuple[Field, ...]) -> Callable[[bytes], tuple[Stored, ...]]:
    """A function from a row in Avro as RocksDB has it to its columns.

    writers:  the value schemas by which rows may have been written
    """
    reads = {id_: avro_decoder(written, fields) for id_, written in writers}

    def read(data: bytes) -> tuple[Stored, ...]:
        id_ = int.from_bytes(_versioned(data)[1:3], "little", signed=True)
        if id_ not in reads:
            raise corrupt(f"a row names value schema {id_}, which no schema file has", 1)
        return reads[id_](data, 3)

    return read
