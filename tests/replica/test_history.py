"""Changes, earlier batches and expired rows, across builds, restarts and replaced jobs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError
from millpond.replica.backends.lmdb import open_backend
from millpond.replica.history.keeper import CHANGES, VERSIONS
from millpond.schema.definition.operator_name import NamedOperator
from millpond.settings import ReplicaSettings, RetentionWords
from millpond.tables.history.changes import RowChange
from spark_files.checkpoint import WrittenCheckpoint
from suite.programs import started
from suite.waiting import stays, wait_until

TABLE = "ck.aggregate_0"
ALL = millpond.Retention(history_batches=None)
Open = Callable[..., millpond.Pond]


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    commit(checkpoint, ("a", 1), ("b", 1))
    return checkpoint


@pytest.fixture
def opened(job: WrittenCheckpoint, tmp_path: Path) -> Open:
    def open_(retention: Any = ALL) -> millpond.Pond:
        return millpond.open(job.path, replica_dir=tmp_path / "home", retention=retention)

    return open_


def commit(checkpoint: WrittenCheckpoint, *changes: tuple[str, int | None], snapshot: bool = False) -> None:
    checkpoint.plan(list(changes), snapshot=snapshot)
    checkpoint.commit()


def summary(changes: list[RowChange]) -> list[tuple[str, int, Any, Any]]:
    return [(c.kind, c.batch, c.old and (c.old["k"], c.old["v"]), c.new and (c.new["k"], c.new["v"])) for c in changes]


def values(rows: list[Any]) -> dict[str, int]:
    return {row["k"]: row["v"] for row in rows}


def condition(ask: Callable[[], Any]) -> str:
    with pytest.raises(MillpondError) as raised:
        ask()
    return raised.value.condition


def test_changes_are_told_in_order_with_what_was_before(job: WrittenCheckpoint, opened: Open) -> None:
    with opened() as pond:
        begin = pond[TABLE].changes()
        assert list(begin) == []
        commit(job, ("b", 2), ("c", 5), ("a", 1))
        commit(job, ("a", None), ("d", 1))
        pond.catch_up(60)
        changes = pond[TABLE].changes(begin.token)
        # Batch 1 wrote a again with the same value: nothing changed.
        assert summary(changes) == [
            ("update", 1, ("b", 1), ("b", 2)),
            ("insert", 1, None, ("c", 5)),
            ("expire", 2, ("a", 1), None),
            ("insert", 2, None, ("d", 1)),
        ]
        assert changes[2].final == {"k": "a", "v": 1}
        assert pond[TABLE].changes(since=1)[0].batch == 2


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_token_goes_on_without_loss_or_repetition_over_restarts(job: WrittenCheckpoint, opened: Open, limit: int) -> None:
    with opened() as pond:
        token = pond[TABLE].changes().token
    seen: list[RowChange] = []
    for n in range(2, 12):
        commit(job, ("a", n), ("b", n), (f"new{n}", n))
        with opened() as pond:
            changes = pond[TABLE].changes(token, limit=limit)
            assert len(changes) <= limit
            token, seen = changes.token, seen + changes
    with opened() as pond:
        while found := pond[TABLE].changes(token, limit=limit):
            token, seen = found.token, seen + found
        assert not found.more
        assert seen == list(pond[TABLE].changes(since=0))
    assert len(seen) == 30


def test_batches_that_were_cleaned_up_unread_are_one_change_and_say_so(job: WrittenCheckpoint, opened: Open) -> None:
    with opened() as pond:
        token = pond[TABLE].changes().token
        commit(job, ("a", 2))
        pond.catch_up(60)
    for n in range(3, 8):
        commit(job, ("a", n), snapshot=n == 6)
        if n == 4:
            commit(job, ("b", None), ("c", 1))
    job.clean(keep=2)
    with opened() as pond:
        newest = pond[TABLE].scan().batch
        assert pond.statistics()["ck"]["bootstraps"] == 1
        changes = pond[TABLE].changes(token)
        assert summary(changes) == [
            ("update", 1, ("a", 1), ("a", 2)),
            ("update", newest, ("a", 2), ("a", 7)),
            ("expire", newest, ("b", 1), None),
            ("insert", newest, None, ("c", 1)),
        ]
        assert [c.first_batch for c in changes] == [1, 2, 2, 2]
        # b was in the state when the follower last saw it; nobody knows its last value.
        assert changes[2].final is None
        assert pond[TABLE].get(k="b").evicted
        assert not pond[TABLE].get(k="b")
        assert values(pond[TABLE].at(batch=1).live().scan()) == {"a": 2, "b": 1}
        for unknown in range(2, newest):
            assert condition(lambda batch=unknown: pond[TABLE].at(batch=batch)) == "HISTORY_GONE"
        commit(job, ("a", 9))
        pond.catch_up(60)
        assert summary(pond[TABLE].changes(changes.token)) == [("update", newest + 1, ("a", 7), ("a", 9))]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_what_is_known_as_one_change_of_several_batches_comes_in_pages(job: WrittenCheckpoint, opened: Open, limit: int) -> None:
    with opened() as pond:
        token = pond[TABLE].changes().token
    for n in range(2, 10):
        commit(job, *((name, n) for name in "abcd"), snapshot=n == 8)
    job.clean(keep=2)
    seen: list[RowChange] = []
    with opened() as pond:
        newest = pond[TABLE].scan().batch
        while (found := pond[TABLE].changes(token, limit=limit)) or found.more:
            token, seen = found.token, seen + found
    assert [(change.row["k"], change.row["v"]) for change in seen] == [(name, 9) for name in "abcd"]
    assert {(change.first_batch, change.batch) for change in seen} == {(1, newest)}


def test_a_token_of_a_job_that_was_replaced_is_refused(job: WrittenCheckpoint, opened: Open, tmp_path: Path) -> None:
    other = WrittenCheckpoint(tmp_path / "other", job_id="job-2")
    for n in range(4):
        commit(other, ("a", 100 + n))
    with opened() as pond:
        commit(job, ("a", 2))
        pond.catch_up(60)
        token = pond[TABLE].changes().token
        shutil.rmtree(job.path)
        other.path.rename(job.path)  # by a rename: a replica built at the first batch would know all changes since
        pond.catch_up(60)
        assert values(pond[TABLE].scan()) == {"a": 103}
        assert condition(lambda: pond[TABLE].changes(token)) == "HISTORY_GONE"
        assert condition(lambda: pond[TABLE].changes(since=0)) == "HISTORY_GONE"


def test_a_token_is_checked(job: WrittenCheckpoint, opened: Open) -> None:
    with opened() as pond:
        token = pond[TABLE].changes().token
        for wrong in ("", "abc", token[:-1], ("B" if token[0] == "A" else "A") + token[1:], token + "A", "ü"):
            assert condition(lambda text=wrong: pond[TABLE].changes(text)) == "INVALID_TOKEN"
        assert condition(lambda: pond[TABLE].changes(since=17)) == "NOT_UP_TO_BOUND"
        assert condition(lambda: pond[TABLE].changes(limit=0)) == "INVALID_LIMIT"


def test_only_so_much_history_is_kept_as_was_asked_for(job: WrittenCheckpoint, opened: Open) -> None:
    with opened(millpond.Retention(history_batches=3)) as pond:
        for n in range(2, 10):
            commit(job, ("a", n), ("b", None if n % 2 else n))
        pond.catch_up(60)
        newest = pond[TABLE].scan().batch
        assert newest == 8
        for batch in range(5, 9):
            assert pond[TABLE].at(batch=batch).get(k="a")["v"] == batch + 1
            assert pond[TABLE].at(batch=batch).live().count() == (1 if batch % 2 == 0 else 2)
        assert condition(lambda: pond[TABLE].at(batch=4)) == "HISTORY_GONE"
        assert condition(lambda: pond[TABLE].changes(since=4)) == "HISTORY_GONE"
        assert {c.batch for c in pond[TABLE].changes(since=5)} == {6, 7, 8}
        for n in range(10, 60):
            commit(job, ("a", n), ("b", None if n % 2 else n))
        pond.catch_up(60)
        replica_folder = Path(pond.statistics()["ck"]["path"])
    generation = replica_folder / (replica_folder / "current").read_text()
    with open_backend(generation, ReplicaSettings()).snapshot() as snapshot:
        assert [snapshot.count(table) for table in (CHANGES, VERSIONS)] == [2 * 3] * 2


def test_history_costs_nothing_and_tells_nothing_where_it_is_off(job: WrittenCheckpoint, opened: Open) -> None:
    with opened(None) as pond:
        commit(job, ("a", 2))
        pond.catch_up(60)
        assert condition(lambda: pond[TABLE].changes()) == "HISTORY_GONE"
        assert condition(lambda: pond[TABLE].at(batch=0)) == "HISTORY_GONE"
        assert pond[TABLE].at(batch=1).get(k="a")["v"] == 2
    with opened({TABLE: ALL}) as pond:
        commit(job, ("a", 3))
        pond.catch_up(60)
        assert pond[TABLE].at(batch=1).get(k="a")["v"] == 2
        assert condition(lambda: pond[TABLE].at(batch=0)) == "HISTORY_GONE"
    with opened(None) as pond:
        commit(job, ("a", 4))
        pond.catch_up(60)
        assert condition(lambda: pond[TABLE].at(batch=2)) == "HISTORY_GONE"
    assert condition(lambda: opened({"no_such_table": ALL})) == "UNKNOWN_TABLE"


def test_every_version_of_a_row_or_a_range_between_two_batches(job: WrittenCheckpoint, opened: Open) -> None:
    with opened() as pond:
        commit(job, ("a", 2), ("c", 1))  # 1
        commit(job, ("b", 5))  # 2
        commit(job, ("a", None), ("c", 2))  # 3
        commit(job, ("a", 7))  # 4
        pond.catch_up(60)
        table = pond[TABLE]
        one = [(v.row["v"], v.kind, v.batch, v.until_batch) for v in table.history(k="a")]
        assert one == [(1, None, None, 1), (2, "update", 1, 3), (2, "expire", 3, 4), (7, "insert", 4, None)]
        assert [(v.row["v"], v.batch) for v in table.history(k="a", since=1, until=1)] == [(2, 1)]
        assert [(v.row["v"], v.batch) for v in table.history(k="a", since=2, until=3)] == [(2, 1), (2, 3)]
        some = [(v.row["k"], v.row["v"], v.batch) for v in table.history(start={"k": "b"}, since=2)]
        assert some == [("b", 5, 2), ("c", 1, 1), ("c", 2, 3)]
        cut = table.history(start={"k": "b"}, since=2, limit=2)
        assert (len(cut), cut.more) == (2, True)
        assert table.history(k="nobody") == []
        assert all(v.committed_ms for v in table.history(k="c"))


def test_as_of_a_time_is_as_of_the_newest_batch_that_was_committed_by_then(job: WrittenCheckpoint, opened: Open) -> None:
    import datetime as dt

    with opened() as pond:
        pond.catch_up(60)
        for batch in (1, 2, 3):
            job.plan([("a", batch * 10)], snapshot=False)
            job.commit(at=dt.datetime(2030, 1, 1, 12, batch, tzinfo=dt.UTC).timestamp())
            pond.catch_up(60)
        first = pond[TABLE].at(time="2030-01-01T12:01:30Z")
        assert values(first.live().scan()) == {"a": 10, "b": 1}
        assert first.scan().batch == 1
        assert pond[TABLE].at(time=dt.datetime(2030, 1, 1, 12, 2, tzinfo=dt.UTC)).get(k="a")["v"] == 20
        assert condition(lambda: pond[TABLE].at(time="1999-01-01T00:00:00Z")) == "HISTORY_GONE"


def test_a_row_that_expired_and_came_back_is_live(job: WrittenCheckpoint, opened: Open) -> None:
    with opened() as pond:
        commit(job, ("a", None))
        pond.catch_up(60)
        table = pond[TABLE].with_closed()
        gone = table.get(k="a")
        assert (dict(gone), gone.final, gone.changed_batch) == ({"k": "a", "v": 1}, True, 1)
        assert table.live().get(k="a").evicted is True
        assert [(r["k"], r.final) for r in table.scan()] == [("a", True), ("b", False)]
        assert [(r["k"], r.final) for r in table.scan(reverse=True)] == [("b", False), ("a", True)]
        commit(job, ("a", 8))
        pond.catch_up(60)
        back = table.get(k="a")
        assert (dict(back), back.final, back.changed_batch) == ({"k": "a", "v": 8}, False, 2)
        assert table.count() == 2
        commit(job, ("a", None))
        pond.catch_up(60)
        assert table.get(k="a")["v"] == 8
        assert table.at(batch=1).get(k="a") == {}  # it expired later with another value, and its value at batch 1 isn't kept


@pytest.mark.parametrize(
    "retention",
    [millpond.Retention(closed_seconds=0.0035), millpond.Retention(closed_bytes=200)],
)
def test_what_expired_long_ago_or_is_too_much_is_forgotten(
    job: WrittenCheckpoint, opened: Open, retention: millpond.Retention
) -> None:
    with opened(retention) as pond:
        for n in range(2, 40):
            commit(job, (f"k{n:02}", n), (f"k{n - 1:02}", None))
        pond.catch_up(60)
        table = pond[TABLE].with_closed()
        kept = [row["k"] for row in table.scan() if row.final]
        assert 2 <= len(kept) <= 6
        assert kept == [f"k{n:02}" for n in range(39 - len(kept), 39)]
        assert not table.get(k="k05")
        assert table.get(k="k38").final


def test_nothing_is_kept_of_rows_that_expired_where_nobody_wants_it(job: WrittenCheckpoint, opened: Open) -> None:
    with opened(millpond.Retention(closed_seconds=0)) as pond:
        commit(job, ("a", None))
        pond.catch_up(60)
        assert values(pond[TABLE].with_closed().scan()) == {"b": 1}


def say(job: WrittenCheckpoint, retention: millpond.Retention | None) -> None:
    entry = NamedOperator(table="t", operator=0, operator_name="stateStoreSave", retention=retention)
    create_beside(job.path).write_definition(entry)


def test_what_the_definition_says_is_kept_whoever_follows(job: WrittenCheckpoint, opened: Open) -> None:
    say(job, millpond.Retention(history_batches=None, closed_seconds=0))
    with opened(None) as pond:
        assert pond["t"].definition.retention == millpond.Retention(history_batches=None, closed_seconds=0)
        begin = pond["t"].changes()
        commit(job, ("a", None))
        pond.catch_up(60)
        assert [change.kind for change in pond["t"].changes(begin.token)] == ["expire"]
        assert values(pond["t"].with_closed().scan()) == {"b": 1}
    say(job, millpond.Retention(history_batches=0))
    with opened(None) as pond:
        commit(job, ("b", None))
        pond.catch_up(60)
        assert condition(lambda: pond["t"].changes()) == "HISTORY_GONE"
        assert values(pond["t"].with_closed().scan()) == {"b": 1}


@pytest.mark.parametrize(
    ("given", "history", "closed"),
    [
        (None, True, {}),
        ({}, True, {}),
        (millpond.Retention(), False, {"a": 1}),
        ({"t": millpond.Retention()}, False, {"a": 1}),
        ({"t": RetentionWords(keep_closed="24h")}, True, {"a": 1}),
        ({"t": RetentionWords(history="no")}, False, {}),
    ],
)
def test_what_is_said_on_opening_goes_before_what_the_definition_says(
    job: WrittenCheckpoint, opened: Open, given: Any, history: bool, closed: dict[str, int]
) -> None:
    say(job, millpond.Retention(history_batches=None, closed_seconds=0))
    with opened(given) as pond:
        commit(job, ("a", None))
        pond.catch_up(60)
        assert values(pond["t"].with_closed().scan()) == {"b": 1, **closed}
        if history:
            assert pond["t"].at(batch=0).get(k="a")["v"] == 1
        else:
            assert condition(lambda: pond["t"].at(batch=0)) == "HISTORY_GONE"


def test_a_definition_that_cant_be_read_any_more_stops_no_follower(job: WrittenCheckpoint, opened: Open) -> None:
    say(job, None)
    with opened(None) as pond:
        create_beside(job.path).storage.write("tables/t.json", b"{")
        commit(job, ("a", 2))
        table = pond._tables["t"]  # asking the catalogue would raise
        wait_until(lambda: table.get(k="a")["v"] == 2, "the second batch")


def test_history_that_is_asked_for_later_begins_where_the_replica_is(job: WrittenCheckpoint, opened: Open) -> None:
    """A job that has ended commits no batch, so nothing else would begin the history."""
    with opened(None) as pond, pytest.raises(MillpondError) as refused:
        pond[TABLE].changes()
    assert refused.value.condition == "HISTORY_GONE"
    with opened() as pond:
        table = pond[TABLE]
        since_now, since_batch = table.changes(), table.changes(0)
        assert (list(since_now), list(since_batch)) == ([], [])
        assert table.at(batch=0).count() == 2
        commit(job, ("a", 2))
        pond.catch_up()
        for since in (since_now.token, since_batch.token, 0):
            assert summary(table.changes(since)) == [("update", 1, ("a", 1), ("a", 2))]
        assert values(table.at(batch=0).scan()) == {"a": 1, "b": 1}


@pytest.mark.long
def test_whoever_names_what_is_kept_is_told_where_another_process_decides(
    job: WrittenCheckpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = (
        "import sys, millpond\n"
        "with millpond.open(sys.argv[1], replica_dir=sys.argv[2]):\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if "retention.ignored" in r.getMessage()]

    command = [sys.executable, "-c", program, str(job.path), str(tmp_path / "home")]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        for retention, ignored in (
            (ALL, True),
            ({TABLE: RetentionWords(history="100")}, True),
            (None, False),
            (millpond.Retention(), False),
            ({TABLE: RetentionWords(history="no")}, False),
        ):
            caplog.clear()
            with millpond.open(job.path, replica_dir=tmp_path / "home", retention=retention):
                if ignored:
                    wait_until(lines, f"the warning about {retention}")
                stays(lambda ignored=ignored: len(lines()) == ignored, f"warnings about {retention}", seconds=0.7)
            assert all(TABLE in line and str(other.pid) in line for line in lines())
        other.communicate("")
