"""DECLARE, FETCH, MOVE and CLOSE: as PostgreSQL itself does them, and with bounded memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import millpond
from servers.ports import free_port
from servers.postgres import postgres_server, said
from servers.serving import serving, wait_until_ready
from suite.sizes import examples

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def address(types_pond: Path, door_home: Path) -> Iterator[str]:
    port = free_port()
    options = ("--postgres-port", str(port), "--sql-processes", "2", "--max-body-bytes", "300000", "--max-seconds", "30")
    with serving(types_pond, *options, home=door_home) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield f"postgresql://reader@127.0.0.1:{port}/types"


_STATEMENTS = (
    *("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT s", "SAVEPOINT s", "ROLLBACK TO s", "RELEASE s", "SELECT nothing"),
    *("DECLARE a CURSOR FOR SELECT x, x * 2 AS y FROM generate_series(1::int8, 7) g(x)",) * 2,
    'declare /* " */ "B b" INSENSITIVE NO SCROLL cursor without hold for(select 1 AS z WHERE 1 = 2)',
    "DECLARE a CURSOR FOR VALUES ('x;', NULL), ('FETCH', 'for')",
    "BEGIN; DECLARE d CURSOR FOR SELECT nothing",
    *("FETCH a", "FETCH NEXT FROM a", "FETCH FORWARD IN A", "FETCH 2 a", "FETCH 3 FROM a", "FETCH ALL FROM a"),
    *("FETCH FORWARD ALL FROM a", "FETCH FORWARD 5 IN a", "MOVE a", "MOVE 2 FROM a", "MOVE FORWARD ALL IN a"),
    *('FETCH 1 FROM "B b"', 'FETCH ALL IN "B b"', 'MOVE "B b"', 'CLOSE "B b"', "CLOSE a", "CLOSE ALL"),
    "BEGIN; DECLARE a CURSOR FOR SELECT 5 AS n; FETCH a",
    "DECLARE c CURSOR FOR SELECT 6 AS n; FETCH c",
)


def test_random_sequences_are_as_postgres(address: str) -> None:
    draw = random.Random(31)
    with psycopg.connect(postgres_server(), autocommit=True) as real, psycopg.connect(address, autocommit=True) as ours:
        for _ in range(examples(60, 15)):
            history = list[str]()
            for connection in (real, ours):
                connection.pgconn.exec_(b"ROLLBACK")
            for text in ["BEGIN", _STATEMENTS[8], *draw.choices(_STATEMENTS, k=14)]:
                is_extended = draw.random() < 0.4 and ";" not in text.replace("x;", "")
                history.append(f"{text}  -- {'extended' if is_extended else 'simple'}")
                expected = said(real.pgconn, text, is_extended=is_extended)
                assert said(ours.pgconn, text, is_extended=is_extended) == expected, "\n".join(history)
                assert ours.pgconn.transaction_status == real.pgconn.transaction_status, "\n".join(history)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("FETCH PRIOR FROM a", "55000"),
        ("FETCH -1 FROM a", "55000"),
        ("MOVE BACKWARD ALL IN a", "55000"),
        ("FETCH nothing FROM nothing a", "42601"),
        ("FETCH", "42601"),
        ("CLOSE", "42601"),
        ("DECLARE a, b CURSOR FOR SELECT 1", "42601"),
        ("DECLARE b CURSOR FOR", "42601"),
        ("DECLARE b CURSOR FOR INSERT INTO long VALUES (1)", "42601"),
        ("DECLARE b CURSOR FOR FETCH a", "42601"),
    ],
)
def test_errors_are_those_of_postgres(address: str, text: str, state: str) -> None:
    for server in (postgres_server(), address):
        with psycopg.connect(server) as connection:
            connection.execute("DECLARE a NO SCROLL CURSOR FOR SELECT 1")
            connection.execute("FETCH ALL FROM a")
            with pytest.raises(psycopg.Error) as refused:
                connection.execute(text)
            assert refused.value.sqlstate == state, (server, refused.value)


@pytest.mark.parametrize(
    "text",
    [
        *("FETCH FIRST FROM a", "FETCH ABSOLUTE 3 FROM a", "FETCH 0 FROM a"),
        *(f"DECLARE b {words} FOR SELECT 1" for words in ("SCROLL CURSOR", "CURSOR WITH HOLD", "BINARY CURSOR")),
    ],
)
def test_what_is_not_there_is_refused(address: str, text: str) -> None:
    with psycopg.connect(address) as connection:
        connection.execute("DECLARE a CURSOR FOR SELECT 1")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute(text)


@pytest.mark.parametrize("is_binary", [False, True])
def test_cursors_with_names_of_psycopg(address: str, types_pond: Path, door_home: Path, is_binary: bool) -> None:
    with millpond.open(types_pond, replica_dir=door_home) as pond:
        expected = pond.sql("SELECT k, n FROM long WHERE k > ? ORDER BY k", [0]).values()
    with psycopg.connect(address) as connection:
        with connection.cursor("some name", binary=is_binary) as cursor:
            cursor.execute("SELECT k, n FROM long WHERE k > %s ORDER BY k", [0])
            assert [each.name for each in cursor.description] == ["k", "n"]
            assert cursor.fetchall() == expected
        with connection.cursor("large", binary=is_binary) as cursor:
            cursor.itersize = 700
            cursor.execute("SELECT range AS x FROM range(%s)", [60_000])
            assert cursor.fetchmany(5) == [(n,) for n in range(5)]
            cursor.scroll(10)
            assert cursor.fetchone() == (15,)
            assert [x for (x,) in cursor] == list(range(16, 60_000))
            cursor.execute("SELECT 'again'")  # closes the other one
            assert cursor.fetchall() == [("again",)]
        connection.commit()
        with pytest.raises(psycopg.errors.InvalidCursorName):
            connection.execute('FETCH "large"')


def test_a_cursor_has_the_format_of_its_first_rows(address: str) -> None:
    with psycopg.connect(address) as connection:
        for name in ("a", "b"):
            connection.execute(f"DECLARE {name} CURSOR FOR SELECT range AS x FROM range(3)")
            assert connection.execute(f"FETCH {name}", binary=name == "a").fetchall() == [(0,)]
        assert connection.execute("FETCH a", binary=True).fetchall() == [(1,)]
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute("FETCH a")


def test_cursors_have_bounds(address: str) -> None:
    large = "SELECT repeat('x', 1000) FROM range(90000)"
    with psycopg.connect(address) as one, psycopg.connect(address, autocommit=True) as other:
        one.execute(f"DECLARE a CURSOR FOR {large}")
        # Of two processes, one stays for the others.
        one.execute("SAVEPOINT s")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            one.execute(f"DECLARE b CURSOR FOR {large}")
        one.execute("ROLLBACK TO s")
        assert other.execute("SELECT 1").fetchone() == (1,)
        assert len(one.execute("FETCH 20 FROM a").fetchall()) == 20
        one.execute("CLOSE a")
        # Small answers wait without a process, up to so many bytes.
        for n in range(20):
            one.execute(f"DECLARE small{n} CURSOR FOR SELECT {n} AS n FROM range(2)")
        assert [one.execute(f"FETCH ALL FROM small{n}").fetchall() for n in range(20)] == [[(n,), (n,)] for n in range(20)]
        one.rollback()
        for count, query, state in ((20, "SELECT repeat('x', 1000) FROM range(50)", "53200"), (101, "SELECT 1", "53400")):
            found = one.pgconn.exec_("; ".join(f"DECLARE c{n} CURSOR FOR {query}" for n in range(count)).encode())
            assert found.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == state.encode()
        one.rollback()
        assert one.execute("SELECT 1").fetchone() == (1,)
