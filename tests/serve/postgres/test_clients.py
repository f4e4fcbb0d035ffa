"""The door of PostgreSQL's protocol for its clients: psql, psycopg, asyncpg, SQLAlchemy; the same rows as `pond.sql`."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import shutil
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.errors import MillpondError
from millpond.serve.sql.postgres.types import BY_OID
from millpond.serve.sql.postgres.write import column_values
from millpond.tables.sql.reading.scan import check_names
from millpond.tables.sql.types import answer_types
from servers.ports import free_port
from servers.serving import serving, wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from sql.statements import Statements
from suite.sizes import examples

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
psycopg = pytest.importorskip("psycopg")
TABLE = "job.aggregate_0"
_NULL = b"\xff\xff\xff\xff"


@pytest.fixture(scope="module")
def address(types_pond: Path, door_home: Path) -> Iterator[str]:
    port = free_port()
    with serving(types_pond, "--postgres-port", str(port), home=door_home) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield f"postgresql://reader@127.0.0.1:{port}/types"


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def pond(types_pond: Path, door_home: Path, address: str) -> Iterator[millpond.Pond]:
    assert address
    with millpond.open(types_pond, replica_dir=door_home) as opened:
        yield opened


def asked(connection: Any, text: str, values: list[Any], is_binary: bool) -> Any:
    """The answer in the bytes that came."""
    types = {int: 20, float: 701, str: 0, bytes: 17, bool: 16, Decimal: 1700, dt.date: 1082, dt.datetime: 1184, dt.timedelta: 1186}
    oids, given = list[int](), list[bytes | None]()
    for value in values:
        oid = types.get(type(value), 0)
        oids.append(1114 if isinstance(value, dt.datetime) and value.tzinfo is None else oid)
        shown = f"{value / dt.timedelta(microseconds=1):.0f} microseconds" if isinstance(value, dt.timedelta) else str(value)
        given.append(None if value is None else b"\\x" + value.hex().encode() if isinstance(value, bytes) else shown.encode())
    return connection.pgconn.exec_params(text.encode(), given, oids, None, int(is_binary))


def rows_of(found: Any) -> list[str]:
    return sorted(repr([found.get_value(n, m) for m in range(found.nfields)]) for n in range(found.ntuples))


def expected_rows(table: Any, found: Any, is_binary: bool) -> list[str]:
    """The rows of `pond.sql` in PostgreSQL's form, which `test_write` compares with PostgreSQL's own."""
    columns = []
    for n in range(found.nfields):
        type_, field = BY_OID[found.ftype(n)], table.schema.field(n)
        spark = answer_types(pa.schema([field]))[0][1] if type_.name == "json" else None
        column = table.column(n).combine_chunks()
        columns.append([None if v == _NULL else v[4:] for v in column_values(column, type_, spark, is_binary)])
    return sorted(repr(list(row)) for row in zip(*columns, strict=True)) if columns else []


@pytest.mark.long
def test_random_statements_have_the_answers_of_the_pond(client: Any, pond: millpond.Pond) -> None:
    draw, count = random.Random(21), 0
    for name in draw.sample(pond.tables(), 8):
        try:
            rows = pond[name].to_arrow()
            check_names(pond[name].definition)
            rows.validate(full=True)
        except (MillpondError, pa.ArrowInvalid):
            continue
        statements = Statements(name, rows, seed=3)
        for _ in range(examples(40, 10)):
            text, values = statements.next()
            first, *rest = text.split("?")
            ours = first + "".join(f"${n}{part}" for n, part in enumerate(rest, 1))
            try:
                expected = pond.sql(text, values).to_arrow()
            except MillpondError:
                assert asked(client, ours, values, False).error_message
                continue
            for is_binary in (False, True):
                found = asked(client, ours, values, is_binary)
                assert found.error_message == b"", (ours, values, found.error_message)
                assert rows_of(found) == expected_rows(expected, found, is_binary), (ours, values)
            count += 1
    assert count > 20


def test_psycopg_in_all_its_ways(client: Any, pond: millpond.Pond) -> None:
    keys = [row["k"] for row in pond.sql("SELECT k FROM long WHERE k IS NOT NULL").rows()]
    expected = {row["k"]: row["n"] for row in pond.sql("SELECT k, n FROM long").rows()}
    assert client.info.server_version == 150000
    for is_prepared in (False, True, None):
        for is_binary in (False, True):
            with client.cursor(binary=is_binary) as cursor:
                for key in keys * 2:
                    cursor.execute("SELECT n FROM long WHERE k = %s", [key], prepare=is_prepared)
                    assert cursor.fetchall() == [(expected[key],)]
                    assert cursor.statusmessage == "SELECT 1"
    with client.pipeline():
        found = [client.execute("SELECT n FROM long WHERE k = %s", [key]) for key in keys]
    assert [each.fetchone() for each in found] == [(expected[key],) for key in keys]
    with psycopg.ClientCursor(client) as cursor:  # the simple protocol
        cursor.execute("SELECT k, n FROM long WHERE k = ANY(%s)", [keys])
        assert dict(cursor.fetchall()) == {key: expected[key] for key in keys}
        cursor.execute("SELECT 1 AS a; SELECT 'x;' AS b; -- SELECT 2; \n /* ; */")
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset()
        assert (cursor.fetchall(), cursor.nextset()) == ([("x;",)], None)
    given = [
        7,
        "ü'x",
        Decimal("1.50"),
        b"\0\xff",
        True,
        dt.date(2020, 1, 2),
        dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC),
        [1, 2],
        None,
    ]
    for is_binary in (False, True):
        with client.cursor(binary=is_binary) as cursor:
            cursor.execute("SELECT %b, %b::text, %b, %b, %b, %b, %b, %b, %b", given)
            assert list(cursor.fetchone()) == given
            assert list(cursor.execute("SELECT range AS x FROM range(30000)").fetchmany(3)) == [(0,), (1,), (2,)]
            assert list(cursor.stream("SELECT range AS x FROM range(5)")) == [(n,) for n in range(5)]

    async def ask() -> list[Any]:
        async with await psycopg.AsyncConnection.connect(client.info.dsn, autocommit=True) as other:
            return [await (await other.execute("SELECT n FROM long WHERE k = %s", [key])).fetchone() for key in keys]

    assert asyncio.run(ask()) == [(expected[key],) for key in keys]


@pytest.mark.long
def test_asyncpg(client: Any, pond: millpond.Pond) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    rows = pond.sql("SELECT k, n FROM long WHERE k > 5 ORDER BY k").rows()

    async def ask() -> None:
        info = client.info
        other = await asyncpg.connect(host=info.host, port=info.port, user="reader", database="types")
        found = await other.fetch(
            "SELECT k, n FROM long WHERE k > $1 AND k = ANY($2) ORDER BY k LIMIT $3", 5, [r["k"] for r in rows], 99
        )
        assert [dict(each) for each in found] == rows
        assert await other.fetchval("SELECT $1::text || $2", "a", "b") == "ab"
        assert await other.fetchval(
            "SELECT k FROM timestamp WHERE k >= $1 AND k < '3000-01-01'", dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
        )
        async with other.transaction():
            seen = [each["x"] async for each in other.cursor("SELECT range AS x FROM range(500)", prefetch=7)]
        assert seen == list(range(500))
        with pytest.raises(asyncpg.exceptions.UndefinedTableError):
            await other.fetch("SELECT * FROM nothing")
        running = asyncio.ensure_future(other.fetch("SELECT count(*) FROM range(100000000000)"))
        await asyncio.sleep(0.3)
        running.cancel()  # asyncpg sends a CancelRequest
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await other.fetchval("SELECT 5") == 5
        await other.close()

    asyncio.run(ask())


@pytest.mark.long
def test_a_statement_that_is_cancelled_ends(client: Any) -> None:
    async def ask() -> None:
        async with await psycopg.AsyncConnection.connect(client.info.dsn, autocommit=True) as other:
            running = asyncio.ensure_future(other.execute("SELECT count(*) FROM range(100000000000)"))
            await asyncio.sleep(0.3)
            await other.cancel_safe(timeout=10)
            with pytest.raises(psycopg.errors.QueryCanceled, match="due to user request"):
                await running
            await other.execute("SET statement_timeout = '300ms'")
            with pytest.raises(psycopg.errors.QueryCanceled, match="due to statement timeout"):
                await other.execute("SELECT count(*) FROM range(100000000000)")
            await other.execute("SET statement_timeout = 0")  # a busy machine may need longer for any statement
            assert await (await other.execute("SELECT 1")).fetchone() == (1,)

    asyncio.run(ask())


def test_transactions_are_those_of_a_standby(address: str) -> None:
    with psycopg.connect(address) as other:
        status = other.info.transaction_status
        other.execute("SELECT 1")
        assert other.info.transaction_status != status
        for words in ("INSERT INTO long VALUES (1)", "CREATE TABLE a (b int)", "DELETE FROM long", "DROP TABLE long"):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                other.execute(words)
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                other.execute("SELECT 1")
            other.rollback()
        with other.transaction(), pytest.raises(psycopg.errors.UndefinedColumn), other.transaction():
            other.execute("SELECT nothing FROM long")
        assert other.execute("SELECT 1").fetchone() == (1,)
        other.execute("SET LOCAL application_name = 'x'")
        assert other.execute("SHOW application_name").fetchone() == ("x",)
        other.commit()
        assert other.execute("SHOW application_name").fetchone() == ("",)
        other.rollback()
        for words in ("SET application_name = 'a'", "SAVEPOINT s", "SET LOCAL application_name = 'b'", "SAVEPOINT s"):
            other.execute(words)
        other.execute("SET application_name = 'c'")
        for ending, name in (("ROLLBACK TO s", "b"), ("RELEASE s", "b"), ("ROLLBACK TO SAVEPOINT s", "a")):
            other.execute(ending)
            assert other.execute("SHOW application_name").fetchone() == (name,)
        other.commit()
        assert other.execute("SHOW application_name").fetchone() == ("a",)
        other.execute("RESET ALL")
        other.commit()
        for level in (psycopg.IsolationLevel.SERIALIZABLE, psycopg.IsolationLevel.REPEATABLE_READ):
            other.isolation_level = level
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                other.execute("SELECT 1")
            other.rollback()


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("SELECT", "42601"),
        ("SELECT 1 FROM nothing", "42P01"),
        ("SELECT 1 FROM other.long", "42P01"),
        ("SELECT nothing FROM long", "42703"),
        ("SELECT nothing(1)", "42883"),
        ("SELECT 'x'::int", "22P02"),
        ("SELECT 1 % 0", "22012"),
        ("SELECT 1e30::bigint", "22003"),
        ("SELECT 'x'::nothing", "42704"),
        ("SELECT sum(k), n FROM long", "42803"),
        ("SELECT 'nothing'::regclass", "42P01"),
        ("SELECT $1", "08P01"),
        ("SELECT * FROM read_csv('/etc/passwd')", "42883"),
        ("COPY long TO '/tmp/x'", "0A000"),
        ("COPY long TO STDOUT (FORMAT binary)", "0A000"),
        ("COPY long FROM STDIN", "25006"),
        ("LISTEN a", "0A000"),
        ("DECLARE a CURSOR FOR SELECT 1", "25P01"),
        ("SHOW nothing", "42704"),
        ("SET nothing = 1", "42704"),
        ("SET millpond.min_batch = 'x'", "22023"),
        ("SET TIME ZONE 'Europe/Berlin'", "0A000"),
        ("SELECT 'x", "42601"),
        ("nothing", "42601"),
        ("SELECT bit '101'", "42804"),
    ],
)
def test_errors_have_their_state(client: Any, text: str, state: str) -> None:
    for ask in (client.execute, psycopg.ClientCursor(client).execute):
        with pytest.raises(psycopg.Error) as refused:
            ask(text)
        assert refused.value.sqlstate == state, refused.value
        assert client.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.long
def test_at_reads_a_batch_and_the_batch_is_told(tmp_path: Path) -> None:
    job, port = WrittenCheckpoint(tmp_path / "job"), free_port()
    options = ("--postgres-port", str(port), "--history", f"{TABLE}=10")
    with serving(job.path, *options, home=tmp_path / "home") as (url, _), millpond.connect(url) as server:
        for n in range(4):
            job.plan([("a", n)], snapshot=False)
            job.commit()
            server.wait_for_table(TABLE)
            server[TABLE].get(k="a", bounds=millpond.Bounds(min_batch=n, wait_seconds=20))
        with psycopg.connect(f"postgresql://reader@127.0.0.1:{port}/x", autocommit=True) as client:
            text = f'SELECT v FROM public."{TABLE}"'
            for n in (1, 3, 2):
                client.execute(f"SET millpond.at = '{n}'")
                assert client.execute(text).fetchall() == [(n,)]
                assert client.info.parameter_status("millpond.batch") == str(n)
                assert client.execute("SHOW millpond.batch").fetchone() == (str(n),)
            client.execute("RESET millpond.at")
            assert client.execute(text).fetchall() == [(3,)]
            with psycopg.connect(client.info.dsn, options="-c millpond.at=2") as other:
                assert other.execute(text).fetchall() == [(2,)]
            for setting, state in (
                ("millpond.at = '99'", "55000"),
                ("millpond.at = 'soon'", "42804"),
                ("millpond.min_batch = 9", "55000"),
            ):
                client.execute(f"SET {setting}")
                with pytest.raises(psycopg.Error) as refused:
                    client.execute(text)
                assert refused.value.sqlstate == state
                client.execute("RESET ALL")
            assert client.execute(f"SELECT v FROM changes('{TABLE}', %s)", [1]).fetchall() == [(2,), (3,)]


def psql(address: str, *words: str) -> str:
    if shutil.which("psql") is None:
        pytest.skip("this machine has no psql")
    done = subprocess.run(["psql", "-X", "-d", address, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_psql(address: str, pond: millpond.Pond) -> None:
    shown = psql(address, "-A", "-t", "-c", "\\dt")
    assert [line.split("|")[1] for line in shown.splitlines()] == pond.tables()
    assert "types|millpond|UTF8" in psql(address, "-A", "-t", "-c", "\\l")
    described = psql(address, "-A", "-c", "\\d long")
    assert "k|bigint|||" in described
    assert '"long_pkey" PRIMARY KEY, btree (k)' in described
    for command in (
        "\\d",
        "\\d+ price",
        "\\dn",
        "\\du",
        "\\df",
        "\\di",
        "\\dv",
        "\\dT",
        "\\dp",
        "\\db",
        "\\dx",
        "\\dd",
        "\\dy",
        "\\dRp",
        "\\l+",
        "\\dt+",
    ):
        psql(address, "-c", command)
    expected = pond.sql("SELECT n FROM long WHERE k > 0 ORDER BY k").rows()
    assert psql(address, "-A", "-t", "-c", "SELECT n FROM long WHERE k > 0 ORDER BY k").split() == [str(r["n"]) for r in expected]


@pytest.mark.long
def test_sqlalchemy_reflects_the_tables(address: str, pond: millpond.Pond) -> None:
    sa = pytest.importorskip("sqlalchemy")
    engine = sa.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    found = sa.MetaData()
    found.reflect(engine)
    assert sorted(found.tables) == pond.tables()
    for name, table in found.tables.items():
        assert [column.name for column in table.columns] == list(pond[name].definition.columns)
        assert [column.name for column in table.primary_key] == [column.name for column in pond[name].definition.key]
    assert str(found.tables["price"].c.k.type) == "NUMERIC(10, 2)"
    long = found.tables["long"]
    with engine.connect() as connection:
        query = (
            sa.select(long.c.k, sa.func.count().label("c"))
            .where(long.c.n >= 1)
            .group_by(long.c.k)
            .order_by(long.c.k.nulls_last())
            .limit(3)
        )
        expected = pond.sql("SELECT k, count(*) AS c FROM long WHERE n >= 1 GROUP BY k ORDER BY k NULLS LAST LIMIT 3").values()
        assert [tuple(row) for row in connection.execute(query)] == expected
    inspector = sa.inspect(engine)
    assert inspector.get_view_names() == []
    assert inspector.has_table("long")
    assert not inspector.has_table("nothing")
    engine.dispose()
