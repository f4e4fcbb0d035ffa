"""A first look in a real browser: jobs, a table, one key.  Nothing that a row says becomes markup."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from servers.chromium import obstacles
from spark_files.seen_pond import ODD, PAGES, Seen


def test_from_the_jobs_to_one_row(seen: Seen, console: str, open_page: Callable[..., Any]) -> None:
    page = open_page(console)
    assert page.title() == "Jobs – Millpond"
    assert obstacles(page) == []
    page.get_by_role("cell", name="page_views").get_by_role("link").click()
    page.wait_for_selector("h1:text-is('page_views')")
    page.wait_for_selector(f"caption:text-is('Rows 1 to 100, as of batch {seen.checkpoint.next_batch - 1}')")
    shown = page.locator("tbody tr").all_inner_texts()
    first = sorted(seen.hits)[:100]  # in the order of keys, of which these are
    assert [int(row.rsplit("\t", 1)[1]) for row in shown] == [seen.hits[each] for each in first]
    page.get_by_role("link", name=PAGES[0], exact=True).click()
    page.wait_for_selector("h2:text-is('Row')")
    page.wait_for_selector("section p:text('As of batch')")
    assert page.locator("section", has_text="As of batch").locator("dd").all_inner_texts() == ["/", str(seen.hits["/"])]
    assert obstacles(page) == []


def test_keys_with_markup_and_control_characters_are_shown_as_they_are(
    seen: Seen, console: str, open_page: Callable[..., Any]
) -> None:
    page = open_page(f"{console}/#/tables/page_views")
    links = page.locator("tbody th a")
    assert {"empty", "\"'&<>%2F/#?"} <= set(links.all_inner_texts())
    page.get_by_text("From one key to another").click()
    page.get_by_label("from page").fill("0")
    page.get_by_role("button", name="Show rows").click()
    page.wait_for_selector("tbody th a:text('img')")
    texts = links.all_inner_texts()
    assert '<img src=x onerror="document.title=1">' in texts
    assert r"a\u0009b\u0000c\u001b[31m" in texts
    assert r"gpj\u202eexe" in texts
    assert r"zero\u200bwidth" in texts
    assert page.locator("main img, main script").count() == 0
    addresses = [link.get_attribute("href") for link in links.all()]
    for odd in ODD:
        if odd > "0":
            assert _address(odd) in addresses
        page.goto(f"{console}/{_address(odd)}")
        page.wait_for_selector("h2:text-is('Row')")
        page.wait_for_selector("section p:text('As of batch')")
        assert page.locator("section").first.locator("dd").last.inner_text() == str(seen.hits[odd])
        assert page.locator("main img, main script").count() == 0


def _address(key: str) -> str:
    """The address of a row's own page."""
    written = json.dumps({"page": key}, ensure_ascii=False, separators=(",", ":"))
    return "#/tables/page_views/key?key=" + quote(written, safe="!'()*-._~")
