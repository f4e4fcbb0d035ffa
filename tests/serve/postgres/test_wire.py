"""The messages of PostgreSQL's protocol, byte by byte: what a driver rarely sends, limits, and noise."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from millpond.serve.postgres.errors import PgError
from millpond.serve.postgres.statements.words import first_word, read_words, split_statements
from servers.ports import free_port
from servers.serving import serving, wait_until_ready
from suite.sizes import examples
from suite.waiting import wait_until

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")
LIMITS = (
    *("--max-body-bytes", "100000", "--max-connections-per-client", "40", "--max-unread-bytes", "3000000", "--sql-processes", "2"),
)
PATIENT = ("--body-seconds", "60", "--send-seconds", "60", "--max-seconds", "100")
HASTY = ("--body-seconds", "2", "--send-seconds", "3", "--max-seconds", "8")


@pytest.fixture(scope="module")
def door(types_pond: Path, door_home: Path) -> Iterator[tuple[str, int]]:
    with opened_door(types_pond, door_home, PATIENT) as found:
        yield found


@pytest.fixture(scope="module")
def hasty(types_pond: Path, door_home: Path) -> Iterator[tuple[str, int]]:
    """The door of a server that has no patience with a client."""
    with opened_door(types_pond, door_home, HASTY) as found:
        yield found


@contextlib.contextmanager
def opened_door(pond: Path, home: Path, more: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    port = free_port()
    with serving(pond, "--postgres-port", str(port), *LIMITS, *more, home=home) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield url, port


def message(letter: bytes, body: bytes = b"") -> bytes:
    return letter + struct.pack(">i", len(body) + 4) + body


def startup(**parameters: str) -> bytes:
    words = b"".join(f"{name}\0{value}\0".encode() for name, value in {"user": "me", **parameters}.items())
    body = struct.pack(">i", 196_608) + words + b"\0"
    return struct.pack(">i", len(body) + 4) + body


def parse(text: str, name: str = "", types: tuple[int, ...] = ()) -> bytes:
    return message(b"P", f"{name}\0{text}\0".encode() + struct.pack(f">h{len(types)}I", len(types), *types))


def bind(*values: bytes | None, portal: str = "", name: str = "", results: tuple[int, ...] = ()) -> bytes:
    body = f"{portal}\0{name}\0".encode() + struct.pack(">hh", 0, len(values))
    body += b"".join(b"\xff\xff\xff\xff" if v is None else struct.pack(">i", len(v)) + v for v in values)
    return message(b"B", body + struct.pack(f">h{len(results)}h", len(results), *results))


def execute(most: int = 0, portal: str = "") -> bytes:
    return message(b"E", portal.encode() + b"\0" + struct.pack(">i", most))


SYNC, FLUSH, END = message(b"S"), message(b"H"), message(b"X")


class Raw:
    """A client that says what it wants."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._data = b""

    def __enter__(self) -> Raw:
        self.ask(startup(), until=b"Z")
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def next(self) -> tuple[bytes, bytes]:
        while len(self._data) < 5 or len(self._data) < 1 + int.from_bytes(self._data[1:5]):
            more = self.socket.recv(65536)
            if not more:
                raise EOFError
            self._data += more
        end = 1 + int.from_bytes(self._data[1:5])
        found = self._data[:1], self._data[5:end]
        self._data = self._data[end:]
        return found

    def ask(self, data: bytes, until: bytes = b"Z") -> list[tuple[bytes, bytes]]:
        self.socket.sendall(data)
        out = [self.next()]
        while out[-1][0] != until:
            out.append(self.next())
        return out

    def letters(self, data: bytes, until: bytes = b"Z") -> str:
        found = self.ask(data, until)
        self.errors = [body for letter, body in found if letter == b"E"]
        return b"".join(letter for letter, _ in found).decode()


def state_of(body: bytes) -> str:
    return next(part[1:].decode() for part in body.split(b"\0") if part.startswith(b"C"))


def test_the_extended_protocol(door: tuple[str, int]) -> None:
    with Raw(door[1]) as raw:
        assert raw.letters(parse("SELECT 1") + bind() + execute() + SYNC) == "12DCZ"
        assert raw.letters(parse("SELECT $1::int8", "a") + message(b"D", b"Sa\0") + SYNC) == "1tTZ"
        assert raw.letters(bind(b"7", name="a") + message(b"D", b"P\0") + execute() + execute() + SYNC) == "2TDCCZ"
        assert raw.letters(bind(None, name="a", results=(1,)) + execute() + SYNC) == "2DCZ"
        assert raw.letters(parse("") + bind() + message(b"D", b"P\0") + execute() + SYNC) == "12nIZ"
        assert raw.letters(message(b"Q", b"\0")) == "IZ"
        assert raw.letters(message(b"Q", b"SELECT 1; SELECT 2; BEGIN; SHOW a; SELECT 3\0")) == "TDCTDCCEZ"
        assert raw.letters(message(b"Q", b"ROLLBACK\0")) == "CZ"
        # After an error, all is skipped until Sync.
        assert raw.letters(bind(name="nothing") + parse("SELECT 1") + bind() + execute() + FLUSH + SYNC) == "EZ"
        assert raw.letters(bind(name="nothing") + message(b"Q", b"SELECT 1\0") + parse("SELECT 1") + SYNC) == "EZ"
        assert raw.letters(message(b"Q", b"SELECT 1\0")) == "TDCZ"
        assert raw.letters(execute() + SYNC) == "EZ"
        assert raw.letters(parse("SELECT 1", "a") + SYNC) == "EZ"  # it is there already
        assert raw.letters(message(b"C", b"Sa\0") + message(b"C", b"Pnothing\0") + parse("SELECT 1", "a") + SYNC) == "331Z"
        assert raw.letters(parse("SELECT 1; SELECT 2") + SYNC) == "EZ"
        assert raw.letters(message(b"F", b"\0\0\0\0") + SYNC) == "EZ"
        assert raw.letters(message(b"d", b"x") + message(b"c") + message(b"f", b"\0") + SYNC) == "Z"
        # Two results formats, and one column.
        assert raw.letters(parse("SELECT 1") + bind(results=(0, 1)) + execute() + SYNC) == "12EZ"
        assert raw.letters(parse("SHOW server_version") + message(b"D", b"S\0") + bind() + execute() + SYNC) == "1tT2DCZ"


def test_portals_give_rows_a_few_at_a_time(door: tuple[str, int]) -> None:
    with Raw(door[1]) as raw:
        numbers = "SELECT range::int8 FROM range(10)"
        assert raw.letters(message(b"Q", b"BEGIN\0")) == "CZ"
        assert raw.letters(parse(numbers) + bind(portal="a") + execute(4, "a") + SYNC) == "12DDDDsZ", raw.errors
        assert raw.letters(parse("SELECT 5") + bind() + execute() + SYNC) == "12DCZ"  # another statement between
        rows = [body[6:] for letter, body in raw.ask(execute(5, "a") + execute(5, "a") + execute(5, "a") + SYNC) if letter == b"D"]
        assert rows == [b"4", b"5", b"6", b"7", b"8", b"9"]
        assert raw.letters(bind(portal="b") + execute(1, "b") + message(b"Q", b"COMMIT\0")) == "2DsCZ"
        assert raw.letters(execute(1, "a") + SYNC) == "EZ"  # the transaction ended it
        assert raw.letters(parse(numbers) + bind(portal="c") + execute(1, "c") + SYNC + execute(1, "c") + SYNC) == "12DsZ"
        assert raw.letters(FLUSH + SYNC) in ("EZ", "Z")
        assert raw.letters(message(b"Q", b"SELECT 1\0")) in ("TDCZ", "Z")


@pytest.mark.long
def test_a_portal_that_is_left_alone_ends(hasty: tuple[str, int]) -> None:
    with Raw(hasty[1]) as raw, psycopg.connect(f"host=127.0.0.1 port={hasty[1]} user=me", autocommit=True) as other:
        raw.ask(message(b"Q", b"BEGIN\0"))
        assert raw.letters(parse("SELECT range::int8 FROM range(90000)") + bind(portal="a") + execute(4, "a") + SYNC).endswith("sZ")
        # One process of two is left for the others, also to a client that wants more such portals.
        found = raw.ask(bind(portal="b") + execute(4, "b") + SYNC)
        assert [state_of(body) for letter, body in found if letter == b"E"] == ["53400"]
        assert other.execute("SELECT 1").fetchone() == (1,)
        raw.ask(message(b"Q", b"ROLLBACK\0"))
        raw.ask(message(b"Q", b"BEGIN\0"))
        assert raw.letters(bind(portal="c") + execute(4, "c") + SYNC).endswith("sZ")
        time.sleep(9)  # --max-seconds are over
        with Raw(hasty[1]) as next_one:  # whose rows are left on the server, too: the process is free again
            next_one.ask(message(b"Q", b"BEGIN\0"))
            found = next_one.letters(parse("SELECT range::int8 FROM range(90000)") + bind(portal="a") + execute(4, "a") + SYNC)
            assert found.endswith("sZ")
        states = [state_of(body) for letter, body in raw.ask(execute(0, "c") + SYNC) if letter == b"E"]
        assert states == ["57014"]


# ---------------------------------------------------------------- limits


def ended(port: int, data: bytes) -> bytes:
    """All that comes until the server ends the connection."""
    out = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
        contextlib.suppress(ConnectionResetError, BrokenPipeError),
    ):
        connection.sendall(data)
        while more := connection.recv(65536):
            out += more
    return out


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (struct.pack(">ii", 20_000, 196_608), "08P01"),
        (struct.pack(">ii", 4, 196_608), "08P01"),
        (struct.pack(">ii", 8, 131_072), "0A000"),
        (struct.pack(">iih", 10, 196_608, 1), "08P01"),
        (startup(replication="true"), "0A000"),
        (struct.pack(">ii", 9, 196_608) + b"\0", "28000"),
        (startup(nothing="1"), "42704"),
        (startup(options="-c nothing=1"), "42704"),
        (startup(options="x"), "42601"),
        (startup() + message(b"?"), "08P01"),
        (startup() + b"Q" + struct.pack(">i", 100_001), "08P01"),
        (startup() + b"Q" + struct.pack(">i", 3), "08P01"),
        (startup() + message(b"Q", b"SELECT 1"), "08P01"),
        (startup() + message(b"B", b"\0\0\0\x01"), "08P01"),
        (startup() + message(b"D", b"?\0"), "08P01"),
        (startup() + message(b"P", b"\0SELECT 1\0\0\x07"), "08P01"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "08P01"),
    ],
)
def test_the_connection_ends_and_not_the_server(door: tuple[str, int], data: bytes, state: str) -> None:
    assert f"\0C{state}\0".encode() in ended(door[1], data)


@pytest.mark.long
def test_half_a_message_ends_after_a_while(hasty: tuple[str, int]) -> None:
    pieces = (b"", startup()[:-3], startup() + b"Q\0\0\0\x10SEL")
    began = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        for out in threads.map(lambda data: ended(hasty[1], data), pieces):
            assert b"\0CXX" not in out
    assert time.monotonic() - began > 1


def test_statements_and_portals_have_bounds(door: tuple[str, int]) -> None:
    with Raw(door[1]) as raw:
        found = raw.ask(b"".join(parse("SELECT 1", f"s{n}") for n in range(1001)) + SYNC)
        assert [state_of(body) for letter, body in found if letter == b"E"] == ["53400"]
        found = raw.ask(b"".join(bind(portal=f"p{n}", name="s1") for n in range(101)) + SYNC)
        assert [state_of(body) for letter, body in found if letter == b"E"] == ["53400"]
        raw.ask(message(b"Q", b"DEALLOCATE ALL\0"))
        found = raw.ask(b"".join(parse(f"SELECT '{'x' * 60_000}'", f"s{n}") for n in range(3)) + SYNC)
        assert [state_of(body) for letter, body in found if letter == b"E"] == ["53200"]
        for n in range(250):
            last = raw.ask(message(b"Q", f"SET a.b{n} = 1\0".encode()))
        assert [state_of(body) for letter, body in last if letter == b"E"] == ["53400"]
        found = raw.ask(message(b"Q", b";".join([b"SELECT 1"] * 1002) + b"\0"))
        assert [state_of(body) for letter, body in found if letter == b"E"] == ["54000"]


def test_more_connections_than_a_client_may_have_end_idle_ones(door: tuple[str, int]) -> None:
    opened = [socket.create_connection(("127.0.0.1", door[1]), timeout=20) for _ in range(60)]
    try:
        for connection in opened[-30:]:
            connection.sendall(startup())
            assert connection.recv(1) == b"R"
    finally:
        for connection in opened:
            connection.close()


@pytest.mark.long
def test_rows_that_nobody_reads_stop_the_statement_and_end_the_connection(hasty: tuple[str, int]) -> None:
    with Raw(hasty[1]) as raw, psycopg.connect(f"host=127.0.0.1 port={hasty[1]} user=me", autocommit=True) as other:
        raw.socket.sendall(message(b"Q", b"SELECT repeat('x', 2000) FROM range(90000)\0"))

        def is_over() -> bool:
            assert other.execute("SELECT 1").fetchone() == (1,)
            return not is_connected(raw.socket)

        wait_until(is_over, "the end of the connection that nobody reads")
        size = 0
        with contextlib.suppress(ConnectionResetError):
            while more := raw.socket.recv(1 << 20):
                size += len(more)
        assert size < 50_000_000  # of 180 MB


def is_connected(connection: socket.socket) -> bool:
    """Whether the server on this machine still has its side of a connection open."""
    own, other = (f"{address[1]:04X}" for address in (connection.getsockname(), connection.getpeername()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[3] for row in rows if (row[1][-4:], row[2][-4:]) == (other, own)] == ["01"]


def test_noise_doesnt_end_the_server(door: tuple[str, int]) -> None:
    draw = random.Random(17)
    whole = [
        *(parse("SELECT $1::int8", "", (20,)), bind(b"7"), execute(), SYNC, FLUSH, message(b"D", b"P\0"), message(b"C", b"S\0")),
        *(message(b"Q", b"SELECT 'a'; BEGIN\0"), message(b"Q", b"SHOW ALL\0"), bind(b"\0" * 8, results=(1,)), END, startup()),
    ]
    for _ in range(examples(300, 75)):
        data = bytearray(startup() + b"".join(draw.choices(whole, k=draw.randrange(1, 8))))
        for _ in range(draw.randrange(6)):
            place = draw.randrange(len(data))
            data[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        with socket.create_connection(("127.0.0.1", door[1]), timeout=20) as connection, contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    with psycopg.connect(f"host=127.0.0.1 port={door[1]} user=me", autocommit=True) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)
    assert 'route="postgres",status="500"' not in httpx.get(f"{door[0]}/metrics", timeout=60).text.replace(" ", "")


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", " SELECT 2"]),
        ("SELECT ';'; x", ["SELECT ';'", " x"]),
        ("SELECT 'a''b;'", ["SELECT 'a''b;'"]),
        ("SELECT E'a\\';'; x", ["SELECT E'a\\';'", " x"]),
        ("SELECT 'a\\'; x", ["SELECT 'a\\'", " x"]),
        ('SELECT ";"""; x', ['SELECT ";"""', " x"]),
        ("SELECT $$;$$, $a$;$$;$a$; x", ["SELECT $$;$$, $a$;$$;$a$", " x"]),
        ("SELECT $1; x", ["SELECT $1", " x"]),
        ("SELECT a$b$c; x", ["SELECT a$b$c", " x"]),
        ("-- a;\n/* b; /* c; */ ; */", []),
        (" ; ;; ", []),
    ],
)
def test_statements_of_a_text(text: str, parts: list[str]) -> None:
    assert split_statements(text) == parts


@pytest.mark.parametrize("text", ["SELECT 'x", 'SELECT "x', "SELECT $$x", "SELECT /* /* */", "SELECT E'\\'"])
def test_what_doesnt_end(text: str) -> None:
    with pytest.raises(PgError) as refused:
        split_statements(text)
    assert refused.value.state == "42601"


def test_words_of_a_statement() -> None:
    assert read_words("SET a.B  = 'X Y', 1.5 -- z") == ["set", "a.b", "=", "'X Y'", ",", "1.5"]
    assert first_word("/* x */ ((SELECT 1))") == "select"
    assert first_word("") == ""
    draw: Any = random.Random(2)
    for _ in range(500):
        text = "".join(draw.choices(["'", '"', "$", ";", "a", "E", "\\", "--", "/*", "*/", "\n", " ", "$$", "ü"], k=12))
        with contextlib.suppress(PgError):
            assert all(each.strip() for each in split_statements(text))
            first_word(text)
