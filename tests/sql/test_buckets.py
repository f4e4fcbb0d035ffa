"""`total(…)` and `series(…)` in FROM have what the table's own reads have, for each group and any statement over them."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.settings import Retention
from millpond.tables.buckets import rows as bucket_rows
from millpond.tables.buckets.answer import Total
from servers.ports import free_port
from servers.serving import serving
from spark_files.golden import GOLDEN
from sql.statements import Statements, texts_of
from suite.sizes import examples

duckdb, pa = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")
TABLE = "views"
# Buckets of a minute are there from here on, and events up to there.
MINUTES_FROM, END = dt.datetime(2026, 3, 7, 20, 59, tzinfo=dt.UTC), dt.datetime(2026, 3, 9, tzinfo=dt.UTC)
STEPS = ("1 minute", "5 minutes", "1 hour", "1 day", "1 month")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("buckets"))


@pytest.fixture(scope="module")
def pond(place: Path) -> Iterator[millpond.Pond]:
    """Followed from its first batch on, so that its history is kept."""
    later = hide_commits(place)
    with opened(place) as pond:
        for commit, data in later.items():
            pond[TABLE].count()
            show(commit, data)
            pond.catch_up(60)
        yield pond


def copied(folder: Path) -> Path:
    shutil.copytree(GOLDEN / "merged", folder / "pond")
    return folder / "pond"


def opened(place: Path) -> millpond.Pond:
    return millpond.open(place, replica_dir=place.parent / "home", retention=Retention(history_batches=None), wait_seconds=60)


def hide_commits(place: Path) -> dict[Path, bytes]:
    """Make the first batch the newest one; returns the commits of the others."""
    commits = place / "jobs" / TABLE / "checkpoint" / "commits"
    later = {commit: commit.read_bytes() for commit in sorted(commits.iterdir()) if commit.name != "0"}
    for commit in later:
        commit.unlink()
    return later


def show(commit: Path, data: bytes) -> None:
    """Write a commit, whole at once as Spark does."""
    written = commit.with_name(f".{commit.name}.tmp")
    written.write_bytes(data)
    written.rename(commit)


def pages(pond: millpond.Pond) -> list[str]:
    return sorted({row["page"] for row in pond[TABLE].scan()})


def span(draw: random.Random) -> dict[str, str]:
    """Any span, with both ends, one of them, or none."""
    since = MINUTES_FROM + dt.timedelta(seconds=draw.choice((-4, -1, 0, 0.5, 1)) * 86_400 * draw.random())
    until = since + (END - since) * draw.choice((1.2, 1, 0.5, 0.1)) * draw.random()
    words = {"since": since.isoformat(), "until": until.isoformat()}
    return {name: words[name] for name in draw.sample(sorted(words), draw.randrange(3))}


def call_of(function: str, named: dict[str, str]) -> str:
    words = [f"'{TABLE}'", *(f"{name} => '{value}'" for name, value in named.items())]
    return f"{function}({', '.join(words)})"


def row_of(found: Total) -> dict[str, Any]:
    limits = {name: found.estimates[name]._asdict() for name in sorted(found.estimates)}
    return {**found, "_since": found.since, "_until": found.until, "_estimates": limits}


def said(read: Callable[[], list[dict[str, Any]]]) -> Any:
    """The rows as texts, since NaN equals NaN, or why there are none."""
    try:
        rows = read()
    except MillpondError as refused:
        return refused.condition, refused.message
    return [{name: repr(plain(row[name])) for name in sorted(row)} for row in rows]


def plain(value: Any) -> Any:
    """Times without the name of UTC, structs with their members in order."""
    if isinstance(value, dt.datetime):
        return value.timestamp() if value.tzinfo else str(value)
    if isinstance(value, dict):  # an estimate of which nothing is known is NULL in SQL, and not there in Python
        return {name: plain(each) for name, each in sorted(value.items()) if each is not None or name == "item"}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def totals_of(table: Any, pages: list[str], named: dict[str, str]) -> list[dict[str, Any]]:
    found = [table.total(page=page, **named) for page in pages]
    return [{**row_of(each), "_used": [used._asdict() for used in each.used]} for each in found if each]


def series_of(table: Any, pages: list[str], named: dict[str, str]) -> list[dict[str, Any]]:
    return [row_of(each) for page in pages for each in table.series(page=page, **named)]


@pytest.mark.parametrize("seed", range(examples(8, 1)))
def test_every_group_has_the_total_and_the_series_of_the_table(
    pond: millpond.Pond, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, every, refused = random.Random(seed), pages(pond), set[str]()
    for _ in range(30):
        monkeypatch.setattr(bucket_rows, "_FEW_BYTES", draw.choice((1, 1 << 14, 1 << 30)))  # by ranges, both, in memory
        batch = draw.choice((None, None, 1, 3, 4))
        table = pond[TABLE] if batch is None else pond[TABLE].at(batch=batch)
        named = span(draw)
        for function, of, more in (("total", totals_of, {}), ("series", series_of, {"step": draw.choice(STEPS)})):
            asked = {**more, **named}
            answer = said(lambda: pond.sql(f"SELECT * FROM {call_of(function, asked)}", at=batch).rows())  # noqa: B023
            expected = said(lambda: of(table, every, asked))  # noqa: B023
            assert answer == expected, (batch, function, asked)
            refused |= {answer[0]} if isinstance(answer, tuple) else {"rows"} if answer else {"none"}
    assert refused >= {"rows", "HISTORY_GONE"}, refused


@pytest.mark.parametrize("call", [f"total('{TABLE}')", f"series('{TABLE}', '1 hour')"])
def test_random_statements_equal_duckdbs(pond: millpond.Pond, call: str) -> None:
    every = pond.sql(f"SELECT * FROM {call}").to_arrow()
    assert every.num_rows > 7
    with duckdb.connect() as oracle:
        oracle.execute("SET GLOBAL TimeZone = 'UTC'")
        oracle.register("every", every)
        oracle.execute("CREATE TABLE buckets AS SELECT * FROM every").fetchall()
        draw = Statements("buckets", every, seed=3)
        for _ in range(examples(160, 20)):
            text, values = draw.next()
            expected = oracle.cursor().sql(text, params=values).to_arrow_table()
            answer = pond.sql(text.replace('"buckets"', call), values or None).to_arrow()
            assert sorted(texts_of(answer)) == sorted(texts_of(expected)), text


def test_conditions_on_the_group_choose_which_groups_are_read(pond: millpond.Pond) -> None:
    for where, how, rows in (
        ("page = '/'", "total, range by page", 1),
        ("page IN ('/', '/a', '/nobody')", "total, 3 ranges by page", 2),
        ("page > '/only-1' AND page <= '/only-3'", "total, range by page", 3),
        ("c0 > 3", "total, scan", 8),
    ):
        answer = pond.sql(f"SELECT page, c0 FROM total('{TABLE}') WHERE {where}")
        assert [(read.how, read.rows) for read in answer.reads] == [(how, rows)], where
    limited = pond.sql(f"SELECT page FROM series('{TABLE}', '1 day') WHERE page = '/' AND bucket_start >= '2026-03-07'")
    assert [read.how for read in limited.reads] == ["series, range by page"]
    assert limited.to_arrow().num_rows == 2


def test_parameters_name_the_span(pond: millpond.Pond) -> None:
    since = dt.datetime(2026, 3, 7, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    answer = pond.sql(f"SELECT bucket_start, c0 FROM series('{TABLE}', ?, since => ?) WHERE page = ?", ["1 hour", since, "/"])
    found = pond[TABLE].series(page="/", step="1 hour", since=since)
    assert said(answer.rows) == said(lambda: [{name: row[name] for name in ("bucket_start", "c0")} for row in found])
    assert found


def test_one_statement_reads_buckets_and_tables_at_one_batch(pond: millpond.Pond) -> None:
    joined = pond.sql(f"""
        SELECT t.page, any_value(t.c0) AS hits, sum(v.c0) AS same FROM total('{TABLE}') t JOIN {TABLE} v USING (page)
        WHERE v.resolution = '1 day' AND v.dead_letter IS NULL GROUP BY ALL
    """)
    assert [row["hits"] for row in joined.rows()] == [row["same"] for row in joined.rows()]
    assert len(joined.rows()) == len(pages(pond))
    assert len(joined.cuts) == 1
    two = pond.sql(f"SELECT t.c0 AS hits, s.c0 AS same FROM total('{TABLE}') t JOIN salted s USING (page)", separate=True)
    assert [row["hits"] for row in two.rows()] == [row["same"] for row in two.rows()]
    assert len(two.cuts) == 2
    summed = pond.sql(f"SELECT sum(c0) AS hits FROM {TABLE} WHERE resolution = '1 day' AND dead_letter IS NULL", at=2)
    assert pond.sql(f"SELECT sum(c0) AS hits FROM total('{TABLE}')", at=2).rows() == summed.rows()
    assert pond.sql(f"SELECT sum(c0) AS hits FROM total('{TABLE}')").rows() != summed.rows()


def test_a_subscription_shows_how_totals_change(tmp_path: Path) -> None:
    place = copied(tmp_path)
    later = hide_commits(place)
    statement = f"SELECT page, c0 AS hits FROM total('{TABLE}', since => '2026-03-01T00:00Z')"
    with opened(place) as pond:
        hits = {row["page"]: row["hits"] for row in pond.sql(statement).rows()}
        changes = iter(pond.subscribe(statement, key=["page"]))
        assert {change.new["page"]: change.new["hits"] for change in next(changes) if change.new} == hits
        show(*next(iter(later.items())))
        changed = next(changes)
        assert changed
        for change in changed:
            assert change.new is not None
            assert (change.old or {"hits": None})["hits"] == hits.get(change.new["page"])
            hits[change.new["page"]] = change.new["hits"]
        assert {row["page"]: row["hits"] for row in pond.sql(statement).rows()} == hits


def test_every_door_has_the_same_rows(pond: millpond.Pond, place: Path) -> None:
    psycopg = pytest.importorskip("psycopg")
    dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")
    statement = f"""
        SELECT page, bucket_start, c0, _estimates.c53.upper AS most
        FROM series('{TABLE}', '1 hour', since => '2026-03-07T00:00Z') ORDER BY ALL
    """
    rows = pond.sql(statement).rows()
    assert len(rows) > 20
    ports = {name: free_port() for name in ("postgres", "flight")}
    options = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
    with serving(place, *options, home=place.parent / "served") as (url, _), millpond.connect(url) as server:
        assert said(server.sql(statement).rows) == said(lambda: rows)
        with psycopg.connect(f"postgresql://reader@127.0.0.1:{ports['postgres']}/pond", autocommit=True) as client:
            client.execute("SET TimeZone = 'UTC'")
            names = list(rows[0])
            assert said(lambda: [dict(zip(names, row, strict=True)) for row in client.execute(statement)]) == said(lambda: rows)
            since = f"SELECT sum(c0) FROM total('{TABLE}', since => %s)"
            expected = pond.sql(since.replace("%s", "?"), ["2026-03-07T00:00Z"]).rows()[0]
            assert client.execute(since, ["2026-03-07T00:00Z"]).fetchall() == [tuple(expected.values())]
            assert client.execute(since, [dt.datetime(2026, 3, 7, tzinfo=dt.UTC)]).fetchall() == [tuple(expected.values())]
        with dbapi.connect(f"grpc://127.0.0.1:{ports['flight']}", autocommit=True) as flight, flight.cursor() as cursor:
            cursor.execute(statement)
            assert said(cursor.fetch_arrow_table().to_pylist) == said(lambda: rows)
            assert cursor.adbc_execute_schema(statement).names == list(rows[0])
            prepared = cursor.adbc_prepare(f"SELECT c0 FROM series('{TABLE}', ?, since => ?) WHERE page = ? LIMIT ?")
            assert [str(field.type) for field in prepared] == ["string", "string", "string", "int64"]
        with pytest.raises(MillpondError) as refused:
            server.sql(f"SELECT * FROM series('{TABLE}', '1 minute', since => '2026-03-01T00:00Z')")
        assert refused.value.condition == "HISTORY_GONE"


@pytest.mark.parametrize(
    ("call", "condition"),
    [
        ("total()", "INVALID_STATEMENT"),
        ("total({t})", "INVALID_STATEMENT"),
        ("total('nothing')", "UNKNOWN_TABLE"),
        ("total('salted')", "INVALID_REQUEST"),
        ("total('{t}', 41)", "INVALID_STATEMENT"),
        ("total('{t}', since => true)", "WRONG_TYPE"),
        ("total('{t}', 'noon')", "WRONG_TYPE"),
        ("total('{t}', '2026-03-07T00:00Z', '2026-03-07T00:00Z')", "INVALID_RANGE"),
        ("total('{t}', step => '1 hour')", "INVALID_STATEMENT"),
        ("total('{t}', '2026-03-07T00:00Z', since => '2026-03-07T00:00Z')", "INVALID_STATEMENT"),
        ("series('{t}')", "INVALID_STATEMENT"),
        ("series('{t}', 1)", "INVALID_STATEMENT"),
        ("series('{t}', '1 second')", "INVALID_REQUEST"),
        ("series('{t}', 'soon')", "INVALID_REQUEST"),
        ("series('{t}', '1 minute', '2026-03-01T00:00Z')", "HISTORY_GONE"),
        ("series('{t}', '1 day') WITH ORDINALITY", "INVALID_STATEMENT"),
    ],
)
def test_what_isnt_a_call_is_a_typed_error(pond: millpond.Pond, call: str, condition: str) -> None:
    with pytest.raises(MillpondError) as refused:
        pond.sql(f"SELECT * FROM {call.format(t=TABLE)}")
    assert refused.value.condition == condition, refused.value
    assert refused.value.hint
