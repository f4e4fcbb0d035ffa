"""What a client of PostgreSQL's protocol may say in many ways means one thing: names, numbers of many digits, types of parameters.

And what it leaves half done, or claims, costs the server little.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest

from millpond.schema.types import Field, atomic, parse_type
from millpond.serve.postgres.errors import PgError
from millpond.serve.postgres.values import read_values
from serve.postgres.test_wire import SYNC, Raw, bind, execute, message, parse
from servers.ports import free_port
from servers.serving import serving, wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")
TABLE = 'public."job.aggregate_0"'
EXACT = [Decimal("123456789012345678.01"), Decimal("123456789012345678.02"), Decimal("-0.01")]
NUMERIC = 1700


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A table whose key is `user`, with numbers of many digits, and two processes for statements."""
    folder = tmp_path_factory.mktemp("exact")
    values = (Field("d", parse_type("decimal(20,2)")), Field("n", atomic("long")))
    job = WrittenCheckpoint(folder / "job", key=(Field("user", atomic("string")),), value=values)
    job.plan([((f"u{n}",), (number, 9007199254740992 + n)) for n, number in enumerate(EXACT)], snapshot=True)
    job.commit()
    port = free_port()
    options = ("--postgres-port", str(port), "--sql-processes", "2")
    with serving(job.path, *options, home=folder / "home") as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        wait_until_ready(client)
        yield port


@pytest.fixture
def client(door: int) -> Iterator[Any]:
    with psycopg.connect(f"postgresql://me@127.0.0.1:{door}/job", autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("table", [TABLE, '"job.aggregate_0"', f"{TABLE} AS t"])
def test_a_column_called_user_is_the_column(client: Any, table: str) -> None:
    assert sorted(row[0] for row in client.execute(f'SELECT "user" FROM {table}')) == ["u0", "u1", "u2"]
    assert client.execute(f'SELECT n FROM {table} WHERE "user" = %s', ["u1"]).fetchall() == [(9007199254740993,)]
    assert client.execute(f'SELECT count(*) FROM {table} GROUP BY "user"').fetchall() == [(1,)] * 3
    assert client.execute("SELECT user").fetchall() == [("me",)]


@pytest.mark.parametrize("binary", [True, False])
def test_numbers_of_many_digits_find_their_rows_and_no_others(client: Any, binary: bool) -> None:
    form = "%b" if binary else "%t"
    found = {n: f"SELECT d FROM {TABLE} WHERE d {how}" for n, how in enumerate([f"= {form}", f"= ANY({form})"])}
    for number in EXACT:
        assert client.execute(found[0], [number]).fetchall() == [(number,)]
        assert client.execute(found[1], [[number]]).fetchall() == [(number,)]
    many = Decimal("123456789012345678.01" + "0" * 17)
    assert client.execute(found[0], [many]).fetchall() == [(EXACT[0],)]
    assert client.execute(f"SELECT n FROM {TABLE} WHERE n = ANY({form})", [[Decimal(9007199254740993)]]).fetchall() == [
        (9007199254740993,)
    ]
    with pytest.raises(psycopg.Error, match="digits"):
        client.execute(found[0], [Decimal("1" * 30 + "." + "1" * 20)])


@pytest.mark.parametrize("text", ["5.6", "0x5", "1e3", ""])
def test_a_text_that_is_no_whole_number_is_refused(client: Any, text: str) -> None:
    found = client.pgconn.exec_params(f"SELECT n FROM {TABLE} WHERE n = $1".encode(), [text.encode()], [20])
    assert b"invalid input syntax" in found.error_message


@pytest.mark.long
def test_set_config_isnt_a_setting_that_does_nothing(client: Any) -> None:
    with pytest.raises(psycopg.Error, match="SET"):
        client.execute("SELECT set_config('millpond.at', '5', false)")


@pytest.mark.long
def test_a_binary_value_without_a_type_is_refused(door: int) -> None:
    with Raw(door) as raw:
        body = b"\0\0" + struct.pack(">hhh", 1, 1, 1) + struct.pack(">i", 8) + struct.pack(">q", 1) + struct.pack(">h", 0)
        said = raw.ask(parse(f"SELECT n FROM {TABLE} WHERE n = $1") + message(b"B", body) + execute() + SYNC)
        assert b"".join(letter for letter, _ in said) == b"1EZ"


# ---------------------------------------------------------------- binary numbers


def numeric(groups: list[int], weight: int, scale: int, sign: int = 0) -> bytes:
    return struct.pack(f">HhHH{len(groups)}H", len(groups), weight, sign, scale, *groups)


@pytest.mark.parametrize("count", [1, 7, 8, 10, 40, 250])
def test_a_binary_number_keeps_all_its_digits(count: int) -> None:
    groups = [1234 + n for n in range(count)]
    (text,) = read_values([numeric(groups, count - 2, 4)], [1], [NUMERIC])
    whole = "".join(f"{group:04d}" for group in groups).lstrip("0")
    assert text == (f"{whole[:-4] or '0'}.{whole[-4:]}")


@pytest.mark.parametrize(
    "data", [numeric([1], 30_000, 0), numeric([1], 0, 60_000), numeric([1] * 5000, 0, 0), numeric([10_000], 0, 0)]
)
def test_a_binary_number_that_claims_too_much_is_refused_at_once(data: bytes) -> None:
    began = time.thread_time()
    with pytest.raises(PgError):
        read_values([data], [1], [NUMERIC])
    assert time.thread_time() - began < 5


# ---------------------------------------------------------------- what is left behind


@pytest.mark.long
def test_failed_portals_without_a_sync_keep_no_place(door: int) -> None:
    """There are two processes; more clients than that leave a failed statement, and no Sync."""
    left = [Raw(door) for _ in range(5)]
    try:
        for raw in left:
            raw.__enter__()
            said = raw.ask(parse("SELECT * FROM nothing_there") + bind() + execute() + message(b"H"), until=b"E")
            assert said[-1][0] == b"E"
        with psycopg.connect(f"postgresql://me@127.0.0.1:{door}/job", autocommit=True) as connection:
            assert connection.execute(f"SELECT count(*) FROM {TABLE}").fetchall() == [(3,)]
    finally:
        for raw in left:
            raw.socket.close()


@pytest.mark.long
def test_types_and_nulls_count_as_what_a_client_leaves(door: int) -> None:
    with Raw(door) as raw:
        raw.ask(parse("BEGIN") + bind() + execute() + SYNC)
        codes = []
        for n in range(200):
            said = raw.ask(parse("SELECT 1", f"s{n}", (23,) * 30_000) + SYNC)
            codes += [body for letter, body in said if letter == b"E"]
            if codes:
                break
        assert b"53200" in codes[0]


@pytest.mark.long
@pytest.mark.parametrize("text", ["(show all)", "(begin)", ")"])
def test_words_in_parentheses_are_an_error_of_syntax(client: Any, text: str) -> None:
    with pytest.raises(psycopg.Error):
        client.execute(text)
    assert client.execute("SELECT 1").fetchall() == [(1,)]


def test_the_first_dates_have_no_binary_form_and_the_process_goes_on(client: Any) -> None:
    for text in ("SELECT DATE '5877642-06-25 (BC)'", "SELECT TIMESTAMP '290309-12-22 (BC) 00:00:00'"):
        found = client.pgconn.exec_params(text.encode(), [], [], None, 1)
        assert b"binary form" in found.error_message
