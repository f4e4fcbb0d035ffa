"""Each page in a real browser: what it shows is what the server has, by keyboard and for screen readers too."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from millpond.catalogue import create_job
from millpond.operate.sample_log import read_samples
from serve.console.conftest import go_live
from servers.chromium import obstacles
from servers.serving import serving
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.seen_pond import ODD, PARTITIONS, Seen, make_pond, write_samples

pytestmark = pytest.mark.long

OpenPage = Callable[..., Any]
ADDRESSES = (
    "#/jobs",
    "#/jobs/page_views",
    "#/tables",
    "#/tables/page_views",
    "#/tables/page_views/key?key=%7B%22page%22%3A%22%2F%22%7D",
    "#/tables/page_views/live",
    "#/sql",
    "#/savepoints",
    "#/models",
    "#/alerts",
    "#/jobs/none",
    "#/nothing",
)
PHONE = {"width": 360, "height": 740}


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_on_a_page_keeps_people_out(address: str, colours: str, console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/{address}", color_scheme=colours, expected=("404", "400"))
    page.wait_for_timeout(300)
    assert obstacles(page) == []
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(200)
    assert obstacles(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "it scrolls sideways"


def test_all_pages_can_be_reached_by_keyboard(console: str, open_page: OpenPage) -> None:
    page = open_page(console)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    for title in ("Tables", "SQL", "Savepoints", "Models", "Alerts", "Jobs"):
        page.locator(".brand").focus()
        for _ in range(7):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == title:
                break
        page.keyboard.press("Enter")
        page.wait_for_selector(f"h1:text-is('{title}')")
        # A screen reader reads on from the new page's heading.
        assert page.evaluate("document.activeElement.tagName") == "H1"
        assert page.title() == f"{title} – Millpond"
        assert page.locator("nav [aria-current=page]").inner_text() == title


# ---------------------------------------------------------------- jobs


def test_the_list_of_jobs_stays_new_while_somebody_reads_it(open_page: OpenPage, tmp_path: Path) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    for name in ("another", "other"):
        job = create_job(seen.place, name)
        checkpoint = WrittenCheckpoint(seen.place / f"jobs/{name}/checkpoint")
        checkpoint.plan([("a", 1)], snapshot=True)
        checkpoint.commit()
        assert job.job == name
    with serving(seen.place, "--no-samples", home=tmp_path / "home") as (url, _):
        page = open_page(url)
        page.get_by_role("button", name="Job", exact=True).click()
        page.get_by_role("button", name="Job", exact=True).click()
        assert page.locator("tbody th").all_inner_texts() == ["page_views", "other", "another"]
        page.get_by_role("link", name="other", exact=True).focus()
        seen.batch("/")
        page.wait_for_selector(f"td:text-is('{seen.checkpoint.next_batch - 1}')")
        assert page.locator("tbody th").all_inner_texts() == ["page_views", "other", "another"]
        assert page.locator("th[aria-sort]").inner_text().startswith("Job")
        assert page.evaluate("document.activeElement.textContent") == "other"
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text-is('other')")
        page.close()


def test_a_job_is_plotted_by_its_samples(seen: Seen, console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/jobs/page_views")
    page.wait_for_selector(".plot canvas")
    page.get_by_label("How far back").select_option("6 h")
    page.wait_for_selector("text=180 samples")
    figure = page.locator("figure", has_text="Longest batch since the sample before")
    figure.get_by_text("Numbers").click()
    figure.locator("tbody tr").first.wait_for()
    numbers = [row.split("\t")[1] for row in figure.locator("tbody tr").all_inner_texts()]
    wanted = [sample.longest_batch_seconds for sample in read_samples(seen.place)][::-1][:100]
    assert [number.split(" ")[0] for number in numbers] == [_seconds(value) for value in wanted]
    said = figure.get_by_role("img").get_attribute("aria-label")
    longest = max(sample.longest_batch_seconds or 0 for sample in read_samples(seen.place))
    assert f"at most {_seconds(longest)} s" in said


def _seconds(value: float | None) -> str:
    assert value is not None
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def test_state_by_partition_and_hot_keys(console: str, open_page: OpenPage) -> None:
    with httpx.Client(base_url=console, timeout=60) as client:
        (operator,) = client.get("/jobs/page_views/partitions").json()["operators"]
    page = open_page(f"{console}/#/jobs/page_views")
    cells = page.locator(".heat .cell")
    cells.first.wait_for()
    sizes = [int(re.sub(r"\D", "", cell.get_attribute("title").split(": ")[1])) for cell in cells.all()]
    assert sizes == operator["state_bytes"]
    assert len(sizes) == PARTITIONS
    shades = [int(re.search(r"heat(\d)", cell.get_attribute("class"))[1]) for cell in cells.all()]  # type: ignore[index]
    assert [shade for _, shade in sorted(zip(sizes, shades, strict=True))] == sorted(shades)
    page.get_by_text(f"page={ODD[0]}").wait_for()
    assert page.locator("main img:not(.plot)").count() == 0


def test_the_doctor_is_asked_by_a_button(console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/jobs/page_views")
    page.get_by_role("button", name="Ask the doctor").click()
    page.wait_for_selector("text=There is nothing to change.")


# ---------------------------------------------------------------- tables


def test_rows_by_pages_and_by_range(seen: Seen, console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/tables/page_views")
    keys, wanted = list[str](), sorted(seen.hits)
    for number in range(-(-len(wanted) // 100)):
        page.wait_for_selector(f"caption:has-text('Rows {100 * number + 1} to')")
        keys += page.locator("tbody th a").all_inner_texts()
        if page.get_by_role("button", name="Next page").is_enabled():
            page.get_by_role("button", name="Next page").click()
    assert [key for key in keys if key.startswith("/")] == [key for key in wanted if key.startswith("/")]
    assert len(keys) == len(wanted)
    page.get_by_role("button", name="Page before").click()
    page.wait_for_selector(f"caption:has-text('Rows {100 * (len(wanted) // 100 - 1) + 1} to')")
    page.get_by_text("From one key to another").click()
    page.get_by_label("from page").fill("/shop/0010")
    page.get_by_label("before page").fill("/shop/0015")
    page.get_by_label("last keys first").check()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show rows").click()
    page.wait_for_selector("caption:has-text('Rows 1 to 5')")
    assert page.locator("tbody th a").all_inner_texts() == [f"/shop/{number:04d}" for number in range(14, 9, -1)]


def test_files_have_what_was_asked(seen: Seen, console: str, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(f"{console}/#/tables/page_views", accept_downloads=True)
    found = {}
    for word in ("CSV", "NDJSON", "Arrow"):
        with page.expect_download() as download:
            page.get_by_role("button", name=word, exact=True).click()
        found[word] = (download.value.suggested_filename, Path(download.value.path()).read_bytes())
    rows = [{"page": key, "hits": hits} for key, hits in sorted(seen.hits.items())]
    assert [found[word][0] for word in found] == ["page_views.csv", "page_views.ndjson", "page_views.arrows"]
    assert [json.loads(line) for line in found["NDJSON"][1].splitlines()] == rows
    read = csv.DictReader(io.StringIO(found["CSV"][1].decode(), newline=""))
    assert [{"page": row["page"], "hits": int(row["hits"])} for row in read] == rows
    assert pa.ipc.open_stream(found["Arrow"][1]).read_all().to_pylist() == rows


def test_a_wrong_key_is_refused_with_a_hint_and_the_page_goes_on(console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/tables/page_views", expected=("400",))
    page.get_by_text("From one key to another").click()
    page.get_by_label("page", exact=True).fill("/")
    page.get_by_label("from page").fill("/a")
    page.get_by_role("button", name="Show rows").click()
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").locator("strong").inner_text() == "INVALID_RANGE"
    page.get_by_label("from page").fill("")
    page.get_by_role("button", name="Show rows").click()
    page.wait_for_selector("caption:has-text('Rows 1 to 1,')")
    assert page.get_by_role("alert").count() == 0


def test_a_table_that_isnt_there_is_named(console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/tables/page_vews", expected=("404",))
    assert page.get_by_role("alert").locator("strong").inner_text() == "UNKNOWN_TABLE"
    assert "page_views" in page.get_by_role("alert").inner_text()


# ---------------------------------------------------------------- one key


def test_a_rows_history_is_a_time_line(seen: Seen, console: str, open_page: OpenPage) -> None:
    with httpx.Client(base_url=console, timeout=60) as client:
        versions = client.get("/tables/page_views/versions?page=/").json()["versions"]
    assert len(versions) >= 6
    page = open_page(f"{console}/#/tables/page_views/key?key=%7B%22page%22%3A%22%2F%22%7D")
    page.wait_for_selector(".time-line li")
    shown = page.locator(".time-line li dd").all_inner_texts()
    assert [int(text) for text in shown] == [version["row"]["hits"] for version in reversed(versions)]
    assert page.locator(".time-line li").first.get_by_text("now").is_visible()


def test_whether_an_event_is_in(seen: Seen, console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/tables/page_views/key?key=%7B%22page%22%3A%22%2F%22%7D", expected=("400",))
    page.get_by_label("Offset in Kafka").fill("views:0:17")
    page.get_by_role("button", name="Look").click()
    with httpx.Client(base_url=console, timeout=60) as client:
        found = client.post("/tables/page_views/event", json={"offset": "views:0:17", "key": {"page": "/"}}).json()
    words = found["reason"] if "reason" in found else found["error"]["message"]
    page.get_by_text(words).first.wait_for()


def test_another_key_is_typed(seen: Seen, console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/tables/page_views/key")
    page.get_by_label("page", exact=True).fill("/index.html")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_selector("h2:text-is('Row')")
    page.wait_for_selector("section p:text('As of batch')")
    assert page.locator("section").first.locator("dd").all_inner_texts()[-1] == str(seen.hits["/index.html"])
    page.get_by_label("page", exact=True).fill("/not-there")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=It isn't there")


# ---------------------------------------------------------------- live


def test_changes_come_as_they_are_committed(seen: Seen, console: str, open_page: OpenPage) -> None:
    page = open_page(console)
    go_live(page, "page_views")
    seen.batch("/", ODD[0], "/new")
    page.wait_for_selector("text=3 changes so far")
    rows = {row.split("\t")[0]: row.split("\t")[1:] for row in page.locator("tbody tr").all_inner_texts()}
    assert rows[ODD[0]] == ["update", str(seen.checkpoint.next_batch - 1), f"{seen.hits[ODD[0]] - 1} {seen.hits[ODD[0]]}"]
    assert rows["/new"][0] == "insert"
    page.get_by_role("button", name="Pause").click()
    seen.batch("/")
    page.wait_for_selector("text=4 changes so far")
    assert page.locator("tbody tr").count() == 3
    page.get_by_role("button", name="Go on").click()
    page.wait_for_selector("caption:has-text('The newest 4 of 4 changes')")


# ---------------------------------------------------------------- SQL


def test_a_statement_is_completed_and_answered(seen: Seen, console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/sql")
    area = page.get_by_label("One SELECT")
    area.click()
    page.keyboard.type("SELECT hi")
    offers = page.get_by_role("listbox", name="Completions")
    offers.get_by_role("option").first.wait_for()
    assert offers.get_by_role("option").all_inner_texts() == ["hits\ncolumn of page_views"]
    page.keyboard.press("Enter")
    page.keyboard.type(", page FROM pag")
    for pressed, name in (("Shift", "page_views"), ("ArrowDown", "page"), ("ArrowDown", "page_views"), ("ArrowUp", "page")):
        page.keyboard.press(pressed)
        chosen = page.locator(f"#{area.get_attribute('aria-activedescendant')}")
        assert (chosen.get_attribute("data-name"), chosen.get_attribute("aria-selected")) == (name, "true")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type(" ORDER BY hits DESC, page")
    page.keyboard.press("Escape")
    assert area.input_value() == "SELECT hits, page FROM page_views ORDER BY hits DESC, page"
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f"caption:has-text('{len(seen.hits)} rows of page_views at batch')")
    first = max(seen.hits.values())
    assert page.locator("tbody tr:not(.gap)").first.inner_text().startswith(str(first))


def test_a_wrong_statement_is_refused_with_a_hint(console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/sql", expected=("400",))
    page.get_by_label("One SELECT").fill("SELECT nothing FROM page_views")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("alert").wait_for()
    assert "nothing" in page.get_by_role("alert").inner_text()


def test_a_million_rows_are_a_hundred_elements(seen: Seen, open_page: OpenPage, tmp_path: Path) -> None:
    with serving(seen.place, "--no-samples", "--max-rows", "1000000", home=tmp_path / "home") as (url, _):
        _look_at_a_million(open_page(f"{url}/#/sql"))


def _look_at_a_million(page: Any) -> None:
    page.set_default_timeout(120_000)
    page.get_by_label("One SELECT").fill("SELECT unnest(range(1000000)) AS n FROM (SELECT count(*) FROM page_views)")
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("caption, [role=alert]")
    assert page.locator("caption").inner_text().startswith("1,000,000 rows"), page.locator("main").inner_text()
    frame = page.locator(".scroll.long")
    assert frame.locator("table").get_attribute("aria-rowcount") == "1000001"
    height = frame.evaluate("view => view.scrollHeight")
    for place, least, most in ((0.5, 495_000, 505_000), (1.0, 999_900, 999_999), (0.0, 0, 0)):
        frame.evaluate("(view, at) => { view.scrollTop = at; }", height * place)
        page.wait_for_function(
            "([least, most]) => { const first = Number(document.querySelector('tbody tr:not(.gap)').innerText);"
            " return least <= first && first <= most; }",
            arg=[least, most],
        )
        shown = [int(text) for text in frame.locator("tbody tr:not(.gap)").all_inner_texts()]
        assert shown == list(range(shown[0], shown[0] + len(shown)))
        assert len(shown) < 150
        first = frame.locator("tbody tr:not(.gap)").first
        assert int(first.get_attribute("aria-rowindex")) == shown[0] + 2
    assert page.evaluate("document.querySelectorAll('*').length") < 700


# ---------------------------------------------------------------- savepoints, alerts


def test_savepoints_and_their_lineage(seen: Seen, console: str, open_page: OpenPage) -> None:
    page = open_page(f"{console}/#/savepoints")
    rows = page.locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == ["nightly", "before-upgrade"]
    below = page.locator(".lineage > ul > li > ul summary")
    assert below.inner_text().startswith("nightly")
    below.click()
    page.get_by_text("page_views", exact=True).last.wait_for()
    assert page.locator(".lineage dd").first.inner_text() == "page_views"


def test_alerts_have_their_runbook(open_page: OpenPage, tmp_path: Path) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    for path in (tmp_path / "pond/jobs/page_views/samples").iterdir():
        path.unlink()
    write_samples(seen.job, 20, longest_batch_seconds=75.0, batch_seconds=75.0)
    config = tmp_path / "alerts.toml"
    config.write_text('[thresholds]\nbatch-waits = 1\n[[silences]]\nrule = "behind"\nreason = "known"\n')
    with serving(seen.place, "--no-samples", "--alerts", str(config), home=tmp_path / "home") as (url, _):
        page = open_page(f"{url}/#/alerts")
        page.wait_for_selector("article.alert")
        article = page.locator("article", has_text="batch-slow")
        assert "75 s" in article.inner_text()
        article.get_by_text("Runbook").click()
        assert "over a minute, for two minutes" in article.inner_text()
        assert obstacles(page) == []
