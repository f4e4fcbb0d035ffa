"""Tokens, and servers that are gone: what a page does when it isn't let in, and when nobody answers."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.serve.access.tokens import digest
from serve.console.conftest import go_live
from servers.chromium import obstacles
from servers.ports import free_port
from servers.serving import serving
from spark_files.seen_pond import Seen

pytestmark = pytest.mark.long

OpenPage = Callable[..., Any]


def _write(path: Path, *names: str) -> None:
    readers: list[dict[str, Any]] = [
        {"name": "night", "sha256": digest("night"), "tables": ["*"], "metrics": True, "savepoints": "read"},
        {"name": "rows", "sha256": digest("rows"), "tables": ["page_*"]},
    ]
    path.write_text(json.dumps({"format": 1, "readers": [reader for reader in readers if reader["name"] in names]}))


def test_a_token_is_typed_once_and_never_stands_in_an_address(seen: Seen, open_page: OpenPage, tmp_path: Path) -> None:
    tokens = tmp_path / "readers.json"
    _write(tokens, "night", "rows")
    with serving(seen.place, "--no-samples", "--tokens", str(tokens), home=tmp_path / "home") as (url, _):
        page = open_page(url, expected=("401", "403"))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        assert page.title() == "Sign in – Millpond"
        assert page.get_by_role("alert").count() == 0
        assert obstacles(page) == []
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for()
        assert "doesn't know the token" in page.get_by_role("alert").inner_text()
        assert page.evaluate("sessionStorage.length") == 0
        for odd in ("night…", "\u200bnight"):
            page.keyboard.type(odd)
            page.keyboard.press("Enter")
            page.wait_for_selector("[role=alert]:has-text('such characters')")
            assert page.evaluate("sessionStorage.length") == 0
            assert page.locator("#connection").inner_text() == ""
        page.keyboard.type("night")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text-is('Jobs')")
        page.get_by_role("cell", name="page_views").wait_for()
        page.goto(f"{url}/#/savepoints")
        page.wait_for_selector("td:has-text('page_views')")
        page.reload()
        page.wait_for_selector("td:has-text('page_views')")
        assert page.evaluate("[document.cookie, localStorage.length]") == ["", 0]
        assert not [each for each in asked if "night" in each]
        # Another tab has to sign in itself.
        other = page.context.new_page()
        other.goto(url)
        other.wait_for_selector("h1:text-is('This server needs a token')")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_selector("h1:text-is('This server needs a token')")
        assert page.evaluate("sessionStorage.getItem('millpond.token')") is None


def test_a_token_that_ends_leads_back_to_the_same_page(seen: Seen, open_page: OpenPage, tmp_path: Path) -> None:
    tokens = tmp_path / "readers.json"
    _write(tokens, "night")
    with serving(seen.place, "--no-samples", "--tokens", str(tokens), home=tmp_path / "home") as (url, _):
        page = open_page(f"{url}/#/jobs/page_views", expected=("401", "403"))
        page.keyboard.type("night")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text-is('page_views')")
        _write(tokens, "rows")
        page.wait_for_selector("h1:text-is('This server needs a token')")
        assert "doesn't know the token" in page.get_by_role("alert").inner_text()
        # One that opens rows only: the page says what it doesn't open, and its other pages are there.
        page.keyboard.type("rows")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text-is('page_views')")
        page.get_by_role("alert").first.wait_for()
        assert page.get_by_role("alert").first.locator("strong").inner_text() == "NOT_ALLOWED"
        page.get_by_role("link", name="Tables").click()
        page.wait_for_selector("th:has-text('page_views')")


def test_a_server_that_went_and_came_back(seen: Seen, open_page: OpenPage, tmp_path: Path) -> None:
    port = str(free_port())
    home = tmp_path / "home"
    gone = ("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "503")
    history = ("--history", "page_views=1000", "--no-samples")
    with serving(seen.place, *history, "--port", port, home=home) as (url, _):
        jobs = open_page(url, expected=gone)
        live = open_page(url, expected=gone)
        go_live(live, "page_views")
        jobs.get_by_role("cell", name="page_views").wait_for()
        seen.batch("/")
        live.wait_for_selector("text=1 changes so far")
    for page in (jobs, live):
        page.wait_for_selector("#connection:has-text('The server can\\'t be reached')")
    # What was there is still shown.
    assert jobs.get_by_role("cell", name="page_views").is_visible()
    assert "can't be reached" in jobs.locator("#said").inner_text()
    seen.batch("/", "/index.html")
    with serving(seen.place, *history, "--port", port, home=home):
        for page in (jobs, live):
            page.wait_for_selector("#connection:empty", state="attached")
        assert jobs.locator("#said").inner_text() == "The server answers again."
        # The stream goes on where it was: nothing is lost, nothing comes twice.
        live.wait_for_selector("text=3 changes so far")
        seen.batch("/")
        live.wait_for_selector("text=4 changes so far")
        batch = str(seen.checkpoint.next_batch - 1)
        jobs.wait_for_selector(f"td:text-is('{batch}')")


def test_a_server_that_hangs_stops_no_other_page(seen: Seen, open_page: OpenPage, tmp_path: Path) -> None:
    with serving(seen.place, "--no-samples", home=tmp_path / "home") as (url, process):
        page = open_page(url)
        assert isinstance(process, subprocess.Popen)
        process.send_signal(signal.SIGSTOP)
        try:
            page.get_by_role("link", name="Tables").click()
            page.wait_for_selector("h1:text-is('Tables')")
            page.get_by_role("link", name="SQL").click()
            page.wait_for_selector("textarea")
        finally:
            process.send_signal(signal.SIGCONT)
        page.get_by_role("link", name="Tables").click()
        page.wait_for_selector("th:has-text('page_views')")
