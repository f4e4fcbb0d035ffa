"""A table as Arrow has the rows of its scan, whichever way the rows went."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import millpond
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.keys.columns import read_ordered
from millpond.schema.types import Field, atomic, struct_of
from millpond.tables.forms.arrow import column_array, to_arrow
from millpond.tables.forms.arrow_errors import Failures

pa = pytest.importorskip("pyarrow")
LONG, STRING = atomic("long"), atomic("string")
WINDOW = struct_of((Field("start", atomic("timestamp")), Field("end", atomic("timestamp"))))


def shown(column: Any) -> Any:
    """The values of an array: strings as bytes, since not all are UTF-8; times as numbers, since Python lacks some."""
    array = column.combine_chunks()
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        return array.view(pa.int32() if pa.types.is_date(array.type) else pa.int64())
    return array.view(pa.binary()) if array.type == pa.string() else array


def in_any_order(table: Any) -> list[tuple[str, ...]]:
    return sorted(zip(*(map(str, shown(table[c]).to_pylist()) for c in table.column_names), strict=True))


def test_every_type_is_what_a_scan_shows(types_pond: Path, door_home: Path, type_cases: ModuleType) -> None:
    with millpond.open(types_pond, replica_dir=door_home, wait_seconds=60) as pond:
        for name in type_cases.CASES:
            table = pond[name]
            whole, scanned = table.to_arrow(), to_arrow(table.definition, table.scan())
            assert whole.schema.equals(scanned.schema, check_metadata=True)
            whole.validate(full=name != "string")  # Spark's strings may hold any bytes
            for column in whole.column_names:
                # NaN doesn't equal itself, but its text does.
                assert repr(shown(whole[column]).to_pylist()) == repr(shown(scanned[column]).to_pylist()), (name, column)
            if name not in ("binary", "string", "map"):
                cold = millpond.read_arrow(types_pond, name)
                each = [
                    sorted(zip(*(map(str, shown(t[c]).to_pylist()) for c in t.column_names), strict=True)) for t in (cold, whole)
                ]
                assert each[0] == each[1]


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ((Field("k", LONG),), [(0,), (-1,), (2**63 - 1,), (-(2**63),)]),
        ((Field("k", STRING),), [("",), ("ä",), ("/index.html",)]),
        ((Field("w", WINDOW), Field("k", atomic("short"))), [((5, -6), 7), ((-(2**63), 2**63 - 1), -(2**15))]),
    ],
)
def test_keys_of_a_replica_are_read_many_at_once(fields: tuple[Field, ...], rows: list[tuple[Any, ...]]) -> None:
    codec = KeyCodec(fields)
    found = read_ordered(fields, [codec.encode(row) for row in rows])
    assert found is not None
    for place, field in enumerate(fields):
        array = column_array(pa, found[place], failures=Failures(), name="k")
        if field.type.kind == "struct":
            parts = [array.field(i).cast(pa.int64()).to_pylist() for i in range(2)]
            assert list(zip(*parts, strict=True)) == [row[place] for row in rows]
        else:
            assert array.to_pylist() == [row[place] for row in rows]


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ((Field("k", LONG),), [(0,), (None,)]),
        ((Field("k", STRING),), [("a",), (None,)]),
        ((Field("k", STRING),), [("a\x00b",)]),
        ((Field("w", WINDOW),), [((1, None),)]),
        ((Field("a", STRING), Field("b", LONG)), [("a", 1)]),
        ((), [()]),
    ],
)
def test_other_keys_are_left_to_the_one_by_one_reader(fields: tuple[Field, ...], rows: list[tuple[Any, ...]]) -> None:
    codec = KeyCodec(fields)
    assert read_ordered(fields, [codec.encode(row) for row in rows]) is None
