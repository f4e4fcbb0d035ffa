"""Answers that come in another order than they were asked for: a page shows the answer to what was asked last.

The browser holds requests back, and the test lets them go in an order of its own.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from spark_files.seen_pond import Seen

pytestmark = pytest.mark.long

OpenPage = Callable[..., Any]
# Derived from Unicode's DerivedCoreProperties: Default_Ignorable_Code_Point.
IGNORABLE = (
    "AD 34F 61C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F FEFF FFA0 FFF0-FFF8 "
    "1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"
)


def _hold(page: Any, ending: str) -> None:
    """Hold requests to addresses that end so, or go on with a question, in `held`."""
    page.evaluate(
        """ending => {
          const send = window.fetch;
          window.held = [];
          window.fetch = async (path, options) => {
            if (path.split("?")[0].endsWith(ending)) await new Promise((go) => window.held.push(go));
            return send(path, options);
          };
        }""",
        ending,
    )


def _wait_for_held(page: Any, count: int) -> None:
    page.wait_for_function("count => window.held.length === count", arg=count)


def _let_go(page: Any, number: int) -> None:
    page.evaluate("number => window.held[number]()", number)


def _let_go_and_wait(page: Any, number: int, ending: str) -> None:
    """Let one go, and return a moment after its answer has come."""
    with page.expect_response(lambda answer: answer.url.split("?")[0].endswith(ending)):
        _let_go(page, number)
    page.wait_for_timeout(200)


def test_a_page_that_was_asked_for_twice_is_the_next_one(seen: Seen, console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/tables/page_views")
    page.wait_for_selector("caption:has-text('Rows 1 to 100')")
    wanted = sorted(seen.hits)
    _hold(page, "rows:scan")
    for _ in range(2):
        page.get_by_role("button", name="Next page").click()
    _wait_for_held(page, 2)
    _let_go(page, 1)
    page.wait_for_selector("caption:has-text('Rows 101 to 200')")
    assert page.locator("tbody th a").all_inner_texts() == wanted[100:200]
    _let_go_and_wait(page, 0, "rows:scan")
    assert page.locator("caption").inner_text().startswith("Rows 101 to 200")
    assert page.locator("tbody th a").all_inner_texts() == wanted[100:200]


def test_rows_are_of_what_was_asked_last(console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/tables/page_views")
    page.wait_for_selector("caption:has-text('Rows 1 to 100')")
    _hold(page, "rows:scan")
    page.get_by_role("button", name="Next page").click()
    page.get_by_text("From one key to another").click()
    page.get_by_label("from page").fill("/shop/0010")
    page.get_by_label("before page").fill("/shop/0015")
    page.get_by_role("button", name="Show rows").click()
    _wait_for_held(page, 2)
    _let_go(page, 1)
    page.wait_for_selector("caption:has-text('Rows 1 to 5')")
    _let_go_and_wait(page, 0, "rows:scan")
    assert page.locator("tbody th a").all_inner_texts() == [f"/shop/{number:04d}" for number in range(10, 15)]


def test_a_statement_has_its_own_answer(console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/sql")
    area = page.get_by_label("One SELECT")
    _hold(page, "sql")
    for word in ("first", "second"):
        area.fill(f"SELECT count(*) AS {word} FROM page_views")
        page.keyboard.press("Control+Enter")
    _wait_for_held(page, 2)
    _let_go(page, 1)
    page.wait_for_selector("th:text-is('second')")
    _let_go(page, 0)
    page.wait_for_timeout(1000)
    assert page.locator("thead th").all_inner_texts() == ["second"]
    assert page.locator("[aria-busy]").count() == 0


def test_a_span_is_shown_though_its_numbers_are_read(console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/jobs/page_views")
    page.wait_for_selector(".plot canvas")
    page.locator("figure").first.get_by_text("Numbers").click()
    page.get_by_label("How far back").select_option("6 h")
    page.wait_for_selector("text=180 samples")
    _hold(page, "samples")
    for span in ("1 h", "24 h"):
        page.get_by_label("How far back").select_option(span)
    _wait_for_held(page, 2)
    _let_go_and_wait(page, 1, "samples")
    _let_go_and_wait(page, 0, "samples")
    assert page.locator("text=180 samples").count() == 1


def test_a_page_whose_token_ended_asks_for_another(console: str, open_page: OpenPage) -> None:
    refused = {"error": {"condition": "TOKEN_NEEDED", "message": "It ended.", "hint": "", "context": {}}}
    for address, route, act in (
        ("jobs/page_views", "**/samples?*", lambda page: page.get_by_label("How far back").select_option("6 h")),
        ("tables/page_views", "**/rows:scan", lambda page: page.get_by_role("button", name="Next page").click()),
        ("tables/page_views", "**/rows:scan", lambda page: page.get_by_role("button", name="CSV").click()),
    ):
        page = open_page(f"{console}/#/{address}", expected=("401",))
        page.wait_for_selector(".plot canvas, caption:has-text('Rows 1 to 100')")
        page.route(route, lambda asked: asked.fulfill(status=401, json=refused))
        act(page)
        page.wait_for_selector("h1:text-is('This server needs a token')")


def test_what_cannot_be_seen_is_an_escape_and_all_else_is_itself(console: str, open_page: OpenPage) -> None:
    unseen = {0x2800}
    for part in IGNORABLE.split():
        first, _, last = part.partition("-")
        unseen |= set(range(int(first, 16), int(last or first, 16) + 1))
    categories = {code: unicodedata.category(chr(code)) for code in range(sys.maxunicode + 1)}
    unseen |= {code for code, category in categories.items() if category in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    seen = {code for code, category in categories.items() if category[0] in "LNPS"} - unseen
    page = open_page(console)
    shown = page.evaluate(
        """async () => {
          const { plain } = await import("./console/dom.js");
          const shown = {};
          for (let code = 0; code < 0x110000; code++) {
            const text = plain(String.fromCodePoint(code));
            if (text !== String.fromCodePoint(code)) shown[code] = text;
          }
          return shown;
        }"""
    )
    escapes = {int(code): text for code, text in shown.items()}
    assert unseen - escapes.keys() == set()
    assert seen & escapes.keys() == set()
    for code, text in escapes.items():
        assert text == (f"\\u{code:04x}" if code < 0x10000 else f"\\u{{{code:x}}}")
