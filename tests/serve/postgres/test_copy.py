"""COPY … TO STDOUT, PREPARE and EXECUTE: byte by byte as PostgreSQL, for random values."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from servers.ports import free_port
from servers.postgres import postgres_server, said
from servers.serving import serving, wait_until_ready
from suite.sizes import examples

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def address(types_pond: Path, door_home: Path) -> Iterator[str]:
    port = free_port()
    with serving(types_pond, "--postgres-port", str(port), home=door_home) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield f"postgresql://reader@127.0.0.1:{port}/types"


@pytest.fixture(scope="module")
def both(address: str) -> Iterator[tuple[Any, Any]]:
    """PostgreSQL, and the door."""
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
    with psycopg.connect(postgres_server(), **options) as real, psycopg.connect(address, **options) as ours:
        yield real, ours


def copied(connection: Any, text: str) -> Any:
    """The bytes, or the SQLSTATE."""
    try:
        with connection.cursor() as cursor:
            with cursor.copy(text) as copy:
                data = [bytes(each) for each in copy]
            return data, cursor.rowcount
    except psycopg.Error as error:
        return error.sqlstate


def literal(draw: random.Random) -> str:
    if draw.random() < 0.2:
        return "NULL"
    pieces = ["a", '"', "\\", "\\.", "\\N", ",", "\t", "\n", "\r", "ü", " ", ";", "''", "N", "|", "\b\f\v", ")", "--", "/*", "null"]
    return "'" + "".join(draw.choices(pieces, k=draw.choice([0, 1, 1, 2, 5]))) + "'"


_OPTIONS = (
    *("", "WITH CSV", "CSV HEADER", "(FORMAT csv)", "WITH (FORMAT 'csv', HEADER)", "(FORMAT text, HEADER true)", "(HEADER off)"),
    *(
        "(FORMAT csv, DELIMITER ';', NULL 'null')",
        "DELIMITER '|' NULL AS ''",
        "(DELIMITER E'\\t', NULL 'N')",
        "(FORMAT csv, NULL ' ')",
    ),
    *("WITH DELIMITER AS ',' CSV HEADER NULL 'a'", "(FORMAT csv, DELIMITER E'\\t', ENCODING 'UTF8')"),
)


@pytest.mark.long
def test_random_rows_are_written_as_postgres_writes_them(both: tuple[Any, Any]) -> None:
    draw = random.Random(8)
    for _ in range(examples(150, 40)):
        width = draw.choice([1, 2, 2])
        rows = ", ".join("(" + ", ".join(literal(draw) for _ in range(width)) + ")" for _ in range(draw.randrange(1, 6)))
        names = ", ".join(['"a"', '"B;, ""x"""'][:width])
        empty = draw.choice(["", "", " WHERE 1 = 2"])
        text = f"COPY (SELECT * FROM (VALUES {rows}) t({names}){empty}) TO STDOUT {draw.choice(_OPTIONS)}"
        expected = copied(both[0], text)
        assert isinstance(expected, tuple), (text, expected)
        assert copied(both[1], text) == expected, text


def test_types_are_written_as_postgres_writes_them(both: tuple[Any, Any]) -> None:
    columns = (
        *("true", "-7::int2", "1e300::float8", "0.1::float4", "1.50::numeric(10, 2)", "'2026-01-02'::date", "'x,y'::text"),
        *("'2026-01-02 03:04:05.6+00'::timestamptz", "'2026-01-02 03:04:05'::timestamp", "'03:04:05.000001'::time"),
        *("interval '1 day 2 hours'", "ARRAY[1, NULL, 3]", "ARRAY['a,b', 'c\"', NULL]", "NULL::int8"),
    )
    text = f"COPY (SELECT {', '.join(f'{each} AS c{n}' for n, each in enumerate(columns))}) TO STDOUT"
    both[0].execute("SET timezone = 'UTC'")
    for options in _OPTIONS:
        assert copied(both[1], f"{text} {options}") == copied(both[0], f"{text} {options}")


@pytest.mark.parametrize(
    "text",
    [
        "COPY (SELECT nothing) TO STDOUT",
        "COPY (SELECT 1 TO STDOUT",
        "COPY (SELECT 1) TO STDOUT (",
        "COPY (SELECT 1) TO STDOUT (HEADER maybe)",
        "COPY nothing TO STDOUT",
        "COPY (FETCH a) TO STDOUT",
        "COPY (SELECT 1) TO STDOUT (DELIMITER 'ab')",
        "COPY (SELECT 1) TO STDOUT (NULL E'\\t')",
    ],
)
def test_what_postgres_refuses(both: tuple[Any, Any], text: str) -> None:
    assert isinstance(copied(both[0], text), str)
    assert isinstance(copied(both[1], text), str)
    assert both[1].execute("SELECT 1").fetchone() == (1,)


def test_a_table_and_psql(both: tuple[Any, Any], address: str) -> None:
    rows = both[1].execute("SELECT k, n FROM long").fetchall()
    expected = sorted("\t".join("\\N" if v is None else str(v) for v in row) + "\n" for row in rows)
    for text in ("COPY long (k, n) TO STDOUT", 'copy public."long"("k",n) to stdout with (format text)'):
        data, count = copied(both[1], text)
        assert sorted(each.decode() for each in data) == expected
        assert count == len(rows)
    assert len(copied(both[1], "COPY long TO STDOUT")[0]) == len(rows)
    assert [len(each) for each in copied(both[1], "COPY (SELECT range, repeat('x', 90) FROM range(20000)) TO STDOUT")[0][:2]] == [
        93,
        93,
    ]
    if shutil.which("psql") is not None:
        found = [
            subprocess.run(
                ["psql", "-X", "-d", server, "-c", "\\copy (SELECT 'a,b' AS x, 5 AS y) TO STDOUT WITH CSV HEADER"],
                capture_output=True,
                timeout=60,
                check=True,
            ).stdout
            for server in (address, postgres_server())
        ]
        assert found[0] == found[1] == b'x,y\n"a,b",5\n'


_STATEMENTS = (
    *("PREPARE a (int8, text) AS SELECT $1 + 1 AS x, $2 AS y", "PREPARE a AS SELECT 5 AS x WHERE 'b' = $1"),
    *('prepare "A b"(bool, date, "int4") as select 1', 'PREPARE "A b" (bool, date, text[]) AS SELECT $1 AS x, $2 AS y, $3 AS z'),
    *("EXECUTE a(41, 'it''s')", "EXECUTE a(-1, NULL)", "EXECUTE a('7', 'b')", "EXECUTE a('b')", "execute A ( 3 , true )"),
    *("EXECUTE a", "EXECUTE a('x', 'x')", "EXECUTE a(1, 2, 3)", "EXECUTE \"A b\"(true, '2026-01-02', '{a,NULL}')"),
    *('EXECUTE "A b"(NULL, NULL, NULL)', "DEALLOCATE a", 'DEALLOCATE PREPARE "A b"', "DEALLOCATE ALL", "EXECUTE nothing(1)"),
    *("PREPARE c AS SELECT nothing", "PREPARE c (nothing) AS SELECT 1", "PREPARE d AS SELECT 1 +"),
)


def test_random_sequences_of_prepare_are_as_postgres(both: tuple[Any, Any]) -> None:
    draw = random.Random(3)
    for _ in range(examples(40, 10)):
        history = list[Any]()
        for connection in both:
            connection.pgconn.exec_(b"DEALLOCATE ALL")
        for text in draw.choices(_STATEMENTS, k=12):
            is_extended = draw.random() < 0.4
            history.append((text, is_extended))
            expected = said(both[0].pgconn, text, is_extended=is_extended)
            assert said(both[1].pgconn, text, is_extended=is_extended) == expected, history


def test_values_of_execute_are_plain(both: tuple[Any, Any]) -> None:
    both[1].execute("PREPARE p AS SELECT $1::int")
    for text in ("EXECUTE p(1 + 1)", "EXECUTE p((SELECT 1))", "EXECUTE p(1,)", "EXECUTE p(E'1')"):
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            both[1].execute(text)
    both[1].pgconn.exec_(b"DEALLOCATE ALL")
