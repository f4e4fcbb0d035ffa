"""Ranges, windows, both directions and pages, compared with a sorted list."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from functools import cmp_to_key
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from conftest import GoldenCell
from millpond.errors import MillpondError
from millpond.schema.convert import to_python
from millpond.schema.types import Field, SparkType, atomic, struct_of
from millpond.settings import ReplicaSettings, Retention
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import GOLDEN
from suite.sizes import a_few, examples
from suite.waiting import wait_until

TABLE = "ck.aggregate_0"
WINDOW = struct_of((Field("start", atomic("timestamp")), Field("end", atomic("timestamp"))))
PAIR = struct_of((Field("a", atomic("integer")), Field("b", atomic("string"))))
SECOND = 1_000_000
TEXTS = st.one_of(
    st.text("ab\0\xff", max_size=3), st.integers(490, 520).flatmap(lambda n: st.sampled_from(["z" * n, "z" * n + "a"]))
)
NUMBERS = st.integers(-3, 3)
TIMES = st.integers(-3, 3).map(lambda n: n * SECOND)
# Name -> the key columns, and a strategy for keys in stored form.
KEYS: dict[str, tuple[tuple[Field, ...], st.SearchStrategy[tuple[Any, ...]]]] = {
    "text, number": (
        (Field("k", atomic("string")), Field("n", atomic("integer"))),
        st.tuples(st.one_of(st.none(), TEXTS), st.one_of(st.none(), NUMBERS)),
    ),
    "window, text": (
        (Field("window", WINDOW, window=True), Field("k", atomic("string"))),
        st.tuples(TIMES.map(lambda t: (t, t + 5 * SECOND)), TEXTS),
    ),
    "decimal, date": (
        (Field("d", atomic("decimal(18,4)")), Field("day", atomic("date"))),
        st.tuples(NUMBERS.map(lambda n: Decimal(n * 12345).scaleb(-4)), st.one_of(st.none(), NUMBERS)),
    ),
    "struct, double": (
        (Field("pair", PAIR), Field("x", atomic("double"))),
        st.tuples(st.one_of(st.none(), st.tuples(NUMBERS, st.text("ab", max_size=2))), NUMBERS.map(float)),
    ),
    "binary": ((Field("b", atomic("binary")),), st.tuples(st.binary(max_size=3))),
}


def compare(left: Any, right: Any) -> int:
    """Spark's order: NULL first, text by its UTF-8 bytes, structs member by member; a shorter tuple before a longer."""
    if left is None or right is None:
        return (left is not None) - (right is not None)
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    if isinstance(left, tuple):
        for a, b in zip(left, right, strict=False):
            if found := compare(a, b):
                return found
        return (len(left) > len(right)) - (len(left) < len(right))
    return (left > right) - (left < right)


class Keys:
    """The keys of a table as the oracle sorts them: flat tuples in key order, in stored form."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        times = [i for i, f in enumerate(fields) if f.type.is_time]
        self._order = [i for i in range(len(fields)) if i not in times] + times
        self.columns: list[tuple[str, SparkType]] = []
        for i in self._order:
            window = fields[i].type is WINDOW
            self.columns += (
                [(f"{fields[i].name}_{m.name}", m.type) for m in WINDOW.fields] if window else [(fields[i].name, fields[i].type)]
            )
        self._windows = {i for i, f in enumerate(fields) if f.type is WINDOW}

    def flat(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            itertools.chain.from_iterable(key[i] if i in self._windows else (key[i],) for i in self._order),
        )

    def shown(self, flat: tuple[Any, ...]) -> dict[str, Any]:
        """The values, or the first of them, as Python programs pass them."""
        return {name: to_python(type_)(value) for (name, type_), value in zip(self.columns, flat, strict=False)}


@pytest.mark.parametrize("home", ["memory://", "disk"])
@pytest.mark.parametrize("name", a_few(KEYS, 3))
@given(data=st.data())
@settings(max_examples=examples(25), deadline=None)
def test_a_range_is_a_slice_of_the_sorted_keys(home: str, name: str, data: st.DataObject) -> None:
    fields, strategy = KEYS[name]
    drawn = data.draw(st.lists(strategy, unique=True, max_size=12))
    keys = Keys(fields)
    in_order = cmp_to_key(compare)
    flat = sorted((keys.flat(key) for key in drawn), key=in_order)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = WrittenCheckpoint(Path(folder) / "ck", key=fields)
        checkpoint.plan([(key, i) for i, key in enumerate(drawn)], snapshot=False)
        checkpoint.commit()
        with millpond.open(checkpoint.path, replica_dir=home if home == "memory://" else Path(folder) / "home") as pond:
            table = pond[TABLE]
            assert table.key_order == tuple(name for name, _ in keys.columns)

            def read(rows: millpond.Rows) -> list[dict[str, Any]]:
                return [{name: row[name] for name, _ in keys.columns} for row in rows]

            assert read(table.scan()) == [keys.shown(f) for f in flat]
            assert read(table.scan(reverse=True)) == [keys.shown(f) for f in reversed(flat)]
            for _ in range(4):
                # Limits are parts of existing keys, or near them; the read fixes the columns before them.
                fixed = data.draw(st.integers(0, len(keys.columns) - 1))
                near = st.one_of(st.sampled_from(flat), strategy.map(keys.flat)) if flat else strategy.map(keys.flat)
                prefix = data.draw(near)[:fixed]
                limits: list[tuple[Any, ...] | None] = []
                for _ in ("start", "end"):
                    length = data.draw(st.sampled_from([0, *range(fixed + 1, len(keys.columns) + 1)]))
                    limits.append((*prefix, *data.draw(near)[fixed:length]) if length else None)
                start, end = limits
                reverse = data.draw(st.booleans())
                expected = [
                    keys.shown(f)
                    for f in flat
                    if compare(f[:fixed], prefix) == 0
                    and (start is None or compare(f, start) >= 0)
                    and (end is None or compare(f, end) < 0)
                ]
                names = [name for name, _ in keys.columns]
                question: dict[str, Any] = {"reverse": reverse}
                for limit_name, limit in (("start", start), ("end", end)):
                    if limit is not None:
                        question[limit_name] = {n: v for n, v in keys.shown(limit).items() if n in names[fixed:]}
                found = table.range(keys.shown(prefix), **question)
                assert read(found) == (expected[::-1] if reverse else expected)
                assert found.token is None
                size = data.draw(st.integers(1, 4))
                assert list(pages(table.range, keys.shown(prefix), limit=size, **question)) == list(found)


def pages(read: Callable[..., millpond.Rows], *key: Any, limit: int, **question: Any) -> list[millpond.Row]:
    """All rows of a read, page by page."""
    rows: list[millpond.Row] = []
    page = read(*key, limit=limit, **question)
    while True:
        assert len(page) == limit if page.more else len(page) <= limit
        assert page.more is (page.token is not None)
        rows += page
        if not page.more:
            return rows
        page = read(*key, limit=limit, token=page.token, **question)


# ---------------------------------------------------------------- tables of every operator


@pytest.mark.long
@pytest.mark.parametrize("cell", sorted(p.name for p in (GOLDEN / "spark-4.3").iterdir() if (p / "checkpoint").is_dir()))
def test_pages_and_reversed_scans_of_every_operator_have_the_rows_of_a_scan(
    cell: str, golden: Callable[[str], GoldenCell], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether a row has expired depends on when its batch was planned, not on the clock.
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    copy = golden(f"spark-4.3/{cell}")
    seen = 0
    with millpond.open(copy.checkpoint, replica_dir="memory://") as pond:
        for name in pond.tables():
            table = pond[name]
            rows = table.scan()
            seen += len(rows)
            assert table.scan(reverse=True) == rows[::-1]
            assert pages(table.scan, limit=3) == rows
            assert pages(table.scan, limit=2, reverse=True) == rows[::-1]
            assert table.count() == len(rows)
            for row in rows[:5]:
                key = {c.name: row[c.name] for c in table.definition.key}
                assert table.get(key) == row
                if not all(c.type.is_ordered for c in table.definition.key) or not key:
                    continue
                before, after = table.range(end=key), table.range(start=key)
                assert [*before, *after] == rows
                assert after[0] == row
                assert list(table.range(start=key, reverse=True)) == after[::-1]
    assert seen or "empty" in cell


# ---------------------------------------------------------------- windows


@pytest.fixture
def windows(tmp_path: Path) -> millpond.Pond:
    fields = (Field("window", WINDOW, window=True), Field("url", atomic("string")))
    checkpoint = WrittenCheckpoint(tmp_path / "ck", key=fields)
    keys = [((n * 60 * SECOND, (n + 1) * 60 * SECOND), url) for n in range(10) for url in ("/", "/a", "/b")]
    checkpoint.plan([(key, i) for i, key in enumerate(keys)], snapshot=False)
    checkpoint.commit()
    return millpond.open(checkpoint.path, replica_dir="memory://")


def minute(n: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, 0, n, tzinfo=dt.UTC)


def test_windows_of_a_key_between_two_times(windows: millpond.Pond) -> None:
    table = windows[TABLE]
    with windows:
        found = table.windows(url="/a", since=minute(3), until=minute(6))
        assert [(row["url"], row["window_start"]) for row in found] == [("/a", minute(n)) for n in (3, 4, 5)]
        assert table.windows(url="/a", since="1970-01-01T00:03:00Z", until="1970-01-01T00:06:00Z") == found
        assert table.windows(url="/a", since=minute(3), until=minute(6), reverse=True) == found[::-1]
        assert len(table.windows(url="/a", since=minute(8))) == 2
        assert len(table.windows(url="/a", until=minute(8))) == 8
        assert len(table.windows(url="/a")) == 10
        assert table.windows(url="/c") == []
        # A time with a UTC offset names the same instant.
        assert table.windows(url="/a", since="1970-01-01T01:03:00+01:00", until="1970-01-01T00:06:00Z") == found


def test_a_key_without_times_has_no_windows(tmp_path: Path) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    checkpoint.plan([("a", 1)], snapshot=False)
    checkpoint.commit()
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond, pytest.raises(MillpondError) as raised:
        pond[TABLE].windows(k="a", since=minute(1))
    assert raised.value.condition == "NO_WINDOW"


@pytest.mark.parametrize(
    ("question", "condition"),
    [
        ({"since": 5, "url": "/"}, "WRONG_TYPE"),
        ({"since": "yesterday", "url": "/"}, "WRONG_TYPE"),
        ({"since": dt.datetime(1970, 1, 1), "url": "/"}, "WRONG_TYPE"),  # a time without a zone
        ({"since": "1970-01-01T00:00:00Z"}, "KEY_MISSING"),
        ({"url": "/", "host": "a"}, "UNKNOWN_COLUMN"),
        ({"url": "/", "window_start": minute(1), "window_end": minute(2)}, "NO_WINDOW"),
    ],
)
def test_windows_that_cant_be_asked_for(question: dict[str, Any], condition: str, windows: millpond.Pond) -> None:
    with windows, pytest.raises(MillpondError) as raised:
        windows[TABLE].windows(**question)
    assert raised.value.condition == condition


@pytest.mark.parametrize(
    ("key", "question", "condition"),
    [
        ({}, {"start": {"window_start": minute(1)}}, "INVALID_RANGE"),  # url comes earlier in the key
        ({"window_start": minute(1)}, {}, "INVALID_RANGE"),
        ({"url": "/"}, {"start": {"url": "/a"}}, "INVALID_RANGE"),
        ({"url": "/"}, {"end": {"window_end": minute(1)}}, "INVALID_RANGE"),
        ({}, {"start": {"v": 1}}, "NOT_A_KEY_COLUMN"),
        ({}, {"end": {"nobody": 1}}, "UNKNOWN_COLUMN"),
        ({}, {"end": {"url": 1}}, "WRONG_TYPE"),
        ({}, {"limit": 0}, "INVALID_LIMIT"),
    ],
)
def test_ranges_that_cant_be_asked_for(key: Any, question: dict[str, Any], condition: str, windows: millpond.Pond) -> None:
    with windows, pytest.raises(MillpondError) as raised:
        windows[TABLE].range(key, **question)
    assert raised.value.condition == condition
    if condition == "INVALID_RANGE" and "url" not in key:
        assert raised.value.context["key_order"] == ["url", "window_start", "window_end"]


def test_a_range_over_a_type_without_order_is_refused(tmp_path: Path) -> None:
    interval = (Field("i", SparkType("calendar_interval", "interval")),)
    checkpoint = WrittenCheckpoint(tmp_path / "ck", key=interval)
    checkpoint.plan([(((1, 2, 3),), 1)], snapshot=False)
    checkpoint.commit()
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond, pytest.raises(MillpondError) as raised:
        pond[TABLE].range(start={"i": (1, 2, 3)})
    assert raised.value.condition in ("INVALID_RANGE", "WRONG_TYPE")


# ---------------------------------------------------------------- pages while batches are applied


@pytest.fixture(params=["memory://", "disk"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory://" else str(tmp_path / "home")


def advance(checkpoint: WrittenCheckpoint, changes: list[tuple[Any, int | None]]) -> None:
    checkpoint.plan(changes, snapshot=False)
    checkpoint.commit()


def test_pages_of_a_scan_are_of_one_batch_while_newer_ones_are_applied(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    keys = [f"k{n:03}" for n in range(40)]
    advance(checkpoint, [(k, 0) for k in keys])
    with millpond.open(checkpoint.path, replica_dir=home) as pond:
        table = pond[TABLE]
        page, other = table.scan(limit=3), table.scan(limit=7, reverse=True)
        forward, backward = list(page), list(other)
        for n in range(1, 12):
            # Each batch changes every row, removes one that no page had yet, and adds others.
            advance(checkpoint, [*((k, n) for k in keys), (keys[39 - n], None), (f"k{n:03}x", n)])
            pond.catch_up(60)
            page = table.scan(limit=3, token=page.token)
            assert page.batch == 0
            assert page.lag.behind_batches in (0, n)
            forward += page
            if other.more:
                other = table.scan(limit=7, reverse=True, token=other.token)
                backward += other
        while page.more:
            page = table.scan(limit=3, token=page.token)
            forward += page
        assert [(row["k"], row["v"]) for row in forward] == [(k, 0) for k in keys]
        assert backward == forward[::-1]
        assert {row.batch for row in forward + backward} == {0}
        assert table.scan(limit=3).batch == 11


def test_a_batch_that_isnt_kept_any_more_is_told(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    advance(checkpoint, [("a", 0), ("b", 0), ("c", 0)])
    settings = ReplicaSettings(page_views=2)
    with millpond.open(checkpoint.path, replica_dir=home, settings=settings) as pond:
        tokens = []
        for n in range(1, 5):
            tokens.append(pond[TABLE].scan(limit=1).token)
            advance(checkpoint, [("a", n), ("b", n)])
            pond.catch_up(60)
        with pytest.raises(MillpondError) as raised:
            pond[TABLE].scan(token=tokens[0])
        assert raised.value.condition == "TOKEN_EXPIRED"
        assert raised.value.context["batch"] == 0
        assert [row["v"] for row in pond[TABLE].scan(token=tokens[-1])] == [3, 0]
        # A view whose pages somebody reads is kept longer than one that nobody reads on.
        for n in range(5, 8):
            pond[TABLE].scan(limit=1)
            advance(checkpoint, [("a", n)])
            pond.catch_up(60)
        assert [row["v"] for row in pond[TABLE].scan(token=tokens[-1])] == [3, 0]


@pytest.mark.long
def test_many_readers_page_through_one_batch_each_while_batches_are_applied(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    keys = [f"k{n:02}" for n in range(20)]
    advance(checkpoint, [(k, 0) for k in keys])
    problems: list[BaseException] = []
    scans: list[int] = []
    # Enough views for every running scan.
    with millpond.open(checkpoint.path, replica_dir=home, settings=ReplicaSettings(page_views=100)) as pond:
        ended = threading.Event()

        def read(reverse: bool) -> None:
            try:
                while not ended.is_set():
                    rows = pages(pond[TABLE].scan, limit=3, reverse=reverse)
                    (batch,) = {row.batch for row in rows}
                    assert [(row["k"], row["v"]) for row in rows] == [(k, batch) for k in (keys[::-1] if reverse else keys)]
                    scans.append(batch)
            except BaseException as problem:  # noqa: BLE001 - told by the test
                problems.append(problem)

        threads = [threading.Thread(target=read, args=(bool(n % 2),)) for n in range(4)]
        for thread in threads:
            thread.start()

        def has_gone_on() -> bool:
            if problems or (len(set(scans)) >= 5 and checkpoint.next_batch >= 20):
                return True
            advance(checkpoint, [(k, checkpoint.next_batch) for k in keys])
            return False

        try:
            wait_until(has_gone_on, "scans of five batches")
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    assert problems == []


def test_held_views_end_by_themselves(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    advance(checkpoint, [("a", 0), ("b", 0)])
    with millpond.open(checkpoint.path, replica_dir=home) as pond:
        page = pond[TABLE].scan(limit=1)
        advance(checkpoint, [("b", 1)])
        pond.catch_up(60)
        assert pond[TABLE].scan(token=page.token)[0]["v"] == 0
        assert len(pond[TABLE].job_reads.held_views) == 1
    with millpond.open(checkpoint.path, replica_dir=home, settings=ReplicaSettings(page_view_seconds=0.2)) as pond:
        page = pond[TABLE].scan(limit=1)
        advance(checkpoint, [("b", 2)])
        pond.catch_up(60)
        wait_until(lambda: len(pond[TABLE].job_reads.held_views) == 0, "the end of the page's view")
        with pytest.raises(MillpondError) as raised:
            pond[TABLE].scan(token=page.token)
        assert raised.value.condition == "TOKEN_EXPIRED"


def test_a_token_of_another_question_is_refused(tmp_path: Path) -> None:
    tables = {}
    for job, name in (("one", "ck"), ("two", "ck2")):
        checkpoint = WrittenCheckpoint(tmp_path / name, job_id=job)
        advance(checkpoint, [("a", 0), ("aa", 0), ("b", 0), ("c", 0)])
        tables[name] = millpond.open(checkpoint.path, replica_dir="memory://")
    with tables["ck"] as pond, tables["ck2"] as other:
        table = pond[TABLE]
        token = table.scan(limit=1).token
        assert token is not None
        assert [row["k"] for row in table.scan(token=token)] == ["aa", "b", "c"]
        assert [row["k"] for row in table.range(token=token)] == ["aa", "b", "c"]  # the same question in other words
        damaged = token[:10] + ("A" if token[10] != "A" else "B") + token[11:]
        refused: list[Callable[[], Any]] = [
            lambda: table.scan(token=token, reverse=True),
            lambda: table.scan(k="a", token=token),
            lambda: table.range(start={"k": "a"}, token=token),
            lambda: other["ck2.aggregate_0"].scan(token=token),
            lambda: table.scan(token=damaged),
            lambda: table.scan(token=token[:-4]),
            lambda: table.scan(token=""),
            lambda: table.scan(token="é"),
            lambda: table.scan(token=5),  # type: ignore[arg-type]
        ]
        for ask in refused:
            with pytest.raises(MillpondError) as raised:
                ask()
            assert raised.value.condition == "INVALID_TOKEN"


def test_a_token_of_a_job_that_was_replaced_leads_nowhere(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    advance(checkpoint, [("a", 0), ("b", 0)])
    with millpond.open(checkpoint.path, replica_dir=home) as pond:
        token = pond[TABLE].scan(limit=1).token
        clock = checkpoint.clock
        shutil.rmtree(checkpoint.path)
        checkpoint = WrittenCheckpoint(tmp_path / "ck")  # rewound to nothing, with the same id
        checkpoint.clock = clock
        advance(checkpoint, [("a", 5), ("b", 6)])
        pond.catch_up(60)
        assert [row["v"] for row in pond[TABLE].scan()] == [5, 6]
        with pytest.raises(MillpondError) as raised:
            pond[TABLE].scan(token=token)
        assert raised.value.condition == "TOKEN_EXPIRED"


# ---------------------------------------------------------------- pages and history


def aged(pond: millpond.Pond, checkpoint: WrittenCheckpoint, batches: int) -> None:
    """Apply batches; each changes every row."""
    for _ in range(batches):
        advance(checkpoint, [(k, checkpoint.next_batch) for k in "abc"])
        pond.catch_up(60)


def test_pages_go_on_through_history_where_no_view_is_held(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    advance(checkpoint, [(k, 0) for k in "abc"])
    settings = ReplicaSettings(page_views=0, retention=Retention(history_batches=3))
    with millpond.open(checkpoint.path, replica_dir=home, settings=settings) as pond:
        table = pond[TABLE]
        aged(pond, checkpoint, 1)
        page = table.scan(limit=1)
        rows = list(page)
        while page.more:
            aged(pond, checkpoint, 1)
            page = table.scan(limit=1, token=page.token)
            assert page.batch == 1
            rows += page
        assert [(row["k"], row["v"]) for row in rows] == [("a", 1), ("b", 1), ("c", 1)]
        token = table.scan(limit=1).token
        aged(pond, checkpoint, 8)
        with pytest.raises(MillpondError) as raised:
            table.scan(token=token)
        assert raised.value.condition == "TOKEN_EXPIRED"


def test_pages_as_of_a_batch_stay_there_and_arent_taken_for_those_of_another_table(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    advance(checkpoint, [(k, 0) for k in "abc"])
    settings = ReplicaSettings(retention=Retention(history_batches=None))
    with millpond.open(checkpoint.path, replica_dir=home, settings=settings) as pond:
        table = pond[TABLE]
        aged(pond, checkpoint, 4)
        then = table.at(batch=2)
        assert pages(then.scan, limit=1) == then.scan()
        page, newest = then.scan(limit=1), table.scan(limit=1)
        aged(pond, checkpoint, 1)
        assert [row["v"] for row in then.scan(token=page.token)] == [2, 2]
        assert [row["v"] for row in table.scan(token=page.token)] == [2, 2]  # the same question, of batch 2
        with pytest.raises(MillpondError) as raised:
            then.scan(token=newest.token)  # of batch 4
        assert raised.value.condition == "TOKEN_EXPIRED"
        # A view for one table's history isn't kept for other tables, which may have no history.
        assert [batch for _, batch in table.job_reads.held_views._pages] == [4]


def test_a_bound_holds_for_the_batch_that_is_read(tmp_path: Path) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck", sources=lambda batch: [{"views": {"0": 10 * batch}}])
    advance(checkpoint, [(k, 0) for k in "abc"])
    settings = ReplicaSettings(retention=Retention(history_batches=None))
    with millpond.open(checkpoint.path, replica_dir="memory://", settings=settings) as pond:
        aged(pond, checkpoint, 4)
        then = pond[TABLE].at(batch=2)
        assert then.get(k="a", bounds=millpond.Bounds(contains_offset="views:0:19"))["v"] == 2
        with pytest.raises(MillpondError) as raised:
            then.get(k="a", bounds=millpond.Bounds(contains_offset="views:0:20"))
        assert raised.value.condition == "NOT_UP_TO_BOUND"


def test_earlier_batches_inside_a_cut(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    advance(checkpoint, [(k, 0) for k in "abc"])
    settings = ReplicaSettings(retention=Retention(history_batches=None))
    with millpond.open(checkpoint.path, replica_dir=home, settings=settings) as pond:
        aged(pond, checkpoint, 3)
        with pond.cut("ck") as cut:
            aged(pond, checkpoint, 2)
            for _ in range(2):
                assert [row["v"] for row in cut[TABLE].at(batch=1).scan()] == [1, 1, 1]
                assert [row["v"] for row in cut[TABLE].scan()] == [3, 3, 3]
            token = pond[TABLE].scan(limit=1).token
            with pytest.raises(MillpondError) as raised:
                cut[TABLE].scan(token=token)  # of batch 5
            assert raised.value.condition == "TOKEN_EXPIRED"


# ---------------------------------------------------------------- cuts


def test_a_cut_reads_one_batch_of_all_tables_of_a_job(golden: Callable[[str], GoldenCell], home: str) -> None:
    cell = golden("chained-rocksdb-changelog")
    cell.uncommit()
    for batch in range(3):
        cell.commit(batch)
    with millpond.open(cell.checkpoint, replica_dir=home) as pond:
        names = pond.tables()
        assert len(names) > 1
        before = {name: pond[name].scan() for name in names}
        with pond.cut(names[0]) as cut:
            for batch in range(3, cell.last + 1):
                cell.commit(batch)
                pond.catch_up(60)
                for name in names:
                    rows = cut[name].scan()
                    assert rows == before[name]
                    assert rows.batch == cut.batch == 2
                    assert cut[name].count() == len(rows)
                    assert pages(cut[name].scan, limit=2) == rows
            assert cut[names[0]].scan().lag.behind_batches == cell.last - 2
        assert any(pond[name].scan() != before[name] for name in names)
        with pytest.raises(MillpondError) as raised:
            cut[names[0]].scan()
        assert raised.value.condition == "CUT_EXPIRED"


def test_a_cut_refuses_what_it_cant_hold(tmp_path: Path) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    advance(checkpoint, [("a", 0)])
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond:
        with pytest.raises(MillpondError) as raised, pond.cut("nobody"):
            pass
        assert raised.value.condition == "UNKNOWN_TABLE"
        with pond.cut("ck") as cut:
            assert cut[TABLE].get(k="a")["v"] == 0
            with pytest.raises(MillpondError) as raised:
                cut[TABLE].get(k="a", bounds=millpond.Bounds(min_batch=1, wait_seconds=5))
            assert raised.value.condition == "NOT_UP_TO_BOUND"
    with (
        millpond.open(checkpoint.path, replica_dir="memory://", settings=ReplicaSettings(read_deadline_seconds=0.2)) as pond,
        pond.cut("ck") as cut,
    ):
        wait_until(lambda: len(pond[TABLE].job_reads.held_views) == 0, "the end of the cut's view")
        with pytest.raises(MillpondError) as raised:
            cut[TABLE].get(k="a")
        assert raised.value.condition == "CUT_EXPIRED"
