"""A pond that is worth a look, its server, and a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from servers.chromium import chromium
from servers.serving import serving, wait_until_ready
from spark_files.seen_pond import PAGES, Seen, make_pond
from suite.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The pond of a module's tests."""
    return make_pond(tmp_path_factory.mktemp("console") / "pond")


@pytest.fixture(scope="module")
def console(seen: Seen, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on that pond, which keeps the history of its table."""
    with serving(seen.place, "--history", "page_views=1000", "--no-samples", home=tmp_path_factory.mktemp("home")) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
            for number in range(6):  # the history begins with the server
                seen.batch("/", *PAGES[number : 3 * number + 2])
            newest = seen.checkpoint.next_batch - 1
            wait_until(lambda: client.get("/tables/page_views").json()["batch"] == newest, f"batch {newest}")
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Playwright's event loop runs in this thread meanwhile, so no test of another module may meet it."""
    with chromium() as opened:
        yield opened


def go_live(page: Page, table: str) -> None:
    """Look at the changes of a table, from a page of the same console; return when the stream has begun."""
    with page.expect_response(lambda answer: answer.url.split("?")[0].endswith("/changes")):
        page.evaluate(f"location.hash = '#/tables/{table}/live'")
    page.wait_for_selector("text=No change has come yet.")


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a page in a context of its own; a script that fails, or breaks the content policy, fails the test."""
    contexts, wrong = [], list[str]()

    def opened(url: str, *, expected: tuple[str, ...] = (), **options: Any) -> Page:
        """expected: what the console may say besides"""
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console",
            lambda said: wrong.append(said.text) if said.type == "error" and not any(e in said.text for e in expected) else None,
        )
        hosts = url.split("/#")[0].rstrip("/")
        page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith((hosts, "blob:")) else None)
        page.goto(url)
        page.wait_for_selector("main:not([aria-busy]) h1")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
