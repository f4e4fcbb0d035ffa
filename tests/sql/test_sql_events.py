"""A subscription over server-sent events: replayed, its events give what a recomputation of each batch gives."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from millpond.serve.access.tokens import remove_token
from servers.serving import serving, wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from sql.test_subscribe import CASES, TABLE, Job, Rows, counted
from suite.programs import started
from suite.sizes import a_few, examples
from suite.waiting import wait_until

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")
Event = tuple[str, str, dict[str, Any]]


class Client:
    """Reads events, and the rows that they give.

    last:  the id of the last event
    """

    def __init__(self, url: str, statement: str, key: list[str] | None, **headers: str) -> None:
        self._params = {"_statement": statement, **({} if key is None else {"_by": ",".join(key)})}
        self._url, self._headers = f"{url}/sql/changes", headers
        self.rows: Rows = []
        self.last = ""
        self.kinds: list[str] = []
        self.batch = -1
        self.since: list[int | None] = []

    def read(self) -> Iterator[Event]:
        """Events from here on, applied before they are given."""
        headers = {"accept": "text/event-stream", **self._headers, **({"last-event-id": self.last} if self.last else {})}
        with httpx.stream("GET", self._url, params=self._params, headers=headers, timeout=30) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"] == "text/event-stream"
            event: dict[str, str] = {}
            for line in answer.iter_lines():
                if line and not line.startswith(":"):
                    name, _, text = line.partition(": ")
                    event[name] = text
                elif not line and "data" in event:
                    data = json.loads(event["data"])
                    self._apply(event, data)
                    yield event["event"], event.get("id", ""), data
                    event = {}

    def _apply(self, event: dict[str, str], data: dict[str, Any]) -> None:
        self.kinds.append(event["event"])
        if event["event"] == "error":
            return
        if event["event"] == "snapshot":
            self.rows = []
        for change in data["changes"]:
            if change["old"] is not None:
                self.rows.remove(change["old"])
            if change["new"] is not None:
                self.rows.append(change["new"])
        self.last, self.batch = event["id"], data["jobs"][0]["batch"]
        self.since.append(data["since_batch"])


def make_token(file: Path, name: str, *options: str) -> str:
    words = [sys.executable, "-m", "millpond.cli", "token", str(file), name, *options]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1]


def take(client: Client, job: Job, compute: Any, events: Iterator[Event]) -> None:
    """Read until the newest batch is shown; after each event the rows are those of a recomputation."""
    while counted(client.rows) != counted(compute(job.states[-1])):
        next(events)
        assert counted(client.rows) == counted(compute(job.states[client.batch])), client.batch


@pytest.mark.parametrize("history", a_few([50, 0], 1))
@pytest.mark.parametrize(("statement", "key", "compute"), a_few(CASES, 1))
def test_events_give_the_recomputation_of_each_batch_also_after_a_break(
    tmp_path: Path, statement: str, key: list[str] | None, compute: Any, history: int
) -> None:
    job = Job(tmp_path / "job", seed=len(statement))
    draw = random.Random(history)
    words = ("--history", f"{TABLE}={history}") if history else ()
    with serving(job.written.path, *words, home=tmp_path / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until_ready(http)
        client = Client(url, statement, key)
        events = client.read()
        next(events)
        for _ in range(examples(8, 3)):
            for _ in range(draw.randrange(1, 4)):
                job.commit_until_changed(compute)
            if draw.random() < 0.5:  # it breaks off, and the client comes back
                events.close()  # type: ignore[attr-defined]
                events = client.read()
            take(client, job, compute, events)
        events.close()  # type: ignore[attr-defined]
    if history:
        assert client.kinds == ["snapshot", *["changes"] * (len(client.kinds) - 1)]
        shown = [n for n in range(1, len(job.states)) if counted(compute(job.states[n])) != counted(compute(job.states[n - 1]))]
        assert len(client.kinds) - 1 == len(shown)


@pytest.mark.long
def test_a_client_whose_rows_arent_those_gets_all_of_them(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", seed=3)
    statement, key, compute = CASES[1]
    with serving(job.written.path, home=tmp_path / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until_ready(http)
        for place in ("0-" + "0" * 32, "99999-" + "a" * 32, "x", "'"):
            client = Client(url, statement, key)
            client.last = place
            kind, _, _ = next(client.read())
            assert kind == "snapshot"
            assert counted(client.rows) == counted(compute(job.states[-1]))
        other = Client(url, CASES[0][0], CASES[0][1])  # another statement's id
        other.last = client.last
        assert next(other.read())[0] == "snapshot"


@pytest.mark.long
def test_curl_reads_it(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", seed=4)
    with serving(job.written.path, home=tmp_path / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until_ready(http)
        words = ["curl", "-sN", "-G", f"{url}/sql/changes", "--data-urlencode", f'_statement=SELECT count(*) AS n FROM "{TABLE}"']
        with started([*words, "-d", "_by="], stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout is not None
            lines = [curl.stdout.readline() for _ in range(5)]
            curl.terminate()
    assert lines[0] == "retry: 1000\n"
    assert re.fullmatch(r"id: 0-[0-9a-f]{32}\n", lines[2])
    assert lines[3] == "event: snapshot\n"
    assert json.loads(lines[4].removeprefix("data: "))["changes"][0]["new"] == {"n": len(job.states[0])}


@pytest.mark.parametrize(
    ("params", "condition"),
    [
        ({"_statement": f'SELECT k[1] AS g FROM "{TABLE}"', "_by": "g"}, "INVALID_STATEMENT"),
        ({"_statement": f'SELECT k FROM "{TABLE}"', "_by": "nope"}, "INVALID_STATEMENT"),
        ({"_statement": "SELECT 1 AS a"}, "INVALID_STATEMENT"),
        ({"_statement": f'DELETE FROM "{TABLE}"'}, "INVALID_STATEMENT"),
        ({"_statement": "SELECT * FROM nothing"}, "UNKNOWN_TABLE"),
        ({"_statement": f'SELECT k FROM "{TABLE}"', "page": "x"}, "INVALID_REQUEST"),
        ({"_statement": f'SELECT k FROM "{TABLE}"', "_parameters": "x"}, "INVALID_REQUEST"),
        ({}, "INVALID_REQUEST"),
        ({"_statement": f'SELECT k, unnest(range(400000)) AS n FROM "{TABLE}"'}, "ANSWER_TOO_LARGE"),
    ],
)
def test_what_cant_be_subscribed_to_is_a_typed_error(plain: str, params: dict[str, str], condition: str) -> None:
    answer = httpx.get(f"{plain}/sql/changes", params=params, timeout=60)
    assert answer.json()["error"]["condition"] == condition, answer.text
    assert httpx.get(f"{plain}/sql/changes", params=params, headers={"accept": "text/csv"}, timeout=60).status_code >= 400


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("plain")
    job = Job(folder / "job", seed=5)
    while len(job.states[-1]) < 3:
        job.commit()
    options = ("--max-streams-per-client", "3", "--max-answer-bytes", "2000000", "--max-rows", "3000000")
    with serving(job.written.path, *options, home=folder / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until_ready(http)
        yield url


def test_streams_of_a_client_are_bounded_and_so_is_what_their_answers_take(plain: str) -> None:
    wide = f'SELECT n FROM (SELECT k FROM "{TABLE}" LIMIT 1), range(600) AS r(n)'
    opened = [Client(plain, wide, ["n"]).read() for _ in range(2)]
    for events in opened:
        next(events)
    answer = httpx.get(f"{plain}/sql/changes", params={"_statement": wide, "_by": "n"}, timeout=60)
    assert answer.json()["error"]["condition"] == "ANSWER_TOO_LARGE"
    small = Client(plain, f'SELECT count(*) AS n FROM "{TABLE}"', []).read()
    next(small)
    answer = httpx.get(f"{plain}/sql/changes", params={"_statement": f'SELECT k FROM "{TABLE}"'}, timeout=60)
    assert answer.json()["error"]["condition"] == "TOO_MANY_STREAMS"
    for events in [*opened, small]:
        events.close()  # type: ignore[attr-defined]

    def begun() -> Iterator[Event]:
        events = Client(plain, wide, ["n"]).read()
        next(events)
        return events

    events = wait_until(begun, "what they had to be free again", ignoring=(AssertionError,))
    events.close()  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_token_that_is_taken_back_ends_it(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", seed=6)
    file = tmp_path / "readers.json"
    token, other = make_token(file, "some", "--tables", TABLE), make_token(file, "other", "--tables", "nothing")
    statement, key, _ = CASES[1]
    with serving(job.written.path, "--tokens", str(file), home=tmp_path / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until_ready(http)
        refused = httpx.get(
            f"{url}/sql/changes", params={"_statement": statement}, headers={"authorization": f"Bearer {other}"}, timeout=60
        )
        assert refused.json()["error"]["condition"] == "NOT_ALLOWED"
        client = Client(url, statement, key, authorization=f"Bearer {token}")
        events = client.read()
        next(events)
        remove_token(file, "some")
        kind, place, data = next(events)
        assert (kind, place, data["error"]["condition"]) == ("error", "", "TOKEN_NEEDED")
        assert next(events, None) is None


@pytest.mark.long
def test_a_client_that_has_seen_no_rows_gets_all_that_came_meanwhile(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "job")
    written.plan([("a", 1)], snapshot=True)
    written.commit()
    statement = f'SELECT k, v FROM "{TABLE}" WHERE v > 100'
    with serving(written.path, "--history", f"{TABLE}=50", home=tmp_path / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until_ready(http)
        client = Client(url, statement, ["k"])
        events = client.read()
        assert (next(events)[0], client.rows) == ("snapshot", [])
        events.close()  # type: ignore[attr-defined]
        for value in (200, 300):
            written.plan([("b", value)], snapshot=False)
            written.commit()
        wait_for_batch(url, 2)
        ended = threading.Event()

        def go_on() -> None:
            value = 1000
            while not ended.wait(0.2):
                value += 1
                written.plan([("c", value)], snapshot=False)
                written.commit()

        going = threading.Thread(target=go_on)
        going.start()
        try:
            for _ in client.read():
                if any(row["k"] == "c" for row in client.rows):
                    break
        finally:
            ended.set()
            going.join()
        assert [(row["k"], row["v"]) for row in client.rows if row["k"] != "c"] == [("b", 300)]
        assert client.kinds[0] == "snapshot"
        assert "snapshot" not in client.kinds[1:]


def wait_for_batch(url: str, batch: int) -> None:
    answer = httpx.get(f"{url}/tables/{TABLE}/rows", params={"_min_batch": batch, "_wait_seconds": 20}, timeout=30)
    assert answer.status_code == 200
