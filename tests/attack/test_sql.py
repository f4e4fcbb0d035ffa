"""Statements that take all they can get: memory of server and processes stays bounded, and others are answered."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from attack.conftest import TABLE, Attacked
from attack.victim import Victim
from servers.serving import serving
from servers.sockets import is_read
from spark_files.checkpoint import WrittenCheckpoint
from suite.programs import cpu_seconds
from suite.sizes import examples
from suite.waiting import wait_until

pytestmark = pytest.mark.long

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")
MEMORY = 64 << 20
OPTIONS = ("--sql-memory-bytes", str(MEMORY), "--sql-processes", "3", "--max-seconds", "20")
# A statement without end lasts for longer than any test.
LASTING = (*OPTIONS[:-1], "600")
# A process with its libraries has 200 MiB, and may use twice its limit besides.
PROCESS_MIB = 200 + 2 * (MEMORY >> 20) + 30
SERVER_MIB = 150
COUNT = f'SELECT count(*) AS n FROM "{TABLE}"'
ENDLESS = "SELECT sum(hash(a.range, b.range, c.range)) FROM range(100000) a, range(100000) b, range(100000) c"
GREEDY = [
    "SELECT repeat('x', 4000000000)",
    "SELECT repeat('x', 1000000) FROM range(3000)",
    "SELECT max(repeat('x', 1000000 + (range % 7)::INT)) FROM range(3000)",
    "SELECT list(range) FROM range(1000000000)",
    "SELECT string_agg(repeat('x', 1000), '') FROM range(10000000)",
    "SELECT count(*) FROM (SELECT range, repeat('y', 100) s FROM range(100000000) ORDER BY hash(range))",
    "SELECT range(1000000000)",
    f'SELECT array_agg(k) FROM "{TABLE}", range(100000)',
    "SELECT histogram(range) FROM range(100000000)",
    "WITH RECURSIVE r AS (SELECT 'x' s UNION ALL SELECT s || s FROM r) SELECT max(length(s)) FROM r",
    "SELECT unnest(range(100000000)), unnest(range(100000000))",
    "SELECT json_group_array(repeat('x', 1000)) FROM range(10000000)",
    "SELECT a.range, b.range FROM range(100000) a, range(100000) b ORDER BY hash(a.range)",
    "SELECT [x for x in range(500000000)]",
    "SELECT map(range(100000000), range(100000000))",
    "SELECT quantile(range, 0.5) FROM range(1000000000)",
    "SELECT count(DISTINCT repeat('x', 1000) || range) FROM range(10000000)",
    "SELECT regexp_replace(repeat('a', 200000000), 'a', 'bbbb', 'g')",
    "SELECT length(bitstring('0', 1000000000)::VARCHAR)",
    f'SELECT count(*) FROM "{TABLE}" a JOIN "{TABLE}" b ON a.k <> b.k GROUP BY a.k, b.k',
]
REFUSALS = {"SQL_OUT_OF_MEMORY", "SQL_ENDED", "ANSWER_TOO_LARGE", "READ_TOO_LONG"}


def ask(victim: Victim, statement: str, **more: Any) -> httpx.Response:
    return httpx.post(f"{victim.address}/sql", json={"statement": statement}, timeout=120, **more)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def memory_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


@contextlib.contextmanager
def bounded_processes(victim: Victim) -> Iterator[None]:
    """Around an attack: each process of a statement stays below its bound, and so does their number."""
    most, many, ending = 0.0, 0, threading.Event()

    def look() -> None:
        nonlocal most, many
        while not ending.wait(0.005):
            running = children(victim.pid)
            many = max(many, len(running))
            most = max([most, *map(memory_mib, running)])

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
        wait_until(lambda: most or not ask(victim, COUNT), "a look at a process")
    finally:
        ending.set()
        looking.join()
    assert 0 < most < PROCESS_MIB, f"{most:.0f} MiB"
    assert many <= 3 + 3, "one that ends may still be there when the next has begun"


@pytest.mark.parametrize("statement", GREEDY)
def test_no_statement_takes_more_memory_than_it_may(attacked: Attacked, statement: str) -> None:
    victim = attacked(*OPTIONS)
    with victim.watched(mib=SERVER_MIB), bounded_processes(victim):
        refused = ask(victim, statement)
    assert refused.json()["error"]["condition"] in REFUSALS, refused.text
    assert refused.json()["error"]["hint"]
    assert ask(victim, COUNT).json()["rows"] == [{"n": 20000}]


def test_many_greedy_statements_at_once_leave_others_alone(attacked: Attacked) -> None:
    victim = attacked(*OPTIONS)
    conditions: list[str] = []

    def attack(statement: str) -> None:
        conditions.append(ask(victim, statement).json()["error"]["condition"])

    attacking = [threading.Thread(target=attack, args=(each,)) for each in GREEDY[1:5] * examples(4, 1)]
    with victim.watched(mib=SERVER_MIB), bounded_processes(victim):
        for each in attacking:
            each.start()
        with httpx.Client(base_url=victim.address, timeout=60) as honest:
            while any(each.is_alive() for each in attacking):
                assert len(honest.get(f"/tables/{TABLE}/rows?_limit=50").json()["rows"]) == 50
                time.sleep(0.05)
        for each in attacking:
            each.join()
    assert set(conditions) <= REFUSALS | {"TOO_MANY_ANSWERS"}
    assert len(conditions) == len(attacking)
    assert ask(victim, COUNT).status_code == 200


def test_a_slow_reader_keeps_one_process_and_no_memory(attacked: Attacked) -> None:
    victim = attacked(*OPTIONS)
    body = json.dumps({"statement": "SELECT repeat('x', 1000) AS x FROM range(100000)"}).encode()
    head = f"POST /sql HTTP/1.1\r\nHost: localhost\r\nAccept: text/csv\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with victim.watched(mib=SERVER_MIB), bounded_processes(victim), contextlib.ExitStack() as opened:
        stuck = [opened.enter_context(victim.connect()) for _ in range(6)]
        for each in stuck:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.sendall(head + body)
        refused = 0
        for each in stuck:
            answer = each.recv(4096).split(b"\r\n", 1)[0]
            assert answer in (b"HTTP/1.1 200 OK", b"HTTP/1.1 429 Too Many Requests"), answer
            refused += b"429" in answer
        assert refused == 5, "one client may keep one of three processes"
        for _ in range(5):
            assert ask(victim, COUNT).status_code == 200
    whole = httpx.post(f"{victim.address}/sql", json=json.loads(body), headers={"accept": "text/csv"}, timeout=60)
    assert len(whole.text.splitlines()) == 100_001
    assert ask(victim, COUNT).status_code == 200


def test_clients_that_leave_end_their_statements(attacked: Attacked) -> None:
    victim = attacked(*LASTING)
    body = json.dumps({"statement": ENDLESS}).encode()
    head = f"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with victim.watched(mib=SERVER_MIB):
        for _ in range(3):
            with contextlib.ExitStack() as opened:
                before = {pid: cpu_seconds(pid) for pid in children(victim.pid)}
                leaving = [opened.enter_context(victim.connect()) for _ in range(9)]
                for each in leaving:
                    each.sendall(head + body)
                wait_until(lambda: all(map(is_read, leaving)), "the server to read each statement")  # noqa: B023 - it is used at once
                wait_until(lambda: _busy(victim, before), "a statement that runs")  # noqa: B023
        assert ask(victim, COUNT).status_code == 200, "27 statements of 600 seconds would have gone on"


def test_a_statement_whose_process_is_killed_is_an_error_and_the_next_is_answered(attacked: Attacked) -> None:
    victim = attacked(*LASTING)
    answers: list[httpx.Response] = []
    for _ in range(examples(3, 1)):
        with asking(victim, answers) as busy:
            for pid in {busy, *children(victim.pid)}:  # idle ones too
                os.kill(pid, signal.SIGKILL)
        assert answers[-1].json()["error"]["condition"] == "SQL_ENDED", answers[-1].text
        assert "SIGKILL" in answers[-1].json()["error"]["message"]
        assert ask(victim, COUNT).status_code == 200


@contextlib.contextmanager
def asking(victim: Victim, answers: list[httpx.Response]) -> Iterator[int]:
    """A statement without end that is asked meanwhile: yields its process, and waits for its answer."""
    before = {pid: cpu_seconds(pid) for pid in children(victim.pid)}
    thread = threading.Thread(target=lambda: answers.append(ask(victim, ENDLESS)))
    thread.start()
    try:
        yield wait_until(lambda: _busy(victim, before), "a statement that runs")
    finally:
        thread.join()


def _busy(victim: Victim, before: dict[int, float]) -> int:
    """The process that has worked for longer than a start takes."""
    return next((pid for pid in children(victim.pid) if cpu_seconds(pid) - before.get(pid, 1.5) > 0.3), 0)


def test_a_process_that_obeys_no_interrupt_is_killed_in_time(attacked: Attacked) -> None:
    victim = attacked(*OPTIONS)
    assert ask(victim, COUNT).status_code == 200
    answers: list[httpx.Response] = []
    with asking(victim, answers) as stopped:
        os.kill(stopped, signal.SIGSTOP)
    assert answers[0].json()["error"]["condition"] == "READ_TOO_LONG"
    wait_until(lambda: stopped not in children(victim.pid), "the end of the process that is stopped")
    assert ask(victim, COUNT).status_code == 200


def test_a_server_that_is_killed_leaves_no_process(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with serving(job.path, *LASTING, home=tmp_path / "home") as (address, server):
        victim = Victim(address, server.pid)
        wait_until(lambda: ask(victim, COUNT).status_code == 200, "a server that answers")
        thread = threading.Thread(target=_try, args=(victim,))
        thread.start()
        before = {pid: cpu_seconds(pid) for pid in children(server.pid)}
        wait_until(lambda: _busy(victim, before), "a statement that runs")
        left = children(server.pid)
        server.kill()
        server.wait()
        thread.join()
        wait_until(lambda: not any(is_running(pid) for pid in left), "the end of its processes")


def _try(victim: Victim) -> None:
    with contextlib.suppress(httpx.HTTPError):
        ask(victim, ENDLESS)


def is_running(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
    return bool(found) and not found.startswith("Z")
