"""No answer has a row whose TTL has passed, whether Spark has removed it or not; `with_closed` shows it as final.

Spark wrote the states: a value, a list and a map whose rows expire within seconds of the last batch.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.settings import Retention
from suite.sizes import a_few

CELLS = ("transform-ttl-rocksdb-changelog", "transform-ttl-rocksdb-snapshots", "transform-ttl-avro-rocksdb-changelog")
DAY_MS = 86_400_000


class Clock:
    """The machine's clock, set by a test."""

    def __init__(self) -> None:
        self.now_ms = 0

    def time_ns(self) -> int:
        return self.now_ms * 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time_ns", clock.time_ns)
    return clock


def expires_ms(row: Any) -> int:
    return (row["expires_at"] - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def key_of(table: Any, row: Any) -> dict[str, Any]:
    return {column.name: row[column.name] for column in table.definition.key}


def as_texts(rows: Any) -> list[str]:
    return [repr({**row, "expires_at": expires_ms(row)}) for row in rows]


def of_arrow(found: Any) -> list[str]:
    """The rows of an Arrow table as texts, sorted."""
    return sorted(as_texts(found.to_pylist()))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("cell", a_few(CELLS, 2))
def test_every_read_leaves_out_what_is_over_at_that_moment(golden: Callable[[str], Any], clock: Clock, cell: str) -> None:
    copy = golden(f"spark-4.3/{cell}")
    moments = went = 0
    with millpond.open(copy.checkpoint, replica_dir="memory://") as pond:
        for name in pond.tables():
            table = pond[name]
            if "expires_at" not in table.columns or "timers" in name:
                continue
            rows = table.with_closed().scan()
            planned_ms = rows.position.batch_started_ms
            # Spark has left no row that had expired when the batch was planned.
            assert min(map(expires_ms, rows)) > planned_ms
            ends = {planned_ms, *map(expires_ms, rows)}
            for now_ms in sorted({moment for end in ends for moment in (end - 1, end)}):
                clock.now_ms = now_ms
                alive = [row for row in rows if expires_ms(row) > max(now_ms, planned_ms)]
                went += len(rows) - len(alive)
                moments += 1
                for reads in (table, table.live()):
                    assert as_texts(reads.scan()) == as_texts(alive)
                    assert as_texts(reads.range()) == as_texts(alive)
                    assert as_texts(reads.scan(reverse=True)) == as_texts(reversed(alive))
                    assert reads.count() == len(alive)
                    assert reads.count(user="b") == sum(row["user"] == "b" for row in alive)
                    assert of_arrow(reads.to_arrow()) == sorted(as_texts(alive))
                assert of_arrow(millpond.read_arrow(copy.checkpoint, name)) == sorted(as_texts(alive))
                assert of_arrow(millpond.read_arrow(copy.checkpoint, name, expired=True)) == sorted(as_texts(rows))
                asked = table.with_closed().scan()
                assert as_texts(asked) == as_texts(rows)
                assert [row.final for row in asked] == [row not in alive for row in rows]
                assert table.with_closed().count() == len(rows)
                assert of_arrow(table.with_closed().to_arrow()) == sorted(as_texts(rows))
                for row in (rows[0], rows[len(rows) // 2], rows[-1]):
                    is_over, key = row not in alive, key_of(table, row)
                    for got in (table.get(key), table.get_all([key])[0]):
                        assert dict(got) == ({} if is_over else dict(row))
                        assert got.evicted is is_over
                    got = table.with_closed().get(key)
                    assert dict(got) == dict(row)
                    assert got.final is is_over
                    if row["user"] is not None:  # Spark may have put such a row into any partition
                        cold = millpond.read_row(copy.checkpoint, name, key)
                        assert (dict(cold), cold.evicted, cold.final) == ({} if is_over else dict(row), is_over, False)
                        cold = millpond.read_row(copy.checkpoint, name, key, expired=True)
                        assert (dict(cold), cold.final) == (dict(row), is_over)
    assert moments > 10
    assert went > 30


def test_pages_leave_out_what_is_over_when_they_are_asked_for(golden: Callable[[str], Any], clock: Clock) -> None:
    copy = golden(f"spark-4.3/{CELLS[0]}")
    with millpond.open(copy.checkpoint, replica_dir="memory://") as pond:
        table = pond[next(name for name in pond.tables() if name.endswith("_list"))]
        rows = table.with_closed().scan()
        clock.now_ms = rows.position.batch_started_ms
        page = table.scan(limit=2)
        assert as_texts(page) == as_texts(rows[:2])
        assert page.more
        clock.now_ms += DAY_MS
        rest = table.scan(limit=1000, token=page.token)
        assert (list(rest), rest.batch, rest.more) == ([], page.batch, False)


def test_an_earlier_batch_is_read_by_its_own_clock(
    golden: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch shows what the job's functions saw in it, however long ago; a time shows the rows that hadn't expired then."""
    copy = golden(f"spark-4.3/{CELLS[0]}")
    copy.uncommit()
    keep = Retention(history_batches=None)
    seen: dict[int, list[str]] = {}
    went: list[int] = []
    with millpond.open(copy.checkpoint, replica_dir=tmp_path / "home", retention=keep) as pond:
        for batch in range(copy.last + 1):
            copy.commit(batch)
            pond.catch_up(60)
            name = next(name for name in pond.tables() if name.endswith("_short"))
            state = millpond.read_arrow(copy.checkpoint, name, expired=True)
            seen[batch] = of_arrow(state)
        table = pond[name]
        assert table.count() == 0  # by now, all of the checkpoint's rows have expired
        for batch, rows in seen.items():
            then = table.at(batch=batch).live()
            assert sorted(as_texts(then.scan())) == rows
            assert then.count() == len(rows)
            assert of_arrow(millpond.read_arrow(copy.checkpoint, name, batch=batch)) == rows
            ends = {row["expires_at"] for row in then.scan()}
            for moment in ends | {end - dt.timedelta(milliseconds=1) for end in ends}:
                left = [row for row in then.scan() if row["expires_at"] > moment]
                as_of = table.at(batch=batch, time=moment).live()
                assert as_texts(as_of.scan()) == as_texts(left)
                assert (as_of.count(), as_of.to_arrow().num_rows) == (len(left), len(left))
                went.append(len(rows) - len(left))
            # A time before the batch counts as the batch's own, and a future time as now.
            assert sorted(as_texts(table.at(batch=batch, time="1999-01-01T00:00:00Z").live().scan())) == rows
        now = dt.datetime.now(dt.UTC)
        for moment in (now, now + dt.timedelta(days=1)):
            assert table.at(time=moment).count() == table.at(batch=copy.last, time=moment).count() == 0
        clock = Clock()
        monkeypatch.setattr(time, "time_ns", clock.time_ns)
        clock.now_ms = table.at(batch=copy.last).scan().position.batch_started_ms
        assert table.at(batch=copy.last, time=now).count() == len(seen[copy.last]) > 0
    assert min(went) == 0 < max(went)
    assert sum(map(len, seen.values())) > 10


def test_other_rows_that_name_a_time_have_no_ttl(golden: Callable[[str], Any], clock: Clock) -> None:
    """For timers, time-outs and dropDuplicatesWithinWatermark Spark decides, not a clock."""
    for cell in ("transform-processing-timers-rocksdb-changelog", "apply-event-timeout-hdfs", "dedupe-within-watermark-hdfs"):
        copy = golden(f"spark-4.3/{cell}")
        with millpond.open(copy.checkpoint, replica_dir="memory://") as pond:
            counts = {}
            for clock.now_ms in (0, 1 << 42):
                counts[clock.now_ms] = {name: int(pond[name].count()) for name in pond.tables()}
        assert counts[0] == counts[1 << 42]
        assert sum(counts[0].values()) > 0
