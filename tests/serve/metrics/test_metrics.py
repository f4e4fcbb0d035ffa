"""/metrics: names, units, and numbers that add up."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import millpond
from millpond.operate.durations import BUCKETS
from millpond.schema.types import Field, atomic
from millpond.serve.metrics.counts import Meter
from servers.serving import wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def client(http_door: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http_door, timeout=30) as opened:
        wait_until_ready(opened)
        yield opened


def _samples(client: httpx.Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def _requests(samples: dict[tuple[str, frozenset[tuple[str, str]]], float], route: str, status: int) -> float:
    labels = frozenset({"door": "http", "route": route, "status": str(status)}.items())
    return samples.get(("millpond_requests_total", labels), 0)


def test_every_answer_is_counted_once_whichever_way_it_took(client: httpx.Client) -> None:
    before = _samples(client)
    for _ in range(5):
        client.get("/tables/long/rows?k=5")
    for _ in range(3):
        client.get("/tables/long/rows", headers={"accept": "text/csv"})
    client.get("/tables/long/rows?k=x")
    client.get("/tables/nothing/rows?k=x")
    client.get("/nothing")
    after = _samples(client)
    counts = {
        key: _requests(after, *key) - _requests(before, *key)
        for key in (("rows", 200), ("rows", 400), ("rows", 404), ("none", 404))
    }
    assert counts == {("rows", 200): 8, ("rows", 400): 1, ("rows", 404): 1, ("none", 404): 1}
    rows = frozenset({"door": "http", "route": "rows"}.items())
    name = "millpond_request_seconds_count"
    assert after[name, rows] - before.get((name, rows), 0) == 10
    assert after["millpond_request_seconds_bucket", rows | {("le", "+Inf")}] == after[name, rows]


def test_a_jobs_numbers_are_those_of_its_tables(client: httpx.Client) -> None:
    samples, table = _samples(client), client.get("/tables/long").json()
    job = frozenset({"job": "long"}.items())
    assert samples["millpond_batch", job] == table["batch"] == 1
    assert samples["millpond_behind_batches", job] == 0
    assert samples["millpond_readable", job] == 1
    assert samples["millpond_bootstraps_total", job] >= 0
    assert samples["millpond_replica_bytes", job] > 0
    assert sum(v for (name, labels), v in samples.items() if name == "millpond_rows" and job <= labels) == table["row_count"]


def test_every_metric_stands_in_the_manual_and_no_other(client: httpx.Client) -> None:
    page = (DOCS / "serving.md").read_text()
    written = set(re.findall(r"`((?:millpond|process)_[a-z_]+)`", page))
    types = dict(re.findall(r"# TYPE ((?:millpond|process)_\w+) (\w+)", client.get("/metrics").text))
    assert written == set(types)
    units = ("seconds", "bytes", "batches", "rows", "batch", "readable", "running", "total")
    units += ("connections", "streams", "waits", "fds", "info", "failing", "records", "files", "partitions", "failed")
    assert all(name.endswith(units) for name in types)
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in types.items())


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_a_journal_that_cant_be_flushed_is_counted(serve: Any, tmp_path: Path, options: tuple[str, ...]) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck", key=(Field("k", atomic("timestamp")),), watermarked=True)

    def expire(minute: int) -> None:
        checkpoint.watermark_ms = 60_000 * minute
        checkpoint.plan([((60_000_000 * minute,), None)], snapshot=False)
        checkpoint.commit()

    checkpoint.plan([((60_000_000 * minute,), minute) for minute in range(5)], snapshot=False)
    checkpoint.commit()
    expire(0)
    with millpond.open(checkpoint.path, replica_dir=tmp_path / "home", wait_seconds=60):
        pass
    (mark,) = tmp_path.glob("home/replicas/*/closed.json")
    mark.unlink()
    mark.mkdir()  # no file can be renamed to a folder
    expire(1)
    with serve(checkpoint.path, *options) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        # With several processes, the follower's counts arrive some time after the first answers.
        errors = ("millpond_journal_errors_total", frozenset({("job", "ck")}))
        wait_until(lambda: _samples(client).get(errors), "the error of the journal")


def test_counts_of_several_processes_add_up_and_outlive_them(tmp_path: Path) -> None:
    for _ in range(2):
        gone = Meter(tmp_path)
        gone.count("rows", 200, 0.0002, tables=["views"])
        gone.note_followers({"job": dict.fromkeys(("batches_applied", "rows_applied", "apply_seconds"), 2) | _REST})
        gone.write()
        gone.write()
    here = Meter(tmp_path)
    here.count("rows", 200, 60.0, tables=["views"])
    here.count("rows", 404, 0.0, tables=["hosts"])
    here.write()
    total = here.total()
    assert total.requests == {"rows": {200: 3, 404: 1}}
    rows = total.durations["rows"].buckets
    assert (rows[0], rows[1], rows[len(BUCKETS)]) == (1, 2, 1)
    assert total.durations["rows"].seconds == pytest.approx(60.0004)
    assert {table: (took.count, took.buckets[1]) for table, took in here.reads().items()} == {"views": (3, 2), "hosts": (1, 0)}
    assert total.followers["job"]["batches_applied"] == 4
    (tmp_path / "broken.json").write_text("{")
    assert here.total().requests == total.requests


def test_what_a_process_holds_goes_with_it_and_what_it_used_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, here = Meter(tmp_path), Meter(tmp_path)
    for meter, connections in ((gone, 3), (here, 4)):
        meter.note_load = lambda process, connections=connections: setattr(process, "connections", connections)
        meter.write()
    both = here.total().process
    assert both.connections == 7
    assert both.memory_bytes > 10 << 20
    assert both.descriptors > 3
    assert 0 < both.started <= time.time()
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    alone = here.total().process
    assert alone.connections == 4
    assert alone.cpu_seconds >= both.cpu_seconds > 0
    assert alone.started == both.started


def test_a_scrape_tells_of_all_processes_what_they_are_and_hold(serve: Any, types_pond: Path) -> None:
    with serve(types_pond, "--workers", "2") as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        wait_until_ready(client)

        def all_facts() -> dict[str, str] | None:
            facts = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
            return facts if float(facts["process_resident_memory_bytes"]) > 3 * (30 << 20) else None

        facts = wait_until(all_facts, "the memory of two doors and the follower")
        assert float(facts["millpond_connections"]) >= 1
        assert float(facts["millpond_streams"]) == float(facts["millpond_waits"]) == 0
        assert float(facts["process_cpu_seconds_total"]) > 0
        assert [name for name in facts if name.startswith("millpond_build_info{") and f'version="{version("millpond")}"' in name]


_REST = dict.fromkeys(("bootstraps", "bootstrap_records", "bootstrap_seconds", "errors", "journal_errors", "aside_errors"), 0)
