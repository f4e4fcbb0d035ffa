"""The forms of an answer: each has the same rows, and says where they come from."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pytest

import millpond
from millpond.errors import RequestError
from millpond.serve.formats import ARROW, CSV, JSON, NDJSON, ROW_FORMATS, choose_format, takes_gzip
from servers.serving import wait_until_ready


@pytest.fixture(scope="module")
def client(http_door: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http_door, timeout=30, headers={"accept-encoding": "identity"}) as opened:
        wait_until_ready(opened)
        yield opened


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("text/csv", CSV),
        ("text/*", CSV),
        ("application/vnd.apache.arrow.stream, */*;q=0.1", ARROW),
        ("application/json;q=0.5, application/x-ndjson", NDJSON),
        ("application/*", JSON),
        ("TEXT/CSV ; q=1", CSV),
        ("application/json;q=0, */*", NDJSON),
    ],
)
def test_the_form_is_the_one_that_accept_likes_best(accept: str, chosen: object) -> None:
    assert choose_format(accept, ROW_FORMATS) is chosen


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "text/csv;q=x"])
def test_a_form_that_isnt_there_is_refused(accept: str) -> None:
    with pytest.raises(RequestError) as refused:
        choose_format(accept, ROW_FORMATS)
    assert refused.value.condition == "NOT_ACCEPTABLE"


def test_gzip_is_for_those_who_take_it() -> None:
    assert [takes_gzip(t) for t in ("gzip", "br, gzip;q=0.5", "*", "", "br", "gzip;q=0", "*;q=1, gzip;q=0")] == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]


def test_every_form_says_the_same_rows(client: httpx.Client) -> None:
    for table in ("long", "string", "price", "binary", "timestamp", "window"):
        if client.get(f"/tables/{table}").status_code == 404:
            continue
        path = f"/tables/{table}/rows"
        answer = client.get(path).json()
        lines = client.get(path, headers={"accept": NDJSON.media_type}).text.splitlines()
        assert [json.loads(line) for line in lines] == answer["rows"]
        as_csv = client.get(path, headers={"accept": CSV.media_type})
        assert as_csv.headers["content-type"] == "text/csv; charset=utf-8; header=present"
        names, *rows = csv.reader(io.StringIO(as_csv.content.decode("utf-8", "surrogateescape"), newline=""))
        assert names == list(answer["rows"][0])
        assert len(rows) == len(answer["rows"])


def test_csv_tells_null_from_the_empty_text(client: httpx.Client) -> None:
    lines = client.get("/tables/string/rows", headers={"accept": "text/csv"}).content.split(b"\r\n")
    assert b'"",2,""' in lines
    assert b",2," in lines


def test_arrow_is_what_the_pond_itself_gives(client: httpx.Client, types_pond: object, tmp_path: object) -> None:
    with millpond.open(str(types_pond), replica_dir=str(tmp_path)) as pond:
        for table in ("long", "price", "timestamp"):
            answer = client.get(f"/tables/{table}/rows", headers={"accept": ARROW.media_type})
            assert answer.headers["content-type"] == ARROW.media_type
            assert pa.ipc.open_stream(answer.content).read_all().equals(pond[table].to_arrow(), check_metadata=True)


def test_rows_alone_say_in_a_header_where_they_come_from(client: httpx.Client) -> None:
    answer = client.get("/tables/long/rows?_limit=2", headers={"accept": "text/csv"})
    cut = json.loads(answer.headers["millpond-cut"])
    assert (cut["job"], cut["batch"], cut["more"], cut["lag"]["behind_batches"]) == ("long", 1, True, 0)
    assert len(answer.text.splitlines()) == 3


def test_a_row_that_isnt_there_is_null_or_left_out(client: httpx.Client) -> None:
    keys = {"keys": [{"k": 5}, {"k": None}]}
    lines = client.post("/tables/long/rows:get", json=keys, headers={"accept": NDJSON.media_type}).text.splitlines()
    assert [json.loads(line) for line in lines] == [None, {"k": None, "n": 2, "again": None}]
    as_csv = client.post("/tables/long/rows:get", json=keys, headers={"accept": "text/csv"}).text
    assert as_csv == "k,n,again\r\n,2,\r\n"


def test_a_large_answer_is_packed_for_those_who_take_it(client: httpx.Client) -> None:
    keys = json.dumps({"keys": [{"k": n} for n in range(3000)]})
    plain = client.post("/tables/long/rows:get", content=keys)
    assert "content-encoding" not in plain.headers
    for accept in ("application/json", NDJSON.media_type):
        headers = {"accept-encoding": "gzip", "accept": accept}
        with client.stream("POST", "/tables/long/rows:get", content=keys, headers=headers) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            raw = b"".join(answer.iter_raw())
        body = gzip.decompress(raw)
        assert len(raw) < len(body) / 5
        rows = json.loads(body)["rows"] if accept == "application/json" else [json.loads(x) for x in body.splitlines()]
        assert rows == plain.json()["rows"]
    small = client.get("/tables/long/rows?k=5", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in small.headers


def test_an_answer_that_the_client_has_is_not_sent_again(client: httpx.Client) -> None:
    for path in ("/tables/long/rows?k=5", "/tables/long/rows"):
        tag = client.get(path).headers["etag"]
        for known in (tag, f'"other", {tag}'):
            again = client.get(path, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert json.loads(again.headers["millpond-cut"])["batch"] == 1
        assert client.get(path, headers={"if-none-match": 'W/"1.2.3.json"'}).status_code == 200
        assert client.get(path, headers={"accept": "text/csv", "if-none-match": tag}).status_code == 200


def test_an_errors_form_is_json_whatever_was_asked_for(client: httpx.Client) -> None:
    answer = client.get("/tables/nothing/rows", headers={"accept": "text/csv"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
    refused = client.get("/tables/long/rows", headers={"accept": "image/png"})
    assert (refused.status_code, refused.json()["error"]["condition"]) == (406, "NOT_ACCEPTABLE")
