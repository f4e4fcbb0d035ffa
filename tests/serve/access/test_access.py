"""Who gets in: hosts, tokens, rates.  What must not get out: keys and tokens in logs and metrics."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from millpond.cli import main
from millpond.errors import MillpondError, RequestError, SetupError
from millpond.serve.access.access import Access, check_exposure, is_loopback
from millpond.serve.access.tokens import EVERYBODY, add_token, read_tokens, remove_token
from millpond.settings import ServeSettings
from servers.serving import wait_until_ready
from suite.programs import started
from suite.waiting import stays, wait_until


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Reader -> token; the server reads them from tmp_path/readers.json."""
    path = tmp_path / "readers.json"
    return {
        "numbers": add_token(path, "numbers", tables=["l?ng", "int*"]),
        "all": add_token(path, "all", tables=["*"]),
        "prometheus": add_token(path, "prometheus", tables=[], metrics=True),
        "file": str(path),
    }


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _condition(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["condition"]


def test_a_token_opens_its_tables_and_no_other(serve: Any, types_pond: Path, tokens: dict[str, str]) -> None:
    with serve(types_pond, "--tokens", tokens["file"]) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        assert client.get("/livez").status_code == 200
        paths = ("/", "/tables", "/tables/long", "/tables/long/rows?k=5", "/tables/long/rows", "/metrics", "/openapi.json", "/no")
        for headers in ({}, _bearer("mp_wrong"), {"authorization": "Basic x"}, {"authorization": f"Token {tokens['all']}"}):
            for path in paths:
                refused = client.get(path, headers=headers)
                assert _condition(refused) == (401, "TOKEN_NEEDED")
                assert refused.headers["www-authenticate"] == "Bearer"
        numbers = _bearer(tokens["numbers"])
        assert client.get("/tables/long/rows?k=5", headers=numbers).status_code == 200
        assert client.get("/tables/long", headers=numbers).status_code == 200
        for table in ("string", "there_is_none"):
            for rest in ("", "/rows", "/rows?k=5", "/definition"):
                assert _condition(client.get(f"/tables/{table}{rest}", headers=numbers)) == (403, "NOT_ALLOWED")
            posted = client.post(f"/tables/{table}/rows:get", json={"keys": []}, headers=numbers)
            assert _condition(posted) == (403, "NOT_ALLOWED")
        listed = {t["table"] for t in client.get("/tables", headers=numbers).json()["tables"]}
        assert listed == {"long", "integer"}
        unknown = client.get("/tables/lung", headers=numbers)
        assert _condition(unknown) == (404, "UNKNOWN_TABLE")
        also_unknown = client.post("/at", json={"tables": ["lung"]}, headers=numbers)
        assert _condition(also_unknown) == (404, "UNKNOWN_TABLE")
        for body in (unknown.text, also_unknown.text):
            assert "string" not in body
            assert str(types_pond) not in body
        assert _condition(client.post("/at", json={"tables": ["long", "string"]}, headers=numbers)) == (403, "NOT_ALLOWED")
        assert client.get("/tables/string/rows", headers=_bearer(tokens["all"])).status_code == 200
        assert _condition(client.get("/metrics", headers=_bearer(tokens["all"]))) == (403, "NOT_ALLOWED")
        assert client.get("/metrics", headers=_bearer(tokens["prometheus"])).status_code == 200


def test_a_token_that_is_taken_away_opens_nothing_a_moment_later(serve: Any, types_pond: Path, tokens: dict[str, str]) -> None:
    file = Path(tokens["file"])
    with serve(types_pond, "--tokens", str(file)) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        everything = _bearer(tokens["all"])
        assert client.get("/tables/long/rows?k=5", headers=everything).status_code == 200
        remove_token(file, "all")
        row, numbers = "/tables/long/rows?k=5", _bearer(tokens["numbers"])
        wait_until(lambda: client.get(row, headers=everything).status_code == 401, "the end of the token that was removed")
        file.write_text("{")
        stays(lambda: client.get(row, headers=numbers).status_code == 200, "the file that was right counts", seconds=1.2)


def test_a_file_of_tokens_holds_no_token(tokens: dict[str, str]) -> None:
    text = Path(tokens["file"]).read_text()
    assert tokens["all"] not in text
    assert tokens["all"].removeprefix("mp_") not in text
    assert Path(tokens["file"]).stat().st_mode & 0o077 == 0
    again = add_token(Path(tokens["file"]), "all", tables=["x"])
    readers = read_tokens(Path(tokens["file"]))
    assert again != tokens["all"]
    assert sorted(r.name for r in readers.values()) == ["all", "numbers", "prometheus"]
    assert remove_token(Path(tokens["file"]), "nobody") is False


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"format": 2, "readers": []}', '{"format": 1, "readers": [{}]}', '{"format": 1, "readers": [{"name": 1}]}']
    + [json.dumps({"format": 1, "readers": [{"name": "x", "sha256": "0" * 64, "tables": tables}]}) for tables in ("*", [1])]
    + [json.dumps({"format": 1, "readers": [{"name": "x", "sha256": "00", "tables": []}]})],
)
def test_what_is_no_file_of_tokens_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(MillpondError) as refused:
        Access(ServeSettings(tokens=tmp_path / "t.json"))
    assert refused.value.condition == "INVALID_TOKENS"


@pytest.mark.long
def test_the_loopback_answers_to_its_own_names_alone(http_door: str) -> None:
    port = http_door.rpartition(":")[2]
    for host in (f"localhost:{port}", "LOCALHOST", f"127.0.0.1:{port}", "[::1]:1", "[::1]"):
        for path in ("/livez", "/tables/long/rows?k=5"):
            assert httpx.get(http_door + path, headers={"host": host}, timeout=60).status_code in (200, 503), host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "", "127.0.0.1:x"):
        for path in ("/livez", "/tables/long/rows?k=5", "/metrics", "/nothing"):
            assert _condition(httpx.get(http_door + path, headers={"host": host}, timeout=60)) == (421, "HOST_NOT_ALLOWED"), host


@pytest.mark.long
def test_other_hosts_can_be_allowed() -> None:
    access = Access(ServeSettings(allow_hosts=("Pond.Example",)))
    for host in (b"pond.example:80", b"localhost", None):
        access.check_host(host)
    open_to_all = Access(ServeSettings(host="0.0.0.0", insecure=True))
    open_to_all.check_host(b"anything")


def test_listening_beyond_this_machine_wants_tokens_or_a_word() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "pond.example"):
        assert not is_loopback(host)
        with pytest.raises(MillpondError) as refused:
            check_exposure(ServeSettings(host=host))
        assert refused.value.condition == "OPEN_TO_ALL"
        check_exposure(ServeSettings(host=host, insecure=True))
        check_exposure(ServeSettings(host=host, tokens=Path("readers.json")))
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        check_exposure(ServeSettings(host=host))


@pytest.mark.long
def test_a_client_that_asks_too_often_is_told_when_to_come_again(serve: Any, types_pond: Path) -> None:
    with serve(types_pond, "--requests-per-second", "1") as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        for path in ("/tables/long/rows?k=5", "/tables/long/rows"):
            answers = [client.get(path) for _ in range(40)]
            refused = [a for a in answers if a.status_code == 429]
            assert refused
            assert all(_condition(a) == (429, "TOO_MANY_REQUESTS") for a in refused)
            assert all(int(a.headers["retry-after"]) >= 1 for a in refused)
        time.sleep(int(refused[-1].headers["retry-after"]))
        assert client.get("/tables/long/rows?k=5").status_code == 200
        assert client.get("/livez").status_code == 200


@pytest.mark.long
def test_each_client_has_a_bucket_of_its_own() -> None:
    access = Access(ServeSettings(requests_per_second=1))
    for client in ("a", "b"):
        access.admit({}, client)
        access.admit({}, client)
        with pytest.raises(MillpondError) as refused:
            access.admit({}, client)
        assert refused.value.condition == "TOO_MANY_REQUESTS"
    assert access.admit({}, "c") is EVERYBODY


@pytest.mark.long
def test_limits_of_an_answer_hold_in_every_form(serve: Any, types_pond: Path) -> None:
    options = ("--max-rows", "2", "--max-answer-bytes", "300")
    with serve(types_pond, *options) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        assert _condition(client.get("/tables/long/rows?_limit=3")) == (400, "INVALID_LIMIT")
        assert _condition(client.get("/tables/long/rows?_limit=2")) == (422, "ANSWER_TOO_LARGE")
        whole = client.get("/tables/long/rows", headers={"accept": "text/csv"})
        assert (whole.status_code, len(whole.text.splitlines())) == (200, 5), "a download has no other limit than its bytes"
        large = client.get("/tables/long/rows", headers={"accept": "application/vnd.apache.arrow.stream"})
        assert _condition(large) == (422, "ANSWER_TOO_LARGE")


def test_neither_keys_nor_tokens_leave_by_log_or_metrics(types_pond: Path, tmp_path: Path, tokens: dict[str, str]) -> None:
    options = ["--json", "--tokens", tokens["file"], "--log-requests", "--log-level", "debug", "--log-format", "json"]
    command = [sys.executable, "-m", "millpond.cli", "serve", str(types_pond), "--port", "0", *options]
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path / "home")}
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["url"]
        with httpx.Client(base_url=address, timeout=60) as client:
            wait_until_ready(client)
        for headers in (_bearer(tokens["all"]), _bearer("mp_guessed"), {}):
            for path in ("/tables/string/rows?k=secret", "/tables/secret/rows?secret=secret", "/secret", "/tables/string/rows"):
                httpx.get(address + path, headers=headers, timeout=60)
        metrics = httpx.get(f"{address}/metrics", headers=_bearer(tokens["prometheus"]), timeout=60).text
        server.terminate()
        out, err = server.communicate(timeout=30)
    for text in (metrics.encode(), out, err):
        assert b"secret" not in text
        assert b"guessed" not in text
        assert not any(t.removeprefix("mp_").encode() in text for n, t in tokens.items() if n != "file")
    lines = [json.loads(line) for line in err.splitlines()]
    assert all({"time", "level", "event"} <= line.keys() for line in lines)
    answered = [(line["route"], line["status"]) for line in lines if line["event"] == "request" and line["route"] != "readyz"]
    assert len(answered) == 13
    assert {("rows", 200), ("none", 401), ("metrics", 200)} <= set(answered)
    assert {"serve.ready", "serve.ended"} <= {line["event"] for line in lines}


@pytest.mark.long
def test_a_token_for_a_time_opens_nothing_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "readers.json"
    asked = CliRunner().invoke(main, ["token", str(path), "guest", "--tables", "*", "--valid", "7d"])
    token = asked.output.strip()
    (entry,) = json.loads(path.read_text())["readers"]
    left = dt.datetime.fromisoformat(entry["expires"]) - dt.datetime.now(dt.UTC)
    assert dt.timedelta(days=6, hours=23) < left <= dt.timedelta(days=7)
    access, headers = Access(ServeSettings(tokens=path)), {b"authorization": f"Bearer {token}".encode()}
    assert access.peek(headers).name == "guest"
    entry["expires"] = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)).isoformat()
    path.write_text(json.dumps({"format": 1, "readers": [entry]}))
    access.reload()
    with pytest.raises(RequestError) as refused:
        access.peek(headers)
    assert (refused.value.condition, "expired" in refused.value.message) == ("TOKEN_NEEDED", True)
    remove_token(path, "nobody")
    add_token(path, "another", tables=["*"])
    kept = [reader for reader in read_tokens(path).values() if reader.name == "guest"]
    assert kept[0].has_expired(), "whoever writes the file keeps it"


@pytest.mark.parametrize("expires", ["soon", "2027-01-01T00:00:00", 7, ""])
def test_a_file_with_a_time_that_is_none_is_refused(tmp_path: Path, expires: object) -> None:
    path = tmp_path / "readers.json"
    add_token(path, "guest", tables=["*"])
    data = json.loads(path.read_text())
    data["readers"][0]["expires"] = expires
    path.write_text(json.dumps(data))
    with pytest.raises(SetupError) as refused:
        read_tokens(path)
    assert refused.value.condition == "INVALID_TOKENS"


@pytest.mark.parametrize("valid", ["no", "0s", "soon", "-7d"])
def test_a_token_for_no_time_is_refused(tmp_path: Path, valid: str) -> None:
    asked = CliRunner().invoke(main, ["token", str(tmp_path / "readers.json"), "guest", "--tables", "*", f"--valid={valid}"])
    assert asked.exit_code == 2
    assert not (tmp_path / "readers.json").exists()
