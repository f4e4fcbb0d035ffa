"""The HTTP door, over a real socket: one shape for answers, one for errors."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from millpond.errors import CONDITIONS
from millpond.serve.app import ROUTES
from millpond.settings import ServeSettings
from servers.serving import wait_until_ready

LIMITS = ServeSettings()
CUT = {"job", "batch", "position", "lag", "job_state"}
ANSWER = CUT | {"table", "rows", "changed", "final", "evicted", "maybe_evicted", "more", "token"}
TABLE = CUT | {"table", "row_count", "key", "columns", "derived", "warnings", "retention", "meant_by", "shard"}
LAG = {"behind_batches", "behind_seconds", "age_seconds", "age_from", "event_lag_seconds"}
POSITION = {"offsets", "watermark_ms", "batch_started_ms", "committed_ms"}


@pytest.fixture(scope="module")
def client(http_door: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http_door, timeout=30) as opened:
        wait_until_ready(opened)
        yield opened


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer; checks its shape as the manual has it."""
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"condition", "message", "hint", "context"}
    assert isinstance(error["context"], dict)
    assert answer.status_code == CONDITIONS[error["condition"]].http_status
    assert error["message"].endswith(".")
    assert error["hint"]
    return error


# ---------------------------------------------------------------- answers


def test_an_answer_has_one_shape(client: httpx.Client) -> None:
    asked = [
        client.get("/tables/long/rows"),
        client.get("/tables/long/rows?k=9007199254740991"),
        client.get("/tables/long/rows?k=5"),
        client.post("/tables/long/rows:get", json={"keys": []}),
        client.post("/tables/long/rows:get", json={"keys": [{"k": 5}]}),
    ]
    for answer in asked:
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert set(body) == ANSWER
        assert set(body["lag"]) == LAG
        assert set(body["position"]) == POSITION
        assert (body["table"], body["job"], body["batch"]) == ("long", "long", 1)
        assert (body["lag"]["behind_batches"], body["lag"]["behind_seconds"]) == (0, 0.0)


def test_a_row_that_isnt_there_is_an_answer_without_it(client: httpx.Client) -> None:
    assert client.get("/tables/long/rows?k=5").json()["rows"] == []
    keys = [{"k": 5}, {"k": None}, {"k": "6"}]
    rows = client.post("/tables/long/rows:get", json={"keys": keys}).json()["rows"]
    assert rows == [None, {"k": None, "n": 2, "again": None}, None]


def test_a_scan_says_whether_there_is_more(client: httpx.Client) -> None:
    whole = client.get("/tables/long/rows").json()
    assert (len(whole["rows"]), whole["more"]) == (4, False)
    part = client.get("/tables/long/rows?_limit=3").json()
    assert (part["rows"], part["more"]) == (whole["rows"][:3], True)
    assert client.get("/tables/long/rows?_limit=4").json()["more"] is False


def test_a_table_shows_what_it_means(client: httpx.Client) -> None:
    table = client.get("/tables/price").json()
    assert set(table) == TABLE
    assert (table["key"], table["row_count"], table["derived"], table["warnings"]) == (["k"], 3, True, [])
    assert table["retention"] is None
    assert table["columns"] == [
        {"name": "k", "type": "decimal(10,2)", "key": True, "raw": None},
        {"name": "n", "type": "bigint", "key": False, "raw": None},
        {"name": "again", "type": "decimal(10,2)", "key": False, "raw": None},
    ]


def test_the_list_has_every_table_in_the_same_shape(client: httpx.Client) -> None:
    body = client.get("/tables").json()
    assert set(body) == {"tables"}
    assert all(set(table) == TABLE for table in body["tables"])
    names = [table["table"] for table in body["tables"]]
    assert names == sorted(names)
    assert {"long", "string", "map"} <= set(names)


def test_the_index_lists_every_route(client: httpx.Client) -> None:
    listed = [(r["method"], r["path"]) for r in client.get("/").json()["routes"]]
    assert listed == [(r.method, r.path) for r in ROUTES]


def test_health_is_told_apart_from_freshness(client: httpx.Client) -> None:
    assert client.get("/livez").json() == {"live": True}
    assert client.get("/readyz").json() == {"ready": True, "max_behind_seconds": LIMITS.ready_behind_seconds}
    assert client.get("/readyz?_max_behind_seconds=0.5").json()["max_behind_seconds"] == 0.5


def test_head_answers_as_get_without_a_body(client: httpx.Client) -> None:
    answer = client.head("/tables/long/rows")
    assert (answer.status_code, answer.content) == (200, b"")


def test_answers_are_not_cached_on_the_way(client: httpx.Client) -> None:
    for path in ("/tables", "/tables/nothing", "/nothing"):
        assert client.get(path).headers["cache-control"] == "no-store"
    for path in ("/tables/long/rows", "/tables/long/rows?k=5"):
        assert client.get(path).headers["cache-control"] == "private, no-cache"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("route", [r for r in ROUTES if r.method == "GET"], ids=lambda r: r.path)
def test_every_route_refuses_what_it_doesnt_know(route: Any, client: httpx.Client) -> None:
    path = route.path.format(table="long", savepoint="none", operation="none", aggregate="none", job="long", file="main.js")
    for query in ("?_foo=1", "?_limit", "?nothing"):
        assert error_of(client.get(path + query))["condition"] == "INVALID_REQUEST"
    taken = {"GET", "HEAD"} | {r.method for r in ROUTES if r.path == route.path}
    for method in {"DELETE", "PUT", "PATCH", "POST", "OPTIONS"} - taken:
        refused = client.request(method, path)
        assert error_of(refused)["condition"] == "METHOD_NOT_ALLOWED"
        assert set(refused.headers["allow"].split(", ")) == taken


@pytest.mark.parametrize(
    ("path", "condition"),
    [
        ("/nothing", "UNKNOWN_ROUTE"),
        ("/tables/", "UNKNOWN_ROUTE"),
        ("/tables/long/", "UNKNOWN_ROUTE"),
        ("/tables/long/rows/1", "UNKNOWN_ROUTE"),
        ("/tables/lung", "UNKNOWN_TABLE"),
        ("/tables/lung/rows", "UNKNOWN_TABLE"),
        ("/tables/%FF%00", "UNKNOWN_TABLE"),
        ("/tables/long%2Frows", "UNKNOWN_TABLE"),
        ("/tables/long/rows?hits=1", "UNKNOWN_COLUMN"),
        ("/tables/long/rows?n=1", "NOT_A_KEY_COLUMN"),
        ("/tables/long/rows?k=x", "WRONG_TYPE"),
        ("/tables/long/rows?k=", "WRONG_TYPE"),
        ("/tables/timestamp/rows?k=2026-03-01T12:00:00+02:00", "WRONG_TYPE"),
        ("/tables/long/rows?k=1&k=1", "INVALID_REQUEST"),
        ("/tables/long/rows?k=1&k__isnull=1", "INVALID_REQUEST"),
        ("/tables/long/rows?k__isnull=0", "INVALID_REQUEST"),
        ("/tables/long/rows?k", "INVALID_REQUEST"),
        ("/tables/long/rows?_Limit=1", "INVALID_REQUEST"),
        ("/tables/long/rows?_limit=1&_limit=1", "INVALID_REQUEST"),
        ("/tables/long/rows?_limit=0", "INVALID_LIMIT"),
        ("/tables/long/rows?_limit=x", "INVALID_LIMIT"),
        ("/tables/long/rows?_limit=100001", "INVALID_LIMIT"),
        ("/tables/long/rows?_limit=", "INVALID_LIMIT"),
        ("/tables?k=1", "INVALID_REQUEST"),
        ("/readyz?_max_behind_seconds=soon", "INVALID_REQUEST"),
        ("/readyz?_max_behind_seconds=nan", "INVALID_REQUEST"),
        ("/readyz?_max_behind_seconds=-1", "INVALID_REQUEST"),
    ],
)
def test_what_cant_be_answered_is_an_error_of_one_shape(path: str, condition: str, client: httpx.Client) -> None:
    assert error_of(client.get(path))["condition"] == condition


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        (b"", "INVALID_REQUEST"),
        (b"{", "INVALID_REQUEST"),
        (b"[]", "INVALID_REQUEST"),
        (b'{"keys": {}}', "INVALID_REQUEST"),
        (b'{"keys": [1]}', "INVALID_REQUEST"),
        (b'{"keys": [], "limit": 1}', "INVALID_REQUEST"),
        (b'{"keys": [{"k": NaN}]}', "INVALID_REQUEST"),
        (b'{"keys": [{"k": "\xff"}]}', "INVALID_REQUEST"),
        (b"[" * 200_000, "INVALID_REQUEST"),
        (b'{"keys": [{}]}', "KEY_MISSING"),
        (b'{"keys": [{"k": 1, "x": 1}]}', "UNKNOWN_COLUMN"),
        (b'{"keys": [{"k": 1, "n": 1}]}', "NOT_A_KEY_COLUMN"),
        (b'{"keys": [{"k": true}]}', "WRONG_TYPE"),
        (b'{"keys": [{"k": 1.5}]}', "WRONG_TYPE"),
        (b'{"keys": [{"k": 1e99999999999}]}', "WRONG_TYPE"),
        (b'{"keys": [{"k": 1e99999999999999999999}]}', "INVALID_REQUEST"),
        (b'{"keys": [' + b",".join([b'{"k":1}'] * (LIMITS.max_keys + 1)) + b"]}", "INVALID_LIMIT"),
        (b" " * (LIMITS.max_body_bytes + 1), "REQUEST_TOO_LARGE"),
    ],
    ids=str,
)
def test_a_body_that_cant_be_answered_is_an_error_of_one_shape(body: bytes, condition: str, client: httpx.Client) -> None:
    assert error_of(client.post("/tables/long/rows:get", content=body))["condition"] == condition


def test_a_string_with_a_surrogate_that_is_no_byte_is_refused(client: httpx.Client) -> None:
    answer = client.post("/tables/string/rows:get", content=b'{"keys": [{"k": "\\ud800"}]}')
    assert error_of(answer)["condition"] == "WRONG_TYPE"


def test_as_many_keys_as_allowed_are_answered_at_once(client: httpx.Client) -> None:
    keys = [{"k": n} for n in range(LIMITS.max_keys - 1)] + [{"k": None}]
    rows = client.post("/tables/long/rows:get", json={"keys": keys}).json()["rows"]
    assert len(rows) == LIMITS.max_keys
    assert rows[-1]["n"] == 2
    assert not any(rows[:-1])


def test_an_unknown_table_names_those_that_are_near(client: httpx.Client) -> None:
    assert "long" in error_of(client.get("/tables/lonk"))["hint"]


def test_a_limit_that_is_too_large_names_the_maximum(client: httpx.Client) -> None:
    error = error_of(client.get("/tables/long/rows?_limit=999999999"))
    assert error["context"]["maximum"] == LIMITS.max_rows
    assert str(LIMITS.max_rows) in error["message"]


def test_a_client_that_hangs_up_in_its_body_harms_nobody(client: httpx.Client, http_door: str) -> None:
    address = urlsplit(http_door)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(b"POST /tables/long/rows:get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert client.get("/tables/long/rows?k=5").status_code == 200


# ---------------------------------------------------------------- names


@pytest.mark.long
def test_names_that_look_like_controls_can_be_asked_for_by_post(serve: Any, odd_names: Any) -> None:
    with serve(odd_names) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        big = client.post("/tables/long/rows:get", json={"keys": [{"_limit": 2**53 - 1}]}).json()["rows"]
        assert big == [{"_limit": 2**53 - 1, "n": 2, "again": 2**53 - 1}]
        assert error_of(client.get("/tables/long/rows?_limit=9007199254740991"))["condition"] == "INVALID_LIMIT"
        rows = client.post("/tables/string/rows:get", json={"keys": [{"k__isnull": ""}]}).json()["rows"]
        assert rows == [{"k__isnull": "", "n": 2, "again": ""}]
        assert error_of(client.get("/tables/string/rows?k__isnull=1"))["condition"] == "UNKNOWN_COLUMN"


def test_names_are_percent_decoded_once_and_whole(serve: Any, odd_names: Any) -> None:
    with serve(odd_names) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        answer = client.get("/tables/%64at%65/rows?a%20b%26c%3D%C3%BC%2F%2541=2026-03-01")
        assert answer.json()["rows"] == [{"a b&c=ü/%41": "2026-03-01", "n": 2, "again": "2026-03-01"}]
        posted = client.post("/tables/date/rows%3Aget", content=json.dumps({"keys": [{"a b&c=ü/%41": "0001-01-01"}]}))
        assert posted.json()["rows"][0]["n"] == 2


@pytest.mark.parametrize("route", [r for r in ROUTES if r.is_of_a_table and not r.formats], ids=lambda r: f"{r.method} {r.path}")
def test_a_route_with_one_form_answers_in_it_whatever_is_accepted(client: httpx.Client, route: Any) -> None:
    answer = client.request(
        route.method, route.path.replace("{table}", "long"), headers={"accept": "text/csv"}, json={} if route.has_body else None
    )
    assert answer.status_code != 406
    assert answer.headers["content-type"] == "application/json"
