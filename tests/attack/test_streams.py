"""Streams and waiting requests: their number is bounded, a batch wakes them, and they end with their client and their token."""

from __future__ import annotations

import datetime as dt
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import millpond
from attack.conftest import TABLE, Attacked, commit
from attack.victim import Victim, exchange
from millpond.errors import MillpondError
from millpond.serve.access.tokens import add_token, remove_token
from millpond.settings import ClientSettings
from servers.sockets import begin_events
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

pytestmark = pytest.mark.long

HISTORY = ("--history", f"{TABLE}=1000")


def _stream(victim: Victim, token: str = "") -> socket.socket:
    """An open event stream."""
    connection = victim.connect()
    assert begin_events(connection, f"/tables/{TABLE}/changes", token), "the server has no place for it"
    return connection


def _until(connection: socket.socket, wanted: bytes) -> bytes:
    data = b""
    while wanted not in data:
        part = connection.recv(65_536)
        if not part:
            break
        data += part
    return data


def _wait_for_metric(victim: Victim, name: str, value: int, **headers: str) -> None:
    wait_until(lambda: victim.metrics(**headers)[name] == value, f"{value} as {name}")


def _refused(victim: Victim) -> float:
    """How many requests have been answered by 429."""
    return sum(n for name, n in victim.metrics().items() if name.startswith("millpond_requests_total") and 'status="429"' in name)


def _seconds(pid: int) -> float:
    """Processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_streams_of_a_table_are_read_once_and_each_tells_all(attacked: Attacked, job: WrittenCheckpoint) -> None:
    victim = attacked(*HISTORY, "--max-streams", "60")
    with ExitStack() as opened, victim.watched(mib=60):
        streams = [opened.enter_context(_stream(victim)) for _ in range(40)]
        _wait_for_metric(victim, "millpond_streams", 40)
        for number in range(5):
            commit(job, streamed=number)
        for stream in streams:
            sent = _until(stream, b'"new":{"k":"streamed","v":4}')
            values = [json.loads(line[6:])["changes"] for line in sent.split(b"\n") if line.startswith(b"data: ")]
            assert [change["new"]["v"] for page in values for change in page if change["new"]["k"] == "streamed"] == list(range(5))
    _wait_for_metric(victim, "millpond_streams", 0)


def test_more_streams_than_allowed_are_refused_and_ended_ones_make_room(attacked: Attacked) -> None:
    victim = attacked(*HISTORY, "--max-streams", "5", "--max-waits", "3")
    with ExitStack() as opened:
        for _ in range(5):
            opened.enter_context(_stream(victim))
        refused = httpx.get(f"{victim.address}/tables/{TABLE}/changes", headers={"accept": "text/event-stream"}, timeout=60)
        assert (refused.status_code, refused.json()["error"]["condition"]) == (429, "TOO_MANY_STREAMS")
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(f"{victim.address}/tables/{TABLE}/changes", timeout=60).status_code == 200
    _wait_for_metric(victim, "millpond_streams", 0)
    with _stream(victim):
        pass


def test_more_waits_than_allowed_are_refused_and_ended_ones_make_room(attacked: Attacked) -> None:
    victim = attacked(*HISTORY, "--max-streams", "5", "--max-waits", "3")
    paths = [f"/tables/{TABLE}/count?_min_batch=99999&_wait_seconds=20", f"/tables/{TABLE}/changes?_wait_seconds=20"]
    paths.append("/tables/nobody/rows?_wait_seconds=20")
    with ExitStack() as opened:
        for path in paths:
            waiting = opened.enter_context(victim.connect())
            waiting.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        _wait_for_metric(victim, "millpond_waits", 3)
        for path in paths:
            refused = httpx.get(victim.address + path, timeout=60)
            assert (refused.status_code, refused.json()["error"]["condition"]) == (429, "TOO_MANY_WAITS")
        assert httpx.get(f"{victim.address}/tables/{TABLE}/count?_min_batch=0&_wait_seconds=20", timeout=60).status_code == 200
    _wait_for_metric(victim, "millpond_waits", 0)


def test_our_client_asks_again_where_too_many_wait(attacked: Attacked) -> None:
    victim = attacked(*HISTORY, "--max-streams", "5", "--max-waits", "3")
    path = f"/tables/{TABLE}/count?_min_batch=99999&_wait_seconds=20"
    settings = ClientSettings(tries=1000)
    with ThreadPoolExecutor(1) as pool, millpond.connect(victim.address, settings=settings) as server:
        table = server[TABLE]
        with ExitStack() as held:
            for _ in range(3):
                waiting = held.enter_context(victim.connect())
                waiting.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            _wait_for_metric(victim, "millpond_waits", 3)
            before = _refused(victim)
            asked = pool.submit(lambda: table.count(bounds=millpond.Bounds(min_batch=99999, wait_seconds=0.1)))
            wait_until(lambda: _refused(victim) > before, "a refusal")
        with pytest.raises(MillpondError) as refused:
            asked.result(60)
    assert refused.value.condition == "NOT_UP_TO_BOUND"


def test_each_client_has_its_own_share_of_streams_and_waits(attacked: Attacked, tmp_path: Path) -> None:
    tokens = tmp_path / "readers.json"
    greedy = add_token(tokens, "greedy", tables=["*"])
    modest = add_token(tokens, "modest", tables=["*"])
    shares = ("--max-streams-per-client", "2", "--max-waits-per-client", "2")
    victim = attacked(*HISTORY, *shares, "--tokens", str(tokens), token=greedy)
    with ExitStack() as opened:
        for _ in range(2):
            opened.enter_context(_stream(victim, greedy))
        url, form = f"{victim.address}/tables/{TABLE}/changes", {"accept": "text/event-stream"}
        refused = httpx.get(url, headers={**form, "authorization": f"Bearer {greedy}"}, timeout=60)
        assert refused.json()["error"]["condition"] == "TOO_MANY_STREAMS"
        opened.enter_context(_stream(victim, modest))


def test_a_batch_wakes_all_that_wait_for_it(attacked: Attacked, job: WrittenCheckpoint) -> None:
    victim = attacked(*HISTORY, "--max-streams", "60")
    with httpx.Client(base_url=victim.address, timeout=60) as client:
        batch = client.get(f"/tables/{TABLE}/count").json()["batch"] + 1
    paths = [f"/tables/{TABLE}/count?_min_batch={batch}&_wait_seconds=25"] * 60
    paths += [f"/tables/{TABLE}/rows?k=woken&_min_batch={batch}&_wait_seconds=25", f"/tables/{TABLE}/changes?_wait_seconds=25"] * 20
    limits = httpx.Limits(max_connections=200)
    with ThreadPoolExecutor(100) as pool, httpx.Client(base_url=victim.address, timeout=60, limits=limits) as client:
        answers = [pool.submit(client.get, path) for path in paths]
        _wait_for_metric(victim, "millpond_waits", 100)
        before = _seconds(victim.pid)
        time.sleep(2)
        assert _seconds(victim.pid) - before < 1.0, "who waits costs next to nothing"
        commit(job, woken=batch)
        pages = [answer.result().json() for answer in answers]
    assert {page["batch"] for page in pages} == {batch}
    assert [page["rows"][0]["v"] for page in pages if "rows" in page] == [batch] * 20
    assert [page["changes"][0]["new"]["v"] for page in pages if "changes" in page] == [batch] * 20


@pytest.mark.parametrize("how", ["removed", "expired", "replaced"])
def test_a_token_that_ends_takes_its_streams_and_waits_along(attacked: Attacked, tmp_path: Path, how: str) -> None:
    tokens = tmp_path / "readers.json"
    staying = add_token(tokens, "staying", tables=["*"], metrics=True)
    ending = add_token(tokens, "ending", tables=["*"], valid_seconds=86400)
    victim, headers = attacked(*HISTORY, "--tokens", str(tokens), token=staying), {"authorization": f"Bearer {staying}"}
    wait = f"GET /tables/{TABLE}/count?_min_batch=99999&_wait_seconds=25 HTTP/1.1\r\nHost: localhost\r\n"
    with _stream(victim, ending) as ends, _stream(victim, staying) as stays, victim.connect() as waits:
        waits.sendall(f"{wait}Authorization: Bearer {ending}\r\n\r\n".encode())
        _wait_for_metric(victim, "millpond_waits", 1, **headers)
        if how == "removed":
            remove_token(tokens, "ending")
        elif how == "expired":
            _expires(tokens, "ending", 3)
        elif how == "replaced":
            add_token(tokens, "ending", tables=["*"])
        sent = _until(ends, b"\r\n0\r\n\r\n")  # the last chunk
        assert sent.count(b"event: error") == sent.count(b"TOKEN_NEEDED") == 1
        refused = exchange(waits)
        assert (refused.status, refused.condition) == (401, "TOKEN_NEEDED")
        assert not victim.is_closed(stays, 1)
    _wait_for_metric(victim, "millpond_streams", 0, **headers)


def _expires(tokens: Path, name: str, seconds: float) -> None:
    """Let a token end in so many seconds."""
    readers = json.loads(tokens.read_text())
    (reader,) = (reader for reader in readers["readers"] if reader["name"] == name)
    reader["expires"] = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)).isoformat()
    new = tokens.with_suffix(".new")
    new.write_text(json.dumps(readers))
    new.chmod(tokens.stat().st_mode)
    new.rename(tokens)


def test_guesses_of_tokens_are_limited_and_a_right_one_is_let_in_meanwhile(attacked: Attacked, tmp_path: Path) -> None:
    tokens = tmp_path / "readers.json"
    right = add_token(tokens, "reader", tables=["*"])
    victim = attacked("--tokens", str(tokens), "--failed-logins-per-minute", "2", token=right)
    with httpx.Client(base_url=victim.address, timeout=60) as client:
        asked = [client.get("/tables", headers={"authorization": f"Bearer wrong-{n}"}) for n in range(12)]
        assert [answer.status_code for answer in asked[-6:]] == [429] * 6
        assert asked[-1].json()["error"]["condition"] == "TOO_MANY_REQUESTS"
        assert float(asked[-1].headers["retry-after"]) > 0
        assert client.get("/tables", headers={"authorization": f"Bearer {right}"}).status_code == 200
        quick = client.get(f"/tables/{TABLE}/rows?k=none", headers={"authorization": f"Bearer {right}"})
        assert quick.status_code == 200
        assert client.get("/livez").status_code == 200


def test_streams_that_nobody_reads_are_left(attacked: Attacked, job: WrittenCheckpoint) -> None:
    victim = attacked(*HISTORY, "--send-seconds", "2", "--max-streams", "60")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.wait(0.2):
            number += 1
            commit(job, **{f"key-{n:05}-{'x' * 80}": number for n in range(2000)})

    with ExitStack() as opened, victim.watched(mib=150):
        streams = [opened.enter_context(_stream(victim)) for _ in range(10)]
        writing = threading.Thread(target=write)
        writing.start()
        try:
            _wait_for_metric(victim, "millpond_streams", 0)
        finally:
            stop.set()
            writing.join()
        assert all(victim.is_closed(stream) for stream in streams)
