"""Where a statement ends is where DuckDB says; what is completed are names of the pond's tables and columns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import millpond
from millpond.cli.sql_text import Completer, quoted, split
from millpond.schema.types import Field, atomic
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import examples

COLUMN = 'two "odd" words'
# Parts of statements that are right wherever they stand between SELECT and the end.
VALUES = (
    "1",
    "'a;b'",
    "'it''s;'",
    "E'it\\'s;'",
    '(SELECT "k;" FROM (SELECT 1 AS "k;"))',
    "$$a;b$$",
    "$x$ ; $$ ; $x$",
    "'--'",
    "'/*'",
    "''",
    "'\n;'",
)
GAPS = (" ", "\n", " -- no end; here\n", " /* nor; here */ ", " /* 'a */ ", "\t")


def test_statements_end_where_duckdb_says() -> None:
    duckdb = pytest.importorskip("duckdb")
    draw = random.Random(11)
    for _ in range(examples(2000, 400)):
        columns = [[draw.choice(GAPS) + draw.choice(VALUES) for _ in range(draw.randrange(3))] for _ in range(draw.randrange(1, 4))]
        statements = [f"{draw.choice(GAPS)}SELECT{''.join(f'{value} AS c,' for value in row)} 1" for row in columns]
        text = ";".join(statements) + draw.choice(["", ";", ";;", "; -- the end", ";\n/* the end */"])
        expected = [each.query.strip().rstrip(";").strip() for each in duckdb.extract_statements(text)]
        ended, rest = split(text)
        found = [*ended, *([rest] if rest else [])]
        assert len(found) == len(expected) == len(statements), text
        assert [duckdb.sql(each).fetchall() for each in found] == [duckdb.sql(each).fetchall() for each in expected], text
        assert bool(rest) == (text == ";".join(statements)), text


@pytest.mark.parametrize("begun", ["SELECT 'a;", 'SELECT "a;', "SELECT $$a;", "SELECT /* a;", "SELECT E'a\\';", "SELECT 1 -- ;"])
def test_what_is_open_ends_nothing(begun: str) -> None:
    assert split(begun) == ([], begun)
    assert split(f"SELECT 1;{begun}") == (["SELECT 1"], begun)


@pytest.mark.parametrize("nothing", ["", " \n", ";;", "-- a comment", "/* one */ ; -- and one;"])
def test_comments_alone_are_no_statement(nothing: str) -> None:
    assert split(nothing) == ([], "")


def test_names_are_written_as_duckdb_reads_them() -> None:
    duckdb = pytest.importorskip("duckdb")
    keywords = [word for (word,) in duckdb.sql("SELECT keyword_name FROM duckdb_keywords()").fetchall()]
    assert len(keywords) > 400
    for name in ("page", "Page", "two words", 'a"b', "1st", "é", *keywords, *map(str.upper, keywords)):
        duckdb.sql(f'CREATE OR REPLACE TEMP TABLE "a table" AS SELECT 7 AS {quoted(name)}')
        written = quoted(name)
        found = duckdb.sql(f'SELECT {written}, t.{written} FROM "a table" t WHERE {written} = 7 ORDER BY {written}').fetchall()
        assert found == [(7, 7)], name
    assert quoted("page") == "page"
    assert quoted("at") == '"at"'


@pytest.fixture
def completer(tmp_path: Path) -> Iterator[Completer]:
    job = WrittenCheckpoint(tmp_path / "job", key=(Field("page", atomic("string")),), value=(Field(COLUMN, atomic("long")),))
    job.plan([(("a",), 1)], snapshot=False)
    job.commit()
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        yield Completer(pond)


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("SELECT pa", ["page"]),
        ("SELECT PA", ["page"]),
        ('SELECT "pa', ['"page"']),
        ("SELECT * FROM jo", ['"job.aggregate_0"', "JOIN"]),
        ("SELECT * FROM job.ag", ['"job.aggregate_0"']),
        ('SELECT * FROM "job.ag', ['"job.aggregate_0"']),
        ("SELECT two", ['"two ""odd"" words"']),
        ('SELECT "two', ['"two ""odd"" words"']),
        ('SELECT "two ""o', ['""odd"" words"']),  # readline replaces what follows the last space
        ('SELECT "page", pa', ["page"]),
        ("SELECT t.pa", ["t.page"]),
        ('SELECT "job.aggregate_0".tw', ['"job.aggregate_0"."two ""odd"" words"']),
        ("sel", ["SELECT"]),
        ("SELECT 'pa", []),
        ("SELECT 'it''s pa", []),
        ("SELECT 1 -- pa", []),
        ("SELECT zzz", []),
        (".de", [".describe"]),
        ("  .t", [".tables"]),
        (".describe job.", ["job.aggregate_0"]),
        (".describe ", ["job.aggregate_0"]),
        (".watch SELECT pa", ["page"]),
    ],
)
def test_a_word_becomes_a_name(completer: Completer, before: str, found: list[str]) -> None:
    begin = max(before.rfind(letter) for letter in " \t\n,()=<>") + 1
    assert completer.complete(before, begin) == found
