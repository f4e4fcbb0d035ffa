"""Who may read by PostgreSQL's protocol: SCRAM, TLS, rights of tokens, cancelling, and several processes."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from millpond.serve.access.tokens import add_token, read_tokens, remove_token
from millpond.serve.access.verifier import make_verifier, parse_verifier
from millpond.serve.postgres.scram import Scram, ScramFailed
from servers.ports import free_port
from servers.serving import serving, wait_until_ready, write_certificate
from suite.waiting import wait_until, wait_until_async

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")


def address(port: int, user: str, password: str = "", **more: str) -> str:
    return psycopg.conninfo.make_conninfo(host="127.0.0.1", port=port, user=user, password=password, dbname="types", **more)


def test_tokens_open_their_tables(types_pond: Path, door_home: Path, tmp_path: Path) -> None:
    file, port = tmp_path / "readers.json", free_port()
    tokens = {name: add_token(file, name, tables=[tables]) for name, tables in (("all", "*"), ("some", "lon*"))}
    with serving(types_pond, "--postgres-port", str(port), "--tokens", str(file), home=door_home):
        for user, password in (("all", ""), ("all", tokens["some"]), ("nobody", tokens["all"]), ("some", tokens["some"][:-1])):
            with pytest.raises(psycopg.OperationalError, match=r"password authentication failed|no password supplied"):
                psycopg.connect(address(port, user, password))
        for require in ("scram-sha-256", "!password"):
            with psycopg.connect(address(port, "some", tokens["some"], require_auth=require), autocommit=True) as some:
                assert some.execute("SELECT count(*) FROM long").fetchone()[0] > 0
                for table in ("price", "nothing"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        some.execute(f"SELECT * FROM {table}")
                seen = some.execute("SELECT relname FROM pg_class WHERE relnamespace = 2200 AND relkind = 'r'").fetchall()
                assert seen == [("long",)]
                assert some.execute("SELECT table_name FROM information_schema.tables").fetchall() == [("long",)]
                assert some.execute("SELECT current_user, session_user").fetchone() == ("some", "some")
        with psycopg.connect(address(port, "some", tokens["some"]), autocommit=True) as some:
            assert some.execute("SELECT 1").fetchone() == (1,)
            remove_token(file, "some")
            with pytest.raises(psycopg.errors.InvalidPassword):
                ask_on(some)
        with psycopg.connect(address(port, "all", tokens["all"])) as every:
            assert every.execute("SELECT count(*) FROM price").fetchone()[0] > 0


@pytest.mark.long
def test_a_description_shows_no_table_that_another_reader_asked_for(types_pond: Path, door_home: Path, tmp_path: Path) -> None:
    file, port, text = tmp_path / "readers.json", free_port(), b"SELECT k, n, again FROM long WHERE k = $1"
    tokens = {name: add_token(file, name, tables=[tables]) for name, tables in (("all", "*"), ("some", "pri*"))}

    def asked(connection: Any) -> tuple[str, str]:
        """What the server said to a statement's messages, and to those of a prepared one."""
        pg, said = connection.pgconn, list[str]()
        for ask in (
            lambda: [pg.exec_params(text, [b"1"], [20])],
            lambda: [pg.prepare(b"p", text, [20]), pg.describe_prepared(b"p"), pg.exec_prepared(b"p", [b"1"])],
        ):
            with (tmp_path / "trace").open("w") as trace:
                pg.trace(trace.fileno())
                ask()
                pg.untrace()
            said.append((tmp_path / "trace").read_text())
        pg.exec_(b"DEALLOCATE ALL")
        return said[0], said[1]

    with (
        serving(types_pond, "--postgres-port", str(port), "--tokens", str(file), home=door_home),
        psycopg.connect(address(port, "all", tokens["all"]), autocommit=True) as every,
    ):
        for _ in range(3):  # from the second time on it is a lookup that the server knows
            assert all('"again"' in each for each in asked(every))
        with psycopg.connect(address(port, "some", tokens["some"]), autocommit=True) as some:
            for said in asked(some):
                assert "RowDescription" not in said
                assert "42501" in said
        assert every.pgconn.prepare(b"q", text, [20]).error_message == b""
        remove_token(file, "all")
        add_token(file, "all", tables=["pri*"])
        wait_until(lambda: every.pgconn.exec_(b"SELECT 1").error_message, "the end of the token that was removed")
        with (tmp_path / "trace").open("w") as trace:
            every.pgconn.trace(trace.fileno())
            every.pgconn.exec_prepared(b"q", [b"1"])
            every.pgconn.untrace()
        assert "RowDescription" not in (tmp_path / "trace").read_text()


def ask_on(connection: Any) -> None:
    """Ask until there is an error."""
    wait_until(lambda: connection.execute("SELECT 1 FROM long LIMIT 1") and None, "an error")


@pytest.mark.long
def test_too_many_wrong_tokens_of_an_address_are_refused(types_pond: Path, door_home: Path, tmp_path: Path) -> None:
    file, port = tmp_path / "readers.json", free_port()
    token = add_token(file, "all", tables=["*"])
    options = ("--postgres-port", str(port), "--tokens", str(file), "--failed-logins-per-minute", "3")
    with serving(types_pond, *options, home=door_home):
        errors = []
        for _ in range(6):
            with pytest.raises(psycopg.OperationalError) as refused:
                psycopg.connect(address(port, "all", "wrong"))
            errors.append(str(refused.value))
        assert "password authentication failed" in errors[0]
        assert "requests per minute without a right token" in errors[-1]
        with psycopg.connect(address(port, "all", token)) as right:
            assert right.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.long
def test_tls_and_a_token_without_a_verifier(types_pond: Path, door_home: Path, tmp_path: Path) -> None:
    file, port = tmp_path / "readers.json", free_port()
    token = add_token(file, "all", tables=["*"])
    old = json.loads(file.read_text())
    del old["readers"][0]["scram"]
    file.write_text(json.dumps(old))
    cert, key = write_certificate(tmp_path)
    plain = serving(types_pond, "--postgres-port", str(port), "--tokens", str(file), home=door_home)
    with plain, pytest.raises(psycopg.OperationalError, match="without a SCRAM verifier"):
        psycopg.connect(address(port, "all", token))
    options = ("--postgres-port", str(port), "--tokens", str(file), "--tls-cert", str(cert), "--tls-key", str(key))
    with serving(types_pond, *options, home=door_home):
        with pytest.raises(psycopg.OperationalError, match="answers over TLS alone"):
            psycopg.connect(address(port, "all", token, sslmode="disable"))
        safe = {"sslmode": "verify-ca", "sslrootcert": str(cert)}
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(address(port, "all", "wrong", **safe))
        for _ in range(2):
            there = address(port, "all", token, **safe)
            # A moment passes before the server reads the file again.
            with wait_until(
                lambda: psycopg.connect(there, autocommit=True),  # noqa: B023 - it is used at once
                "the new token",
                ignoring=(psycopg.OperationalError,),
            ) as client:
                assert client.pgconn.ssl_in_use
                count = 0
                for (number,) in client.cursor().stream("SELECT range FROM range(100000)"):
                    assert number == count
                    count += 1
                assert count == 100_000
            token = add_token(file, "all", tables=["*"])  # the new one has a verifier: SCRAM over TLS
        # What comes in the clear before TLS begins isn't taken for what comes by TLS.
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
            plain.sendall((8).to_bytes(4) + (80_877_103).to_bytes(4) + b"Q\0\0\0\x05\0")
            assert b"S" not in plain.recv(1)


@pytest.mark.long
def test_a_request_to_cancel_reaches_the_process_of_its_statement(types_pond: Path, door_home: Path) -> None:
    port = free_port()
    with serving(types_pond, "--postgres-port", str(port), "--workers", "2", home=door_home) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)

        async def ask() -> set[int]:
            seen = set()
            for asked in range(64):  # both processes answer some of these, and get some of the requests to cancel
                if asked >= 8 and len(seen) == 2:
                    break
                async with await psycopg.AsyncConnection.connect(address(port, "me"), autocommit=True) as other:
                    seen.add(other.info.backend_pid)
                    running = asyncio.ensure_future(other.execute("SELECT count(*) FROM range(100000000000)"))
                    await asyncio.sleep(0.2)

                    async def is_over() -> bool:
                        await other.cancel_safe(timeout=60)
                        return running.done()  # noqa: B023 - it is used at once

                    await wait_until_async(is_over, "the end of the statement")
                    with pytest.raises(psycopg.errors.QueryCanceled, match="due to user request"):
                        await running
            return seen

        assert len(asyncio.run(ask())) == 2


@pytest.mark.long
def test_a_server_without_sql_says_so(types_pond: Path, door_home: Path) -> None:
    port = free_port()
    with (
        serving(types_pond, "--postgres-port", str(port), "--no-sql", home=door_home),
        psycopg.connect(address(port, "me"), autocommit=True) as client,
        pytest.raises(psycopg.errors.FeatureNotSupported),
    ):
        client.execute("SELECT 1")


def test_the_file_of_tokens_has_verifiers_and_no_tokens(tmp_path: Path) -> None:
    file = tmp_path / "readers.json"
    words = [sys.executable, "-m", "millpond.cli", "token", str(file), "one", "--tables", "*"]
    token = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1]
    assert token not in file.read_text()
    (reader,) = read_tokens(file).values()
    assert reader.verifier == parse_verifier(str(reader.verifier))
    for wrong in ("", "SCRAM-SHA-256$4096:x$y:z", "SCRAM-SHA-256$0:AA==$AA==:AA==", str(reader.verifier)[:-5]):
        with pytest.raises(ValueError):
            parse_verifier(wrong)


def answer(scram: Scram, draw: random.Random) -> None:
    """An exchange of noise that looks like SCRAM."""
    first = bytearray(b"n,,n=,r=abc")
    if draw.random() < 0.5:
        first[draw.randrange(len(first))] = draw.randrange(256)
    answered = scram.begin(bytes(first))
    assert answered.startswith(b"r=")
    last = bytearray(b"c=biws,r=%b,p=AAAA" % answered[2:].split(b",")[0])
    last[draw.randrange(len(last))] = draw.randrange(256)
    scram.end(bytes(last))


@pytest.mark.long
def test_noise_proves_nothing() -> None:
    draw, verifier = random.Random(4), make_verifier("token")
    for _ in range(300):
        with pytest.raises(ScramFailed):
            answer(Scram(verifier, True), draw)
