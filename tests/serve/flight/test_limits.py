"""The server holds whatever a client of Flight SQL does: noise, bombs, many calls, answers left unread."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.flight.test_access import ENDLESS, SLOW, ticket_of
from serve.flight.test_frames import HEADERS, PREFACE, SETTINGS, frame
from servers.ports import free_port
from servers.serving import serving, wait_until_ready
from suite.sizes import examples
from suite.waiting import wait_until

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
flight = pytest.importorskip("pyarrow.flight")

from millpond.serve.flight.messages import packed, parse_any  # noqa: E402

pytestmark = pytest.mark.long

OPTIONS = (
    *("--max-streams-per-client", "20", "--max-connections-per-client", "12", "--sql-processes", "2", "--max-seconds", "120"),
)
PATIENT = ("--send-seconds", "60", "--body-seconds", "60")
HASTY = ("--send-seconds", "2", "--body-seconds", "2")
MOST_GROWTH = 200 << 20


class Server:
    """A server and its memory."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        with flight.connect(f"grpc://127.0.0.1:{self.port}") as opened:
            yield opened

    def answers(self) -> None:
        """Assert that a new client gets an answer, of a statement and of a table."""
        with self.client() as client:
            limit = flight.FlightCallOptions(timeout=60)
            assert client.do_get(ticket_of(client, "SELECT 1 AS a", limit), limit).read_all().to_pylist() == [{"a": 1}]
            assert client.do_get(ticket_of(client, "SELECT * FROM long", limit), limit).read_all().num_rows

    def peak_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@pytest.fixture(scope="module")
def server(types_pond: Path, door_home: Path) -> Iterator[Server]:
    with started(types_pond, door_home, PATIENT) as found:
        yield found


@pytest.fixture
def hasty(types_pond: Path, door_home: Path) -> Iterator[Server]:
    """A server that has no patience with a client."""
    with started(types_pond, door_home, HASTY) as found:
        yield found


@contextlib.contextmanager
def started(pond: Path, home: Path, more: tuple[str, ...]) -> Iterator[Server]:
    port = free_port()
    with serving(pond, "--flight-port", str(port), *OPTIONS, *more, home=home) as (url, process):
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until_ready(http)
        found = Server(port, process.pid)
        found.answers()
        yield found
        found.answers()
        assert process.poll() is None


def test_noise_ends_its_connection_alone(server: Server) -> None:
    draw = random.Random(1)
    for _ in range(examples(100, 40)):
        with server.raw() as raw, contextlib.suppress(OSError):
            begin = draw.choice((b"", PREFACE, PREFACE + frame(SETTINGS, 0, 0), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
            noise = draw.choice(
                (draw.randbytes(300), frame(draw.randrange(12), draw.randrange(256), draw.randrange(9), draw.randbytes(40)))
            )
            raw.sendall(begin + noise)
            raw.settimeout(0.05)
            raw.recv(1000)
    server.answers()


def test_changed_tickets_and_commands_are_errors(server: Server) -> None:
    draw = random.Random(2)
    with server.client() as client:
        tickets = [ticket_of(client, text, None).ticket for text in ("SELECT 1 AS a", "SELECT * FROM long")]
        commands = [
            packed("CommandGetTables", table_name_filter_pattern="%" * 50, include_schema=True),
            packed("CommandGetSqlInfo", info=[0, 1]),
            packed("CommandPreparedStatementQuery", prepared_statement_handle=b"x" * 60),
            packed("CommandStatementUpdate", query="DROP TABLE long"),
            packed("CommandStatementSubstraitPlan"),
        ]
        for _ in range(examples(150, 60)):
            data = bytearray(draw.choice([*tickets, *commands]))
            for _ in range(draw.randrange(4)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            wanted = bytes(data[: draw.choice((len(data), draw.randrange(len(data) + 1)))])
            is_right = wanted in tickets
            with contextlib.suppress(pa.ArrowException):
                client.get_flight_info(flight.FlightDescriptor.for_command(wanted))
            with contextlib.suppress(pa.ArrowException):
                client.get_schema(flight.FlightDescriptor.for_command(wanted))
            with contextlib.suppress(pa.ArrowException):
                list(
                    client.do_action(
                        flight.Action(draw.choice(("CreatePreparedStatement", "CancelQuery", "CancelFlightInfo", "x")), wanted)
                    )
                )
            try:
                client.do_get(flight.Ticket(wanted)).read_all()
            except pa.ArrowException as error:
                assert not is_right
                assert "INTERNAL_ERROR" not in str(error)
                assert "Traceback" not in str(error)
        with pytest.raises(flight.FlightError, match="message of Flight SQL"):
            client.get_flight_info(flight.FlightDescriptor.for_path("long"))
        assert parse_any(tickets[0])[0] == "TicketStatementQuery"
    server.answers()


def test_what_is_too_large_ends_the_call_and_takes_no_memory(server: Server) -> None:
    before = server.peak_bytes()
    with server.client() as client:
        for size in (200_000, 3_000_000):
            with pytest.raises(flight.FlightError, match="INVALID_STATEMENT"):
                ticket_of(client, "SELECT 1 -- " + "x" * size, None)
    for size in (5_000_000, 60_000_000):
        with server.client() as client, pytest.raises(pa.ArrowException):
            client.do_get(flight.Ticket(b"x" * size), flight.FlightCallOptions(timeout=60)).read_all()
    assert server.peak_bytes() - before < MOST_GROWTH
    server.answers()


def prepared(client: Any, statement: str) -> bytes:
    body = packed("ActionCreatePreparedStatementRequest", query=statement)
    (result,) = client.do_action(flight.Action("CreatePreparedStatement", body))
    handle: bytes = parse_any(result.body.to_pybytes())[1].prepared_statement_handle
    return handle


def bind(client: Any, handle: bytes, batch: Any, options: Any = None) -> bytes:
    command = packed("CommandPreparedStatementQuery", prepared_statement_handle=handle)
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(command), batch.schema, options)
    with contextlib.closing(writer):
        writer.write_batch(batch)
        writer.done_writing()
        found: bytes = reader.read().to_pybytes()
        return found


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_parameters_that_unpack_to_much_arent_unpacked(server: Server, codec: str) -> None:
    bomb = pa.record_batch([pa.array([b"\0" * 1_000_000_000])], ["a"])
    options = flight.FlightCallOptions(timeout=60, write_options=pa.ipc.IpcWriteOptions(compression=codec))
    before = server.peak_bytes()
    with server.client() as client:
        handle = prepared(client, "SELECT ?")
        with pytest.raises((pa.ArrowException, StopIteration)):
            bind(client, handle, bomb, options)
    assert server.peak_bytes() - before < MOST_GROWTH
    server.answers()


def test_parameters_are_one_row_of_a_mebibyte(server: Server) -> None:
    with server.client() as client:
        handle = prepared(client, "SELECT length(?) AS n")
        assert bind(client, handle, pa.record_batch({"a": ["x" * 900_000]}))
    for batch, reason in (
        (pa.record_batch({"a": ["x" * 1_100_000]}), "REQUEST_TOO_LARGE"),
        (pa.record_batch({"a": [1, 2]}), "several rows"),
        (pa.record_batch({"a": pa.array([], pa.int64())}), "no row"),
    ):
        with server.client() as client, pytest.raises(pa.ArrowException, match=reason):
            bind(client, handle, batch)
    server.answers()


def test_prepared_statements_take_no_room_in_the_server(server: Server) -> None:
    before = server.peak_bytes()
    with server.client() as client:
        text = "SELECT 1 -- " + "x" * 90_000
        handles = {prepared(client, text) for _ in range(examples(2000, 600))}
    assert len(handles) >= 600
    assert server.peak_bytes() - before < 30 << 20


def test_more_calls_than_a_client_may_have_are_refused(server: Server) -> None:
    with server.client() as client:
        ticket = ticket_of(client, ENDLESS, None)
    errors: list[str] = []

    def take() -> None:
        with server.client() as own:
            try:
                own.do_get(ticket, flight.FlightCallOptions(timeout=4)).read_all()
            except pa.ArrowException as error:
                errors.append(str(error))

    many = [threading.Thread(target=take) for _ in range(40)]
    for each in many:
        each.start()
    for each in many:
        each.join()
    assert len(errors) == 40
    server.answers()


def test_an_answer_that_is_left_unread_ends(hasty: Server) -> None:
    with hasty.client() as first, hasty.client() as second:
        left = []
        for client in (first, second):  # both processes are taken
            left.append(client.do_get(ticket_of(client, SLOW, None)))
            left[-1].read_chunk()
        hasty.answers()
        time.sleep(6)
        for each in left:
            with pytest.raises(pa.ArrowException):
                each.read_all()
    hasty.answers()


def test_a_call_that_isnt_sent_whole_ends(hasty: Server) -> None:
    with hasty.raw() as raw:
        raw.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1)[:5])
        raw.settimeout(60)
        while raw.recv(1000):
            pass
    hasty.answers()


def test_clients_that_go_give_back_their_processes(server: Server) -> None:
    with server.client() as client:
        ticket = ticket_of(client, ENDLESS, None)
    for _ in range(4):
        with server.client() as client, contextlib.suppress(pa.ArrowException):
            client.do_get(ticket, flight.FlightCallOptions(timeout=0.5)).read_all()
    began = time.monotonic()
    server.answers()
    assert time.monotonic() - began < 60  # a statement that still ran would hold its process for 120 seconds


def test_connections_have_room_by_the_end_of_idle_ones(server: Server) -> None:
    opened = [server.raw() for _ in range(30)]
    try:
        server.answers()
        closed: set[socket.socket] = set()

        def are_closed() -> bool:
            for each in opened:
                each.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    while each.recv(1000):
                        pass
                    closed.add(each)
            return len(closed) >= 18

        wait_until(are_closed, "the end of 18 connections")
    finally:
        for each in opened:
            each.close()
    server.answers()
