"""The clients of a server, and `millpond sql` against one, answer as a local pond does."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.tables.sql.reading.scan import check_names
from servers.serving import serving
from spark_files.checkpoint import WrittenCheckpoint
from sql.statements import Statements, texts_of
from sql.test_doors import run
from suite.sizes import examples

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
TABLE = "job.aggregate_0"


@pytest.fixture(scope="module")
def url(types_pond: Path, door_home: Path) -> Iterator[str]:
    with serving(types_pond, home=door_home) as (address, _):
        yield address


@pytest.fixture(scope="module")
def pond(types_pond: Path, door_home: Path, url: str) -> Iterator[millpond.Pond]:
    assert url
    with millpond.open(types_pond, replica_dir=door_home) as opened:
        yield opened


def test_random_statements_have_the_answers_of_a_local_pond(url: str, pond: millpond.Pond) -> None:
    draw, asked = random.Random(2), 0
    with millpond.connect(url) as server:
        for name in draw.sample(pond.tables(), examples(6, 3, one_of=2)):
            try:
                rows = pond[name].to_arrow()
                check_names(pond[name].definition)
                rows.validate(full=True)
            except (MillpondError, pa.ArrowInvalid):
                continue
            statements = Statements(name, rows, seed=7)
            for _ in range(examples(40, 10)):
                text, values = statements.next()
                if any(not isinstance(value, str | int | float | None) for value in values):
                    continue
                try:
                    ours = pond.sql(text, values)
                except MillpondError as refused:
                    with pytest.raises(MillpondError) as far:
                        server.sql(text, values)
                    assert far.value.condition == refused.condition
                    continue
                answer = server.sql(text, values)
                assert sorted(texts_of(answer.to_arrow())) == sorted(texts_of(ours.to_arrow())), text
                assert answer.to_arrow().schema == ours.to_arrow().schema
                assert [(cut.job, cut.position.batch, cut.position.offsets) for cut in answer.cuts] == [
                    (cut.job, cut.position.batch, cut.position.offsets) for cut in ours.cuts
                ]
                asked += 1
    assert asked > 10


def test_an_answer_has_rows_batch_and_reads(url: str, pond: millpond.Pond) -> None:
    text = "SELECT k, n FROM long WHERE k > $least ORDER BY k"
    expected = pond.sql(text, {"least": 0})
    with millpond.connect(url) as server:
        answer = server.sql(text, {"least": 0}, bounds=millpond.Bounds(min_batch=0))
        assert (answer.rows(), answer.batch) == (expected.rows(), expected.batch)
        assert [(read.table, read.how, read.rows) for read in answer.reads] == [("long", "range by k", len(expected))]
        assert server.sql("EXPLAIN " + text, {"least": 0}).rows()[0]["plan"].startswith("long: range by k, columns k, n")
        with pytest.raises(MillpondError) as refused:
            server.sql("SELECT nope FROM long")
        assert refused.value.condition == "INVALID_STATEMENT"
        for value in (dt.date(2026, 3, 1), Decimal(1), b"x", [dt.date(2026, 3, 1)]):
            with pytest.raises(MillpondError) as refused:
                server.sql("SELECT ?", [value])
            assert refused.value.condition == "WRONG_TYPE"
        with pytest.raises(MillpondError) as refused:
            server.sql("SELECT 1 FROM long", bounds=millpond.Bounds(min_batch=10_000, wait_seconds=0.1))
        assert refused.value.condition == "NOT_UP_TO_BOUND"

    async def ask() -> list[dict[str, Any]]:
        async with millpond.connect_async(url) as server:
            found = await asyncio.gather(*(server.sql(text, {"least": 0}) for _ in range(6)))
            assert all(each.rows() == found[0].rows() for each in found)
            return found[0].rows()

    assert asyncio.run(ask()) == expected.rows()


def test_a_large_answer_comes_whole(url: str) -> None:
    with millpond.connect(url) as server:
        answer = server.sql("SELECT range AS n, repeat('x', 300) AS x FROM range(90000)")
        assert answer.to_arrow()["n"].to_pylist() == list(range(90_000))
        assert answer.cuts == answer.reads == ()


@pytest.mark.long
def test_at_reads_all_tables_as_of_a_batch(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    with serving(job.path, "--history", f"{TABLE}=10", home=tmp_path / "home") as (address, _), millpond.connect(address) as server:
        for n in range(5):
            job.plan([("a", n)], snapshot=False)
            job.commit()
            server.wait_for_table(TABLE)
            server[TABLE].get(k="a", bounds=millpond.Bounds(min_batch=n, wait_seconds=20))
        text = f'SELECT t.v, (SELECT max(v) FROM "{TABLE}") AS w FROM "{TABLE}" t'
        for n in range(1, 5):
            answer = server.sql(text, at=n)
            assert (answer.rows(), answer.batch) == ([{"v": n, "w": n}], n)
        assert server.sql(text).batch == 4
        mixed = server.sql(f'SELECT t.v, u.v AS w FROM "{TABLE}" t, "{TABLE}" AS u AT (VERSION => 2)', at=3)
        assert mixed.rows() == [{"v": 3, "w": 2}]
        for wrong, condition in (({"at": 99}, "NOT_UP_TO_BOUND"), ({"at": "soon"}, "WRONG_TYPE")):
            with pytest.raises(MillpondError) as refused:
                server.sql(text, **wrong)  # type: ignore[arg-type]
            assert refused.value.condition == condition
        with pytest.raises(MillpondError) as refused:
            server.sql(f"SELECT * FROM changes('{TABLE}', 2)", at=3)
        assert refused.value.condition == "INVALID_STATEMENT"
        assert [row["v"] for row in server.sql(f"SELECT v FROM changes('{TABLE}', 2)")] == [3, 4]
        shown = run(tmp_path / "other", address, text, "--batch", "2")
        assert shown.stdout == "v\tw\n2\t2\n", shown.stderr


@pytest.mark.long
def test_the_command_and_the_prompt_ask_a_server(url: str, tmp_path: Path) -> None:
    shown = run(tmp_path, url, "SELECT k FROM long WHERE k = 9007199254740991")
    assert shown.stdout == "k\n9007199254740991\n", shown.stderr
    assert "batch" in shown.stderr
    plan = run(tmp_path, url, "EXPLAIN SELECT n FROM long WHERE k IN (1, 2, 3)")
    assert plan.stdout.splitlines()[0] == "long: 3 gets by k, columns k, n"
    refused = run(tmp_path, url, "SELECT 1", "--limit", "5")
    assert (refused.returncode, "INVALID_REQUEST" in refused.stderr) == (2, True)
    prompt = run(tmp_path, url, stdin=".tables\n.describe long\nSELECT nope FROM long;\nSELECT 1 AS a;\n.quit\n")
    assert "long\tlong" in prompt.stdout
    assert "k\tbigint\tkey" in prompt.stdout
    assert prompt.stdout.endswith("a\n1\n"), prompt.stderr
    assert "INVALID_STATEMENT" in prompt.stderr
