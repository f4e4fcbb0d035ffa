"""Who may read by Flight SQL: tokens, logins, tickets, TLS, several processes; and how a server ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from millpond.serve.access.tokens import add_token, remove_token
from servers.ports import free_port
from servers.serving import serving, wait_until_ready, write_certificate
from suite.waiting import wait_until

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
flight = pytest.importorskip("pyarrow.flight")
dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")

pytestmark = pytest.mark.long
ENDLESS = "SELECT sum(hash(a.range, b.range, c.range)) FROM range(100000) a, range(100000) b, range(100000) c"
SLOW = "SELECT range, repeat('x', 1000) FROM range(90000)"


def connect(port: int, token: str = "", user: str = "", tls: Path | None = None) -> Any:
    options = {}
    if user:
        options = {"username": user, "password": token}
    elif token:
        options = {"adbc.flight.sql.authorization_header": f"Bearer {token}"}
    if tls is not None:
        options["adbc.flight.sql.client_option.tls_root_certs"] = tls.read_text()
    return dbapi.connect(f"grpc{'+tls' if tls else ''}://127.0.0.1:{port}", db_kwargs=options, autocommit=True)


def rows(connection: Any, statement: str, parameters: Any = None) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        found: list[Any] = cursor.fetchall()
        return found


def ticket_of(client: Any, statement: str, options: Any) -> Any:
    from millpond.serve.flight.messages import packed

    command = packed("CommandStatementQuery", query=statement)
    return client.get_flight_info(flight.FlightDescriptor.for_command(command), options).endpoints[0].ticket


def bearer(token: str) -> Any:
    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


def read_slowly(reading: Any) -> None:
    """Read an answer to its end, for longer than the server goes without a look at who reads."""
    for _ in reading:
        time.sleep(0.05)


def test_tokens_open_their_tables(types_pond: Path, door_home: Path, tmp_path: Path) -> None:
    file, port = tmp_path / "readers.json", free_port()
    tokens = {name: add_token(file, name, tables=[tables]) for name, tables in (("all", "*"), ("some", "lon*"))}
    options = ("--flight-port", str(port), "--tokens", str(file), "--failed-logins-per-minute", "30")
    with serving(types_pond, *options, home=door_home) as (url, _), httpx.Client(base_url=url, timeout=60) as http:
        wait_until_ready(http)
        for user, token in (("", ""), ("", "wrong"), ("", f"{tokens['some']}x")):
            with connect(port, token, user) as refused, pytest.raises(dbapi.Error, match="TOKEN_NEEDED"):
                rows(refused, "SELECT 1")
        for user, token in (("all", "wrong"), ("all", tokens["some"]), ("nobody", tokens["all"])):
            with pytest.raises(dbapi.Error, match="TOKEN_NEEDED"):
                connect(port, token, user)
        for user in ("", "some"):
            with connect(port, tokens["some"], user) as some:
                assert rows(some, "SELECT count(*) FROM long")[0][0] > 0
                assert rows(some, "SELECT * FROM long")
                for table in ("price", '"price"', "nothing", "price p"):
                    with pytest.raises(dbapi.Error, match="NOT_ALLOWED"):
                        rows(some, f"SELECT * FROM {table}")
                (catalog,) = some.adbc_get_objects(depth="all").read_all().to_pylist()
                assert [each["table_name"] for each in catalog["catalog_db_schemas"][0]["db_schema_tables"]] == ["long"]
                with pytest.raises(dbapi.Error):
                    some.adbc_get_table_schema("price")

        with flight.connect(f"grpc://127.0.0.1:{port}") as client:
            # A ticket is good for the login that got it; a changed one for nobody.
            for statement in ("SELECT * FROM long", "SELECT 1 AS a"):
                ticket = ticket_of(client, statement, bearer(tokens["all"]))
                assert len(client.do_get(ticket, bearer(tokens["all"])).read_all())
                with pytest.raises(flight.FlightServerError, match="to this reader"):
                    client.do_get(ticket, bearer(tokens["some"])).read_all()
                changed = bytearray(ticket.ticket)
                changed[-1] ^= 1
                with pytest.raises(flight.FlightServerError, match="INVALID_REQUEST"):
                    client.do_get(flight.Ticket(bytes(changed)), bearer(tokens["all"])).read_all()
                with pytest.raises(flight.FlightUnauthenticatedError, match="TOKEN_NEEDED"):
                    client.do_get(ticket).read_all()
            header = client.authenticate_basic_token("all", tokens["all"])
            assert header == (b"authorization", f"Bearer {tokens['all']}".encode())
            # Rights that are taken away end an answer in its middle, and all that follow.
            reading = client.do_get(ticket_of(client, SLOW, bearer(tokens["some"])), bearer(tokens["some"]))
            reading.read_chunk()
            remove_token(file, "some")

            def refusal(token: str) -> str:
                try:
                    ticket_of(client, "SELECT 1", bearer(token))
                except (flight.FlightUnauthenticatedError, flight.FlightUnavailableError) as error:
                    return str(error)
                return ""

            assert "TOKEN_NEEDED" in wait_until(lambda: refusal(tokens["some"]), "the end of the token that was removed")
            with pytest.raises(flight.FlightUnauthenticatedError, match="TOKEN_NEEDED"):
                read_slowly(reading)
            wait_until(lambda: "TOO_MANY_REQUESTS" in refusal("wrong"), "the refusal of more guesses")
            assert ticket_of(client, "SELECT 1", bearer(tokens["all"]))


def test_tls_and_two_processes(types_pond: Path, door_home: Path, tmp_path: Path) -> None:
    port, (cert, key) = free_port(), write_certificate(tmp_path)
    options = ("--flight-port", str(port), "--workers", "2", "--tls-cert", str(cert), "--tls-key", str(key))
    with serving(types_pond, *options, home=door_home) as (url, _), httpx.Client(base_url=url, timeout=60, verify=False) as http:
        wait_until_ready(http)
        for _ in range(6):  # whichever process answers
            with connect(port, tls=cert) as safe:
                assert rows(safe, "SELECT ? + 1 AS a", [1]) == [(2,)]
                assert rows(safe, "SELECT * FROM long")
        # A ticket is good in both processes.
        roots = cert.read_bytes()
        with flight.connect(f"grpc+tls://127.0.0.1:{port}", tls_root_certs=roots) as first:
            ticket = ticket_of(first, "SELECT 7 AS a", None)
            for _ in range(6):
                with flight.connect(f"grpc+tls://127.0.0.1:{port}", tls_root_certs=roots, generic_options=[("a", 1)]) as other:
                    assert other.do_get(ticket).read_all().to_pylist() == [{"a": 7}]
        with flight.connect(f"grpc://127.0.0.1:{port}") as plain, pytest.raises(flight.FlightError):
            plain.do_get(ticket, flight.FlightCallOptions(timeout=60)).read_all()


def test_a_server_without_sql_says_so(types_pond: Path, door_home: Path) -> None:
    port = free_port()
    with serving(types_pond, "--flight-port", str(port), "--no-sql", home=door_home), connect(port) as client:
        for statement in ("SELECT 1", "SELECT * FROM long"):
            with pytest.raises(dbapi.Error, match="answers no SQL"):
                rows(client, statement)


def test_sigterm_lets_answers_end_and_then_ends_those_that_dont(types_pond: Path, door_home: Path) -> None:
    port = free_port()
    with serving(types_pond, "--flight-port", str(port), home=door_home) as (url, server):
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until_ready(http)
        with flight.connect(f"grpc://127.0.0.1:{port}") as client:
            ending, endless = ticket_of(client, SLOW, None), ticket_of(client, ENDLESS, None)
            reading, errors = client.do_get(ending), []
            first = reading.read_chunk().data
            with flight.connect(f"grpc://127.0.0.1:{port}") as other:
                began = threading.Event()

                def wait() -> None:
                    began.set()
                    try:
                        other.do_get(endless).read_all()
                    except flight.FlightError as error:
                        errors.append(error)

                waiting = threading.Thread(target=wait)
                waiting.start()
                began.wait()
                time.sleep(0.3)
                server.terminate()
                time.sleep(0.5)
                assert len(first) + len(reading.read_all()) == 90_000
                waiting.join(60)
            assert errors
        assert server.wait(30) == 0
