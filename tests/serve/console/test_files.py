"""The console's files: for browsers only, open to all, without scripts or hosts of others, and not there if that is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from millpond.serve import console as package
from millpond.serve.console.files import FILES, HEADERS, PAGE
from servers.serving import Serve, wait_until_ready

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"}
FOLDER = Path(package.__file__).parent
POLICY = HEADERS["content-security-policy"]


@pytest.fixture(scope="module")
def client(http_door: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http_door, timeout=30) as opened:
        wait_until_ready(opened)
        yield opened


def test_browsers_get_the_page_and_all_others_the_routes(client: httpx.Client) -> None:
    page = client.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == PAGE.content
    for accept in ("*/*", "application/json", "application/json, text/html;q=0.9", ""):
        assert client.get("/", headers={"accept": accept}).json()["routes"]
    assert client.get("/tables", headers=BROWSER).json()["tables"]


def test_each_file_that_the_page_and_its_scripts_name_is_there(client: httpx.Client) -> None:
    page = PAGE.content.decode()
    named = set(re.findall(r'(?:href|src)="console/([^"]+)"', page))
    for name, file in FILES.items():
        if name.endswith(".js"):
            named |= set(re.findall(r'from "\./([^"]+)"', file.content.decode()))
    assert named == FILES.keys()
    for name in named:
        answer = client.get(f"/console/{name}")
        assert (answer.status_code, answer.content) == (200, FILES[name].content), name
        assert answer.headers["content-type"] == FILES[name].form.content_type


def test_every_file_comes_with_the_headers_that_forbid_all_else(client: httpx.Client) -> None:
    for path in ("/", *(f"/console/{name}" for name in FILES)):
        answer = client.get(path, headers=BROWSER)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    assert rules["default-src"] == "'self'"
    assert "unsafe" not in POLICY
    assert not {"script-src", "style-src", "connect-src", "img-src"} & rules.keys()


def test_no_file_names_another_host_or_has_a_script_or_a_style_in_a_page() -> None:
    for path in FOLDER.rglob("*"):
        if path.suffix in (".html", ".css", ".js", ".svg") and "uPlot" not in path.name:
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert re.findall(r"(?:https?:)?//[\w.-]+\.\w{2,}", text) == [], path
            assert not re.search(
                r"\.(?:innerHTML|outerHTML)|insertAdjacentHTML|document\.write|eval\(|new Function|localStorage", text
            ), path
    page = PAGE.content.decode()
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]* src=)", page)


def test_a_file_is_sent_once_and_packed_where_that_is_understood(client: httpx.Client) -> None:
    answer = client.get("/console/main.js", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.content == FILES["main.js"].content  # httpx unpacks it
    assert "content-encoding" not in client.get("/console/main.js", headers={"accept-encoding": "identity"}).headers
    again = client.get("/console/main.js", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/", headers={**BROWSER, "if-none-match": PAGE.etag}).status_code == 304


@pytest.mark.parametrize(
    "name", ["files.py", "..%2Ffiles.py", "..%2f..%2fapp.py", "%2Fetc%2Fpasswd", "index.html", "LICENSE", "", "main.js%00"]
)
def test_nothing_else_can_be_had_there(name: str, client: httpx.Client) -> None:
    answer = client.get(f"/console/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["condition"] == "UNKNOWN_ROUTE"


def test_the_page_needs_no_token_and_what_it_asks_does(serve: Serve, types_pond: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "readers.json"
    tokens.write_text('{"format": 1, "readers": []}')
    with serve(types_pond, "--tokens", str(tokens)) as (url, _), httpx.Client(base_url=url, headers=BROWSER, timeout=60) as client:
        assert client.get("/").content == PAGE.content
        assert client.get("/console/main.js").status_code == 200
        for path in ("/jobs", "/tables", "/alerts", "/savepoints", "/jobs/long/samples"):
            assert client.get(path).json()["error"]["condition"] == "TOKEN_NEEDED"
        assert client.get("/", headers={"accept": "application/json"}).json()["error"]["condition"] == "TOKEN_NEEDED"
        foreign = client.get("/", headers={"host": "evil.example"})
        assert foreign.json()["error"]["condition"] == "HOST_NOT_ALLOWED"


@pytest.mark.long
def test_a_server_without_console_shows_none(serve: Serve, types_pond: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "readers.json"
    tokens.write_text('{"format": 1, "readers": []}')
    with serve(types_pond, "--no-console") as (url, _), httpx.Client(base_url=url, headers=BROWSER, timeout=60) as client:
        assert client.get("/").json()["routes"]
        assert client.get("/console/main.js").status_code == 404
    with (
        serve(types_pond, "--no-console", "--tokens", str(tokens)) as (url, _),
        httpx.Client(base_url=url, headers=BROWSER, timeout=60) as client,
    ):
        assert client.get("/").json()["error"]["condition"] == "TOKEN_NEEDED"
