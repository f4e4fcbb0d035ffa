"""Statements over HTTP and on the command line: rows, forms, rights, bounds, the prompt."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import millpond
from servers.serving import serving, wait_until_ready

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
TOP = "SELECT k, n FROM long WHERE k > $least ORDER BY k"
ENDLESS = "SELECT sum(hash(a.range, b.range, c.range)) FROM range(100000) a, range(100000) b, range(100000) c"


@pytest.fixture(scope="module")
def client(types_pond: Path, door_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    tokens = tmp_path_factory.mktemp("tokens") / "readers.json"
    made = [
        subprocess.run(
            [sys.executable, "-m", "millpond.cli", "token", str(tokens), name, *more], check=True, capture_output=True, text=True
        )
        for name, more in (("all", ["--tables", "*"]), ("some", ["--tables", "long"]))
    ]
    options = ("--tokens", str(tokens), "--max-rows", "1000", "--max-seconds", "300")
    with serving(types_pond, *options, home=door_home) as (url, _), httpx.Client(base_url=url, timeout=120) as opened:
        wait_until_ready(opened)
        opened.headers["authorization"] = f"Bearer {made[0].stdout.split()[-1]}"
        opened.other = made[1].stdout.split()[-1]  # type: ignore[attr-defined]
        yield opened


def ask(client: httpx.Client, statement: str, accept: str = "application/json", **more: object) -> httpx.Response:
    return client.post("/sql", json={"statement": statement, **more}, headers={"accept": accept})


def test_every_form_has_the_same_rows(client: httpx.Client, types_pond: Path, door_home: Path) -> None:
    with millpond.open(types_pond, replica_dir=door_home) as pond:
        expected = pond.sql(TOP, {"least": 0})
    rows = expected.rows()
    assert len(rows) == 2
    answer = ask(client, TOP, parameters={"least": 0})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [{name: int(value) for name, value in row.items()} for row in body["rows"]] == rows  # a large number is a text
    assert body["columns"] == [{"name": "k", "type": "bigint"}, {"name": "n", "type": "bigint"}]
    assert [(job["job"], job["batch"]) for job in body["jobs"]] == [("long", expected.batch)]
    assert body["reads"] == [{"table": "long", "how": "range by k", "rows": len(rows)}]
    lines = ask(client, TOP, "application/x-ndjson", parameters={"least": 0})
    assert [json.loads(line) for line in lines.text.splitlines()] == body["rows"]
    assert json.loads(lines.headers["millpond-cut"]) == [{"job": "long", "batch": expected.batch}]
    table = csv.DictReader(io.StringIO(ask(client, TOP, "text/csv", parameters={"least": 0}).text))
    assert [{name: int(value) for name, value in row.items()} for row in table] == rows
    arrow = ask(client, TOP, "application/vnd.apache.arrow.stream", parameters={"least": 0})
    assert pa.ipc.open_stream(arrow.content).read_all().to_pylist() == rows


def test_parameters_are_json(client: httpx.Client) -> None:
    given = [0.5, 1e300, -3, 2**62, "a", True, None]
    answer = ask(client, "SELECT ? AS a, ? AS b, ? AS c, ? AS d, ? AS e, ? AS f, ? AS g", parameters=given)
    (row,) = answer.json()["rows"]
    assert [row["a"], row["b"], int(row["c"]), int(row["d"]), row["e"], row["f"], row["g"]] == given


def test_a_token_opens_its_tables_only(client: httpx.Client) -> None:
    some = {"authorization": f"Bearer {client.other}"}  # type: ignore[attr-defined]
    statement = "SELECT count(*) AS n FROM {}"
    assert client.post("/sql", json={"statement": statement.format("long")}, headers=some).status_code == 200
    for hidden in ("string", "long JOIN string USING (k)", "(SELECT * FROM string)", "long WHERE EXISTS (SELECT 1 FROM string)"):
        refused = client.post("/sql", json={"statement": statement.format(hidden)}, headers=some)
        assert refused.json()["error"]["condition"] == "NOT_ALLOWED", refused.text
    assert client.post("/sql", json={"statement": "SELECT 1"}, headers={"authorization": "Bearer x"}).status_code == 401


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ({"statement": "SELECT nope FROM long"}, "INVALID_STATEMENT"),
        ({"statement": "DROP TABLE long"}, "INVALID_STATEMENT"),
        ({"statement": ""}, "INVALID_STATEMENT"),
        ({"statement": "SELECT '\ud800' FROM nope"}, "INVALID_STATEMENT"),
        ({"statement": "SELECT ?::INTEGER", "parameters": [10**40]}, "INVALID_STATEMENT"),
        ({"statement": "SELECT ?::VARCHAR", "parameters": ["\ud800"]}, "INVALID_STATEMENT"),
        ({"statement": "SELECT * FROM nope"}, "UNKNOWN_TABLE"),
        ({"statement": "SELECT ?", "parameters": {"a": 1}}, "INVALID_STATEMENT"),
        ({"statement": "SELECT 1", "parameter": []}, "INVALID_REQUEST"),
        ({"statement": "SELECT * FROM range(1001)"}, "ANSWER_TOO_LARGE"),
        ({"statement": "SELECT INTERVAL '1 month' AS i"}, "WRONG_TYPE"),
        ({"statement": "SELECT 1 AS a, 2 AS a"}, "WRONG_TYPE"),
        ({"statement": "SELECT * FROM long, string"}, "NOT_ALIGNED"),
    ],
)
def test_bad_statements_are_errors(client: httpx.Client, body: dict[str, object], condition: str) -> None:
    refused = client.post("/sql", content=json.dumps(body))
    assert refused.json()["error"]["condition"] == condition, refused.text
    assert refused.status_code >= 400


def test_tables_of_two_jobs_are_read_apart_if_asked_so(client: httpx.Client) -> None:
    body = ask(client, "SELECT count(*) AS n FROM long, (SELECT 1 FROM date) x", separate=True).json()
    assert sorted(job["job"] for job in body["jobs"]) == ["date", "long"]


@pytest.mark.long
def test_a_client_that_goes_ends_its_statement(client: httpx.Client) -> None:
    answers: list[str] = []

    def leave() -> None:
        try:
            answer = httpx.post(
                f"{str(client.base_url).rstrip('/')}/sql",
                json={"statement": ENDLESS},
                headers={"authorization": client.headers["authorization"]},
                timeout=httpx.Timeout(60, read=1),
            )
            answers.append(answer.text)
        except httpx.ReadTimeout:
            pass

    leaving = [threading.Thread(target=leave) for _ in range(8)]
    for each in leaving:
        each.start()
    for each in leaving:
        each.join()
    assert answers == []
    # Were they still running, this one would wait for its turn for 300 seconds.
    assert ask(client, "SELECT count(*) AS n FROM long").status_code == 200


@pytest.mark.long
def test_a_server_answers_sql_by_default_and_none_if_told_so(http_door: str, types_pond: Path, door_home: Path) -> None:
    answered = httpx.post(f"{http_door}/sql", json={"statement": "SELECT 1 AS a"}, timeout=60)
    assert answered.json()["rows"] == [{"a": 1}]
    with serving(types_pond, "--no-sql", home=door_home) as (url, _):
        refused = httpx.post(f"{url}/sql", json={"statement": "SELECT 1"}, timeout=60)
    assert refused.status_code == 403
    assert refused.json()["error"]["hint"] == "Start it without --no-sql."


def run(home: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "MILLPOND_HOME": str(home)}
    command = [sys.executable, "-m", "millpond.cli", "sql", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=variables, timeout=120)


def test_the_command_shows_rows_and_plans(types_pond: Path, door_home: Path) -> None:
    place = str(types_pond)
    shown = run(door_home, place, "SELECT k FROM long WHERE k = 9007199254740991")
    assert shown.stdout == "k\n9007199254740991\n", shown.stderr
    assert "batch" in shown.stderr
    lines = run(door_home, place, "SELECT k, n FROM long WHERE k = CAST(? AS BIGINT)", "--param", "9007199254740991", "--json")
    assert [sorted(json.loads(line)) for line in lines.stdout.splitlines()] == [["k", "n"]]
    plan = run(door_home, place, "EXPLAIN SELECT n FROM long WHERE k IN (1, 2, 3)")
    assert plan.stdout.splitlines()[0] == "long: 3 gets by k, columns k, n"
    wrong = run(door_home, place, "SELECT nope FROM long")
    assert wrong.returncode == 2
    assert "INVALID_STATEMENT" in wrong.stderr


@pytest.mark.long
def test_the_prompt_goes_on_after_an_error(types_pond: Path, door_home: Path) -> None:
    words = ".tables\n.describe long\nSELECT nope\n  FROM long;\nSELECT 1 AS a;\n.nope\n.help\n.quit\nSELECT 2 AS b;\n"
    shown = run(door_home, str(types_pond), stdin=words)
    assert shown.returncode == 0, shown.stderr
    assert "long\tlong" in shown.stdout
    assert "k\tbigint\tkey" in shown.stdout
    assert shown.stdout.endswith("a\n1\n"), shown.stdout
    assert "INVALID_STATEMENT" in shown.stderr
    assert ".watch" in shown.stderr
