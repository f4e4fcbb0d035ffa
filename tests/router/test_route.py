"""`millpond route`: a client of a router reads what a client of one server reads; what it can't combine it refuses."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import millpond
from millpond.client import RemotePond
from millpond.errors import MillpondError
from millpond.replica.replica import MEMORY
from servers.shards import ShardServer, routing, shard_servers
from spark_files.golden import FEW_TYPES, TYPES
from suite.sizes import a_few_named


@pytest.fixture(scope="module")
def servers(types_pond: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ShardServer]]:
    with shard_servers(types_pond, ["0", "1-31"], tmp_path_factory.mktemp("routed")) as started:
        yield started


@pytest.fixture(scope="module")
def router(servers: list[ShardServer]) -> Iterator[str]:
    with routing(*(server.url for server in servers)) as url:
        yield url


@pytest.fixture(scope="module")
def asked(router: str) -> Iterator[RemotePond]:
    with millpond.connect(router) as pond:
        yield pond


@pytest.fixture(scope="module")
def whole(types_pond: Path) -> Iterator[millpond.Pond]:
    with millpond.open(types_pond, replica_dir=MEMORY) as pond:
        yield pond


@pytest.mark.parametrize("name", a_few_named(TYPES, FEW_TYPES))
def test_a_client_reads_a_router_as_a_server(asked: RemotePond, whole: millpond.Pond, name: str) -> None:
    table, there, draw = asked[name], whole[name], random.Random(name)
    rows = there.scan()
    keys = [{column.name: row[column.name] for column in there.definition.key} for row in rows]
    some = draw.sample(keys, min(4, len(keys)))
    assert repr(list(table.scan())) == repr(list(rows))
    assert repr(list(table.scan(limit=2, reverse=True))) == repr(list(there.scan(limit=2, reverse=True)))
    assert table.count() == len(rows)
    assert repr(list(table.get_all(some))) == repr(list(there.get_all(some)))
    assert all(repr(table.get(key)) == repr(there.get(key)) for key in some)


def test_the_router_lists_what_the_servers_have(router: str, servers: list[ShardServer], whole: millpond.Pond) -> None:
    with httpx.Client(base_url=router, timeout=60) as client:
        assert client.get("/readyz").json()["ready"] is True
        assert [table["table"] for table in client.get("/tables").json()["tables"]] == whole.tables()
        found = client.get("/shards").json()["servers"]
        assert [(server["url"], {t["state"]["shard"] for t in server["tables"]}) for server in found] == [
            (server.url, {server.shard}) for server in servers
        ]
        routes = client.get("/").json()["routes"]
        assert all(
            client.request(r["method"], r["path"].replace("{table}", "string")).status_code in (200, 400, 410) for r in routes
        )
        answer = client.get("/tables/string/rows", params={"_limit": 1})
        assert ("etag" in answer.headers, answer.json()["more"]) == (False, True)
        lines = client.get("/tables/long/rows", headers={"accept": "text/csv"}).text.splitlines()
        assert len(lines) == 1 + whole["long"].count()


@pytest.mark.parametrize(
    ("path", "status", "condition"),
    [
        ("/tables/nothing/rows", 404, "UNKNOWN_TABLE"),
        ("/tables/string/rows?_batch=0", 410, "HISTORY_GONE"),
        ("/tables/string/rows?_cut=x", 400, "INVALID_TOKEN"),
        ("/tables/string/changes?_batch=0", 410, "HISTORY_GONE"),
        ("/tables/string/rows?_by=n", 409, "NO_INDEX"),
        ("/tables/string/total", 400, "INVALID_REQUEST"),
        ("/tables/string/rows?x=1", 400, "UNKNOWN_COLUMN"),
        ("/tables/string/rows?_limit=0", 400, "INVALID_LIMIT"),
        ("/tables/string/rows?_min_batch=999999", 503, "NOT_UP_TO_BOUND"),
        ("/tables/string/changes", 410, "HISTORY_GONE"),
        ("/tables/string/event", 400, "INVALID_REQUEST"),
        ("/sql", 405, "METHOD_NOT_ALLOWED"),
        ("/sql/changes", 400, "INVALID_REQUEST"),
    ],
)
def test_what_a_router_doesnt_answer_is_an_error_that_says_so(router: str, path: str, status: int, condition: str) -> None:
    answer = httpx.get(router + path, timeout=60)
    assert (answer.status_code, answer.json()["error"]["condition"]) == (status, condition)


def test_tokens_hold_at_the_router_and_at_the_servers(types_pond: Path, tmp_path: Path) -> None:
    def token(file: str, name: str, *words: str) -> str:
        command = [sys.executable, "-m", "millpond.cli", "token", str(tmp_path / file), name, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]

    own = token("servers.json", "router", "--tables", "string", "--tables", "long")
    reader = token("readers.json", "reader", "--tables", "long")
    with shard_servers(types_pond, ["1/2", "2/2"], tmp_path / "homes", "--tokens", str(tmp_path / "servers.json")) as servers:
        os.environ["MILLPOND_TOKEN"] = own
        try:
            with routing(*(server.url for server in servers), "--tokens", str(tmp_path / "readers.json")) as url:
                assert httpx.get(f"{url}/tables/long/rows", timeout=60).status_code == 401
                with millpond.connect(url, token=reader) as pond:
                    assert pond.tables() == ["long"]
                    assert pond["long"].count() > 0
                    with pytest.raises(MillpondError) as refused:
                        pond["string"].count()
                    assert refused.value.condition == "NOT_ALLOWED"
                    assert pond.sql("SELECT count(*) AS n FROM long").rows() == [{"n": pond["long"].count()}]
                    with pytest.raises(MillpondError) as refused:
                        pond.sql("SELECT count(*) FROM string")
                    assert refused.value.condition == "NOT_ALLOWED"
        finally:
            del os.environ["MILLPOND_TOKEN"]


@pytest.mark.long
def test_the_command_says_who_has_what(servers: list[ShardServer]) -> None:
    urls = [server.url for server in servers]
    command = [sys.executable, "-m", "millpond.cli", "shards", *urls, "http://127.0.0.1:1"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "SERVER_UNAVAILABLE" in shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0][:4] == ["table", "shard", "of", "server"]
    assert {(line[1], line[3]) for line in lines if line[0] == "string"} == {(server.shard, server.url) for server in servers}
    as_json = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout
    assert {json.loads(line)["url"] for line in as_json.splitlines()} == {*urls, "http://127.0.0.1:1"}
