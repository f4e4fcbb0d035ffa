"""How long a browser takes until the console's first page is there, with 1,000 tables.

    python benchmarks/console.py [--jobs 50] [--tables 20] [--rounds 9] [--write]

Fifty jobs with twenty tables each, of 24 partitions and 410 rows, and an hour of samples.  Debian's
Chromium has a new profile in each round, so nothing is in its cache.  A page is there when its rows
are.  `requests` is how many a page makes, its files among them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
from results import write_result

from millpond.catalogue import create_job
from millpond.schema.definition.table import parse_definition
from servers.chromium import chromium
from servers.serving import serving, wait_until_ready
from spark_files.seen_pond import make_pond

PAGES = {"first_page": "#/jobs", "tables": "#/tables", "one_job": "#/jobs/job00", "one_table": "#/tables/views_00_00"}


def write_pond(folder: Path, jobs: int, tables: int) -> Path:
    """A pond of copies of one job, with many tables each."""
    made = make_pond(folder / "one", samples=60)
    own = made.place / "jobs/page_views"
    definition = json.loads((own / "tables/page_views.json").read_text())
    pond = folder / "pond"
    for number in range(jobs):
        job = create_job(pond, f"job{number:02d}")
        target = pond / f"jobs/job{number:02d}"
        shutil.copytree(own / "checkpoint", target / "checkpoint", dirs_exist_ok=True)
        shutil.copytree(own / "samples", target / "samples")
        for table in range(tables):
            job.write_definition(parse_definition({**definition, "table": f"views_{number:02d}_{table:02d}"}))
    return pond


def measure(browser: Any, url: str) -> dict[str, Any]:
    """Milliseconds until the rows of each page are there, and its requests."""
    found: dict[str, Any] = {}
    for name, address in PAGES.items():
        context = browser.new_context()
        page = context.new_page()
        requests: list[str] = []
        page.on("request", lambda request, requests=requests: requests.append(request.url))
        began = time.perf_counter()
        page.goto(f"{url}/{address}", wait_until="commit")
        page.wait_for_selector("tbody tr")
        found[name] = {"milliseconds": round((time.perf_counter() - began) * 1000, 1), "requests": len(requests)}
        found[name]["elements"] = page.evaluate("document.querySelectorAll('*').length")
        context.close()
    return found


def main() -> None:
    """Open each page in turn, in some rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--tables", type=int, default=20, help="of each job")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/console.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pond = write_pond(folder, options.jobs, options.tables)
        with serving(pond, home=folder / "home") as (url, _), chromium() as browser:
            with httpx.Client(base_url=url, timeout=120) as client:
                wait_until_ready(client)
                assert len(client.get("/tables").json()["tables"]) == options.jobs * options.tables
            measure(browser, url)  # the browser's own first start
            rounds = [measure(browser, url) for _ in range(options.rounds)]
    pages = {
        page: {
            "median_milliseconds": statistics.median(each[page]["milliseconds"] for each in rounds),
            "most_milliseconds": max(each[page]["milliseconds"] for each in rounds),
            "requests": rounds[-1][page]["requests"],
            "elements": rounds[-1][page]["elements"],
        }
        for page in PAGES
    }
    result = {
        "what": "from the address to the first rows of a page of the console",
        "jobs": options.jobs,
        "tables": options.jobs * options.tables,
        "pages": pages,
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("console", result, rounds)


if __name__ == "__main__":
    main()
