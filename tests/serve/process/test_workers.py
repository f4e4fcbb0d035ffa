"""Several doors behind one port act as one: each takes any page or cut, and they count a client's requests together."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow.ipc
import pytest

import millpond
from millpond.errors import MillpondError
from millpond.serve.access import rate_limit
from millpond.serve.access.access import Access
from millpond.serve.access.rate_limit import Rates
from millpond.serve.access.tokens import add_token
from millpond.settings import ClientSettings, ServeSettings
from servers.sockets import is_read
from soak.processes import children, listens
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import stays, wait_until

pytestmark = pytest.mark.long

TABLE = "job.aggregate_0"
ROWS = {f"p{n:03}": n for n in range(200)}
WORKERS = 3


def _strangers(address: str) -> httpx.Client:
    """A client that opens a connection for each request, so that chance picks the door."""
    return httpx.Client(base_url=address, timeout=30, verify=False, limits=httpx.Limits(max_keepalive_connections=0))


class Doors:
    """A server with several doors."""

    def __init__(self, address: str, pid: int, job: WrittenCheckpoint, http: httpx.Client) -> None:
        self.address, self.pid, self.job, self.http = address, pid, job, http

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.http.get(path, headers=headers)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def commit(self, **values: int | None) -> int:
        """Commit a batch, and wait until all doors have it."""
        self.job.plan(list(values.items()), snapshot=False)
        self.job.commit()
        batch = self.job.next_batch - 1
        for _ in range(8 * WORKERS):
            assert self.get(f"/tables/{TABLE}/count?_min_batch={batch}&_wait_seconds=20").status_code == 200
        return batch

    def pids(self) -> list[int]:
        port = int(self.address.rpartition(":")[2])
        return [pid for pid in children(self.pid) if listens(pid, port)]


@pytest.fixture
def doors(serve: Any, tmp_path: Path) -> Iterator[Doors]:
    """No history is kept, so an earlier batch is readable only at a door that still has a view of it."""
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan(list(ROWS.items()), snapshot=False)
    job.commit()
    with serve(job.path, "--workers", str(WORKERS)) as (address, server), _strangers(address) as http:
        wait_until(lambda: http.get(f"/tables/{TABLE}/count").status_code == 200, "the table")
        yield Doors(address, server.pid, job, http)


def test_sigterm_answers_what_runs_at_every_door_and_takes_no_more(doors: Doors) -> None:
    place = urlsplit(doors.address)
    body = b'{"keys": [{"k": "p007"}]}'
    head = f"POST /tables/{TABLE}/rows:get HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with ExitStack() as opened:
        running = [
            opened.enter_context(socket.create_connection((place.hostname, place.port), timeout=30)) for _ in range(8 * WORKERS)
        ]
        for connection in running:
            connection.sendall(head + body[:5])
        wait_until(lambda: all(map(is_read, running)), "the doors to take half of each request")
        os.kill(doors.pid, signal.SIGTERM)
        stays(lambda: len(children(doors.pid)) >= WORKERS + 1, "doors and the follower wait for the requests that run")

        def is_refused() -> bool:
            try:
                socket.create_connection((place.hostname, place.port), timeout=60).close()
            except ConnectionRefusedError:
                return True
            return False

        wait_until(is_refused, "doors that take no more")
        for connection in running:
            connection.sendall(body[5:])
            answer = b"".join(iter(lambda: connection.recv(65536), b""))  # noqa: B023 - it is used at once
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b'"rows":[{"k":"p007","v":7}]' in answer
    wait_until(lambda: not children(doors.pid), "the end of all processes")


def test_pages_go_on_at_any_door(doors: Doors) -> None:
    for path in (f"/tables/{TABLE}/rows?_limit=7", f"/tables/{TABLE}/rows?_limit=7&_reverse=1"):
        page = doors.get(path).json()
        rows, batches = page["rows"], {page["batch"]}
        doors.commit(p000=-1, p100=None, zzz=5)
        while page["more"]:
            page = doors.get(f"{path}&_token={page['token']}").json()
            rows += page["rows"]
            batches.add(page["batch"])
        assert len(batches) == 1
        assert sorted(row["k"] for row in rows) == sorted(ROWS)
        assert {row["k"]: row["v"] for row in rows} == ROWS
        doors.commit(**ROWS, zzz=None)


def test_pages_in_every_form_come_from_the_door_that_has_them(doors: Doors) -> None:
    first = doors.get(f"/tables/{TABLE}/rows?_limit=1").json()
    doors.commit(p001=-1)
    for _ in range(4 * WORKERS):
        path = f"/tables/{TABLE}/rows?_limit=1000&_token={first['token']}"
        whole = doors.get(path)
        found = [{row["k"]: row["v"] for row in whole.json()["rows"]}]
        known = doors.get(path, **{"if-none-match": whole.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")
        assert doors.http.head(path).headers["etag"] == whole.headers["etag"]
        lines = doors.get(path, accept="application/x-ndjson", **{"accept-encoding": "identity"}).text.splitlines()
        found.append({row["k"]: row["v"] for row in map(json.loads, lines)})
        arrow = doors.get(path, accept="application/vnd.apache.arrow.stream").content
        table = pyarrow.ipc.open_stream(io.BytesIO(arrow)).read_all()
        found.append(dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True)))
        body = {"limit": 1000, "token": first["token"]}
        found.append({row["k"]: row["v"] for row in doors.post(f"/tables/{TABLE}/rows:scan", body).json()["rows"]})
        assert found == [{k: v for k, v in ROWS.items() if k != "p000"}] * 4


def test_a_cut_is_one_batch_at_any_door(doors: Doors) -> None:
    cut = doors.get(f"/tables/{TABLE}/cut").json()
    doors.commit(p000=-1, p001=None)
    for _ in range(4 * WORKERS):
        answer = doors.get(f"/tables/{TABLE}/rows?k=p000&_cut={cut['cut']}").json()
        assert (answer["batch"], answer["rows"]) == (cut["batch"], [{"k": "p000", "v": 0}])
        assert doors.post(f"/tables/{TABLE}/rows:count", {"cut": cut["cut"]}).json()["count"] == len(ROWS)
    with millpond.connect(doors.address) as server, server.cut(TABLE) as now:
        before = [dict(row) for row in now[TABLE].scan()]
        doors.commit(p002=-1)
        for _ in range(2 * WORKERS):
            with millpond.connect(doors.address) as other:
                assert [dict(row) for row in other[TABLE].at(cut=now._token).scan()] == before
                assert other[TABLE].get(k="p002")["v"] == -1


def test_a_batch_whose_door_is_gone_is_an_error_and_never_another_batch(doors: Doors) -> None:
    page, cut = doors.get(f"/tables/{TABLE}/rows?_limit=7").json(), doors.get(f"/tables/{TABLE}/cut").json()
    doors.commit(p000=-1)
    gone = doors.pids()
    assert len(gone) == WORKERS
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(doors.pids()) == WORKERS and not set(doors.pids()) & set(gone), "new doors")
    for path, condition in (
        (f"/tables/{TABLE}/rows?_limit=7&_token={page['token']}", "TOKEN_EXPIRED"),
        (f"/tables/{TABLE}/rows?_cut={cut['cut']}", "CUT_EXPIRED"),
    ):
        for _ in range(WORKERS):
            assert doors.get(path).json()["error"]["condition"] == condition


def test_a_client_whose_scan_lost_its_door_reads_all_of_a_newer_batch(doors: Doors) -> None:
    settings = ClientSettings(page_rows=20)
    with millpond.connect(doors.address, settings=settings) as server:
        table = server[TABLE]
        killed: list[int] = []

        def page_after_page(exchange: Any) -> Any:
            """A loop like the client's own, with a kill of all doors after the third page."""
            pages, request = 0, next(exchange)
            while True:
                if request.path.endswith("rows:scan"):
                    pages += 1
                    if pages == 4 and not killed:
                        killed.extend(doors.pids())
                        for pid in killed:
                            os.kill(pid, signal.SIGKILL)
                        doors.commit(p000=-1)
                try:
                    reply = server._transport._send(request)
                except MillpondError as error:
                    request = exchange.throw(error)
                    continue
                try:
                    request = exchange.send(reply)
                except StopIteration as done:
                    return done.value

        rows = page_after_page(table._reads.scan())
        assert killed
        assert {row.batch for row in rows} == {1}
        assert {row["k"]: row["v"] for row in rows} == {**ROWS, "p000": -1}


def test_a_forged_token_leads_nowhere(doors: Doors, tmp_path: Path) -> None:
    from millpond.tables.scan.page_token import PageToken, parse_token
    from millpond.tables.scan.token import pack, unpack

    page = doors.get(f"/tables/{TABLE}/rows?_limit=7").json()
    doors.commit(p000=-1)
    token = unpack(page["token"], PageToken)
    assert token is not None
    assert parse_token(page["token"], token.query, table=TABLE) == token
    for holder in ("../../x", "0" * 8, "", "x" * 200, "/etc/passwd"):
        forged = PageToken(token.query, token.generation, token.batch, token.key, token.number, holder)
        answer = doors.get(f"/tables/{TABLE}/rows?_limit=7&_token={pack(forged)}")
        # The door that has the batch ignores the name; to the others it means nothing.
        assert answer.status_code == 200 or answer.json()["error"]["condition"] == "TOKEN_EXPIRED"


def test_a_reader_reads_no_more_at_another_door(serve: Any, tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan(list(ROWS.items()), snapshot=False)
    job.commit()
    file = tmp_path / "readers.json"
    may, other = (add_token(file, name, tables=[tables]) for name, tables in (("may", "job.*"), ("other", "x")))
    with serve(job.path, "--workers", "2", "--tokens", str(file)) as (address, _), _strangers(address) as http:
        mine = {"authorization": f"Bearer {may}"}
        wait_until(lambda: http.get(f"/tables/{TABLE}/count", headers=mine).status_code == 200, "the table")
        path = f"/tables/{TABLE}/rows?_limit=7"
        page = http.get(path, headers=mine).json()
        job.plan([("p000", -1)], snapshot=False)
        job.commit()
        for _ in range(8):
            assert http.get(f"/tables/{TABLE}/count?_min_batch=1&_wait_seconds=20", headers=mine).status_code == 200
        for _ in range(8):
            answer = http.get(f"{path}&_token={page['token']}", headers=mine)
            assert (answer.status_code, answer.json()["batch"]) == (200, 0)
            refused = http.get(f"{path}&_token={page['token']}", headers={"authorization": f"Bearer {other}"})
            assert refused.json()["error"]["condition"] == "NOT_ALLOWED"
            assert http.get(f"{path}&_token={page['token']}").status_code == 401


# ---------------------------------------------------------------- rates


def test_a_client_is_counted_at_all_doors_together(serve: Any, types_pond: Path) -> None:
    rate = 5  # slower than any machine asks
    with serve(types_pond, "--workers", "3", "--requests-per-second", str(rate)) as (address, _), _strangers(address) as http:
        wait_until(lambda: http.get("/readyz").status_code == 200, "a server that is ready")  # not part of the rate
        began = time.monotonic()

        def ask(_: int) -> list[int]:
            codes = [200]
            while codes[-1] == 200 or len(codes) < 2 * rate:
                codes.append(http.get("/tables/long/rows?k=5").status_code)
            return codes[1:]

        with ThreadPoolExecutor(4) as threads:
            all_codes = [status for statuses in threads.map(ask, range(4)) for status in statuses]
        assert set(all_codes) == {200, 429}
        # A bucket has two seconds' worth of requests, and fills further while the test runs.
        assert rate * 2 <= all_codes.count(200) <= rate * (2 + time.monotonic() - began) * 1.25


def test_rates_are_counted_by_all_who_share_them(tmp_path: Path) -> None:
    one, two = Rates(0.001, 5, tmp_path), Rates(0.001, 5, tmp_path)
    assert [rates.take("a") > 0 for rates in (one, two, one, two, one, two, one)] == [False] * 5 + [True] * 2
    assert two.take("b") == 0
    assert Rates(0.001, 5, tmp_path).take("a") > 900
    assert Rates(0.001, 5).take("a") == 0


def test_more_clients_than_there_is_room_for_are_forgotten_not_mixed_up() -> None:
    rates = Rates(0.001, 2)
    for number in range(40_000):
        assert rates.take(f"client {number}") == 0, "nobody pays for another"
    assert rates.take("client 39999") == 0
    assert rates.take("client 39999") > 0


def test_what_is_refused_isnt_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(rate_limit, "time", SimpleNamespace(monotonic=lambda: now))
    access = Access(ServeSettings(requests_per_second=2))
    for _ in range(4):
        access.admit({}, "a")
    for _ in range(50):
        with pytest.raises(MillpondError) as refused:
            access.admit({}, "a")
    assert 0 < refused.value.context["retry_after_seconds"] <= 0.5
    now += 0.5
    access.admit({}, "a")
