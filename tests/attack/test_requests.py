"""Requests that are too long, too slow, ambiguous or no requests: the server names the error in JSON and ends the connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from attack.conftest import TABLE, Attacked
from attack.victim import Victim, exchange
from servers.sockets import is_read
from suite.sizes import a_few
from suite.waiting import PATIENCE_SECONDS, wait_until

HOST = b"Host: localhost\r\n"
LIMITS = ("--max-url-bytes", "2000", "--max-header-bytes", "5000", "--max-body-bytes", "100000")


@pytest.fixture
def victim(attacked: Attacked) -> Victim:
    """A server that has much patience, also on a machine that stalls."""
    return attacked(*LIMITS, "--header-seconds", "100", "--body-seconds", "100")


@pytest.fixture
def hasty(attacked: Attacked) -> Victim:
    """A server that has little patience."""
    return attacked(*LIMITS, "--header-seconds", "1.5", "--body-seconds", "1.5", "--keep-alive-seconds", "3")


@pytest.mark.parametrize(
    ("request_line", "status", "condition"),
    [
        (b"GET /" + b"a" * 2001, 414, "URL_TOO_LONG"),
        (b"GET /tables?" + b"a" * 100_000, 414, "URL_TOO_LONG"),
        (b"GET /t\xc3\xbc", 400, "INVALID_HTTP"),
        (b"GET /tables/string/rows?k=\xff", 400, "INVALID_HTTP"),
        (b"GET /tables#rows", 400, "INVALID_HTTP"),
        (b"GET http://[/", 400, "INVALID_HTTP"),
        (b"GET tables", 400, "INVALID_HTTP"),
        (b"G\x00T /", 400, "INVALID_HTTP"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_url_that_cant_be_is_an_error_in_json(victim: Victim, request_line: bytes, status: int, condition: str) -> None:
    answer = victim.ask(request_line + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert (answer.status, answer.condition, answer.headers["connection"]) == (status, condition, "close")


@pytest.mark.parametrize("length", [1999, 2000])
def test_a_url_of_as_many_bytes_as_allowed_is_answered(victim: Victim, length: int) -> None:
    url = b"/tables?x=".ljust(length, b"a")
    assert victim.ask(b"GET " + url + b" HTTP/1.1\r\n" + HOST + b"\r\n").condition == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "headers",
    [
        b"x: " + b"a" * 6000 + b"\r\n",
        b"".join(b"x-%d: %d\r\n" % (n, n) for n in range(1000)),
        b"a" * 6000 + b": x\r\n",
        b"x: " + b"a" * 1_000_000 + b"\r\n",
    ],
    ids=["one long value", "many", "one long name", "far too long"],
)
def test_headers_of_too_many_bytes_are_refused(victim: Victim, headers: bytes) -> None:
    answer = victim.ask(b"GET /livez HTTP/1.1\r\n" + HOST + headers + b"\r\n")
    assert (answer.status, answer.condition) == (431, "HEADERS_TOO_LARGE")


def test_headers_behind_a_body_are_bounded_and_mean_nothing(victim: Victim) -> None:
    begin = b"POST /tables/%b/rows:get HTTP/1.1\r\n" % TABLE.encode() + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    body = b'{"keys": []}'
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    assert victim.ask(begin + chunk + b"Accept: text/plain\r\n\r\n").status == 200
    answer = victim.ask(begin + chunk + b"x: " + b"a" * 6000 + b"\r\n\r\n")
    assert answer.status in (200, 431)  # the server may answer before it has read the whole request
    assert victim.ask(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n").status == 200


def test_an_endless_header_costs_no_memory(victim: Victim) -> None:
    with victim.watched(mib=30), contextlib.suppress(OSError), victim.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nx: ")
        for _ in range(3000):
            connection.sendall(b"a" * 65_536)
        pytest.fail("so much is never read")


@pytest.mark.parametrize(
    "begin",
    a_few([b"0\r\nx: ", b"0\r\nx", b"0\r\na: b\r\nx: ", b"5;x=", b"5;", b"00000"], 3),
    ids=[
        "a header's value",
        "its name",
        "a second header",
        "what a chunk says of itself",
        "the same, without a name",
        "its length",
    ],
)
def test_what_goes_on_behind_a_body_without_end_costs_no_memory(victim: Victim, begin: bytes) -> None:
    head = b"POST /tables/%b/rows:get HTTP/1.1\r\n" % TABLE.encode() + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    with victim.watched(mib=30), contextlib.suppress(OSError), victim.connect() as connection:
        connection.sendall(head + begin)
        for _ in range(3000):
            connection.sendall(b"0" * 65_536)
        pytest.fail("so much is never read")


def test_lines_without_end_before_a_request_are_refused(victim: Victim) -> None:
    with victim.watched(mib=30), contextlib.suppress(OSError), victim.connect() as connection:
        for _ in range(3000):
            connection.sendall(b"\r\n" * 32_768)
        pytest.fail("so much is never read")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.0\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{}",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nContent-Length: -2\r\n\r\n{}",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /at HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nx\x00y: z\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n folded: z\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nx: a\rb\r\n\r\n",
        b"GET /livez HTTP/1.1\nHost: localhost\n\n",
        b"GET /livez HTTP/3.0\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/0.9\r\nHost: localhost\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
    ],
    ids=lambda head: repr(head[:60]),
)
def test_what_could_be_read_in_two_ways_is_refused(victim: Victim, head: bytes) -> None:
    """If two servers see a request's end in different places, one client can write into another's requests (smuggling)."""
    smuggled = b"GET /tables HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with victim.connect() as connection:
        answer = exchange(connection, head + smuggled)
        assert (answer.status, answer.condition) == (400, "INVALID_HTTP")
        assert victim.is_closed(connection), "nothing behind it is answered"


def test_a_host_that_isnt_meant_is_refused_also_in_a_whole_url(victim: Victim) -> None:
    assert victim.ask(b"GET http://evil/livez HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 200  # Host counts
    assert victim.ask(b"GET http://localhost/livez HTTP/1.1\r\nHost: evil\r\n\r\n").condition == "HOST_NOT_ALLOWED"


def test_another_protocol_is_never_spoken(victim: Victim) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    with victim.connect() as connection:
        assert exchange(connection, b"GET /livez HTTP/1.1\r\n" + HOST + upgrade + b"\r\n" + b"\x00" * 500).status == 200
        assert victim.is_closed(connection)
    with victim.connect() as connection:
        assert exchange(connection, b"CONNECT evil:443 HTTP/1.1\r\n" + HOST + b"\r\n").status in (400, 404, 405)
        assert victim.is_closed(connection)


@pytest.mark.parametrize(
    "begin",
    a_few([b"", b"GET", b"GET /livez HTTP/1.1\r\nHost: loc", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nx: ", b"\r\n"], 1),
    ids=repr,
)
@pytest.mark.parametrize("drip", [b"", b"a"], ids=["silent", "dripping"])
def test_a_request_that_never_comes_ends_its_connection(hasty: Victim, begin: bytes, drip: bytes) -> None:
    with hasty.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(begin)
        connection.settimeout(0.2)

        def has_ended() -> bool:
            try:
                return not connection.recv(65_536)
            except TimeoutError:
                connection.sendall(drip if begin else b"")
                return False

        wait_until(has_ended, "the end of the connection")


def test_a_body_that_never_comes_is_said_to_be_too_slow(hasty: Victim) -> None:
    head = f"POST /tables/{TABLE}/rows:get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n".encode()
    with hasty.connect() as connection:
        answer = exchange(connection, head + b'{"keys": [')
        assert (answer.status, answer.condition) == (408, "REQUEST_TOO_SLOW")
        assert hasty.is_closed(connection)


@pytest.mark.long
def test_a_body_that_drips_is_said_to_be_too_slow(hasty: Victim) -> None:
    head = f"POST /tables/{TABLE}/rows:get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n".encode()
    with hasty.connect() as connection:
        connection.sendall(head)
        dripping = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not dripping.wait(0.1):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert exchange(connection).condition == "REQUEST_TOO_SLOW"
        finally:
            dripping.set()
            thread.join()


def test_a_body_that_is_too_large_is_refused_and_the_rest_of_it_isnt_taken_for_a_request(victim: Victim) -> None:
    smuggled = b"GET /tables HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000
    head = f"POST /tables/{TABLE}/rows:get HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(smuggled)}\r\n\r\n".encode()
    with victim.watched(mib=30), victim.connect() as connection:
        answer = exchange(connection, head + smuggled)
        assert (answer.status, answer.condition) == (413, "REQUEST_TOO_LARGE")
        rest = b""
        connection.settimeout(PATIENCE_SECONDS)
        with contextlib.suppress(OSError):
            while part := connection.recv(65_536):
                rest += part
        assert b"HTTP/1.1" not in rest


def test_an_endless_body_in_chunks_is_refused(victim: Victim) -> None:
    head = f"POST /tables/{TABLE}/rows:get HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with victim.watched(mib=30), victim.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(head)
        for _ in range(3000):
            connection.sendall(b"10000\r\n" + b"a" * 65_536 + b"\r\n")
        pytest.fail("so much is never read")


@pytest.mark.long
def test_an_idle_connection_ends_and_a_busy_one_doesnt(hasty: Victim) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def idle_ends_first() -> tuple[bool, float]:
        """Whether the busy one lives on when the idle one has ended, and the longest time in which it wasn't busy."""
        longest = 0.0
        with hasty.connect() as idle, hasty.connect() as busy:
            last = time.monotonic()
            assert exchange(idle, request).status == 200
            idle.setblocking(False)
            while True:
                alive = _answers(busy, request)
                now = time.monotonic()
                longest, last = max(longest, now - last), now
                if not alive or _has_ended(idle):
                    return alive and _answers(busy, request), longest
                time.sleep(0.1)

    # A client that the machine stops for seconds isn't busy.
    ends_first, _ = next(seen for seen in (idle_ends_first() for _ in range(10)) if seen[1] < 2)
    assert ends_first


def _answers(connection: socket.socket, request: bytes) -> bool:
    try:
        return exchange(connection, request).status == 200
    except (AssertionError, OSError):
        return False


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.long
def test_a_client_that_leaves_in_the_middle_is_no_mistake_of_ours(
    job: object, tmp_path: Path, attacked: Attacked, capfd: pytest.CaptureFixture[str]
) -> None:
    victim = attacked("--max-rows", "99999")
    head = f"POST /tables/{TABLE}/rows:get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode()
    wait = f"GET /tables/{TABLE}/count?_min_batch=99999&_wait_seconds=20 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    large = f"GET /tables/{TABLE}/rows?_limit=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for begin in (head + b'{"keys"', wait, large, large * 20, wait * 3):
        for _ in range(10):
            with victim.connect() as connection:
                connection.sendall(begin)
                wait_until(lambda: is_read(connection), "the server to read what was sent")
                time.sleep(0.02)
    wait_until(lambda: victim.metrics()["millpond_connections"] <= 1, "the end of all connections")
    facts = victim.metrics()
    assert facts["millpond_waits"] == 0
    assert sum(n for name, n in facts.items() if name.startswith("millpond_requests_total") and 'status="499"' in name) >= 1
    assert [name for name in facts if name.startswith("millpond_requests_total") and 'status="500"' in name] == []
    assert "Traceback" not in capfd.readouterr().err


def test_a_wrong_path_of_a_table_answers_the_same_first_and_later(attacked: Attacked) -> None:
    victim = attacked("--max-rows", "99998")
    for _ in range(3):
        assert httpx.get(f"{victim.address}/tables/job%2F{TABLE}/count", timeout=60).json()["count"] == 20_000
