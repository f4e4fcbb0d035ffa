"""What a client of Flight SQL gets: types, rows, catalogue, parameters, batches, cancelling."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.errors import MillpondError
from servers.ports import free_port
from servers.serving import serving, wait_until_ready
from spark_files.golden import TYPES
from sql.statements import Statements, texts_of
from suite.sizes import IS_LONG, examples
from suite.waiting import wait_until

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
flight_sql = pytest.importorskip("adbc_driver_flightsql")
dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")
ENDLESS = "SELECT sum(hash(a.range, b.range, c.range)) FROM range(100000) a, range(100000) b, range(100000) c"


@pytest.fixture(scope="module")
def port(types_pond: Path, door_home: Path) -> Iterator[int]:
    """A server with one process for statements."""
    found = free_port()
    options = ("--flight-port", str(found), "--sql-processes", "1", "--max-seconds", "60")
    with serving(types_pond, *options, home=door_home) as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        wait_until_ready(client)
        yield found


@pytest.fixture(scope="module")
def pond(types_pond: Path, door_home: Path, port: int) -> Iterator[Any]:
    with millpond.open(types_pond, replica_dir=door_home) as opened:
        yield opened


@pytest.fixture(scope="module")
def connection(port: int) -> Iterator[Any]:
    with dbapi.connect(f"grpc://127.0.0.1:{port}", autocommit=True) as opened:
        yield opened


def ask(connection: Any, statement: str, parameters: Any = None) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetch_arrow_table()


@pytest.mark.parametrize("name", TYPES)
def test_a_whole_table_is_that_of_to_arrow(connection: Any, pond: Any, name: str) -> None:
    if name == "string":  # it has texts that aren't UTF-8, which SQL refuses at every door
        with pytest.raises(dbapi.Error, match="WRONG_TYPE"):
            ask(connection, f'SELECT * FROM "{name}"')
        return
    expected, found = pond.now(name).to_arrow(), ask(connection, f'SELECT * FROM "{name}"')
    assert found.schema.equals(expected.schema)
    assert texts_of(found) == texts_of(expected)
    (cut,) = json.loads(found.schema.metadata[b"millpond.cuts"])
    assert (cut["job"], cut["batch"]) == (name, int(expected.schema.metadata[b"millpond.batch"]))


@pytest.mark.long
def test_random_statements_have_the_answers_of_the_pond(connection: Any, pond: Any) -> None:
    count = 0
    for name in TYPES if IS_LONG else TYPES[::2]:
        rows = pond.now(name).to_arrow()
        statements = Statements(name, rows, seed=5)
        for _ in range(examples(12, 4)):
            statement, values = statements.next()
            batch = pa.record_batch([pa.array([value]) for value in values], [str(n) for n in range(len(values))])
            try:
                expected = pond.sql(statement, values).to_arrow()
            except MillpondError as error:
                with pytest.raises(dbapi.Error, match=error.condition):
                    ask(connection, statement, batch if values else None)
                continue
            found = ask(connection, statement, batch if values else None)
            assert [field.name for field in found.schema] == [field.name for field in expected.schema]
            assert found.schema.types == expected.schema.types
            assert sorted(texts_of(found)) == sorted(texts_of(expected)), (statement, values)
            count += 1
    assert count > 20


@pytest.mark.parametrize(
    "value",
    [
        True,
        -(2**63),
        2**63 - 1,
        0.1,
        1e300,
        "",
        "naïve \U0001f986",
        b"\x00\xff",
        None,
        Decimal("12345678901234567890.123456789"),
        dt.date(2026, 3, 1),
        dt.datetime(2026, 3, 1, 12, 0, 0, 123456),
        dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC),
        dt.time(23, 59, 59, 999999),
    ],
)
def test_a_parameter_comes_back_as_it_was(connection: Any, value: Any) -> None:
    (found,) = ask(connection, "SELECT ? AS v", [value]).column("v").to_pylist()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("name", ["long", "integer", "price", "wide_decimal", "date", "timestamp_ntz", "binary", "boolean"])
def test_each_key_finds_its_row_by_a_parameter(connection: Any, pond: Any, name: str) -> None:
    rows = pond.now(name).to_arrow()
    for place, key in enumerate(rows.column("k")):
        if not key.is_valid:
            continue
        batch = pa.record_batch([pa.array([key])], ["k"])
        try:
            key.as_py()
        except (ValueError, OverflowError):  # a time after the year 9999
            with pytest.raises(dbapi.Error, match="can't be bound"):
                ask(connection, f'SELECT * FROM "{name}" WHERE k = ?', batch)
            continue
        found = ask(connection, f'SELECT * FROM "{name}" WHERE k = ?', batch)
        assert texts_of(found) == texts_of(rows.slice(place, 1))


def test_parameters_by_name_and_their_errors(connection: Any) -> None:
    batch = pa.record_batch({"b": [2], "a": ["x"]})
    assert ask(connection, "SELECT $a AS a, $b + 1 AS b", batch).to_pylist() == [{"a": "x", "b": 3}]
    assert ask(connection, "SELECT ? + ? AS c", [1, 2]).to_pylist() == [{"c": 3}]
    with pytest.raises(dbapi.Error, match="INVALID_STATEMENT"):
        ask(connection, "SELECT ? + ? AS c", [1])
    with pytest.raises(dbapi.Error, match="several rows"):
        ask(connection, "SELECT ?", pa.record_batch({"a": [1, 2]}))


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(1_000_000_001, pa.timestamp("ns")),
        pa.scalar(1, pa.duration("ns")),
        pa.scalar(Decimal("1" * 50), pa.decimal256(60, 2)),
        pa.scalar((1, 2, 3), pa.month_day_nano_interval()),
        pa.scalar([("a", 1)], pa.map_(pa.string(), pa.int64())),
        pa.scalar({"a": 1}),
        pa.scalar([1], pa.list_(pa.timestamp("ns"))),
    ],
)
def test_a_parameter_is_never_rounded(connection: Any, value: Any) -> None:
    with pytest.raises(dbapi.Error, match="can't be bound"):
        ask(connection, "SELECT ? AS v", pa.record_batch([pa.array([value])], ["v"]))


def test_what_can_be_bound_exactly_is(connection: Any) -> None:
    given = [
        pa.array([1_000_000_000], pa.timestamp("ns")),
        pa.array([Decimal("1.50")], pa.decimal256(60, 2)),
        pa.array(["a"]).dictionary_encode(),
        pa.array([[1, None, 3]]),
        pa.array([2**64 - 1], pa.uint64()),
    ]
    (found,) = ask(connection, "SELECT ? AS a, ? AS b, ? AS c, ? AS d, ? AS e", pa.record_batch(given, list("abcde"))).to_pylist()
    assert found == {"a": dt.datetime(1970, 1, 1, 0, 0, 1), "b": Decimal("1.50"), "c": "a", "d": [1, None, 3], "e": 2**64 - 1}


def test_a_prepared_statement_takes_new_parameters(connection: Any) -> None:
    with connection.cursor() as cursor:
        for number in range(5):
            cursor.execute("SELECT ? * 2 AS d", [number])
            assert cursor.fetchall() == [(2 * number,)]


def test_the_catalogue_has_tables_columns_and_keys(connection: Any, pond: Any) -> None:
    (found,) = connection.adbc_get_objects(depth="all").read_all().to_pylist()
    assert found["catalog_name"] == "millpond"
    (schema,) = found["catalog_db_schemas"]
    assert schema["db_schema_name"] == "public"
    tables = {each["table_name"]: each for each in schema["db_schema_tables"]}
    assert sorted(tables) == TYPES
    for name, table in tables.items():
        definition = pond.now(name).definition
        assert [column["column_name"] for column in table["table_columns"]] == list(definition.columns)
        assert connection.adbc_get_table_schema(name).equals(pond.now(name).to_arrow().schema.remove_metadata())
    some = connection.adbc_get_objects(depth="tables", table_name_filter="%time%").read_all().to_pylist()
    (schema,) = some[0]["catalog_db_schemas"]
    assert [each["table_name"] for each in schema["db_schema_tables"]] == sorted(n for n in TYPES if "time" in n)
    assert connection.adbc_get_table_types() == ["TABLE"]
    assert connection.adbc_get_info()["vendor_name"] == "Millpond"
    none = connection.adbc_get_objects(depth="tables", catalog_filter="other").read_all().to_pylist()
    assert none == []


def test_the_keys_of_a_table(port: int) -> None:
    from pyarrow import flight

    from millpond.serve.flight.messages import packed

    with flight.connect(f"grpc://127.0.0.1:{port}") as client:

        def rows(name: str, **fields: Any) -> list[dict[str, Any]]:
            info = client.get_flight_info(flight.FlightDescriptor.for_command(packed(name, **fields)))
            found = client.do_get(info.endpoints[0].ticket).read_all()
            assert found.schema.equals(info.schema)
            return found.to_pylist()

        (key,) = rows("CommandGetPrimaryKeys", table="long")
        assert (key["table_name"], key["column_name"], key["key_sequence"]) == ("long", "k", 1)
        assert rows("CommandGetPrimaryKeys", table="nothing") == []
        assert rows("CommandGetExportedKeys", table="long") == rows("CommandGetImportedKeys", table="long") == []
        assert rows("CommandGetDbSchemas") == [{"catalog_name": "millpond", "db_schema_name": "public"}]
        everything = {row["info_name"]: row["value"] for row in rows("CommandGetSqlInfo")}
        assert everything[0] == "Millpond"
        assert everything[3] is True
        assert everything[8] == 0
        assert rows("CommandGetSqlInfo", info=[8, 3, 99_999]) == [{"info_name": 8, "value": 0}, {"info_name": 3, "value": True}]


@pytest.mark.parametrize(
    "statement", ["INSERT INTO long VALUES (1, 2, 3)", "DROP TABLE long", "COPY long TO '/tmp/x'", "SET threads = 2"]
)
def test_writes_are_refused(connection: Any, statement: str) -> None:
    with pytest.raises(dbapi.Error, match="INVALID_STATEMENT: Only SELECT statements are answered"):
        ask(connection, statement)
    with connection.cursor() as cursor, pytest.raises(dbapi.Error, match="Only SELECT"):
        cursor.executemany(statement, [[1]])
    with connection.cursor() as cursor, pytest.raises(dbapi.Error, match="only reads"):
        cursor.executemany("SELECT n FROM long WHERE k = ?", [[1]])
    with connection.cursor() as cursor, pytest.raises(dbapi.Error):
        cursor.adbc_ingest("long", pa.table({"k": [1]}), mode="append")


def test_a_statement_is_described_without_being_answered(connection: Any, pond: Any) -> None:
    draw = Statements("long", pond["long"].to_arrow(), seed=11)
    statements = [draw.next() for _ in range(examples(20, 8))]
    statements += [(text, []) for text in ('SELECT * FROM "date"', "SELECT 1 AS a LIMIT 3", "EXPLAIN SELECT 1", ENDLESS)]
    statements += [("WITH w AS (SELECT k FROM long) SELECT k, count(*) FROM w GROUP BY ALL ORDER BY ALL", [])]
    statements += [("SELECT 1 AS a UNION ALL SELECT 2 LIMIT 1", []), ("DESCRIBE long", [])]
    for text, values in statements:
        with connection.cursor() as cursor:
            described = cursor.adbc_execute_schema(text)
            if text == ENDLESS:
                assert [str(field.type) for field in described] == ["decimal128(38, 0)"]
                continue
            assert described.equals(ask(connection, text, values or None).schema), text


def test_parameters_have_the_types_that_the_statement_shows(connection: Any) -> None:
    for text, types in (
        ("SELECT n FROM long WHERE k = ? AND ? < n", ["int64", "int64"]),
        ("SELECT n FROM price WHERE k IN (?, ?)", ["decimal128(10, 2)", "decimal128(10, 2)"]),
        ("SELECT k FROM timestamp WHERE k BETWEEN ? AND CAST(? AS DATE)", ["timestamp[us, tz=UTC]", "date32[day]"]),
        ("SELECT ? AS a FROM long LIMIT ?", ["string", "int64"]),
    ):
        with connection.cursor() as cursor:
            found = cursor.adbc_prepare(text)
            assert [str(field.type) for field in found] == types, text
    for text, words in (
        ("SELECT n FROM history('long', since => ?) WHERE k = ?", "HISTORY_GONE"),
        ("SELECT n FROM history(?, since => 1)", "INVALID_STATEMENT: A parameter names a table"),
    ):
        with connection.cursor() as cursor, pytest.raises(dbapi.Error, match=words):
            cursor.adbc_prepare(text)


def test_a_statement_reads_the_batch_that_is_asked(port: int, pond: Any) -> None:
    batch = pond.sql("SELECT count(*) FROM long").batch

    def connect(**options: str) -> Any:
        kwargs = {f"adbc.flight.sql.rpc.call_header.millpond-{name}": value for name, value in options.items()}
        return dbapi.connect(f"grpc://127.0.0.1:{port}", db_kwargs=kwargs, autocommit=True)

    for statement in ("SELECT * FROM long", "SELECT count(*) FROM long"):
        with connect(**{"min-batch": str(batch)}) as fresh:
            assert len(ask(fresh, statement))
        for options, condition in (
            ({"min-batch": str(batch + 1)}, "NOT_UP_TO_BOUND"),
            ({"at": "99"}, "HISTORY_GONE|NOT_UP_TO_BOUND|INVALID"),
            ({"min-batch": "x"}, "INVALID_BOUND|INVALID_REQUEST"),
        ):
            with connect(**options) as bound, pytest.raises(dbapi.Error, match=condition):
                ask(bound, statement)
    with connect() as plain, pytest.raises(dbapi.Error, match="NOT_ALIGNED"):
        ask(plain, "SELECT * FROM long, date")
    with connect(separate="true") as apart:
        assert ask(apart, "SELECT count(*) AS n FROM long, (SELECT 1 FROM date) x").num_rows == 1


@contextlib.contextmanager
def cancelling(cursor: Any) -> Iterator[None]:
    """Whatever runs meanwhile is cancelled, however late it begins."""
    ended = threading.Event()

    def cancel() -> None:
        while not ended.wait(0.5):
            cursor.adbc_cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.long
def test_a_cancelled_statement_gives_its_process_back(connection: Any) -> None:
    for _ in range(2):
        with connection.cursor() as cursor, cancelling(cursor), pytest.raises(dbapi.Error, match="CANCELLED"):
            cursor.execute(ENDLESS)
        assert ask(connection, "SELECT 1 AS a").to_pylist() == [{"a": 1}]  # there is one process


@pytest.mark.long
def test_a_flight_is_cancelled_by_its_information(port: int, connection: Any) -> None:
    from pyarrow import flight

    from millpond.serve.flight.messages import packed, parse, plain

    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        command = packed("CommandStatementQuery", query=ENDLESS)
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
        found: list[BaseException] = []

        def take() -> None:
            try:
                client.do_get(info.endpoints[0].ticket).read_all()
            except flight.FlightError as error:
                found.append(error)

        taking = threading.Thread(target=take)
        taking.start()
        body = plain("CancelFlightInfoRequest", info=info.serialize())

        def is_cancelled() -> bool:
            (result,) = client.do_action(flight.Action("CancelFlightInfo", body))
            return parse("CancelFlightInfoResult", result.body.to_pybytes()).status == 1

        wait_until(is_cancelled, "the end of the flight")
        taking.join()
        assert "cancelled" in str(found[0])
        (result,) = client.do_action(flight.Action("CancelFlightInfo", body))
        assert parse("CancelFlightInfoResult", result.body.to_pybytes()).status == 3  # there is nothing to cancel
    assert ask(connection, "SELECT 1 AS a").to_pylist() == [{"a": 1}]


@pytest.mark.long
def test_pandas_and_polars_read_a_table(connection: Any, pond: Any) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    expected = sorted(pond.now("long").to_arrow().to_pylist(), key=str)
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM long")
        frame = cursor.fetch_df()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == len(expected)
    found = polars.read_database("SELECT * FROM long", connection)
    assert sorted(found.to_dicts(), key=str) == expected
