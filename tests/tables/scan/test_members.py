"""Parts of a key that are members of a struct, such as `k.a`: every subset finds the rows that a comparison row by row finds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.schema.types import Field, atomic, struct_of
from spark_files.checkpoint import WrittenCheckpoint

TABLE = "job.aggregate_0"
STRUCT = struct_of((Field("a", atomic("long")), Field("b", struct_of((Field("d", atomic("string")),))), Field("c", atomic("long"))))
KEY = (Field("z", atomic("string")), Field("k", STRUCT), Field("y", atomic("long")))
STRUCTS = [None, *product((None, 1, 2), (None, (None,), ("x",), ("xy",)), (None, 7))]
KEYS = [(z, k, y) for z in ("p", "q") for k in STRUCTS for y in (0, 1)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[millpond.Table]:
    folder = tmp_path_factory.mktemp("members")
    job = WrittenCheckpoint(folder / "job", key=KEY)
    job.plan([(key, number) for number, key in enumerate(KEYS)], snapshot=False)
    job.commit()
    with millpond.open(job.path, replica_dir=folder / "home") as pond:
        yield pond[TABLE]


def _value(key: tuple[Any, ...], name: str) -> Any:
    """The value of a named part of the key, in Python."""
    z, k, y = key
    if "." not in name:
        return {"z": z, "y": y}[name]
    if k is None:
        return None
    a, b, c = k
    return {"k.a": a, "k.b": None if b is None else {"d": b[0]}, "k.b.d": None if b is None else b[0], "k.c": c}[name]


def _numbers(rows: Any) -> list[int]:
    return sorted(row["v"] for row in rows)


NAMES = ("z", "k.a", "k.b", "k.b.d", "k.c", "y")


@pytest.mark.parametrize("names", [names for size in (1, 2, 3, 4) for names in combinations(NAMES, size)], ids="+".join)
def test_members_find_the_rows_that_have_them(table: millpond.Table, names: tuple[str, ...]) -> None:
    for sample in KEYS[::7]:
        asked = {name: _value(sample, name) for name in names}
        expected = sorted(n for n, key in enumerate(KEYS) if all(_value(key, name) == value for name, value in asked.items()))
        assert _numbers(table.scan(asked)) == expected, asked
        assert table.count(asked) == len(expected)
        found, page = [], table.scan(asked, limit=3)
        found += page
        while page.more:
            page = table.scan(asked, limit=3, token=page.token)
            found += page
        assert _numbers(found) == expected


def test_ranges_begin_and_end_at_members(table: millpond.Table) -> None:
    order = [(row["z"], row["k"], row["v"]) for row in table.scan()]

    def expected(first: Any, last: Any, of: Any) -> list[int]:
        """The expected rows in the order of the key, NULL first."""
        rank = [(None if k is None else of(k), v) for z, k, v in order if z == "p"]
        above = [v for value, v in rank if not first or _at_least(value, first)]
        below = {v for value, v in rank if not last or not _at_least(value, last)}
        return sorted(v for v in above if v in below)

    def a(k: Any) -> tuple[Any, ...]:
        return (k["a"],)

    assert _numbers(table.range({"z": "p"}, start={"k.a": 2})) == expected((2,), None, a)
    assert _numbers(table.range({"z": "p"}, end={"k.a": 2})) == expected(None, (2,), a)
    assert _numbers(table.range({"z": "p"}, start={"k.a": 1}, end={"k.a": 2})) == expected((1,), (2,), a)
    assert _numbers(table.range(start={"z": "p", "k.a": 2}, end={"z": "q"})) == expected((2,), None, a)
    whole = table.range({"z": "p", "k.a": 1}, start={"k.b": {"d": "x"}})
    ones = [(k["b"], v) for z, k, v in order if z == "p" and k and k["a"] == 1]
    assert _numbers(whole) == sorted(v for b, v in ones if b in ({"d": "x"}, {"d": "xy"}))
    assert [row["v"] for row in table.range({"z": "p"}, start={"k.a": 2}, reverse=True)] == [
        row["v"] for row in reversed(table.range({"z": "p"}, start={"k.a": 2}))
    ]


def _at_least(value: tuple[Any, ...] | None, edge: tuple[Any, ...]) -> bool:
    return value is not None and value[0] is not None and value >= edge


@pytest.mark.parametrize(
    ("asked", "condition"),
    [
        ({"start": {"k.a": 1}}, "INVALID_RANGE"),  # z comes first
        ({"start": {"z": "p", "k.b": None}}, "INVALID_RANGE"),
        ({"start": {"z": "p", "k.c": 1}}, "INVALID_RANGE"),
        ({"start": {"z": "p", "k.a": 1, "y": 1}}, "INVALID_RANGE"),
        ({"start": {"z": "p", "k.a": None}}, "INVALID_RANGE"),  # a NULL struct has it, too
        ({"start": {"z": "p", "k": {"a": 1, "b": None, "c": 1}, "k.a": 1}}, "INVALID_RANGE"),
        ({"start": {"z": "p", "k.a": "x"}}, "WRONG_TYPE"),
        ({"start": {"z": "p", "k.q": 1}}, "UNKNOWN_COLUMN"),
    ],
)
def test_what_members_cant_say_is_refused(table: millpond.Table, asked: dict[str, Any], condition: str) -> None:
    with pytest.raises(MillpondError) as refused:
        table.range(**asked)
    assert refused.value.condition == condition


def test_a_key_is_whole(table: millpond.Table) -> None:
    for key in ({"z": "p", "k.a": 1, "y": 0}, {"z": "p", "k.a": 1, "k.b": None, "k.c": 7, "y": 0}):
        with pytest.raises(MillpondError) as refused:
            table.get(key)
        assert refused.value.condition == "KEY_MISSING"
    assert table.get(z="p", k={"a": 1, "b": {"d": "x"}, "c": 7}, y=0)["v"] == KEYS.index(("p", (1, ("x",), 7), 0))
