"""The catalogue of PostgreSQL's protocol: as PostgreSQL has it for the same tables, and as dashboards and JDBC ask it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.serve.sql.postgres.names import quoted
from servers.jdbc import jdbc, rows
from servers.ports import free_port
from servers.postgres import postgres_server
from servers.serving import serving, wait_until_ready
from suite.sizes import a_few

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")
# Tables whose columns have types that PostgreSQL has, too.
_TABLES = (
    "long",
    "price",
    "string",
    "boolean",
    "timestamp",
    "timestamp_ntz",
    "date",
    "double",
    "float",
    "binary",
    "array",
    "short",
    "struct",
)


@pytest.fixture(scope="module")
def address(types_pond: Path, door_home: Path) -> Iterator[str]:
    port = free_port()
    with serving(types_pond, "--postgres-port", str(port), home=door_home) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield f"postgresql://millpond@127.0.0.1:{port}/postgres"


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def real(client: Any) -> str:
    """PostgreSQL with the same tables, made by what the door's catalogue says of them."""
    server = postgres_server()
    columns = client.execute(
        "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) "
        "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE c.relkind = 'r' AND a.attnum > 0 AND c.relname = ANY(%s) ORDER BY c.relname, a.attnum",
        [list(_TABLES)],
    ).fetchall()
    keys = dict(client.execute("SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint").fetchall())
    with psycopg.connect(server, autocommit=True) as other:
        other.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        for table in _TABLES:
            shown = ", ".join(f"{quoted(name)} {type_}" for owner, name, type_ in columns if owner == table)
            # json has no order, so PostgreSQL takes it for no key.
            key = "" if table == "struct" else f", {keys[quoted(table)]}"
            other.execute(f"CREATE TABLE {quoted(table)} ({shown}{key})")
            if key:
                other.execute("UPDATE pg_attribute SET attnotnull = false WHERE attrelid = %s::regclass", [quoted(table)])
    return server


def psql(address: str, command: str) -> str:
    if shutil.which("psql") is None:
        pytest.skip("this machine has no psql")
    done = subprocess.run(["psql", "-X", "-A", "-d", address, "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("table", a_few(["long", "price", "string", "timestamp", "array", "binary"], 1))
def test_psql_describes_a_table_as_that_of_postgres(address: str, real: str, table: str) -> None:
    assert psql(address, f"\\d {table}") == psql(real, f"\\d {table}")
    assert psql(address, f"\\dt {table}") == psql(real, f"\\dt {table}")
    assert psql(address, f"\\di {table}_pkey") == psql(real, f"\\di {table}_pkey")


_COLUMNS = (
    "table_schema, table_name, column_name, ordinal_position, column_default, is_nullable, data_type, character_maximum_length, "
    "numeric_precision, numeric_precision_radix, numeric_scale, datetime_precision, udt_schema, udt_name"
)


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT {_COLUMNS} FROM information_schema.columns "
        "WHERE table_name = ANY(%(names)s) AND table_schema = 'public' ORDER BY 2, 4",
        "SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_name = ANY(%(names)s) ORDER BY 2",
        "SELECT constraint_name, table_name, constraint_type FROM information_schema.table_constraints "
        "WHERE table_name = ANY(%(keyed)s) AND constraint_type = 'PRIMARY KEY' ORDER BY 2",
        "SELECT constraint_name, column_name, ordinal_position FROM information_schema.key_column_usage "
        "WHERE table_name = ANY(%(keyed)s) ORDER BY 1, 3",
        "SELECT tablename, schemaname, hasindexes FROM pg_tables WHERE tablename = ANY(%(keyed)s) ORDER BY 1",
        "SELECT indexname, tablename, indexdef FROM pg_indexes WHERE tablename = ANY(%(keyed)s) ORDER BY 1",
        "SELECT oid, typname, typlen, typelem, typarray, typcategory, format_type(oid, NULL) FROM pg_type "
        "WHERE typname IN ('int8', '_int8', 'text', 'numeric', 'timestamptz', 'bool', 'json', 'uuid', '_text') ORDER BY 1",
        "SELECT 'int4'::regtype::oid, 'bigint'::regtype::text, to_regtype('timestamptz')::oid, to_regclass('nothing')::oid",
        "SELECT current_schema(), current_database(), "
        "current_schemas(false)::text[], quote_ident('table'), format('%%I=%%s', 'A', 1)",
        "SELECT a.attname, a.attnum, a.atttypid, a.atttypmod, a.attndims FROM pg_attribute a "
        "WHERE a.attrelid = 'public.price'::regclass AND a.attnum > 0 ORDER BY a.attnum",
        "SELECT i.indisunique, i.indisprimary, (information_schema._pg_expandarray(i.indkey)).n, "
        "pg_get_indexdef(i.indexrelid, 1, false) FROM pg_index i WHERE i.indrelid = 'long'::regclass",
        "SELECT array_to_string(ARRAY(SELECT relname FROM pg_class WHERE relname = ANY(%(keyed)s) ORDER BY 1), ', ')",
        "SELECT 'long' ~ '^l', 'long' !~* 'LO', relname OPERATOR(pg_catalog.~) '^(long)$' COLLATE pg_catalog.default "
        "FROM pg_catalog.pg_class WHERE oid = 'long'::pg_catalog.regclass",
        "SELECT s[i] FROM generate_series(1, 2) AS i, string_to_array('a,b', ',') s",
        "SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'",
        "SELECT current_setting('server_version_num')::int / 10000 >= 15, has_table_privilege('long', 'SELECT')",
    ],
)
def test_the_catalogue_answers_as_postgres(client: Any, real: str, text: str) -> None:
    names = {"names": list(_TABLES), "keyed": [name for name in _TABLES if name != "struct"]}
    with psycopg.connect(real, autocommit=True) as other:
        # Through the simple protocol, and the extended one.
        for ask in (lambda connection: connection, psycopg.ClientCursor):
            expected = ask(other).execute(text, names).fetchall()
            assert ask(client).execute(text, names).fetchall() == expected


def test_tables_and_the_catalogue_in_one_statement(client: Any) -> None:
    found = client.execute("SELECT c.relname, (SELECT count(*) FROM long) FROM pg_class c WHERE c.relname = 'long'").fetchall()
    assert found == [("long", client.execute("SELECT count(*) FROM public.long").fetchone()[0])]


@pytest.mark.long
def test_jdbc(address: str, types_pond: Path, door_home: Path) -> None:
    with jdbc() as connect, millpond.open(types_pond, replica_dir=door_home) as pond:
        connection = connect(address.replace("postgresql://millpond@", "jdbc:postgresql://"), user="me")
        about = connection.getMetaData()
        assert sorted(row[2] for row in rows(about.getTables(None, "public", "%", None)) if row[3] == "TABLE") == pond.tables()
        for name in ("long", "price", "timestamp"):
            assert [row[3] for row in rows(about.getColumns(None, "public", name, "%"))] == list(pond[name].definition.columns)
            assert [row[3] for row in rows(about.getPrimaryKeys(None, "public", name))] == ["k"]
            assert [row[8] for row in rows(about.getIndexInfo(None, "public", name, False, False))] == ["k"]
        for ask in (about.getSchemas, about.getCatalogs, about.getTypeInfo, about.getTableTypes):
            assert rows(ask())
        assert rows(about.getImportedKeys(None, "public", "long")) == []
        expected = {row["k"]: row["n"] for row in pond.sql("SELECT k, n FROM long WHERE k IS NOT NULL").rows()}
        for _ in range(8):  # after five, the driver asks for the binary form
            for key, count in expected.items():
                prepared = connection.prepareStatement("SELECT n, k FROM long WHERE k = ?")
                prepared.setLong(1, key)
                assert rows(prepared.executeQuery()) == [[str(count), str(key)]]
                prepared.close()
        connection.setAutoCommit(False)
        statement = connection.createStatement()
        statement.setFetchSize(100)
        assert rows(statement.executeQuery("SELECT range AS x FROM range(1050)")) == [[str(n)] for n in range(1050)]
        connection.commit()
        connection.setAutoCommit(True)
        assert connection.isValid(5)
        connection.close()
