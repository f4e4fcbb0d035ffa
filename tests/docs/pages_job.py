"""Runs the manual's code as it stands, page by page, in the current folder: `python pages_job.py`.

This program makes what a page presumes, such as arriving files or a stream of rows.  test_pages.py then asks the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import millpond
from inputs.manual import code_below
from inputs.small_models import linear
from live_jobs.quick_java import QUICK_JAVA
from millpond.spark.job import Job
from soak.orphans import end_with_parent

Known = dict[str, Any]


def run(page: str, heading: str, known: Known, start: int = 0, end: int | None = None) -> None:
    """The code below a heading, or some of its blocks."""
    for code in code_below(page, heading)[start:end]:
        exec(code, known)


def write(folder: str, *rows: dict[str, Any]) -> None:
    """Write a file of JSON lines into a new folder."""
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "1.json").write_text("\n".join(json.dumps(row) for row in rows))


def finish(known: Known) -> None:
    """Let a page's job read all of its input, and end it."""
    job: Job = known["job"]
    job.query.processAllAvailable()
    job.stop()


def models(known: Known) -> None:
    """docs/models.md: a model, a rollback to an unknown version, and two more models."""
    write("records", *({"id": n, "kind": "red", "a": n, "b": 1.0} for n in range(200)))
    Path("published").mkdir()
    for name, weight in (("model", 1.0), ("new", 2.0), ("next", 3.0)):
        Path(f"{name}.onnx").write_bytes(linear([weight, 0.0], 0.0))
    run("models.md", "# Models served as state", known, 1)
    run("models.md", "## Several models for one type", known)
    run("models.md", "# Models served as state", known, 0, 1)
    finish(known)


def broadcast(known: Known) -> None:
    """docs/broadcast.md."""
    write("events", *({"id": n, "amount": n} for n in (10, 1000, 2000)))
    write("rules", {"rule": "large", "least": 1000, "seq": 1}, {"rule": "huge", "least": 2000, "seq": 2})
    run("broadcast.md", "# Broadcast state", known)
    finish(known)


def hot_keys(known: Known) -> None:
    """docs/hot-keys.md: all groups in parts, then only groups found to be hot."""
    visits = [{"page": "/" if n % 2 else f"/{n}", "visitor": f"v{n % 50}", "partition": 0, "offset": n} for n in range(3000)]
    write("pages", *visits)
    schema = "page string, visitor string, partition int, offset long"
    known["pages"] = known["spark"].readStream.schema(schema).json("pages/")
    run("hot-keys.md", "## `salted`", known, 0, 1)
    finish(known)
    run("hot-keys.md", "## `salted`", known, 1)
    run("hot-keys.md", "### Hot keys that are found while the job runs", known)
    known["pond"].close()
    finish(known)


def buffered(known: Known) -> None:
    """docs/keyed-state.md, operator state: rows that all wait for some triggers."""
    write("rows", *({"n": n} for n in range(10)))
    known["rows"] = known["spark"].readStream.schema("n long").json("rows/")
    known["mp"] = millpond
    run("keyed-state.md", "## Operator state: rows that wait", known, 0, 1)
    known["job"].wait_for_batch(2, timeout_seconds=120)
    run("keyed-state.md", "## Operator state: rows that wait", known, 1)
    known["pond"].close()
    known["job"].stop()
    known["write"](known["spark"].range(3), "not empty")


def aggregates(known: Known) -> None:
    """docs/aggregates.md: an event each minute for some days."""
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    times = [begin + timedelta(minutes=n) for n in range(6 * 1440)]
    write("visits", *({"at": at.isoformat(), "page": "/", "bytes": 2, "host": f"h{at.hour}"} for at in times))
    known["visits"] = known["spark"].readStream.schema("at timestamp, page string, bytes long, host string").json("visits/")
    run("aggregates.md", "## Declare and ask", known, 0, 1)
    finish(known)
    run("aggregates.md", "## Declare and ask", known, 1)
    known["pond"].close()


def main() -> None:
    """All pages."""
    conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "1g", **QUICK_JAVA}
    spark = millpond.session("pages", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    pages: list[Callable[[Known], None]] = [models, broadcast, hot_keys, aggregates, buffered]
    for page in pages:
        page({"__name__": "__main__", "spark": spark})
    spark.stop()


if __name__ == "__main__":
    end_with_parent(group=True)
    main()
