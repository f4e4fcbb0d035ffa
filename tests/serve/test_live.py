"""A server of a running job: changes come in order, pages are of one batch, requests wait for bounds, a batch ends its ETags."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.errors import MillpondError
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few
from suite.waiting import wait_until


@pytest.fixture(params=a_few(["1", "2"], 1), ids=["one process", "two workers"])
def live(request: pytest.FixtureRequest, serve: Any, tmp_path: Path) -> Iterator[tuple[WrittenCheckpoint, str]]:
    """A job with a server that follows it and keeps the history of its table."""
    job = WrittenCheckpoint(tmp_path / "job")
    _commit(job, a=1, b=1)
    with serve(job.path, "--workers", request.param, "--history", f"{_table(job)}=1000") as (address, _):
        rows = f"{address}/tables/{_table(job)}/rows"
        wait_until(lambda: httpx.get(rows, timeout=60).status_code == 200, "the table")
        yield job, address


def _table(job: WrittenCheckpoint) -> str:
    return f"{job.path.name}.aggregate_0"


def _commit(job: WrittenCheckpoint, **values: int | None) -> int:
    job.plan(list(values.items()), snapshot=False)
    job.commit()
    return job.next_batch - 1


@pytest.mark.long
def test_a_client_reads_what_it_knows_to_be_committed(live: tuple[WrittenCheckpoint, str]) -> None:
    job, address = live
    with millpond.connect(address) as server:
        table = server[_table(job)]
        for number in range(5):
            batch = _commit(job, a=number)
            row = table.get(k="a", bounds=millpond.Bounds(min_batch=batch, wait_seconds=20))
            assert (row["v"], row.batch, row.changed_batch) == (number, batch, batch)
        with pytest.raises(MillpondError) as refused:
            table.get(k="a", bounds=millpond.Bounds(min_batch=batch + 1, wait_seconds=0.2))
        assert (refused.value.condition, refused.value.context["missing"]) == ("NOT_UP_TO_BOUND", 1)
        waiting = threading.Timer(0.3, lambda: _commit(job, a=99))
        waiting.start()
        assert table.get(k="a", bounds=millpond.Bounds(min_batch=batch + 1, wait_seconds=20))["v"] == 99
        waiting.join()


def test_changes_are_told_in_order_and_once(live: tuple[WrittenCheckpoint, str]) -> None:
    job, address = live
    with millpond.connect(address) as server:
        table = server[_table(job)]
        begin = table.changes()
        batches = [_commit(job, a=2), _commit(job, b=None, c=7), _commit(job, a=3)]
        table.get(k="a", bounds=millpond.Bounds(min_batch=batches[-1], wait_seconds=20))
        seen, token = [], begin.token
        while page := table.changes(token, limit=1):
            seen += page
            token = page.token
        brief = [(c.batch, c.kind, c.row["k"], c.old and c.old["v"], c.new and c.new["v"]) for c in seen]
        assert brief[0] == (batches[0], "update", "a", 1, 2)
        assert brief[-1] == (batches[2], "update", "a", 2, 3)
        assert [(b, k, old, new) for b, _, k, old, new in brief[1:3]] == [(batches[1], "b", 1, None), (batches[1], "c", None, 7)]
        assert [(c.batch, c.kind, c.old, c.new) for c in table.changes(begin.token)] == [
            (c.batch, c.kind, c.old, c.new) for c in seen
        ]
        waiting = threading.Timer(0.3, lambda: _commit(job, d=1))
        waiting.start()
        assert [c.kind for c in table.changes(token, wait_seconds=20)] == ["insert"]
        waiting.join()


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    event: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, text = line.partition(": ")
            event[name] = text
        elif not line and "data" in event:
            yield event.get("id", ""), json.loads(event["data"])
            event = {}


@pytest.mark.long
def test_a_stream_of_events_goes_on_where_it_was(live: tuple[WrittenCheckpoint, str]) -> None:
    job, address = live
    url, headers = f"{address}/tables/{_table(job)}/changes", {"accept": "text/event-stream"}
    seen: list[tuple[str, int]] = []

    def take(events: Iterator[tuple[str, Any]], until: int) -> str:
        last = ""
        while not seen or seen[-1] != ("n", until):
            last, page = next(events)
            seen.extend((c["new"]["k"], c["new"]["v"]) for c in page["changes"])
        return last

    with httpx.stream("GET", url, headers=headers, timeout=30) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        events = _events(stream.iter_lines())
        _, first = next(events)
        assert first["changes"] == []
        for number in range(3):
            _commit(job, n=number)
        last = take(events, 2)
    for number in range(3, 6):
        _commit(job, n=number)
    with httpx.stream("GET", url, headers={**headers, "last-event-id": last}, timeout=30) as stream:
        events = _events(stream.iter_lines())
        _commit(job, n=6)
        take(events, 6)
    assert seen == [("n", number) for number in range(7)]


@pytest.mark.long
def test_an_etag_ends_with_its_batch(live: tuple[WrittenCheckpoint, str]) -> None:
    job, address = live
    for path in (f"/tables/{_table(job)}/rows", f"/tables/{_table(job)}/rows?k=a"):
        before = httpx.get(address + path, timeout=60)
        known = {"if-none-match": before.headers["etag"]}
        assert httpx.get(address + path, headers=known, timeout=60).status_code == 304
        batch = _commit(job, a=before.json()["batch"] + 100)
        httpx.get(f"{address}{path.partition('?')[0]}?_min_batch={batch}&_wait_seconds=20", timeout=60)
        after = httpx.get(address + path, headers=known, timeout=60)
        assert (after.status_code, after.json()["batch"]) == (200, batch)
        assert after.headers["etag"] != before.headers["etag"]


def test_earlier_batches_are_read_where_history_is_kept(live: tuple[WrittenCheckpoint, str]) -> None:
    job, address = live
    path = f"{address}/tables/{_table(job)}/rows?k=z"
    batches = [_commit(job, z=number) for number in range(3)]
    httpx.get(f"{path}&_min_batch={batches[-1]}&_wait_seconds=20", timeout=60)
    for number, batch in enumerate(batches):
        answer = httpx.get(f"{path}&_batch={batch}", timeout=60).json()
        assert (answer["batch"], answer["rows"]) == (batch, [{"k": "z", "v": number}])
    assert httpx.get(f"{path}&_batch={batches[-1] + 1}", timeout=60).json()["error"]["condition"] == "NOT_UP_TO_BOUND"


def test_pages_are_of_one_batch_while_the_job_goes_on(live: tuple[WrittenCheckpoint, str]) -> None:
    job, address = live
    batch = _commit(job, **{f"p{n:02}": n for n in range(20)})
    with millpond.connect(address) as server:
        table = server[_table(job)]
        page = table.scan(limit=5, bounds=millpond.Bounds(min_batch=batch, wait_seconds=20))
        rows, expected = list(page), len(table.scan())
        while page.more:
            newer = _commit(job, **{f"p{n:02}": n + 1000 for n in range(20)})
            httpx.get(f"{address}/tables/{_table(job)}/rows?k=a&_min_batch={newer}&_wait_seconds=20", timeout=60)
            page = table.scan(limit=5, token=page.token)
            rows += page
        assert {row.batch for row in rows} == {batch}
        assert len(rows) == expected
        assert all(row["v"] < 1000 for row in rows)


@pytest.mark.long
def test_sigterm_ends_streams_too(serve: Any, tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    _commit(job, a=1)
    with serve(job.path, "--history", "job.aggregate_0=10") as (address, server):
        wait_until(lambda: httpx.get(f"{address}/readyz", timeout=60).status_code == 200, "a server that is ready")
        url = f"{address}/tables/job.aggregate_0/changes"
        with httpx.stream("GET", url, headers={"accept": "text/event-stream"}, timeout=30) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.terminate()
            for _ in lines:  # a server that cuts the connection after its time to drain is an error here
                pass
            assert server.wait(60) == 0


@pytest.mark.long
def test_versions_and_where_an_event_is(serve: Any, tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job", sources=lambda batch: [{"views": {"0": 10 * (batch + 1)}}])
    _commit(job, a=1, b=1)
    with (
        serve(job.path, "--history", "job.aggregate_0=forever") as (address, _),
        httpx.Client(base_url=address, timeout=30) as client,
    ):
        wait_until(lambda: client.get("/readyz").status_code == 200, "a server that is ready")
        _commit(job, a=2)
        last = _commit(job, a=None, c=5)
        rows = client.get(f"/tables/job.aggregate_0/rows?_min_batch={last}&_wait_seconds=20").json()
        assert rows["batch"] == last
        answer = client.get("/tables/job.aggregate_0/versions?k=a").json()
        assert [(v["row"]["v"], v["kind"], v["batch"], v["until_batch"]) for v in answer["versions"]] == [
            (1, None, None, 1),
            (2, "update", 1, 2),
            (2, "expire", 2, None),
        ]
        some = client.get("/tables/job.aggregate_0/versions?_since=1&_until=1&_limit=1").json()
        assert ([v["row"] for v in some["versions"]], some["more"]) == ([{"k": "a", "v": 2}], True)
        refused = client.get("/tables/job.aggregate_0/versions?_since=2001-01-01T00:00:00Z")
        assert (refused.status_code, refused.json()["error"]["condition"]) == (410, "HISTORY_GONE")
        found = client.get("/tables/job.aggregate_0/event?_offset=views:0:19").json()
        assert (found["batch_read"], found["applied"], found["late"]) == (1, True, "no")
        yet_to_come = client.get("/tables/job.aggregate_0/event?_offset=views:0:30").json()
        assert (yet_to_come["batch_read"], yet_to_come["applied"], yet_to_come["late"]) == (None, False, "unknown")
        for line in ("0", "x", "1.5"):
            refused = client.get(f"/tables/job.aggregate_0/event?_file=/a.log&_line={line}")
            assert (refused.status_code, refused.json()["error"]["condition"][:8]) == (400, "INVALID_")
        assert client.get("/tables/job.aggregate_0/event").json()["error"]["condition"] == "INVALID_REQUEST"
