"""`changes(…)` and `history(…)` in FROM have what the table's own reads have, for any statement over them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.errors import MillpondError
from millpond.schema.types import Field, atomic
from millpond.settings import Retention
from servers.serving import serving
from spark_files.checkpoint import WrittenCheckpoint
from sql.statements import Statements, texts_of
from suite.sizes import examples

duckdb, pa = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")
TABLE = "job.aggregate_0"
KEY = (Field("k", atomic("string")), Field("d", atomic("date")))
BATCHES = 30


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[millpond.Pond]:
    """A table with history: rows of 40 keys that come, change and go in 30 batches."""
    folder, draw = tmp_path_factory.mktemp("past"), random.Random(5)
    job = WrittenCheckpoint(folder / "job", key=KEY)
    with millpond.open(job.path, replica_dir=folder / "home", retention=Retention(history_batches=20), wait_seconds=0) as opened:
        for _ in range(BATCHES):
            keys = {(draw.choice(["a", "b", "c", None, "dd"]), draw.choice([None, 0, 1, 9000])) for _ in range(6)}
            job.plan([(key, None if draw.random() < 0.3 else draw.randrange(100)) for key in keys], snapshot=False)
            job.commit()
            opened.catch_up(20)
        yield opened


def changes_of(pond: millpond.Pond, since: int) -> list[dict[str, Any]]:
    return [
        {
            **change.row,
            "_batch": change.batch,
            "_first_batch": change.first_batch,
            "_kind": change.kind,
            "_repaired": change.repaired,
            "_old": change.old,
        }
        for change in pond[TABLE].changes(since)
    ]


def history_of(pond: millpond.Pond) -> list[dict[str, Any]]:
    return [
        {
            **version.row,
            "_kind": version.kind,
            "_batch": version.batch,
            "_until_batch": version.until_batch,
            "_committed_at": version.committed_ms,
            "_until_at": version.until_ms,
        }
        for version in pond[TABLE].history()
    ]


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Times as milliseconds."""

    def ms(value: Any) -> Any:
        return round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value

    return [{name: ms(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("since", [12, 20, BATCHES - 2, BATCHES - 1])
def test_changes_are_those_of_the_table(pond: millpond.Pond, since: int) -> None:
    expected = changes_of(pond, since)
    assert pond.sql(f"SELECT * FROM changes('{TABLE}', {since})").rows() == expected
    assert pond.sql(f"SELECT * FROM changes('{TABLE}', since => ?)", [since]).rows() == expected
    some = pond.sql(f"SELECT * FROM changes('{TABLE}', $since, $until)", {"since": since, "until": since + 1}).rows()
    assert some == [row for row in expected if row["_batch"] <= since + 1]
    assert bool(expected) == (since < BATCHES - 1)


def test_history_is_that_of_the_table(pond: millpond.Pond) -> None:
    assert plain(pond.sql(f"SELECT * FROM history('{TABLE}')").rows()) == history_of(pond)
    one = pond.sql(f"SELECT * FROM history('{TABLE}') WHERE k = 'a' AND d = DATE '1970-01-01'")
    expected = [row for row in history_of(pond) if (row["k"], str(row["d"])) == ("a", "1970-01-01")]
    assert plain(one.rows()) == expected
    assert [(read.how, read.rows) for read in one.reads] == [("history, get by k, d", len(expected))]
    some = pond.sql(f"SELECT k, d, v FROM history('{TABLE}', since => 15, until => 20)").rows()
    assert some == [version.row for version in pond[TABLE].history(since=15, until=20)]
    moment = pond.sql(f"SELECT max(_committed_at) AS m FROM history('{TABLE}')").rows()[0]["m"].isoformat()
    assert pond.sql(f"SELECT * FROM history('{TABLE}', since => ?)", [moment]).rows()


def test_joins_with_the_table_are_of_one_batch(pond: millpond.Pond) -> None:
    joined = pond.sql(f"""
        SELECT count(*) AS n FROM "{TABLE}" t JOIN history('{TABLE}') h
        ON h.k IS NOT DISTINCT FROM t.k AND h.d IS NOT DISTINCT FROM t.d AND h.v = t.v WHERE h._until_batch IS NULL
    """)
    assert joined.rows() == [{"n": pond[TABLE].count()}]
    assert [cut.position.batch for cut in joined.cuts] == [BATCHES - 1]


@pytest.mark.parametrize("function", ["changes", "history"])
def test_random_statements_equal_duckdbs(pond: millpond.Pond, function: str) -> None:
    call = f"changes('{TABLE}', 10)" if function == "changes" else f"history('{TABLE}')"
    every = pond.sql(f"SELECT * FROM {call}").to_arrow()
    flat = every.drop_columns(["_old"]) if function == "changes" else every
    with duckdb.connect() as oracle:
        oracle.execute("SET GLOBAL TimeZone = 'UTC'")
        oracle.register("every", every)
        oracle.execute("CREATE TABLE past AS SELECT * FROM every").fetchall()
        names = ", ".join(f't."{column}"' for column in flat.column_names)
        draw = Statements("past", flat, seed=3)
        for _ in range(examples(160, 40)):
            text, values = draw.next()
            text = text.replace("SELECT *", f"SELECT {names}", 1)
            expected = oracle.cursor().sql(text, params=values).to_arrow_table()
            answer = pond.sql(text.replace('"past"', call), values or None).to_arrow()
            assert sorted(texts_of(answer)) == sorted(texts_of(expected)), text


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("SELECT * FROM changes('{t}', 2)", "HISTORY_GONE"),
        ("SELECT * FROM history('{t}', since => 2)", "HISTORY_GONE"),
        ("SELECT * FROM changes('nope', 2)", "UNKNOWN_TABLE"),
        ("SELECT * FROM changes('{t}')", "INVALID_STATEMENT"),
        ("SELECT * FROM changes()", "INVALID_STATEMENT"),
        ("SELECT * FROM changes({t2}, 20)", "INVALID_STATEMENT"),
        ("SELECT * FROM changes('{t}', 20, 21, 22)", "INVALID_STATEMENT"),
        ("SELECT * FROM changes('{t}', -1)", "WRONG_TYPE"),
        ("SELECT * FROM changes('{t}', since => 20, since => 21)", "INVALID_STATEMENT"),
        ("SELECT * FROM changes('{t}', nope => 20)", "INVALID_STATEMENT"),
        ("SELECT * FROM changes('{t}', (SELECT 1))", "INVALID_STATEMENT"),
        ("SELECT * FROM history('{t}', 1.5)", "WRONG_TYPE"),
        ("SELECT * FROM history('{t}') WITH ORDINALITY", "INVALID_STATEMENT"),
        ("SELECT changes('{t}', 20)", "INVALID_STATEMENT"),
        ("SELECT * FROM history('{t}', since => ?)", "INVALID_STATEMENT"),
    ],
)
def test_what_isnt_kept_or_isnt_a_call_is_a_typed_error(pond: millpond.Pond, statement: str, condition: str) -> None:
    with pytest.raises(MillpondError) as refused:
        pond.sql(statement.format(t=TABLE, t2=f'"{TABLE}"'))
    assert refused.value.condition == condition, refused.value
    assert refused.value.hint


@pytest.mark.long
def test_a_table_without_history_says_so_and_a_token_holds_for_functions(types_pond: Path, door_home: Path, tmp_path: Path) -> None:
    with millpond.open(types_pond, replica_dir=door_home) as pond:
        for call in ("changes('long', 0)", "history('long')"):
            with pytest.raises(MillpondError) as refused:
                pond.sql(f"SELECT * FROM {call}")
            assert refused.value.condition == "HISTORY_GONE"
    tokens = tmp_path / "readers.json"
    from click.testing import CliRunner

    from millpond.cli import main

    made = CliRunner().invoke(main, ["token", str(tokens), "some", "--tables", "string"])
    with serving(types_pond, "--tokens", str(tokens), home=door_home) as (url, _):
        head = {"authorization": f"Bearer {made.stdout.split()[-1]}"}
        asked = {"statement": "SELECT * FROM changes('long', 0)"}
        assert httpx.post(f"{url}/sql", json=asked, headers=head, timeout=60).json()["error"]["condition"] == "NOT_ALLOWED"
