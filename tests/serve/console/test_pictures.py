"""The manual's pictures of the console.  `MILLPOND_PICTURES=1` writes them into docs/pictures."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from spark_files.seen_pond import Seen

DOCS = Path(__file__).parents[3] / "docs"
WIDE, PHONE = {"width": 1180, "height": 760}, {"width": 390, "height": 780}
KEY = "#/tables/page_views/key?key=" + quote('{"page":"/"}')
# Picture -> address, size, colours, and what is there when it is done.
PICTURES: dict[str, tuple[str, dict[str, int], str, str]] = {
    "console-jobs": ("#/jobs", {"width": 1180, "height": 260}, "light", "td"),
    "console-job": ("#/jobs/page_views", {"width": 1180, "height": 1560}, "light", ".heat"),
    "console-table": ("#/tables/page_views", WIDE, "light", "tbody tr"),
    "console-key": (KEY, {"width": 1180, "height": 1100}, "light", ".time-line li"),
    "console-sql": ("#/sql", WIDE, "dark", "textarea"),
    "console-phone": ("#/jobs/page_views", PHONE, "dark", ".heat"),
}

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", PICTURES)
def test_each_picture_is_of_a_page_that_is_done(
    name: str, seen: Seen, console: str, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    address, size, colours, done = PICTURES[name]
    seen.running()
    page = open_page(f"{console}/{address}", viewport=size, color_scheme=colours, device_scale_factor=1.5 if size is PHONE else 1)
    page.locator(done).first.wait_for()
    if name == "console-sql":
        page.locator("textarea").fill("SELECT page, hits FROM page_views WHERE hits > 3 ORDER BY hits DESC LIMIT 100")
        page.keyboard.press("Control+Enter")
        page.locator("caption").wait_for()
    page.wait_for_timeout(300)  # a chart draws with the next frame
    assert page.locator(".error").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), "it scrolls sideways"
    written = (DOCS / "pictures" if os.environ.get("MILLPOND_PICTURES") else tmp_path) / f"{name}.png"
    page.screenshot(path=written)
    assert written.stat().st_size > 10_000


def test_the_manual_shows_these_pictures_and_no_other_of_the_console() -> None:
    shown = re.findall(r"\]\(pictures/(console[\w-]*)\.png\)", (DOCS / "console.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(PICTURES)
    assert {path.stem for path in (DOCS / "pictures").glob("console*.png")} == PICTURES.keys()
