"""docs/types.md, compared with values that Spark wrote: each type through Python, HTTP and the command line."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import httpx
import pytest

import millpond
from millpond.schema.types import SparkType
from millpond.schema.values import to_json, to_text
from suite.sizes import a_few

DOCS = Path(__file__).parents[2] / "docs"
TYPES = [
    *("boolean", "byte", "short", "integer", "long", "float", "double", "price", "wide_decimal", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz", "time", "day_time", "year_month"),
    *("struct", "struct_of_times", "nested_struct", "array", "map"),
]


@pytest.fixture(scope="module")
def pond(types_pond: Path, door_home: Path, http_door: str) -> Iterator[millpond.Pond]:
    """The pond in this process, beside the server that follows it."""
    with millpond.open(types_pond, replica_dir=door_home, wait_seconds=30) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(http_door: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http_door, timeout=30) as opened:
        yield opened


def alike(left: Any, right: Any) -> bool:
    """Equal in value and type; NaN is NaN."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and bool(left == right)


def test_the_cases_cover_what_spark_can_group_by(type_cases: ModuleType) -> None:
    assert list(type_cases.CASES) == TYPES


@pytest.mark.parametrize("name", ["date", "timestamp", "timestamp_ntz", "time"])
def test_python_takes_times_as_text_too(name: str, pond: millpond.Pond, type_cases: ModuleType) -> None:
    table = pond[name]
    (key,) = table.definition.key
    found = 0
    for case in type_cases.CASES[name][1]:
        row = table.get({key.name: to_text(key.type)(case.python)})
        assert alike(row[key.name], case.python)
        assert table.range(start={key.name: to_text(key.type)(case.python)})[0] == row
        found += 1
    assert found


@pytest.mark.parametrize("name", TYPES)
def test_python_finds_and_shows_each_value(name: str, pond: millpond.Pond, type_cases: ModuleType) -> None:
    table = pond[name]
    (key,) = table.definition.key
    for case in [*type_cases.CASES[name][1], type_cases.NULL]:
        row = table.get({key.name: case.python})
        assert row, case
        assert alike(row[key.name], case.python), case
        assert alike(row["again"], case.python), case
        assert row["n"] == 2


@pytest.mark.parametrize("name", TYPES)
def test_arrow_has_the_type_of_the_manual(name: str, pond: millpond.Pond, type_cases: ModuleType) -> None:
    pytest.importorskip("pyarrow")
    documented = _documented_arrow(type_cases.CASES[name][0])
    column = pond[name].to_arrow().column("again")
    assert str(column.type).startswith(documented), (column.type, documented)
    # The cases, and NULL.
    assert column.null_count == 1
    assert len(column) == len(type_cases.CASES[name][1]) + 1


def _documented_arrow(spark_type: str) -> str:
    """The third column of the manual's row for a type, in pyarrow's words."""
    words = {"timestamp[us, UTC]": "timestamp[us, tz=UTC]", "date32": "date32[day]", "int32, months": "int32"}
    base = re.split(r"[(<]", spark_type)[0]
    for line in (DOCS / "types.md").read_text(encoding="utf-8").splitlines():
        if re.match(rf"\| `{re.escape(base)}[`(<]", line):
            cell = line.split("|")[3].strip()
            return words.get(cell, cell)
    raise AssertionError(f"docs/types.md has no row for {spark_type}")


@pytest.mark.parametrize("name", TYPES)
def test_a_typed_key_over_http_finds_each_value_and_null(
    name: str, client: httpx.Client, pond: millpond.Pond, type_cases: ModuleType
) -> None:
    (key,) = pond[name].definition.key
    cases = [*type_cases.CASES[name][1], type_cases.NULL]
    answer = client.post(f"/tables/{name}/rows:get", content=json.dumps({"keys": [{key.name: c.json} for c in cases]}))
    assert answer.status_code == 200, answer.text
    assert answer.json()["rows"] == [{key.name: c.json, "n": 2, "again": c.json} for c in cases]


@pytest.mark.parametrize("name", [n for n in TYPES if n != "map"])
def test_the_text_in_a_url_finds_each_value_and_null(name: str, client: httpx.Client, type_cases: ModuleType) -> None:
    for case in type_cases.CASES[name][1]:
        text = quote(case.text, safe="", errors="surrogateescape")
        answer = client.get(f"/tables/{name}/rows?k={text}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["rows"] == [{"k": case.json, "n": 2, "again": case.json}]
    answer = client.get(f"/tables/{name}/rows?k__isnull=1")
    assert answer.json()["rows"] == [{"k": None, "n": 2, "again": None}]


@pytest.mark.parametrize("name", TYPES)
def test_a_scan_over_http_shows_all_values(name: str, client: httpx.Client, type_cases: ModuleType) -> None:
    rows = client.get(f"/tables/{name}/rows").json()["rows"]
    cases = [*type_cases.CASES[name][1], type_cases.NULL]
    assert sorted(json.dumps(r["again"]) for r in rows) == sorted(json.dumps(c.json) for c in cases)


@pytest.mark.parametrize("name", TYPES)
def test_both_forms_are_what_the_cases_say(name: str, pond: millpond.Pond, type_cases: ModuleType) -> None:
    type_: SparkType = pond[name].definition.key[0].type
    for case in type_cases.CASES[name][1]:
        assert to_json(type_)(case.python) == case.json
        assert to_text(type_)(case.python) == case.text


@pytest.fixture(scope="module")
def run(types_pond: Path, door_home: Path, http_door: str) -> Any:
    """Run `millpond` as a shell does, with raw bytes in and out."""

    def call(command: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        arguments = [os.fsencode(w) for w in (sys.executable, "-m", "millpond.cli", command, str(types_pond), *words)]
        return subprocess.run(arguments, capture_output=True, env={**os.environ, "MILLPOND_HOME": str(door_home)}, timeout=60)

    return call


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    a_few(
        ["long", "double", "wide_decimal", "string", "binary", "timestamp", "date", "struct", "struct_of_times", "nested_struct"], 1
    ),
)
def test_the_command_line_finds_the_first_value_and_null(name: str, run: Any, type_cases: ModuleType) -> None:
    case = type_cases.CASES[name][1][-1]
    for word, data in ((f"k={case.text}", case.json), ("k__isnull=1", None)):
        done = run("get", name, word, "--json")
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)
        assert (row["k"], row["n"], row["again"]) == (data, 2, data)


@pytest.mark.parametrize("name", a_few(TYPES, 2))
def test_the_command_line_shows_all_values(name: str, run: Any, type_cases: ModuleType) -> None:
    done = run("scan", name)
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.decode("utf-8", "surrogateescape").rstrip("\n").split("\n")
    assert header.split("\t")[1:] == ["n", "again"]
    shown = sorted(_unescape(line.split("\t")[2]) for line in lines)
    assert shown == sorted("\\N" if c.text is None else c.text for c in [*type_cases.CASES[name][1], type_cases.NULL])


def _unescape(text: str) -> str:
    letters = {"\\\\": "\\", "\\t": "\t", "\\n": "\n", "\\r": "\r"}
    return re.sub(r"\\[\\tnr]", lambda m: letters[m[0]], text)


@pytest.mark.long
def test_a_live_job_writes_what_the_golden_one_did(spark: Any, tmp_path: Path, pond: millpond.Pond, type_cases: ModuleType) -> None:
    type_cases.write(spark, tmp_path / "live")
    with millpond.open(tmp_path / "live", replica_dir="memory://", wait_seconds=60) as live:
        assert live.tables() == pond.tables()
        for name in TYPES:
            assert repr(sorted(live[name].scan(), key=repr)) == repr(sorted(pond[name].scan(), key=repr))
