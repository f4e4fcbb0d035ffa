"""A statement's answer in DuckDB and in polars: the same values, of every type, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

import millpond
from millpond.errors import RequestError
from oracles.arrow_values import shown
from spark_files.checkpoint import WrittenCheckpoint

duckdb, polars, pa = map(pytest.importorskip, ("duckdb", "polars", "pyarrow"))

# Values of each type of DuckDB, its ends among them.
VALUES = {
    "ARRAY": ("[1, NULL]::INTEGER[2]",),
    "BIGINT": ("-9223372036854775808", "9223372036854775807::BIGINT"),
    "BIGNUM": ("1::BIGNUM",),
    "BIT": ("'101'::BIT", "'00000000'::BIT"),
    "BLOB": ("''::BLOB", "'\\x00\\xFF'::BLOB"),
    "BOOLEAN": ("true",),
    "DATE": ("'0001-01-01'::DATE", "'9999-12-31'::DATE", "'infinity'::DATE", "'290000-12-31 (BC)'::DATE"),
    "DECIMAL": ("-1.5::DECIMAL(4, 1)", "99999999999999999999999999999999999999::DECIMAL(38, 0)"),
    "DOUBLE": ("'nan'::DOUBLE", "-0.0::DOUBLE", "'-infinity'::DOUBLE", "1e308::DOUBLE"),
    "ENUM": ("'b'::ENUM('a', 'b')",),
    "FLOAT": ("'nan'::FLOAT", "3.4e38::FLOAT"),
    "GEOMETRY": ("'POINT (1 2)'::GEOMETRY",),
    "HUGEINT": ("1::HUGEINT", "170141183460469231731687303715884105727", "-170141183460469231731687303715884105727"),
    "INTEGER": ("(-2147483648)::INTEGER",),
    "INTERVAL": ("INTERVAL '-1 month 3 days 2 hours'", "INTERVAL '0.000001 seconds'"),
    "LIST": ("[1, NULL]", "[]::INTEGER[]", "[[]::INTEGER[], NULL]"),
    "MAP": ("MAP {'a': 1}", "MAP {}::MAP(INTEGER, INTEGER)"),
    "NULL": ("NULL",),
    "SMALLINT": ("(-32768)::SMALLINT",),
    "STRUCT": ("{'a': 1, 'UHUGEINT': 'é'}",),
    "TIME": ("'00:00:00'::TIME", "'23:59:59.999999'::TIME"),
    "TIME WITH TIME ZONE": ("'10:00:00+01'::TIMETZ",),
    "TIMESTAMP": ("'1969-12-31 23:59:59.999999'::TIMESTAMP", "'290000-01-01'::TIMESTAMP", "'infinity'::TIMESTAMP"),
    "TIMESTAMP WITH TIME ZONE": ("'2026-03-01 12:00:00+01'::TIMESTAMPTZ", "'-infinity'::TIMESTAMPTZ"),
    "TIMESTAMPTZ_NS": ("'2026-03-01 12:00:00.123456789+01'::TIMESTAMPTZ_NS",),
    "TIMESTAMP_MS": ("'2026-03-01 12:00:00.123'::TIMESTAMP_MS",),
    "TIMESTAMP_NS": ("'2026-03-01 12:00:00.123456789'::TIMESTAMP_NS",),
    "TIMESTAMP_S": ("'2026-03-01 12:00:00'::TIMESTAMP_S",),
    "TIME_NS": ("'23:59:59.999999999'::TIME_NS",),
    "TINYINT": ("(-128)::TINYINT",),
    "TUPLE": ("row(1, 2)",),
    "TYPE": ("get_type(1)",),
    "UBIGINT": ("18446744073709551615::UBIGINT",),
    "UHUGEINT": ("1::UHUGEINT", "340282366920938463463374607431768211455::UHUGEINT"),
    "UINTEGER": ("4294967295::UINTEGER",),
    "UNION": ("union_value(a := 1)",),
    "USMALLINT": ("65535::USMALLINT",),
    "UTINYINT": ("255::UTINYINT",),
    "UUID": ("'ffffffff-ffff-ffff-ffff-ffffffffffff'::UUID", "'00000000-0000-0000-0000-000000000000'::UUID"),
    "VARCHAR": ("''", "'é𝄞'"),
    "VARIANT": ("'x'::VARIANT",),
}
ARRAY, UNION = "array_value({}, {})", "union_value(u := {})"
NESTED = ("{}", "[{}]", "{{'a': {}, 'b': 1}}", "MAP {{1: {}}}", ARRAY, UNION)
# What DuckDB shows otherwise after Arrow, though the value is the same: a tuple has names there.
SHOWN = {"(1, 2)": "{'element1': 1, 'element2': 2}"}
REFUSED = {"TYPE", "BIGNUM", "BIT", "GEOMETRY", "TIME WITH TIME ZONE", "UHUGEINT", "VARIANT"}


@pytest.fixture(scope="module")
def pond(types_pond: Path, door_home: Path) -> Iterator[millpond.Pond]:
    with millpond.open(types_pond, replica_dir=door_home, wait_seconds=60) as opened:
        yield opened


def test_every_type_of_duckdb_is_tried() -> None:
    found = {name for (name,) in duckdb.sql("SELECT DISTINCT logical_type FROM duckdb_types()").fetchall()}
    assert found == set(VALUES)


def _nested(kind: str, value: str) -> Iterator[tuple[str, bool]]:
    """The value within each two of NESTED, and whether it is refused there."""
    for outer, inner in product(NESTED, repeat=2):
        ways = {outer, inner}
        if kind == "NULL" and UNION in ways:  # DuckDB writes it as a text, and after Arrow as none
            continue
        within = inner.format(value, value)
        yield outer.format(within, within), kind in REFUSED or (kind == "ENUM" and ARRAY in ways)


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_what_duckdb_says_or_an_error(pond: millpond.Pond, kind: str) -> None:
    """Oracle: DuckDB's own text of the value, before it goes through Arrow."""
    with duckdb.connect() as mine:
        mine.execute("SET TimeZone = 'UTC'")
        for value in VALUES[kind]:
            cases = list(_nested(kind, value))
            casts = ", ".join(f"CAST({text} AS VARCHAR)" for text, _ in cases)
            (texts,) = mine.sql(f"SELECT {casts}").fetchall()
            assert pond.sql(f"SELECT {casts}").values() == [texts]
            expected = {case: _shown(text) for (case, is_refused), text in zip(cases, texts, strict=True) if not is_refused}
            for case, _ in cases:
                if case not in expected:
                    with pytest.raises(RequestError) as refused:
                        pond.sql(f"SELECT {case} AS v")
                    assert refused.value.condition == "WRONG_TYPE", case
            if expected:
                answer = pond.sql("SELECT " + ", ".join(f"{case} AS v{n}" for n, case in enumerate(expected)))
                relation = answer.to_duckdb(mine).project(", ".join(f"CAST({name} AS VARCHAR)" for name in answer.columns))
                assert dict(zip(expected, *relation.fetchall(), strict=True)) == expected


def _shown(text: str | None) -> str | None:
    for plain, named in SHOWN.items():
        text = text and text.replace(plain, named)
    return text


def test_an_answer_has_the_values_of_arrow_in_duckdb_and_polars(pond: millpond.Pond, type_cases: ModuleType) -> None:
    """Of all types of Spark that a statement can read."""
    compared = 0
    with duckdb.connect() as mine:
        for name in type_cases.CASES:
            if name == "string":  # it has texts that aren't UTF-8
                continue
            answer = pond.sql(f'SELECT * FROM "{name}"')
            whole = answer.to_arrow()
            assert shown(pa.table(answer)) == shown(whole)
            relation = answer.to_duckdb(mine)
            assert shown(relation.to_arrow_table().cast(whole.schema)) == shown(whole), name
            assert relation.count("*").fetchall() == [(len(answer),)]
            if name not in ("day_time", "year_month"):  # polars has no such type
                assert polars.DataFrame(answer).equals(answer.to_polars())
            compared += len(answer)
    assert compared


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    made = WrittenCheckpoint(tmp_path / "job")
    made.plan([(("a",), 1), (("b",), 2)], snapshot=False)
    made.commit()
    return made


def test_a_relation_is_of_the_batch_of_its_answer_and_joins_the_callers_tables(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as opened, duckdb.connect() as mine:
        mine.execute("CREATE TABLE names AS SELECT * FROM (VALUES ('a', 'Ann'), ('b', 'Bob')) AS v(k, name)")
        relation = opened.sql('SELECT * FROM "job.aggregate_0"').to_duckdb(mine)
        joined = relation.set_alias("r").join(mine.table("names").set_alias("n"), "r.k = n.k").select("name, v").order("name")
        job.plan([(("a",), 100)], snapshot=False)
        job.commit()
        opened.catch_up(60)
        assert joined.fetchall() == [("Ann", 1), ("Bob", 2)]
        twice = opened.sql('SELECT v, v FROM "job.aggregate_0" ORDER BY k').to_duckdb()
    assert twice.fetchall() == [(100, 100), (2, 2)], "DuckDB's own connection, after the pond is closed"


def test_what_isnt_an_open_connection_is_refused(pond: millpond.Pond) -> None:
    closed = duckdb.connect()
    closed.close()
    for wrong in (closed, "reports.duckdb", 0):
        with pytest.raises(RequestError) as refused:
            pond.sql("SELECT 1").to_duckdb(wrong)
        assert refused.value.condition == "INVALID_REQUEST"
