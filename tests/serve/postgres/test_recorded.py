"""The statements that Grafana and Metabase send, answered as PostgreSQL answers them over the same rows."""

from __future__ import annotations

import datetime as dt
import random
import socket
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from millpond.serve.sql.postgres.names import quoted
from servers.ports import free_port
from servers.postgres import postgres_server, said
from servers.recorded import recorded
from servers.serving import serving, wait_until_ready

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.long
FOLDER = Path(__file__).parent / "recorded"
GRAFANA, METABASE = recorded(FOLDER / "grafana.sql"), recorded(FOLDER / "metabase.sql")
_TABLES = ("boolean", "date", "double", "integer", "long", "price", "short", "timestamp", "timestamp_ntz")
# PostgreSQL has types of its own for names in its catalogue, which are texts here.
_ALIKE = {19: 25, 18: 25, 1043: 25}
# What Grafana takes for a number or a time.
_NUMBERS = {20, 21, 23, 700, 701, 1700}


@pytest.fixture(scope="module")
def address(types_pond: Path, door_home: Path) -> Iterator[str]:
    port = free_port()
    with serving(types_pond, "--postgres-port", str(port), home=door_home) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield f"postgresql://millpond@127.0.0.1:{port}/twin"


@pytest.fixture(scope="module")
def ours(address: str) -> Iterator[Any]:
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def theirs(ours: Any) -> Iterator[Any]:
    """PostgreSQL with the same rows in a database of their own."""
    server = postgres_server()
    with psycopg.connect(server, autocommit=True) as maker:
        maker.execute("DROP DATABASE IF EXISTS twin")
        maker.execute("CREATE DATABASE twin")
    with psycopg.connect(server.rpartition("/")[0] + "/twin", autocommit=True) as connection:
        for table in _TABLES:
            columns = ours.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                "ORDER BY attnum",
                [quoted(table)],
            ).fetchall()
            shown = ", ".join(f"{quoted(name)} {type_}" for name, type_ in columns)
            connection.execute(f"CREATE TABLE {quoted(table)} ({shown}, PRIMARY KEY (k))")
            # Spark's keys may be NULL.
            connection.execute("UPDATE pg_attribute SET attnotnull = false WHERE attrelid = %s::regclass", [quoted(table)])
            with ours.cursor().copy(f"COPY {quoted(table)} TO STDOUT") as out:
                rows = b"".join(bytes(each) for each in out)
            with connection.cursor().copy(f"COPY {quoted(table)} FROM STDIN") as into:
                into.write(rows)
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
    with psycopg.connect(server, autocommit=True) as maker:
        maker.execute("DROP DATABASE twin WITH (FORCE)")


def alike(found: Any) -> Any:
    """An answer of `said` in which types that stand for one another are the same, and numbers are numbers."""
    assert isinstance(found, tuple), found
    tag, columns, rows = found
    kinds = [_ALIKE.get(oid, oid) for _, oid in columns]
    kinds = [1700 if kind in _NUMBERS else kind for kind in kinds]
    values = [[_plain(v) if kind == 1700 else v for v, kind in zip(row, kinds, strict=True)] for row in rows]
    return tag, [(name, kind) for (name, _), kind in zip(columns, kinds, strict=True)], values


def _plain(value: bytes | None) -> Any:
    return None if value is None else Decimal(value.decode()).normalize()


# ---------------------------------------------------------------- Grafana


@pytest.mark.parametrize(
    "name", [each for each in GRAFANA if each not in ("tables", "tables_of_schema", "columns", "time_group_of_now")]
)
def test_grafana_gets_what_postgres_gives(ours: Any, theirs: Any, name: str) -> None:
    found, expected = (said(each.pgconn, GRAFANA[name].text, is_extended=False) for each in (ours, theirs))
    assert alike(found) == alike(expected)
    times = [oid for column, oid in found[1] if column == "time"]
    assert set(times) <= _NUMBERS | {1082, 1114, 1184}


def test_grafana_finds_tables_and_columns(ours: Any, theirs: Any) -> None:
    for name in ("tables", "tables_of_schema"):
        shown = [row[0].decode() for row in said(ours.pgconn, GRAFANA[name].text, is_extended=False)[2]]
        expected = [row[0].decode() for row in said(theirs.pgconn, GRAFANA[name].text, is_extended=False)[2]]
        assert len(expected) == len(_TABLES)
        assert [each for each in shown if each in expected] == expected
    for table in (*expected, *(f"public.{each}" for each in expected)):
        text = GRAFANA["columns"].text_of(table=f"'{table}'")
        found = said(ours.pgconn, text, is_extended=False)
        # PostgreSQL, too, finds nothing for a name in quotes behind a schema.
        assert len(found[2]) == (0 if table.startswith('public."') else 3)
        assert alike(found) == alike(said(theirs.pgconn, text, is_extended=False))


def test_grafana_groups_the_present(ours: Any) -> None:
    _, columns, rows = said(ours.pgconn, GRAFANA["time_group_of_now"].text, is_extended=False)
    assert [name for name, _ in columns] == [b"time", b"n"]
    before = dt.datetime.now(dt.UTC).timestamp() - 180
    assert int(rows[0][0]) % 60 == 0
    assert before - 180 < int(rows[0][0]) <= before
    assert rows[0][1] == b"42"


def test_times_are_grouped_as_in_postgres(ours: Any, theirs: Any) -> None:
    draw = random.Random(17)
    units = (
        "0.001",
        "0.002",
        "0.005",
        "0.01",
        "0.02",
        "0.05",
        "0.1",
        "0.2",
        "0.5",
        "1",
        "2",
        "5",
        "15",
        "60",
        "300",
        "3600",
        "86400",
        "604800",
    )
    for unit in units:
        start = dt.datetime(draw.choice([1965, 1970, 2001, 2026, 2199]), 3, 1, tzinfo=dt.UTC)
        rows = []
        for _ in range(200):
            step = draw.randrange(2_000) * max(1, int(float(unit) * 1_000_000))
            moment = start + dt.timedelta(microseconds=step + draw.choice([0, 0, -1, 1, draw.randrange(1_000_000)]))
            rows.append(f"(timestamptz '{moment.isoformat()}', {draw.randrange(100)})")
        text = (
            f'WITH m(ts, v) AS (VALUES {", ".join(rows)}) SELECT floor(extract(epoch from ts)/{unit})*{unit} AS "time", '
            "sum(v) AS value FROM m GROUP BY 1 ORDER BY 1"
        )
        found, expected = (said(each.pgconn, text, is_extended=False) for each in (ours, theirs))
        assert alike(found) == alike(expected), unit


def test_parts_of_times_are_those_of_postgres(ours: Any, theirs: Any) -> None:
    draw = random.Random(18)

    def moment() -> str:
        return str(dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=draw.randrange(-(10**15), 10**15)))

    for _ in range(40):
        one, other = moment(), moment()
        years, days, millis = draw.randrange(-5, 5), draw.randrange(-40, 40), draw.randrange(-(10**6), 10**6)
        interval = f"interval '{years} years {days} days {millis / 1000} seconds'"
        text = (
            f"SELECT extract(epoch FROM timestamp '{one}') AS a, extract(epoch FROM timestamptz '{one}+02') AS b, "
            f"extract(epoch FROM {interval}) AS c, extract(second FROM timestamp '{one}') AS d, "
            f"extract(milliseconds FROM timestamp '{one}') AS e, extract(second FROM {interval}) AS f, "
            f"extract(epoch FROM time '{one[11:]}') AS g, CAST(extract(second FROM timestamp '{one}') AS integer) AS h, "
            f"extract(epoch FROM timestamp '{one}') - extract(epoch FROM timestamp '{other}') AS i"
        )
        found, expected = (said(each.pgconn, text, is_extended=True) for each in (ours, theirs))
        assert alike(found) == alike(expected)
    for text in ("SELECT age(datfrozenxid) FROM pg_database LIMIT 1", "SELECT extract(epoch FROM timestamp 'infinity')"):
        assert len(said(ours.pgconn, text, is_extended=False)[2]) == 1


@pytest.mark.parametrize(
    ("begin", "ping"),
    [
        (
            {"database": "twin", "datestyle": "ISO, MDY", "extra_float_digits": "2", "client_encoding": "UTF8", "user": "grafana"},
            b";",
        ),
        ({"user": "grafana", "database": "twin"}, b"-- ping"),
    ],
    ids=["lib/pq 1.10.9", "pgx 5.7.5"],
)
def test_grafanas_drivers_are_let_in_and_pinged(address: str, begin: dict[str, str], ping: bytes) -> None:
    parts = urlsplit(address)
    body = b"\x00\x03\x00\x00" + b"".join(f"{name}\0{value}\0".encode() for name, value in begin.items()) + b"\0"
    with socket.create_connection((parts.hostname, parts.port), 30) as sock, sock.makefile("rb") as stream:
        sock.sendall((len(body) + 4).to_bytes(4) + body)
        assert _letters(stream)[-1] == b"Z"
        sock.sendall(b"Q" + (len(ping) + 5).to_bytes(4) + ping + b"\0")
        assert _letters(stream) == [b"I", b"Z"]


def _letters(stream: Any) -> list[bytes]:
    """The kinds of messages up to ReadyForQuery."""
    found = []
    while not found or found[-1] != b"Z":
        found.append(stream.read(1))
        assert found[-1], "the server hung up"
        stream.read(int.from_bytes(stream.read(4)) - 4)
    return found


# ---------------------------------------------------------------- Metabase


def _answer(connection: Any, name: str, **names: str) -> tuple[list[str], list[list[Any]]]:
    found = METABASE[name].ask(connection.pgconn, **names)
    assert found.error_field(psycopg.pq.DiagnosticField.SQLSTATE) is None, connection.pgconn.error_message
    columns = range(found.nfields)
    numbers = {n for n in columns if found.ftype(n) in _NUMBERS}
    rows = [
        [_plain(value) if n in numbers else value for n in columns for value in (found.get_value(m, n),)]
        for m in range(found.ntuples)
    ]
    return [found.fname(n).decode() for n in columns], rows


@pytest.mark.parametrize("table", _TABLES)
@pytest.mark.parametrize("name", ["columns", "primary_key", "columns_of_answer"])
def test_metabases_driver_describes_a_table(ours: Any, theirs: Any, name: str, table: str) -> None:
    answers = []
    for each in (ours, theirs):
        oid = each.execute("SELECT oid FROM pg_class WHERE relname = %s AND relkind = 'r'", [table]).fetchone()[0]
        columns, rows = _answer(each, name, table=table, oid=str(oid))
        answers.append((columns, [row[1:] if columns[0] == "oid" else row for row in rows]))
    assert answers[0] == answers[1]
    assert len(answers[0][1]) == (1 if name == "primary_key" else 3)


@pytest.mark.parametrize(
    "name", [each for each in METABASE if each.startswith(("question", "sample", "probe", "select", "catalog"))]
)
def test_metabases_questions_are_answered_as_by_postgres(ours: Any, theirs: Any, name: str) -> None:
    assert _sorted(_answer(ours, name)) == _sorted(_answer(theirs, name))


def _sorted(answer: tuple[list[str], list[list[Any]]]) -> tuple[list[str], list[str]]:
    return answer[0], sorted(map(repr, answer[1]))


@pytest.mark.parametrize(
    "name", ["isolation", "read_uncommitted", "read_committed", "application_name", "schemas", "enums", "foreign_keys"]
)
def test_metabases_session_and_the_rest_of_its_sync(ours: Any, theirs: Any, name: str) -> None:
    assert _answer(ours, name) == _answer(theirs, name)


def test_metabase_finds_tables_that_it_may_read_and_not_write(ours: Any, theirs: Any) -> None:
    columns, rows = _answer(ours, "tables")
    assert columns == _answer(theirs, "tables")[0]
    found = [row[:4] for row in rows if row[1].decode() in _TABLES]
    assert found == [row[:4] for row in _answer(theirs, "tables")[1]]
    assert len(found) == len(_TABLES)
    columns, rows = _answer(ours, "privileges")
    assert columns == ["role", "schema", "table", "update", "select", "insert", "delete"]
    assert {row[2].decode() for row in rows} >= set(_TABLES)
    assert {tuple(row[3:]) for row in rows} == {(b"f", b"t", b"f", b"f")}
    assert _answer(ours, "time_zone")[1] == [[b"UTC"]]


def test_metabase_finds_fields_with_types_and_keys(ours: Any, theirs: Any) -> None:
    columns, rows = _answer(ours, "fields")
    expected = _answer(theirs, "fields")
    assert columns == expected[0]
    assert [row for row in rows if row[4].decode() in _TABLES] == expected[1]
    assert len(expected[1]) == 3 * len(_TABLES)
    keyed = {(row[4], row[0]) for row in rows if row[5] == b"t"}
    assert {(table.encode(), b"k") for table in _TABLES} <= keyed


def test_a_zone_that_is_not_there_is_refused(ours: Any) -> None:
    """Metabase sends this if it has a time zone for reports."""
    assert said(ours.pgconn, "SET SESSION TIMEZONE TO 'Europe/Berlin';", is_extended=False) == b"0A000"
    assert said(ours.pgconn, "SET SESSION TIMEZONE TO 'UTC';", is_extended=False) == (b"SET", [], [])
