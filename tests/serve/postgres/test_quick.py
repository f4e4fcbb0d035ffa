"""Lookups of one key that the server answers itself are those of the processes, byte by byte."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import millpond
from millpond.serve.postgres import wire
from servers.ports import free_port
from servers.serving import serving, wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few, examples

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def server(types_pond: Path, door_home: Path) -> Iterator[tuple[str, int]]:
    """The address of its door, and its process."""
    port = free_port()
    options = ("--postgres-port", str(port), "--sql-processes", "1", "--max-seconds", "300", "--send-seconds", "300")
    with serving(types_pond, *options, home=door_home) as (url, process):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield f"postgresql://reader@127.0.0.1:{port}/types", process.pid


@pytest.fixture
def address(server: tuple[str, int]) -> str:
    return server[0]


def asked(connection: Any, text: str, value: Any, oid: int, is_binary: bool) -> list[bytes | None]:
    given = None if value is None else str(value).encode()
    found = connection.pgconn.exec_params(text.encode(), [given], [oid], None, int(is_binary))
    assert found.error_message == b"", (text, value, found.error_message)
    rows = [found.get_value(n, m) for n in range(found.ntuples) for m in range(found.nfields)]
    return [
        *rows,
        str([(found.fname(n), found.ftype(n), found.fmod(n)) for n in range(found.nfields)]).encode(),
        found.command_status,
    ]


@pytest.mark.parametrize("table", a_few(["long", "integer", "short", "byte", "price", "string", "double"], 2))
def test_a_lookup_gives_what_a_process_gives(address: str, types_pond: Path, door_home: Path, table: str) -> None:
    with millpond.open(types_pond, replica_dir=door_home) as pond:
        keys = [row["k"] for row in pond[table].scan()]
    values = [*(key for key in keys if not isinstance(key, str) or key.isprintable()), None, -7, 77, 2**40, "-0", "x", ""]
    # A text that isn't UTF-8 is an error in SQL where its column is read with others: name the key alone.
    columns = "n" if table == "string" else "n, k, again"
    oid = {"string": 25, "price": 1700, "double": 701}.get(table, 20)
    with psycopg.connect(address, autocommit=True) as client:
        for value in values:
            if oid != 25 and isinstance(value, str):
                continue
            for is_binary in (False, True):
                slow = asked(client, f"SELECT {columns} FROM {table} WHERE k = $1 LIMIT 9", value, oid, is_binary)
                for text in (
                    f"SELECT {columns} FROM {table} WHERE k = $1",
                    f"SELECT {columns} FROM public.{table} t WHERE $1 = t.k",
                ):
                    for _ in range(2):  # the first one by a process
                        assert asked(client, text, value, oid, is_binary) == slow


class Raw:
    """A connection that sends messages as they are."""

    def __init__(self, address: str) -> None:
        found, self.is_over = urlsplit(address), False
        self._socket = socket.create_connection((found.hostname, found.port), timeout=30)
        startup = struct.pack(">i", 196_608) + b"user\0reader\0database\0types\0\0"
        self.ask(struct.pack(">i", len(startup) + 4) + startup)

    def ask(self, *pieces: bytes) -> bytes:
        """Send pieces, each a moment after the one before; all that comes up to ReadyForQuery."""
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(0.01)
            self._socket.sendall(piece)
        found = b""
        while not re.search(rb"Z\x00\x00\x00\x05[ITE]\Z", found):
            data = self._socket.recv(65536)
            if not data:
                self.is_over = True
                break
            found += data
        return found

    def close(self) -> None:
        self._socket.close()


def bound(statement: bytes, values: list[bytes | None], formats: list[int], results: list[int]) -> bytes:
    def numbers(found: list[int]) -> bytes:
        return struct.pack(f">h{len(found)}h", len(found), *found)

    given = b"".join(struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value for value in values)
    return wire.message(
        b"B", b"\0" + statement + b"\0" + numbers(formats) + struct.pack(">h", len(values)) + given + numbers(results)
    )


@pytest.mark.long
@pytest.mark.parametrize("table", a_few(["long", "byte", "price", "string", "double"], 1))
def test_messages_together_are_answered_as_one_after_the_other(address: str, table: str) -> None:
    """Random values and formats, right and wrong ones."""
    draw = random.Random(table)
    describe, execute, sync = wire.message(b"D", b"P\0"), wire.message(b"E", b"\0" + bytes(4)), wire.message(b"S")
    fetch = wire.message(b"E", b"\0" + struct.pack(">i", 1))
    parse = wire.message(b"P", b"s\0" + f"SELECT n, k, again FROM {table} WHERE k = $1".encode() + b"\0" + struct.pack(">h", 0))
    with contextlib.ExitStack() as opened:
        clients: list[Raw] = []

        def ask(*pieces: bytes) -> bytes:
            """By a connection that knows the statement, and has been told the batch."""
            if not clients or clients[-1].is_over:
                clients.append(opened.enter_context(contextlib.closing(Raw(address))))
                clients[-1].ask(parse, wire.message(b"D", b"Ss\0"), sync)
                clients[-1].ask(bound(b"s", [b"0"], [], []) + execute + sync)
            return clients[-1].ask(*pieces)

        answered = 0
        given = [b"a", b"", b"\xff", None, b"1" * 5000, struct.pack(">q", 2), *(str(n).encode() for n in range(-3, 12))]
        for _ in range(examples(60)):
            value = draw.choice(given)
            form, results = draw.choice([[], [0]] * 6 + [[1], [0, 1]]), draw.choice([[], [0], [1], [0, 1, 0]] * 5 + [[1, 1], [2]])
            begin = bound(draw.choice([b"s"] * 9 + [b"other"]), [value] * draw.choice([1] * 9 + [0, 2]), form, results)
            rest = draw.choice([[describe, execute], [execute], [describe, fetch], [execute, execute], [describe]])
            together, all_of_it = ask(begin + b"".join(rest) + sync), b"".join([begin, *rest, sync])
            if clients[-1].is_over:  # a broken message ends the connection, and later pieces have nowhere to go
                assert together.startswith(b"E")
                continue
            assert ask(begin, *rest, sync) == together
            assert ask(all_of_it[:17], all_of_it[17:]) == together
            answered += b"SELECT 1" in together or b"SELECT 0" in together
        assert answered > 3


def test_a_lookup_waits_for_no_process(address: str) -> None:
    text = "SELECT n, k FROM long WHERE k = %s"
    with contextlib.closing(psycopg.connect(address)) as holding, psycopg.connect(address, autocommit=True) as client:
        key = client.execute("SELECT k FROM long WHERE k > 0 LIMIT 1").fetchone()[0]
        expected = client.execute(text, [key]).fetchall()
        pg = holding.pgconn
        pg.send_query_params(b"SELECT range, repeat('x', 1000) FROM range(90000)", None)
        pg.set_single_row_mode()
        while pg.get_result().status != psycopg.pq.ExecStatus.SINGLE_TUPLE:  # the only process writes rows that nobody reads
            pass
        for _ in range(51):  # one that waited for the process would fail after five minutes
            assert client.execute(text, [key]).fetchall() == expected


@pytest.mark.long
def test_a_lookup_reads_the_newest_batch_and_the_settings_count(tmp_path: Path) -> None:
    job, port, table = WrittenCheckpoint(tmp_path / "job"), free_port(), "job.aggregate_0"
    options = ("--postgres-port", str(port), "--history", f"{table}=10")
    with serving(job.path, *options, home=tmp_path / "home") as (url, _), millpond.connect(url) as server:
        address = f"postgresql://reader@127.0.0.1:{port}/x"
        with psycopg.connect(address, autocommit=True) as client:
            text = f'SELECT v FROM "{table}" WHERE k = %s'
            for n in range(4):
                job.plan([("a", n)], snapshot=False)
                job.commit()
                server.wait_for_table(table)
                server[table].get(k="a", bounds=millpond.Bounds(min_batch=n, wait_seconds=20))
                for _ in range(3):
                    assert client.execute(text, ["a"]).fetchall() == [(n,)]
                    assert client.info.parameter_status("millpond.batch") == str(n)
            client.execute("SET millpond.at = '2'")
            assert client.execute(text, ["a"]).fetchall() == [(2,)]
            client.execute("RESET millpond.at")
            client.execute("SET millpond.min_batch = 9")
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                client.execute(text, ["a"])
            client.execute("RESET ALL")
            assert client.execute(text, ["a"]).fetchall() == [(3,)]
            assert client.execute(text, ["b"]).fetchall() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "value", "oid"),
    [
        ("SELECT n FROM long LIMIT $1", "²", 20),
        ("SELECT n FROM long LIMIT $1", "9" * 5000, 20),
        ("SELECT n FROM long WHERE k = $1", "9" * 5000, 20),
        ("SELECT n FROM long WHERE k = $²", "7", 20),
        ("SELECT $1::bytea", "\\xzz", 17),
        ("SELECT $1::bytea[]", '{"\\\\xzz"}', 1001),
        ("SELECT $1::date", "x", 1082),
        ("SELECT $1::uuid", "x", 2950),
        ("SELECT $1::int2", "99999", 21),
        ("SELECT $1::numeric", "1e99999", 1700),
        ("SELECT $1::numeric", "1e-99999999999999999999", 1700),
        ("SELECT $1::float8", "x", 701),
        ("SELECT $1::interval", "x", 1186),
    ],
)
def test_odd_values_are_errors_that_end_no_process(address: str, text: str, value: str, oid: int) -> None:
    with psycopg.connect(address, autocommit=True) as client:
        found = client.pgconn.exec_params(text.encode(), [value.encode()], [oid], None, 0)
        assert b"SQL_ENDED" not in found.error_message
        assert found.error_message, [found.get_value(0, 0)]


def held_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


@pytest.mark.long
def test_plans_keep_little_of_what_a_client_declares(server: tuple[str, int]) -> None:
    address, pid = server
    with psycopg.connect(address, autocommit=True) as client:
        pg = client.pgconn

        def ask(count: int) -> None:
            for n in range(count):
                pg.prepare(b"", b"SELECT n FROM long WHERE k = $1 -- %d" % n, [20] * 65_535)
                assert pg.exec_prepared(b"", [b"7"]).error_message == b""

        ask(5)
        before = held_bytes(pid)
        ask(60)
        assert held_bytes(pid) - before < 40 << 20
