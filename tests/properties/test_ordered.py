"""Encoded keys sort as their columns do and decode to the same key, even if they are longer than the store allows."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.checkpoint.rows.columns import span
from millpond.checkpoint.rows.unsaferow import encoder
from millpond.errors import CheckpointError
from millpond.native.library import library
from millpond.replica.backends.memory import MemoryBackend
from millpond.replica.keys.codec import MAX_KEY_BYTES, KeyCodec, is_cut, join_value, split_value, store_key
from millpond.replica.keys.transcode import KeysTranscoder, key_transcoder
from millpond.replica.scan import after_prefix, iter_prefix, iter_range
from millpond.schema.types import Field, SparkType, atomic, struct_of
from oracles.order import compare
from suite.sizes import examples

WINDOW = struct_of((Field("start", atomic("timestamp")), Field("end", atomic("timestamp"))))
ORDERED: dict[str, tuple[SparkType, st.SearchStrategy[Any]]] = {
    "boolean": (atomic("boolean"), st.booleans()),
    "byte": (atomic("byte"), st.integers(-128, 127)),
    "integer": (atomic("integer"), st.integers(-(2**31), 2**31 - 1)),
    "long": (atomic("long"), st.integers(-(2**63), 2**63 - 1)),
    "date": (atomic("date"), st.integers(-(2**31), 2**31 - 1)),
    "timestamp": (atomic("timestamp"), st.integers(-(2**63), 2**63 - 1)),
    "float": (atomic("float"), st.floats(width=32, allow_nan=False)),
    "double": (atomic("double"), st.floats(allow_nan=False)),
    "decimal": (atomic("decimal(18,4)"), st.integers(-(10**18) + 1, 10**18 - 1).map(lambda n: Decimal(n).scaleb(-4))),
    "wide decimal": (
        atomic("decimal(38,10)"),
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -10))),
    ),
    "string": (atomic("string"), st.text(alphabet=st.characters(codec="utf-8"), max_size=12)),
    "binary": (atomic("binary"), st.binary(max_size=12)),
    "window": (WINDOW, st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))),
    "array": (SparkType("array", "array", element=atomic("integer")), st.lists(st.integers(-5, 5), max_size=4)),
}


@pytest.mark.parametrize("name", ORDERED)
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_bytes_sort_as_values_do_and_come_back(name: str, data: st.DataObject) -> None:
    type_, present = ORDERED[name]
    codec = KeyCodec((Field("k", type_), Field("n", atomic("integer"))))
    keys = data.draw(st.lists(st.tuples(st.one_of(st.none(), present), st.integers(-3, 3)), max_size=12))
    encoded = [codec.encode(key) for key in keys]
    assert [codec.decode(e) for e in encoded] == keys
    columns = list(codec.order)  # the window comes after the number
    by_value = sorted(keys, key=cmp_to_key(lambda a, b: compare([a[i] for i in columns], [b[i] for i in columns])))
    by_bytes = sorted(keys, key=codec.encode)
    # 0.0 and -0.0 are equal as values; Spark never has -0.0 in a key.
    if name not in ("float", "double"):
        assert by_bytes == by_value
    else:
        assert [None if k[0] is None else float(k[0]) for k in by_bytes] == [
            None if k[0] is None else float(k[0]) for k in by_value
        ]


def test_nan_sorts_last_as_in_spark() -> None:
    codec = KeyCodec((Field("k", atomic("double")),))
    assert codec.encode((math.inf,)) < codec.encode((math.nan,))
    assert math.isnan(codec.decode(codec.encode((math.nan,)))[0])


def test_times_come_last_whatever_the_grouping_order() -> None:
    fields = (Field("window", WINDOW, window=True), Field("url", atomic("string")), Field("day", atomic("date")))
    assert KeyCodec(fields).order == (1, 0, 2)


def test_a_map_is_the_same_key_in_any_order_of_its_entries() -> None:
    codec = KeyCodec((Field("m", SparkType("map", "map", key=atomic("string"), value=atomic("integer"))),))
    assert codec.encode(([("a", 1), ("b", None)],)) == codec.encode(([("b", None), ("a", 1)],))


LONG = st.integers(480, 4000).flatmap(
    lambda size: st.tuples(st.sampled_from(["a", "b"]), st.text("xy", min_size=0, max_size=3)).map(
        lambda part: part[0] * (size - len(part[1])) + part[1]
    )
)


@given(rows=st.dictionaries(st.one_of(LONG, st.text(max_size=6)), st.binary(max_size=8), max_size=40), pick=st.integers(0, 4100))
@settings(max_examples=examples(150), deadline=None)
def test_long_keys_with_equal_prefixes_are_found_and_sorted(rows: dict[str, bytes], pick: int) -> None:
    codec = KeyCodec((Field("k", atomic("string")),))
    backend = MemoryBackend()
    backend.create(["t"])
    ordered = {codec.encode((key,)): (key, value) for key, value in rows.items()}
    with backend.write() as write:
        write.put("t", [(store_key(o), join_value(o, value)) for o, (_, value) in ordered.items()])
    with backend.snapshot() as snapshot:
        for o, (_, value) in ordered.items():
            key = store_key(o)
            assert len(key) <= MAX_KEY_BYTES
            assert is_cut(key) == (len(o) >= MAX_KEY_BYTES)
            assert split_value(key, snapshot.get("t", key) or b"") == (o, value)
        everything = [(codec.decode(o)[0], row) for o, row in iter_prefix(snapshot, "t", b"")]
        assert everything == [ordered[o] for o in sorted(ordered)]
        for prefix in {o[:pick] for o in ordered}:
            found = [o for o, _ in iter_prefix(snapshot, "t", prefix)]
            back = [o for o, _ in iter_range(snapshot, "t", prefix, after_prefix(prefix), reverse=True)]
            assert back == found[::-1]
            assert found == sorted(o for o in ordered if o.startswith(prefix))


PLAIN = ["byte", "integer", "long", "date", "timestamp", "string", "binary", "window", "double"]


@given(data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_the_short_way_from_row_to_key_gives_what_the_long_way_gives(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(PLAIN), max_size=5))
    fields = tuple(Field(f"c{i}", ORDERED[name][0]) for i, name in enumerate(names))
    key = data.draw(st.tuples(*(st.one_of(st.none(), ORDERED[name][1]) for name in names)))
    codec = KeyCodec(fields)
    row = encoder(fields)(key)
    assert key_transcoder(fields, codec)(row) == codec.encode(key)
    if library() is not None and "double" not in names and names:
        assert KeysTranscoder(fields).transcode(span([row, row])) == [codec.encode(key)] * 2


@given(data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_the_short_way_meets_damaged_rows_with_a_typed_error_or_a_key(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=4))
    fields = tuple(Field(f"c{i}", ORDERED[name][0]) for i, name in enumerate(names))
    key = data.draw(st.tuples(*(st.one_of(st.none(), ORDERED[name][1]) for name in names)))
    row = bytearray(encoder(fields)(key))
    for _ in range(data.draw(st.integers(1, 3))):
        row[data.draw(st.integers(0, len(row) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(row[: data.draw(st.integers(0, len(row)))])
    at_once = KeysTranscoder(fields).transcode(span([b"others", damaged]).slice(1, 2))
    try:
        found = key_transcoder(fields, KeyCodec(fields))(damaged)
        assert at_once is None or at_once == [found]
    except CheckpointError as error:
        assert error.condition == "CORRUPT_FILE"
        assert at_once is None
