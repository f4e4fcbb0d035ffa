"""Event streams and waiting requests of a router are bounded for each client, as those of a server, and ended ones make room."""

from __future__ import annotations

import json
import re
import selectors
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest

from millpond.serve.access.tokens import add_token, remove_token
from servers.shard_jobs import SHARDS, Job
from servers.shards import routing, shard_servers
from servers.sockets import begin_events, is_read
from suite.waiting import stays, wait_until

pytestmark = pytest.mark.long

EVENTS = {"accept": "text/event-stream"}
STREAMS = 30


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("streamed") / "job", seed=4)


@pytest.fixture(scope="module")
def urls(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    homes = tmp_path_factory.mktemp("homes")
    with shard_servers(job.checkpoint.path, SHARDS, homes, "--history", f"{job.table}=forever") as servers:
        yield [server.url for server in servers]


@contextmanager
def stream(url: str, path: str, token: str) -> Iterator[socket.socket]:
    """An open event stream, after its first event; the client leaves at the end."""
    # One that ended just now may still have its place.
    with wait_until(lambda: _begun(url, path, token), "a place for a stream") as connection:
        yield connection


def _begun(url: str, path: str, token: str) -> socket.socket | None:
    place = urlsplit(url)
    connection = socket.create_connection((place.hostname, place.port), timeout=60)
    if begin_events(connection, path, token):
        return connection
    connection.close()
    return None


def condition(url: str, path: str, token: str, **headers: str) -> str:
    """Why a request is refused; empty if it isn't."""
    with httpx.stream("GET", url + path, headers={"authorization": f"Bearer {token}", **headers}, timeout=30) as answer:
        if answer.status_code == 200:
            return ""
        answer.read()
        assert answer.status_code in (401, 429)
        assert answer.status_code == 401 or answer.headers["retry-after"] == "1"
        found: str = answer.json()["error"]["condition"]
        return found


def test_each_client_has_its_share_of_streams_and_waits_and_gets_it_back(urls: list[str], job: Job, tmp_path: Path) -> None:
    tokens, path = tmp_path / "readers.json", f"/tables/{job.table}/changes"
    greedy, modest = (add_token(tokens, name, tables=["*"]) for name in ("greedy", "modest"))
    bounds = ("--max-streams-per-client", "3", "--max-streams", "4", "--max-waits-per-client", "2", "--tokens", str(tokens))
    with routing(*urls, *bounds) as url:
        with ExitStack() as opened:
            for _ in range(3):
                opened.enter_context(stream(url, path, greedy))
            for _ in range(20):
                assert condition(url, path, greedy, **EVENTS) == "TOO_MANY_STREAMS"
            statement = f"/sql/changes?_statement=SELECT+k,+v+FROM+%22{job.table}%22"
            assert condition(url, statement, greedy, **EVENTS) == "TOO_MANY_STREAMS", "those of statements are counted with them"
            assert condition(url, path, greedy) == "", "a page is no stream"
            opened.enter_context(stream(url, path, modest))
            assert condition(url, path, modest, **EVENTS) == "TOO_MANY_STREAMS", "all together have a limit, too"
        for client in (greedy, modest):  # whose streams have ended
            wait_until(lambda client=client: condition(url, path, client, **EVENTS) == "", "room for a stream of each client")
        # Streams that end with an error give back their places.
        for _ in range(5):
            assert (
                httpx.get(f"{url}{path}?_since=x", headers={**EVENTS, "authorization": f"Bearer {greedy}"}, timeout=60).status_code
                == 400
            )
        with ExitStack() as opened:
            for _ in range(3):
                wait_until(lambda: condition(url, path, greedy, **EVENTS) == "", "room for a stream")
                opened.enter_context(stream(url, path, greedy))
            # A token that ends takes its streams along.
            remove_token(tokens, "greedy")
            with stream(url, path, modest) as stays:
                wait_until(lambda: condition(url, path, greedy, **EVENTS) == "TOKEN_NEEDED", "the end of the token")
                for _ in range(2):
                    wait_until(lambda: condition(url, path, modest, **EVENTS) == "", "room for a stream")
                assert stays.fileno() >= 0


def test_requests_that_wait_for_changes_are_counted(urls: list[str], job: Job, tmp_path: Path) -> None:
    tokens, path = tmp_path / "readers.json", f"/tables/{job.table}/changes?_wait_seconds="
    greedy, modest = (add_token(tokens, name, tables=["*"]) for name in ("greedy", "modest"))
    with routing(*urls, "--max-waits-per-client", "2", "--tokens", str(tokens)) as url, ExitStack() as opened:
        place = urlsplit(url)
        waiting = [opened.enter_context(socket.create_connection((place.hostname, place.port), timeout=60)) for _ in range(7)]
        for each in waiting:
            each.sendall(f"GET {path}25 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {greedy}\r\n\r\n".encode())
        with selectors.DefaultSelector() as selector:
            for each in waiting:
                selector.register(each, selectors.EVENT_READ)
            refused: list[socket.socket] = []
            wait_until(lambda: refused.extend(drain(selector)) or len(refused) >= 5, "five refusals")
            assert not selector.select(0.5), "two wait"
        assert condition(url, f"{path}0.2", greedy) == "TOO_MANY_WAITS"
        assert condition(url, f"{path}0.2", modest) == ""
        opened.close()  # the client leaves
        wait_until(lambda: condition(url, f"{path}0.2", greedy) == "", "room for a wait")


def drain(selector: selectors.BaseSelector) -> list[socket.socket]:
    """The connections whose requests were refused since the last look."""
    found = [key.fileobj for key, _ in selector.select(0.1)]
    for each in found:
        assert isinstance(each, socket.socket)
        assert b"TOO_MANY_WAITS" in each.recv(65_536)
        selector.unregister(each)
    return found  # type: ignore[return-value]


def test_requests_that_wait_for_a_bound_have_no_thread(urls: list[str], job: Job, tmp_path: Path) -> None:
    """However many wait, others are answered; and a client has its share of waits."""
    tokens = tmp_path / "readers.json"
    greedy, modest = (add_token(tokens, name, tables=["*"]) for name in ("greedy", "modest"))
    rows, later = f"/tables/{job.table}/rows?_limit=5", job.checkpoint.next_batch + 1000
    with routing(*urls, "--max-waits-per-client", "150", "--tokens", str(tokens)) as url, ExitStack() as opened:
        assert condition(url, rows, modest) == ""
        place = urlsplit(url)
        waiting = [opened.enter_context(socket.create_connection((place.hostname, place.port), timeout=60)) for _ in range(155)]
        for each in waiting:
            path = f"{rows}&_min_batch={later}&_wait_seconds=30"
            each.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {greedy}\r\n\r\n".encode())
        with selectors.DefaultSelector() as selector:
            for each in waiting:
                selector.register(each, selectors.EVENT_READ)
            refused: list[socket.socket] = []
            wait_until(lambda: refused.extend(drain(selector)) or len(refused) >= 5, "five refusals")
            for _ in range(20):
                assert condition(url, rows, modest) == ""
            assert not selector.select(0.2), "the others wait still"
        assert condition(url, f"{rows}&_min_batch={later}&_wait_seconds=1", greedy) == "TOO_MANY_WAITS"


def test_a_request_that_waits_gets_the_batch_that_it_waits_for(job: Job, urls: list[str]) -> None:
    rows = f"/tables/{job.table}/rows"
    with routing(*urls) as url, ThreadPoolExecutor(1) as asking, httpx.Client(base_url=url, timeout=60) as client:
        wanted = job.checkpoint.next_batch
        options = {"_min_batch": wanted, "_wait_seconds": 30, "_limit": 1000}
        asked = asking.submit(client.get, rows, params=options)
        with pytest.raises(TimeoutError):
            asked.result(1.0)
        job.commit()
        answer = asked.result(60).json()
        assert answer["batch"] == wanted
        assert answer["rows"] == client.get(rows, params={"_limit": 1000}).json()["rows"]
        late = client.get(rows, params={**options, "_min_batch": wanted + 5, "_wait_seconds": 1}).json()["error"]
        assert late["condition"] == "NOT_UP_TO_BOUND"
        assert 1 <= late["context"]["waited_seconds"] < 20
        assert "after 1 seconds" in late["message"]


def reads_of_changes(url: str) -> float:
    """How many pages of changes a server has been asked for."""
    counts = re.findall(
        r'^millpond_requests_total\{door="http",route="changes\w*".*\} (\S+)$', httpx.get(f"{url}/metrics", timeout=60).text, re.M
    )
    return sum(map(float, counts))


def test_all_streams_at_one_place_are_read_once(job: Job, urls: list[str], tmp_path: Path) -> None:
    """Servers are asked once for each batch, however many clients wait for it at a router."""
    token, path = add_token(tmp_path / "readers.json", "reader", tables=["*"]), f"/tables/{job.table}/changes"
    with routing(*urls, "--tokens", str(tmp_path / "readers.json")) as url, ExitStack() as opened:
        streams = [opened.enter_context(stream(url, path, token)) for _ in range(STREAMS)]
        for _ in range(3):
            before = [reads_of_changes(each) for each in urls]
            wanted = job.checkpoint.next_batch
            job.commit()
            for each in streams:
                data = b""
                while b'"batch":%d,' % wanted not in data:
                    part = each.recv(65_536)
                    assert part, data
                    data += part
            after = [reads_of_changes(each) for each in urls]
            assert all(1 <= b - a < STREAMS for a, b in zip(before, after, strict=True)), (before, after)


def to_the_end(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_all_that_wait_for_changes_at_one_place_share_them(job: Job, urls: list[str]) -> None:
    path = f"/tables/{job.table}/changes"
    with routing(*urls) as url, ExitStack() as opened:
        place, since = urlsplit(url), quote(httpx.get(url + path, timeout=60).json()["token"])
        head = f"GET {path}?_since={since}&_wait_seconds=30 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        asked = [opened.enter_context(socket.create_connection((place.hostname, place.port), timeout=60)) for _ in range(STREAMS)]
        selector = opened.enter_context(selectors.DefaultSelector())
        for each in asked:
            each.sendall(head.encode())
            selector.register(each, selectors.EVENT_READ)
        wait_until(lambda: all(map(is_read, asked)), "the router to read each request")
        stays(lambda: not selector.select(0), "they wait", seconds=2)
        before = [reads_of_changes(each) for each in urls]
        wanted = job.checkpoint.next_batch
        job.commit()
        answers = [json.loads(to_the_end(each).partition(b"\r\n\r\n")[2]) for each in asked]
        assert answers[0]["changes"]
        assert {(each["batch"], json.dumps(each["changes"])) for each in answers} == {(wanted, json.dumps(answers[0]["changes"]))}
        after = [reads_of_changes(each) for each in urls]
        assert all(1 <= b - a < STREAMS / 2 for a, b in zip(before, after, strict=True)), (before, after)
