"""A statement reads tables of the pond and nothing else: no file, no network, no setting, no table of its own."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.tables.sql.run import run_sql
from suite.sizes import examples

duckdb = pytest.importorskip("duckdb")
SECRET = "swordfish"


@pytest.fixture(scope="module")
def pond(types_pond: Path, door_home: Path) -> Iterator[millpond.Pond]:
    with millpond.open(types_pond, replica_dir=door_home) as opened:
        yield opened


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file that no statement may read, in every form that DuckDB knows."""
    tmp_path = tmp_path_factory.mktemp("secret")
    (tmp_path / "secret.csv").write_text(f"a\n{SECRET}\n")
    (tmp_path / "secret.json").write_text(json.dumps([{"a": SECRET}]))
    with duckdb.connect() as writer:
        writer.execute(f"COPY (SELECT '{SECRET}' AS a) TO '{tmp_path}/secret.parquet'").fetchall()
    with duckdb.connect(str(tmp_path / "secret.duckdb")) as writer:
        writer.execute(f"CREATE TABLE t AS SELECT '{SECRET}' AS a").fetchall()
    return tmp_path


STATEMENTS = """
SELECT * FROM '{f}/secret.csv'
SELECT * FROM "{f}/secret.parquet"
SELECT * FROM read_csv('{f}/secret.csv')
SELECT * FROM read_csv_auto('{f}/secret.csv')
SELECT * FROM read_json('{f}/secret.json')
SELECT * FROM read_parquet('{f}/secret.parquet')
SELECT * FROM parquet_scan('{f}/secret.parquet')
SELECT * FROM parquet_metadata('{f}/secret.parquet')
SELECT * FROM sniff_csv('{f}/secret.csv')
SELECT * FROM read_text('{f}/secret.csv')
SELECT * FROM read_blob('{f}/secret.csv')
SELECT * FROM glob('{f}/*')
SELECT (SELECT content FROM read_text('{f}/secret.csv'))
SELECT * FROM long WHERE EXISTS (SELECT 1 FROM read_text('{f}/secret.csv'))
WITH x AS (SELECT * FROM read_text('{f}/secret.csv')) SELECT * FROM x
SELECT * FROM query('SELECT 1')
SELECT * FROM query_table('long')
SELECT * FROM read_csv('https://127.0.0.1:1/x.csv')
SELECT * FROM 's3://bucket/x.parquet'
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_secrets()
SELECT * FROM duckdb_tables()
SELECT * FROM information_schema.tables
SELECT * FROM pg_catalog.pg_class
SELECT * FROM sqlite_master
SELECT * FROM pragma_database_size()
SELECT * FROM test_all_types()
ATTACH '{f}/secret.duckdb'
ATTACH '{f}/secret.duckdb' AS s
DETACH memory
USE memory
COPY long TO '{f}/out.csv'
COPY (SELECT 1) TO '{f}/out.parquet'
COPY long FROM '{f}/secret.csv'
EXPORT DATABASE '{f}/out'
IMPORT DATABASE '{f}/out'
INSTALL httpfs
LOAD httpfs
LOAD '{f}/x.duckdb_extension'
FORCE INSTALL spatial
UPDATE EXTENSIONS
SET threads = 8
SET GLOBAL enable_external_access = true
SET lock_configuration = false
SET temp_directory = '{f}'
SET memory_limit = '100GB'
RESET enable_external_access
PRAGMA database_list
PRAGMA version
PRAGMA enable_profiling
PRAGMA table_info('long')
CALL pragma_version()
CREATE TABLE x (a INT)
CREATE TEMP TABLE x AS SELECT 1
CREATE VIEW x AS SELECT * FROM read_text('{f}/secret.csv')
CREATE MACRO x(a) AS a
CREATE FUNCTION x(a) AS TABLE SELECT * FROM read_text('{f}/secret.csv')
CREATE SECRET x (TYPE s3)
CREATE TYPE x AS INTEGER
CREATE SEQUENCE x
CREATE SCHEMA x
DROP VIEW long
ALTER TABLE long RENAME TO x
INSERT INTO long VALUES (1)
UPDATE long SET n = 1
DELETE FROM long
MERGE INTO long USING long AS b ON true WHEN MATCHED THEN DELETE
TRUNCATE long
CHECKPOINT
VACUUM
ANALYZE
BEGIN
COMMIT
PREPARE x AS SELECT 1
EXECUTE x
DEALLOCATE x
SELECT 1; DROP VIEW long
SELECT 1; SELECT 2
EXPLAIN ANALYZE COPY long TO '{f}/out.csv'
EXPLAIN COPY long TO '{f}/out.csv'
EXPLAIN INSTALL httpfs
SHOW TABLES
SHOW ALL TABLES
SHOW DATABASES
COMMENT ON TABLE long IS 'x'
SUMMARIZE '{f}/secret.csv'
DESCRIBE '{f}/secret.parquet'
FROM '{f}/secret.csv'
FROM read_text('{f}/secret.csv')
TABLE "{f}/secret.csv"
PIVOT '{f}/secret.csv' ON a
""".strip().splitlines()


@pytest.mark.parametrize("statement", STATEMENTS)
def test_whatever_isnt_a_read_of_tables_is_refused(pond: millpond.Pond, secret: Path, statement: str) -> None:
    before = sorted(path.name for path in secret.iterdir())
    with pytest.raises(MillpondError) as refused:
        pond.sql(statement.format(f=secret))
    assert refused.value.condition in ("INVALID_STATEMENT", "UNKNOWN_TABLE"), refused.value
    assert SECRET not in str(refused.value)
    assert sorted(path.name for path in secret.iterdir()) == before
    assert pond.sql("SELECT count(*) AS n FROM long").rows()[0]["n"] == pond["long"].count()


@pytest.mark.long
def test_no_function_of_duckdb_opens_a_file(pond: millpond.Pond, secret: Path) -> None:
    """Each function that this DuckDB lists, with file names and with what would write one."""
    with duckdb.connect() as plain:
        listed = plain.execute("SELECT DISTINCT function_name, function_type FROM duckdb_functions()").fetchall()
    files = sorted(str(path) for path in secret.iterdir())
    tried = 0
    for name, _kind in sorted(listed):
        if not name.replace("_", "").isalnum():
            continue
        for arguments in ([], [files[0]], [files[-1], "a"], ["SELECT * FROM read_text('" + files[0] + "')"]):
            words = ", ".join("'" + each.replace("'", "''") + "'" for each in arguments)
            call = f'"{name}"({words})'
            for statement in (f"SELECT {call}", f"SELECT * FROM {call}"):
                tried += 1
                try:
                    answer = pond.sql(statement, limits=LIMITS)
                    assert SECRET not in str(answer.to_arrow().slice(0, 10).to_pydict().get("content")), statement
                    assert not statement.startswith("SELECT * FROM") or name in KNOWN_IN_FROM, statement
                except MillpondError as refused:
                    assert SECRET not in str(refused), statement
                except (OverflowError, ValueError):
                    pass  # a value that Python hasn't
    assert tried > 2000
    assert sorted(str(path) for path in secret.iterdir()) == files
    assert pond.sql("SELECT 1 AS a").rows() == [{"a": 1}]


LIMITS = millpond.SqlLimits(rows=1000, seconds=5)
KNOWN_IN_FROM = {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}


def test_mutated_statements_are_answers_or_errors_of_ours(pond: millpond.Pond, secret: Path) -> None:
    draw = random.Random(7)
    words = [word for statement in STATEMENTS for word in statement.format(f=secret).split()]
    words += [
        "SELECT",
        "*",
        "FROM",
        "long",
        "k",
        "n",
        "(",
        ")",
        ",",
        "WHERE",
        "=",
        "1",
        "'",
        '"',
        "\0",
        "\N{SNOWMAN}",
        "--",
        "/*",
        "$x",
        "?",
        "AT",
    ]
    base = ["SELECT k, n FROM long WHERE k > 5 ORDER BY n LIMIT 3", "SELECT * FROM long a JOIN long b USING (k)"]
    answered = 0
    for _ in range(examples(2000, 200)):
        each = (draw.choice(base) if draw.random() < 0.5 else draw.choice(STATEMENTS).format(f=secret)).split()
        for _ in range(draw.randrange(1, 6)):
            place = draw.randrange(len(each) + 1)
            each[place : place + draw.randrange(3)] = draw.choices(words, k=draw.randrange(3))
        try:
            answer = pond.sql(" ".join(each), limits=LIMITS)
            answered += 1
            assert SECRET not in str(answer.to_arrow().slice(0, 20))
        except MillpondError as refused:
            assert SECRET not in str(refused)
    assert answered
    assert sorted(path.name for path in secret.iterdir()) == ["secret.csv", "secret.duckdb", "secret.json", "secret.parquet"]


@pytest.mark.parametrize(
    ("statement", "limits", "condition"),
    [
        ("SELECT * FROM range(1000000)", {"rows": 1000}, "ANSWER_TOO_LARGE"),
        ("SELECT repeat('x', 100000) FROM range(1000)", {"bytes": 10_000_000}, "ANSWER_TOO_LARGE"),
        (
            "SELECT count(*) FROM (SELECT DISTINCT range, repeat('x', 200) FROM range(9000000))",
            {"memory_bytes": 64 << 20},
            "SQL_OUT_OF_MEMORY",
        ),
        (
            "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE hash(a.range) = b.range",
            {"seconds": 1.0},
            "READ_TOO_LONG",
        ),
        ("WITH RECURSIVE r AS (SELECT 1 x UNION ALL SELECT x + 1 FROM r) SELECT max(x) FROM r", {"seconds": 1.0}, "READ_TOO_LONG"),
        ("EXPLAIN SELECT sum(hash(a.range, b.range)) FROM range(10000000) a, range(10000000) b", {"seconds": 1.0}, "READ_TOO_LONG"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, {}, "INVALID_STATEMENT"),
        ("SELECT " + "1 + " * 24_000 + "1", {}, "INVALID_STATEMENT"),
        ("SELECT '" + "x" * 100_000 + "'", {}, "INVALID_STATEMENT"),
    ],
)
def test_rows_bytes_seconds_and_memory_are_bounded(
    pond: millpond.Pond, statement: str, limits: dict[str, float], condition: str
) -> None:
    began = time.monotonic()
    with pytest.raises(MillpondError) as refused:
        pond.sql(statement, limits=millpond.SqlLimits(**limits))  # type: ignore[arg-type]
    assert refused.value.condition == condition
    assert time.monotonic() - began < 60
    assert pond.sql("SELECT count(*) AS n FROM long").rows()[0]["n"] > 0


def test_names_that_differ_in_case_alone_arent_mixed_up(pond: millpond.Pond) -> None:
    tables = SimpleNamespace(now=lambda name: pond[name.lower()])
    with pytest.raises(MillpondError) as refused:
        run_sql(tables, 'SELECT * FROM long, "LONG"', limits=LIMITS)
    assert refused.value.condition == "INVALID_STATEMENT"
    assert "long and LONG are one name" in refused.value.message
