"""Keys of random nested types with NULL at every level: at every door, a NULL struct and a struct of NULLs are different keys.

The oracle is Spark's order as Python's sort has it: NULL first, structs member by member, a shorter array before a longer one.
"""

from __future__ import annotations

import json
import math
import tempfile
from functools import cmp_to_key
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.checkpoint.rows.columns import span
from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.native.library import library
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.keys.columns import read_ordered
from millpond.replica.keys.transcode import KeysTranscoder, key_transcoder
from millpond.schema.convert import to_python, to_stored
from millpond.schema.definition.table import key_columns
from millpond.schema.types import Field, SparkType, atomic, struct_of
from millpond.schema.values import decode_json, encode_json, from_json, from_text, to_json, to_text
from oracles.order import compare
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import examples

TABLE = "ck.aggregate_0"
SECOND = 1_000_000
WINDOW = struct_of((Field("start", atomic("timestamp")), Field("end", atomic("timestamp"))))
# Few values, so that many keys differ only in their NULLs.
ATOMS: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(-1, 1),
    "long": st.sampled_from([-(2**63), 0, 2**53 + 1]),
    "string": st.sampled_from(["", "a", "a\0b"]),
    "binary": st.sampled_from([b"", b"\0", b"\0\xff"]),
    # The last value of each lies outside the years of Python's datetime.
    "date": st.sampled_from([-1, 0, 4_000_000]),
    "timestamp": st.sampled_from([0, SECOND, -(2**62)]),
    "timestamp_ntz": st.sampled_from([0, SECOND, 2**62]),
    "boolean": st.booleans(),
    "double": st.sampled_from([-1.5, 0.0, math.inf]),
}


@st.composite
def types(draw: st.DrawFn, depth: int = 3) -> SparkType:
    """An atom, a struct or an array; mostly structs."""
    kind = draw(st.sampled_from(["atom", "struct", "struct", "array"])) if depth else "atom"
    if kind == "atom":
        return atomic(draw(st.sampled_from(list(ATOMS))))
    if kind == "array":
        return SparkType("array", "array", element=draw(types(depth - 1)))
    members = draw(st.lists(types(depth - 1), min_size=1, max_size=3))
    names = draw(st.sampled_from([["a", "b", "c"], ["start", "end", "c"]]))
    return struct_of(tuple(Field(name, type_) for name, type_ in zip(names, members, strict=False)))


def values(type_: SparkType) -> st.SearchStrategy[Any]:
    """Values in stored form; every third is NULL."""
    if type_.kind == "struct":
        present: st.SearchStrategy[Any] = st.tuples(*(values(f.type) for f in type_.fields))
    elif type_.kind == "array":
        assert type_.element is not None
        present = st.lists(values(type_.element), max_size=2)
    else:
        present = ATOMS[type_.kind]
    return st.one_of(st.none(), present, present)


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[Field, ...], list[tuple[Any, ...]]]:
    """Columns of a key, sometimes with a window, and distinct keys."""
    fields = tuple(Field(f"k{i}", type_) for i, type_ in enumerate(draw(st.lists(types(), min_size=1, max_size=3))))
    strategies = [values(f.type) for f in fields]
    if draw(st.booleans()):
        window = st.integers(-1, 1).map(lambda n: (n * SECOND, (n + 5) * SECOND))
        at = draw(st.integers(0, len(fields)))
        fields = (*fields[:at], Field("window", WINDOW, window=True), *fields[at:])
        strategies.insert(at, st.one_of(st.none(), window, window))
    keys = draw(st.lists(st.tuples(*strategies), max_size=12, unique_by=repr))
    return fields, keys


@given(table=tables())
@settings(max_examples=examples(300), deadline=None)
def test_bytes_sort_as_spark_sorts_values_by_every_way_to_them(table: tuple[tuple[Field, ...], list[tuple[Any, ...]]]) -> None:
    fields, keys = table
    codec, write = KeyCodec(fields), encoder(fields)
    encoded = [codec.encode(key) for key in keys]
    assert len(set(encoded)) == len(keys)
    assert [codec.decode(e) for e in encoded] == keys
    by_value = sorted(keys, key=cmp_to_key(lambda a, b: compare([a[i] for i in codec.order], [b[i] for i in codec.order])))
    assert [codec.decode(e) for e in sorted(encoded)] == by_value
    rows = [write(key) for key in keys]
    assert [decoder(fields)(row) for row in rows] == keys
    assert [key_transcoder(fields, codec)(row) for row in rows] == encoded
    if library() is not None and rows:
        at_once = KeysTranscoder(fields).transcode(span(rows))
        assert at_once is None or at_once == encoded
    columns = read_ordered(fields, encoded)
    if columns is not None and keys:
        pa = pytest.importorskip("pyarrow")
        from millpond.tables.forms.arrow import column_array, python_array
        from millpond.tables.forms.arrow_errors import Failures

        failures = Failures()
        for i, field in enumerate(fields):
            shown = [to_python(field.type)(key[i]) for key in keys]
            found = column_array(pa, columns[i], failures=failures, name="k")
            assert found.equals(python_array(pa, field.type, shown, failures, "k"))
        assert not failures.count


@given(table=tables())
@settings(max_examples=examples(300), deadline=None)
def test_every_form_of_a_key_comes_back_as_the_same_key(table: tuple[tuple[Field, ...], list[tuple[Any, ...]]]) -> None:
    fields, keys = table
    for key in keys:
        for field, stored in zip(fields, key, strict=True):
            shown = to_python(field.type)(stored)
            assert to_stored(field.type)(shown) == stored
            sent = decode_json(encode_json(to_json(field.type)(shown)))
            assert to_stored(field.type)(from_json(field.type, column="k")(sent)) == stored
            if stored is not None:
                assert to_stored(field.type)(from_text(field.type, column="k")(to_text(field.type)(shown))) == stored


@given(table=tables(), data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_reads_have_one_row_a_key_in_order_and_find_each(
    table: tuple[tuple[Field, ...], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    fields, keys = table
    order = KeyCodec(fields).order
    in_order = sorted(keys, key=cmp_to_key(lambda a, b: compare([a[i] for i in order], [b[i] for i in order])))
    columns = key_columns(fields)

    def shown(key: tuple[Any, ...]) -> dict[str, Any]:
        out = {}
        for column in columns:
            value = key[column.index]
            for name in column.path:
                value = None if value is None else value[["start", "end"].index(name)]
            out[column.name] = to_python(column.type)(value)
        return out

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = WrittenCheckpoint(Path(folder) / "ck", key=fields)
        checkpoint.plan([(key, None) for key in ()], snapshot=False)
        checkpoint.commit()
        kept = {TABLE: millpond.Retention(history_batches=10)}
        with millpond.open(checkpoint.path, replica_dir="memory://", retention=kept) as pond:
            rows_of = pond[TABLE]
            begin = rows_of.changes()
            checkpoint.plan([(_hashable(key), i) for i, key in enumerate(keys)], snapshot=False)
            checkpoint.commit()
            pond.catch_up()
            expected = [{**shown(key), "v": keys.index(key)} for key in in_order]
            rows = rows_of.scan()
            assert list(rows) == expected
            names = [c.name for c in columns]
            for row in expected:
                key = {name: row[name] for name in names}
                assert rows_of.get(key) == row
                assert list(rows_of.scan(key)) == [row]
                assert millpond.read_row(checkpoint.path, TABLE, key) == row
                assert rows_of.range(start=key) == expected[expected.index(row) :]
                assert rows_of.range(end=key) == expected[: expected.index(row)]
            paged, page = [], rows_of.scan(limit=2)
            paged += page
            while page.more:
                page = rows_of.scan(limit=2, token=page.token)
                paged += page
            assert paged == expected
            changes = rows_of.changes(since=begin.token)
            assert sorted((c.new or {})["v"] for c in changes) == list(range(len(keys)))
            assert all(c.new in expected for c in changes)
            assert [v.row for v in rows_of.history()] == expected
            pa = pytest.importorskip("pyarrow")
            from millpond.tables.forms.arrow import rows_table

            whole = rows_table(pa, rows_of.definition, expected, "ck", 1)
            assert rows_of.to_arrow().equals(whole)
            assert millpond.read_arrow(checkpoint.path, TABLE).sort_by("v").equals(whole.sort_by("v"))
            if expected:  # parts of a key: one column, and a member of a struct
                part = data.draw(st.sampled_from(expected))
                name = data.draw(st.sampled_from(names))
                assert list(rows_of.scan({name: part[name]})) == [row for row in expected if row[name] == part[name]]
                assert rows_of.count({name: part[name]}) == len([row for row in expected if row[name] == part[name]])
                column = next(c for c in columns if c.name == name)
                for member in column.type.fields if not column.path else ():
                    wanted = None if part[name] is None else part[name][member.name]
                    alike = [r for r in expected if (None if r[name] is None else r[name][member.name]) == wanted]
                    assert list(rows_of.scan({f"{name}.{member.name}": wanted})) == alike


def _hashable(key: tuple[Any, ...]) -> _Key:
    return _Key(key)


class _Key(tuple[Any, ...]):
    """A key row that can be a dict's key, whatever its values."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, default=repr))
