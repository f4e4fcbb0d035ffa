"""Every door reads by an index that the definition names, with the rows, pages and errors of Python's reads."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import millpond
from millpond.cli import main
from millpond.errors import MillpondError
from servers.serving import serving, wait_until_ready

pytestmark = pytest.mark.long

NAMES = ["long", "double", "wide_decimal", "timestamp", "boolean", "string"]


@pytest.fixture(scope="module")
def pond(types_pond: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jobs of some types, whose definitions name indexes."""
    made = tmp_path_factory.mktemp("indexed") / "pond"
    shutil.copytree(types_pond, made)
    for name in NAMES:
        for file in (made / "jobs" / name / "tables").glob("*.json"):
            data = json.loads(file.read_text())
            file.write_text(json.dumps({**data, "indexes": [["n"], ["k"], ["n", "k"]]}))
    return made


@pytest.fixture(scope="module")
def address(pond: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(pond, home=tmp_path_factory.mktemp("home")) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield url


@pytest.fixture(scope="module")
def home(address: str, pond: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own-home")


@pytest.mark.parametrize("name", NAMES)
def test_all_doors_give_the_same_rows(pond: Path, address: str, home: Path, name: str) -> None:
    with millpond.open(pond, replica_dir=home) as opened, millpond.connect(address) as remote:
        here, there = opened[name], remote[name]
        assert len(here.top("n", None)) == len(here.scan()) > 1
        for by, key in ((["n"], {}), (["k"], {}), (["n", "k"], {}), (["k"], {"n": 2})):
            expected = here.range(key, by=by)
            rows = [dict(row) for row in expected]
            same = [repr(row) for row in rows]
            assert [repr(dict(r)) for r in there.range(key, by=by)] == same
            assert [repr(dict(r)) for r in there.top(by, None, key=key)] == same[::-1]
            assert [repr(dict(r)) for r in asyncio.run(_not_waiting(address, name, by, key))] == same[::-1]
            url = httpx.get(f"{address}/tables/{name}/rows", params={"_by": ",".join(by), "_limit": "5000", **key}).json()
            body = httpx.post(f"{address}/tables/{name}/rows:scan", json={"by": by, "limit": 5000, "key": key}).json()
            words = [f"{column}={value}" for column, value in key.items()] + [w for column in by for w in ("--by", column)]
            assert url["rows"] == body["rows"] == _lines(str(pond), name, words, home) == _lines(address, name, words, home)
            assert len(url["rows"]) == len(rows)


async def _not_waiting(address: str, name: str, by: list[str], key: dict[str, Any]) -> Any:
    async with millpond.connect_async(address) as server:
        return await server[name].top(by, None, key=key)


def _lines(place: str, name: str, words: list[str], home: Path) -> list[dict[str, Any]]:
    asked = ["scan", place, name, *words, "--limit", "5000", "--json"]
    done = CliRunner().invoke(main, asked, env={"MILLPOND_HOME": str(home)})
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


def test_a_page_goes_on_where_the_one_before_ended(pond: Path, address: str, home: Path) -> None:
    with millpond.open(pond, replica_dir=home) as opened:
        whole = [row["k"] for row in opened["long"].top("n", None)]
        first = opened["long"].top("n", 2)
        second = opened["long"].top("n", 2, token=first.token)
        assert [row["k"] for row in (*first, *second)] == whole[:4]
        with pytest.raises(MillpondError) as refused:
            opened["long"].top("k", 2, token=first.token)
        assert refused.value.condition == "INVALID_TOKEN"
    page = httpx.get(f"{address}/tables/long/rows?_by=n&_reverse=1&_limit=2").json()
    following = httpx.get(f"{address}/tables/long/rows?_by=n&_reverse=1&_limit=2&_token={page['token']}").json()
    found = [row["k"] for row in (*page["rows"], *following["rows"])]
    assert [None if k is None else int(k) for k in found] == whole[:4]


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("_by=nope", "UNKNOWN_COLUMN"),
        ("_by=k,n", "NO_INDEX"),
        ("_by=n&k=1&n=1", "NO_INDEX"),
        ('_by=n&_start={"k":1}', "INVALID_RANGE"),
        ('_by=n&_start={"n":"x"}', "WRONG_TYPE"),
        ("_by=k&n=x", "WRONG_TYPE"),
        ("_by=n&_since=2026-01-01T00:00:00Z", "INVALID_REQUEST"),
        ("_by=n&nope=1", "UNKNOWN_COLUMN"),
    ],
)
def test_bad_questions_are_errors(address: str, query: str, condition: str) -> None:
    answer = httpx.get(f"{address}/tables/long/rows?{query}")
    assert answer.json()["error"]["condition"] == condition, answer.text


@pytest.mark.parametrize(
    ("indexes", "condition"),
    [
        ({"long": "n"}, "INVALID_INDEX"),
        ({"long": [("n", "n")]}, "INVALID_INDEX"),
        ({"long": [()]}, "INVALID_INDEX"),
        ({"long": ["nope"]}, "UNKNOWN_COLUMN"),
        ({"nope": ["n"]}, "UNKNOWN_TABLE"),
        ({"long": [("n",), *[("k", "n")[::-1]] * 20, *[(f"c{i}",) for i in range(20)]]}, "INVALID_INDEX"),
    ],
)
def test_bad_declarations_are_errors(pond: Path, tmp_path: Path, indexes: Any, condition: str) -> None:
    with pytest.raises(MillpondError) as refused:
        millpond.open(pond, replica_dir=tmp_path, indexes=indexes).close()
    assert refused.value.condition == condition


def test_an_index_is_added_to_a_replica_and_stays(types_pond: Path, tmp_path: Path) -> None:
    with millpond.open(types_pond, replica_dir=tmp_path) as opened, pytest.raises(MillpondError) as refused:
        opened["long"].top("n")
    assert refused.value.condition == "NO_INDEX"
    with millpond.open(types_pond, replica_dir=tmp_path, indexes={"long": ["n"]}) as opened:
        first = [dict(row) for row in opened["long"].top("n")]
        generation = opened["long"].begin().view.generation
    with millpond.open(types_pond, replica_dir=tmp_path) as opened:  # who doesn't ask for it doesn't remove it
        assert [dict(row) for row in opened["long"].top("n")] == first
        assert opened["long"].begin().view.generation == generation
