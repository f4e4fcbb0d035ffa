"""A statement of one key that the server answers itself has the answer of a process, byte for byte."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from servers.serving import serving, wait_until_ready
from servers.sockets import is_read
from spark_files.golden import GOLDEN
from suite.sizes import IS_LONG, a_few
from suite.waiting import wait_until

pytest.importorskip("duckdb")
TABLES = ("types", "counts-hdfs", "spark-4.3/dedupe-within-watermark-hdfs", "spark-4.3/transform-two-keys-rocksdb-snapshots")
AGE = re.compile(rb'"(age_seconds|event_lag_seconds)":[0-9.e+-]+')
OTHERS: list[Any] = [None, True, 1.0, -0.0, 1e300, "", "x", "1", "é", "a\0b", "\ud800", 0, -1, 7, 127, 128, 2**31, 2**63 - 1, 2**63]
OTHERS += [-(2**63), -(2**63) - 1, 10**40, [1], {"a": 1}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hot-sql")
    places = []
    for name in TABLES:
        source = GOLDEN / name
        source = source / "checkpoint" if (source / "checkpoint").is_dir() else source
        places.append(folder / Path(name).name.split("-")[0])
        shutil.copytree(source, places[-1], copy_function=shutil.copy)
    first, *others = map(str, places)
    options = ("--sql-processes", "1", "--max-seconds", "300", "--max-body-bytes", "100000")
    with serving(first, *others, *options, home=folder / "home") as (address, _):
        with httpx.Client(base_url=address, timeout=60) as client:
            wait_until_ready(client)
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60, headers={"accept-encoding": "identity"}) as opened:
        yield opened


def asked(client: httpx.Client, body: Any) -> tuple[int, bytes, dict[str, str]]:
    answer = client.post("/sql", content=json.dumps(body))
    headers = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
    assert int(answer.headers["content-length"]) == len(answer.content)
    return answer.status_code, AGE.sub(b"age", answer.content), headers


def compare(client: httpx.Client, statement: str, values: Any) -> int:
    """Compare both ways; the status.  Only a process takes a question that says whether it is `separate`."""
    body = {"statement": statement, "parameters": values}
    slow = asked(client, {**body, "separate": False})
    for _ in range(2):  # the first of them may be by a process, too
        assert asked(client, body) == slow, body
    return slow[0]


def keys_of_long(client: httpx.Client) -> list[int]:
    keys = [row["k"] for row in client.get("/tables/long/rows").json()["rows"]]
    return [int(key) for key in keys if key is not None]


def statement_of(draw: random.Random, table: str, keys: list[str], columns: list[str]) -> str:
    shown = [draw.choice([name, f"t.{name}", name.upper()]) for name in draw.sample(columns, draw.randint(1, len(columns)))]
    shown = [f"{name} AS {draw.choice('xkn')}{place}" if draw.random() < 0.3 else name for place, name in enumerate(shown)]
    marks = draw.choice([["?"] * len(keys), [f"${place}" for place in draw.sample(range(1, len(keys) + 1), len(keys))]])
    pairs = [f"{name} = {mark}" if draw.random() < 0.7 else f"{mark} = t.{name}" for name, mark in zip(keys, marks, strict=True)]
    draw.shuffle(pairs) if marks[0] != "?" else None
    return f'SELECT {", ".join(shown)} FROM "{table}" AS t WHERE {" AND ".join(pairs)}'


@pytest.mark.long
def test_both_ways_say_the_same(client: httpx.Client) -> None:
    draw, answered = random.Random(11), dict[str, int]()
    tables = [each for each in client.get("/tables").json()["tables"] if "error" not in each]
    draw.shuffle(tables)
    whole = {"bigint", "int", "smallint", "tinyint"}
    plain = {*whole, "string"}
    tables.sort(key=lambda table: not all(column["type"] in plain for column in table["columns"] if column["key"]))
    for table in tables[: 60 if IS_LONG else 4]:
        keys = [column["name"] for column in table["columns"] if column["key"]]
        numbers = {column["name"] for column in table["columns"] if column["type"] in whole}
        columns = [column["name"] for column in table["columns"]]
        found = client.get(f"/tables/{table['table']}/rows", params={"_limit": 20}).json().get("rows", [])
        if not keys or not found:
            continue
        for _ in range(6 if IS_LONG else 1):
            statement = statement_of(draw, table["table"], keys, columns)
            for row in draw.sample(found, min(2, len(found))):
                # JSON has a long number as a text, which is another type to a statement.
                key = [int(row[name]) if name in numbers and isinstance(row[name], str) else row[name] for name in keys]
                status = compare(client, statement, key)
                answered[table["table"]] = answered.get(table["table"], 0) + (status == 200)
            for _ in range(4 if IS_LONG else 2):
                compare(client, statement, [draw.choice([*OTHERS, draw.choice(found)[name]]) for name in keys])
            compare(client, statement, [found[0][name] for name in keys] + draw.choice([[], [1]]))
    assert sum(count > 0 for count in answered.values()) > 1


@pytest.mark.parametrize(
    "statement",
    a_few(
        [
            "SELECT n FROM long WHERE k = ? LIMIT 0",
            "SELECT DISTINCT n FROM long WHERE k = ?",
            "SELECT n, n FROM long WHERE k = ?",
            "SELECT n + 0 AS n FROM long WHERE k = ?",
            "SELECT count(*) AS n FROM long WHERE k = ?",
            "SELECT n FROM long WHERE k = ? OR n = 1",
            "SELECT n FROM long WHERE n = ?",
            "SELECT n FROM long WHERE k = $key",
            "SELECT n FROM long WHERE k = ? AND k = ?",
            "SELECT n FROM long AT (VERSION => 0) WHERE k = ?",
            "SELECT a.n FROM long a JOIN long b USING (k) WHERE a.k = ?",
            "WITH long AS (SELECT 5 AS k, 6 AS n) SELECT n FROM long WHERE k = ?",
            "EXPLAIN SELECT n FROM long WHERE k = ?",
            "SELECT n FROM long TABLESAMPLE 50% WHERE k = ?",
            "SELECT n FROM long AS long(n, k, again) WHERE k = ?",
            "SELECT n AS k FROM long WHERE k = ?",
            "SELECT n FROM long WHERE k = CAST(? AS INT)",
            "SELECT n FROM double WHERE k = ?",
            "SELECT n FROM lung WHERE k = ?",
        ],
        8,
    ),
)
def test_statements_that_look_like_lookups_are_answered_alike(client: httpx.Client, statement: str) -> None:
    key = keys_of_long(client)[0]
    if "TABLESAMPLE" in statement or "EXPLAIN" in statement:  # another answer each time
        for _ in range(2):
            assert asked(client, {"statement": statement, "parameters": [key]})[0] in (200, 400)
        return
    for values in ([key], [key, key], [5], [None], [], {"key": key}, None):
        compare(client, statement, values)


def test_a_lookup_waits_for_no_process(client: httpx.Client, url: str) -> None:
    key = keys_of_long(client)[0]
    body = {"statement": "SELECT n, k FROM long WHERE k = ?", "parameters": [key]}
    expected = asked(client, body)
    assert expected[0] == 200
    busy = json.dumps({"statement": "SELECT sum(range % 7) AS n FROM range(100000000000)"}).encode()
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as other:
        other.sendall(b"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(busy), busy))
        wait_until(lambda: is_read(other), "the server to read the statement")
        time.sleep(0.5)  # the only process adds
        for _ in range(100):
            assert asked(client, body) == expected
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)


def test_statements_that_come_in_pieces_and_at_once_are_answered_in_order(client: httpx.Client, url: str) -> None:
    keys = keys_of_long(client)
    text = "SELECT k FROM long WHERE k = ?"
    texts = [text, f"{text} LIMIT 1", f"{text} -- {'x' * 9000}"]
    asked(client, {"statement": texts[0], "parameters": [keys[0]]})
    draw, address = random.Random(5), urlsplit(url)
    for _ in range(10 if IS_LONG else 3):
        wanted, sent = [], b""
        for _ in range(8):
            key = draw.choice(keys)
            wanted.append(key)
            body = json.dumps({"statement": draw.choices(texts, [6, 1, 1])[0], "parameters": [key]}).encode()
            sent += b"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        sent += b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        got = b""
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            while sent:
                size = draw.choice([1, 100, 300, 5000])
                connection.sendall(sent[:size])
                sent = sent[size:]
                time.sleep(0.001)
            while part := connection.recv(65536):
                got += part
        assert [int(each) for each in re.findall(rb'"rows":\[{"k":"?(-?\d+)"?}\]', got)] == wanted
        assert got.count(b"HTTP/1.1 200 OK") == len(wanted) + 1


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("SELECT n FROM long WHERE k = $²", {"²": 5}),
        ("SELECT n FROM long LIMIT $²", {"²": 5}),
        (f"SELECT n FROM long LIMIT 1{'0' * 5000}", None),
        (f"SELECT n FROM long LIMIT 1{'0' * 30}", None),
        ("SELECT n FROM long LIMIT ?", [10**40]),
        (f"SELECT n FROM long AT (VERSION => 1{'0' * 5000})", None),
        (f"SELECT n FROM long AT (VERSION => 1{'0' * 30})", None),
        (f"SELECT n FROM changes('long', 1{'0' * 30})", None),
        (f"SELECT n FROM changes('long', 1{'0' * 5000})", None),
        ("SELECT n FROM changes('long', ?)", [10**40]),
        ("SELECT n FROM changes('long', -1)", None),
        ("SELECT n FROM changes('long', ?)", [-1]),
    ],
)
def test_odd_numbers_end_no_process(client: httpx.Client, statement: str, values: Any) -> None:
    assert asked(client, {"statement": statement, "parameters": values})[0] in (200, 400, 410)


@pytest.mark.parametrize("at", ["1" + "0" * 18, "1" + "0" * 30, "-1", "-1" + "0" * 30, "1" + "0" * 5000, "true", "1.5"])
def test_odd_batches_end_no_process(client: httpx.Client, at: str) -> None:
    for statement in ("SELECT n FROM long", "SELECT 1 AS n"):
        answer = client.post("/sql", content=f'{{"statement": "{statement}", "at": {at}}}')
        assert answer.status_code in (200, 400, 410), answer.text


def test_headers_that_are_given_twice_are_read_alike(client: httpx.Client) -> None:
    body = {"statement": "SELECT n FROM long WHERE k = ?", "parameters": [keys_of_long(client)[0]]}
    forms = []
    for extra in ({}, {}, {"separate": False}):
        headers = [("accept", "application/json;q=0.1"), ("accept", "*/*")]
        forms.append(client.post("/sql", content=json.dumps({**body, **extra}), headers=headers).headers["content-type"])
        client.post("/sql", content=json.dumps(body))
    assert forms == ["application/x-ndjson"] * 3
