"""Every encoding of Spark's gives the row back; also lists, and rows with checksums."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.checkpoint.encoding import (
    RowEncoding,
    checked_parts,
    iter_elements,
    key_columns,
    list_parts,
    rocksdb_key,
    with_checksums,
)
from millpond.checkpoint.log import StateSettings
from millpond.checkpoint.rows.unsaferow import encoder
from millpond.errors import CheckpointError
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, atomic
from suite.sizes import examples

KEY = (Field("t", atomic("long")), Field("k", atomic("string")), Field("n", atomic("integer")))
VALUE = (Field("v", atomic("string")),)
BINARY = atomic("binary")
write_key, write_value = encoder(KEY), encoder(VALUE)
LONGS, INTS = st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1)
KEYS = st.tuples(st.one_of(st.none(), LONGS), st.one_of(st.none(), st.text(max_size=12)), st.one_of(st.none(), INTS))
ROWS = st.tuples(st.one_of(st.none(), st.text(max_size=30)))
PLAIN = StateSettings(provider="rocksdb", codec="lz4", partitions=2, encoding="unsaferow", row_checksum=False, merge_operator=2)
STORE = StoreSchema(
    operator=0,
    operator_name="transformWithStateInPandasExec",
    store="default",
    index=0,
    key=KEY,
    value=VALUE,
    single=False,
    family="f",
)
LAYOUTS = ["plain", "prefix", "range", "time_first", "time_last"]


def crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def part(places: tuple[int, ...], key: tuple[Any, ...]) -> bytes:
    return b"\x00" + encoder(tuple(KEY[i] for i in places))(tuple(key[i] for i in places))


def sortable(value: int | None, size: int) -> bytes:
    if value is None:
        return b"\x02" + bytes(size)
    return (b"\x00" if value < 0 else b"\x01") + value.to_bytes(size, "big", signed=True)


@settings(max_examples=examples(100), deadline=None)
@given(key=KEYS, row=ROWS)
def test_keys_of_every_layout_come_out_as_the_row(key: tuple[Any, ...], row: tuple[Any, ...]) -> None:
    family, value = b"\x07\x00", b"\x00" + write_value(row)
    front = encoder((Field("", BINARY), Field("", BINARY)))((sortable(key[2], 4), sortable(key[0], 8)))
    layouts = {
        ("plain", ()): part((0, 1, 2), key),
        ("prefix", (0,)): _sized(part((0,), key)) + part((1, 2), key),
        ("prefix", (0, 1)): _sized(part((0, 1), key)) + part((2,), key),
        ("range", (2, 0)): _sized(b"\x00" + front) + part((1,), key),
    }
    for (layout, ordinals), data in layouts.items():
        store = dataclasses.replace(STORE, encoder=layout, ordinals=ordinals)  # type: ignore[arg-type]
        rows = RowEncoding(store, PLAIN)
        assert rows.put(family + data, value) == (write_key(key), write_value(row))
        assert rows.key(rows.deleted(family + data)) == write_key(key)
        checked = RowEncoding(store, dataclasses.replace(PLAIN, row_checksum=True))
        assert checked.deleted(struct.pack("<I", crc(family + data)) + family + data) == family + data
        assert key_columns(KEY, layout, ordinals, avro=False)(data) == key  # type: ignore[arg-type]
        if layout != "range":
            assert rocksdb_key(KEY, len(ordinals))(write_key(key)) == data


@given(key=st.tuples(st.text(max_size=9), LONGS))
def test_a_time_may_stand_first_or_last(key: tuple[str, int]) -> None:
    fields = (Field("k", atomic("string")), Field("__event_time", atomic("timestamp")))
    rest, time = b"\x00" + encoder(fields[:1])(key[:1]), (key[1] + (1 << 63)).to_bytes(8, "big")
    for layout, data in (("time_first", time + rest), ("time_last", rest + time)):
        store = dataclasses.replace(STORE, key=fields, encoder=layout, family="")  # type: ignore[arg-type]
        assert RowEncoding(store, PLAIN).key(data) == encoder(fields)(key)


@settings(max_examples=examples(100), deadline=None)
@given(key=KEYS, rows=st.lists(ROWS, min_size=1, max_size=6), merge_operator=st.sampled_from([1, 2]), checked=st.booleans())
def test_lists_come_apart_with_either_delimiter_and_with_checksums(
    key: tuple[Any, ...], rows: list[tuple[Any, ...]], merge_operator: int, checked: bool
) -> None:
    whole_key = b"\x03\x00" + part((0, 1, 2), key)
    elements = [_sized(b"\x00" + write_value(row)) for row in rows]
    if checked:
        elements = [struct.pack("<Ii", crc(whole_key + element), len(element)) + element for element in elements]
    delimiter = b"," if merge_operator == 1 else b""
    stored = delimiter.join(elements)
    if checked:
        assert with_checksums(whole_key, checked_parts(whole_key, stored, delimiter), delimiter) == stored
    else:
        assert list_parts(stored, delimiter) == elements
    encoding = RowEncoding(
        dataclasses.replace(STORE, many=True), dataclasses.replace(PLAIN, merge_operator=merge_operator, row_checksum=checked)
    )
    found_key, found = encoding.put(whole_key, stored)
    assert (found_key, list(iter_elements(found))) == (write_key(key), [write_value(row) for row in rows])
    if checked:
        at = len(stored) - 1
        with pytest.raises(CheckpointError) as refused:
            encoding.put(whole_key, stored[:at] + bytes([stored[at] ^ 1]))
        assert refused.value.condition == "CORRUPT_FILE"


@given(key=KEYS, row=ROWS, flipped=st.integers(0, 10_000))
def test_a_row_checksum_notices_any_flipped_bit(key: tuple[Any, ...], row: tuple[Any, ...], flipped: int) -> None:
    key_row, value_row = write_key(key), write_value(row)
    hdfs = RowEncoding(dataclasses.replace(STORE, family=""), dataclasses.replace(PLAIN, provider="hdfs", row_checksum=True))
    value = struct.pack("<I", crc(key_row + value_row)) + value_row
    assert hdfs.put(key_row, value) == (key_row, value_row)
    deleted = struct.pack("<I", crc(key_row)) + key_row
    assert hdfs.key(hdfs.deleted(deleted)) == key_row
    for data, read in ((value, lambda d: hdfs.put(key_row, d)), (deleted, hdfs.deleted)):
        damaged = bytearray(data)
        damaged[flipped % len(data)] ^= 1 << flipped % 8
        with pytest.raises(CheckpointError) as refused:
            read(bytes(damaged))
        assert refused.value.condition == "CORRUPT_FILE"


@settings(max_examples=examples(300), deadline=None)
@given(data=st.binary(max_size=60), layout=st.sampled_from(LAYOUTS), many=st.booleans())
def test_bytes_that_are_no_rows_are_refused_by_name(data: bytes, layout: str, many: bool) -> None:
    ordinals = {"prefix": (0,), "range": (0,)}.get(layout, ())
    store = dataclasses.replace(STORE, encoder=layout, ordinals=ordinals, many=many)  # type: ignore[arg-type]
    for read in (lambda: RowEncoding(store, PLAIN).put(b"\x01\x00" + data, data), lambda: RowEncoding(store, PLAIN).key(data)):
        try:
            read()
        except CheckpointError as error:
            assert error.condition in ("CORRUPT_FILE", "UNKNOWN_FORMAT")


def _sized(data: bytes) -> bytes:
    return struct.pack("<i", len(data)) + data
