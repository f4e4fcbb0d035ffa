"""The JDBC driver of Flight SQL, by which Java programs and tools such as DBeaver ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.serve.access.tokens import add_token
from servers.jdbc import FLIGHT_SQL, jdbc, rows
from servers.ports import free_port
from servers.serving import serving, wait_until_ready
from spark_files.golden import TYPES

pytest.importorskip("duckdb")
pytestmark = pytest.mark.long
# Types that the driver shows by another text than Python, or not at all.
TEXTS = frozenset({"long", "integer", "short", "byte", "double", "boolean", "price", "wide_decimal", "date"})


@pytest.fixture(scope="module")
def connect() -> Iterator[Any]:
    with jdbc(FLIGHT_SQL) as function:
        yield function


@pytest.fixture(scope="module")
def port(types_pond: Path, door_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """A server's port, and a token."""
    file, found = tmp_path_factory.mktemp("tokens") / "readers.json", free_port()
    token = add_token(file, "some", tables=["*"])
    options = ("--flight-port", str(found), "--tokens", str(file))
    with serving(types_pond, *options, home=door_home) as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        wait_until_ready(client)
        yield found, token


@pytest.fixture(scope="module")
def connection(connect: Any, port: tuple[int, str]) -> Iterator[Any]:
    number, token = port
    opened = connect(f"jdbc:arrow-flight-sql://127.0.0.1:{number}", useEncryption="false", token=token)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pond(types_pond: Path, door_home: Path, port: tuple[int, str]) -> Iterator[millpond.Pond]:
    assert port
    with millpond.open(types_pond, replica_dir=door_home) as opened:
        yield opened


def test_tools_find_the_tables(connection: Any, pond: millpond.Pond) -> None:
    about = connection.getMetaData()
    assert sorted(row[2] for row in rows(about.getTables(None, None, None, None))) == pond.tables()
    for name in ("long", "price", "timestamp"):
        assert [row[3] for row in rows(about.getColumns(None, None, name, None))] == list(pond[name].definition.columns)
    assert about.getDatabaseProductName() == "Millpond"
    assert about.isReadOnly()


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_rows_of_each_type(connection: Any, pond: millpond.Pond, name: str) -> None:
    expected = pond.sql(f"SELECT CAST(k AS VARCHAR) AS k, n FROM {name} ORDER BY ALL").rows()
    for statement in (f'SELECT * FROM "{name}"', f"SELECT * FROM {name} ORDER BY ALL"):
        result = connection.createStatement().executeQuery(statement)
        found = rows(result)
        place = list(pond[name].definition.columns).index("n")
        assert sorted(row[place] for row in found) == sorted(str(row["n"]) for row in expected)
        assert sum(row[0] is None for row in found) == sum(row["k"] is None for row in expected)


OTHERS = sorted({*TYPES} - TEXTS - {"string"})


@pytest.mark.parametrize("name", OTHERS)
def test_tables_of_every_type_are_read(connection: Any, pond: millpond.Pond, name: str) -> None:
    found = rows(connection.createStatement().executeQuery(f'SELECT * FROM "{name}"'))
    assert len(found) == pond[name].count()
    assert all(len(row) == len(pond[name].definition.columns) for row in found)


def test_prepared_statements_have_types_and_take_values(connection: Any, pond: millpond.Pond) -> None:
    for name, key in (("long", 9007199254740991), ("integer", None), ("double", 1.5), ("boolean", True)):
        prepared = connection.prepareStatement(f"SELECT k, n FROM {name} WHERE k = ?")
        assert prepared.getMetaData().getColumnName(2) == "n"
        assert prepared.getMetaData().getColumnTypeName(2) == "BIGINT"
        for value in [key] if key is not None else [row["k"] for row in pond[name].scan() if row["k"] is not None]:
            kind = {bool: "setBoolean", float: "setDouble", int: "setLong" if name == "long" else "setInt"}[type(value)]
            getattr(prepared, kind)(1, value)
            expected = pond.sql(f"SELECT n FROM {name} WHERE k = ?", [value]).rows()
            assert [row[1] for row in rows(prepared.executeQuery())] == [str(row["n"]) for row in expected]
        prepared.close()
    several = connection.prepareStatement("SELECT count(*) AS n FROM long WHERE k > ? AND CAST(k AS VARCHAR) LIKE ? LIMIT ?")
    several.setLong(1, 0)
    several.setString(2, "9%")
    several.setLong(3, 5)
    expected = pond.sql("SELECT count(*) AS n FROM long WHERE k > 0 AND CAST(k AS VARCHAR) LIKE '9%'").rows()
    assert rows(several.executeQuery()) == [[str(expected[0]["n"])]]
    several.close()


def test_what_is_wrong_is_said(connection: Any, connect: Any, port: tuple[int, str]) -> None:
    from py4j.protocol import Py4JJavaError

    for statement, words in (
        ("SELECT nope FROM long", "INVALID_STATEMENT: Binder Error"),
        ("DROP TABLE long", "Only SELECT statements are answered"),
        ("SELECT * FROM nothing", "UNKNOWN_TABLE"),
    ):
        with pytest.raises(Py4JJavaError) as refused:
            connection.createStatement().executeQuery(statement)
        assert words in str(refused.value), statement
    with pytest.raises(Py4JJavaError) as refused:
        connect(f"jdbc:arrow-flight-sql://127.0.0.1:{port[0]}", useEncryption="false", token="wrong")
    assert "TOKEN_NEEDED" in str(refused.value)
