"""Whether a missing row has expired: the answer is never no if it may have."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.schema.types import Field, atomic
from spark_files.checkpoint import WrittenCheckpoint

TABLE = "ck.aggregate_0"


def at(minute: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=minute)


def commit(job: WrittenCheckpoint, *changes: tuple[int, int | None], watermark: int = 0, snapshot: bool = False) -> None:
    job.watermark_ms = max(job.watermark_ms, watermark * 60_000)
    job.plan([((minute * 60_000_000,), value) for minute, value in changes], snapshot=snapshot)
    job.commit()


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    job = WrittenCheckpoint(tmp_path / "ck", key=(Field("k", atomic("timestamp")),), watermarked=True)
    commit(job, (0, 1), (1, 1))
    return job


@pytest.mark.parametrize("history", [0, None])
def test_where_expired_rows_arent_kept_it_is_unknown(job: WrittenCheckpoint, tmp_path: Path, history: int | None) -> None:
    keep = millpond.Retention(closed_seconds=0, history_batches=history)
    with millpond.open(job.path, replica_dir=tmp_path / "home", retention=keep) as pond:
        commit(job, (0, None), watermark=1)
        commit(job, (9, 9))
        pond.catch_up(60)
        assert pond[TABLE].get(k=at(0)).evicted is None
        assert pond[TABLE].get(k=at(20)).evicted is False


def test_of_a_row_that_came_and_went_while_nobody_looked_it_is_unknown(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        assert pond[TABLE].count() == 2
    commit(job, (2, 2))
    commit(job, (2, None), watermark=2)
    commit(job, (1, None), (7, 7), watermark=3, snapshot=True)
    commit(job, (8, 8), watermark=3)
    job.clean(keep=2)
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        table = pond[TABLE]
        assert table.get(k=at(1)).evicted is True
        assert table.get(k=at(2)).evicted is None
        assert table.get(k=at(20)).evicted is False


@pytest.mark.parametrize(
    ("cell", "table"),
    [
        ("spark-4.3/join-left-hdfs", "left"),
        ("spark-4.3/join-left-rocksdb-changelog", "right"),
        ("spark-4.3/transform-ttl-rocksdb-changelog", "list"),
    ],
)
def test_of_rows_that_arent_kept_when_they_expire_it_is_unknown(
    golden: Callable[[str], Any], tmp_path: Path, cell: str, table: str
) -> None:
    job = golden(cell)
    job.uncommit()
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    with millpond.open(job.checkpoint, replica_dir=tmp_path / "home", wait_seconds=0) as pond:
        for batch in range(job.last + 1):
            job.commit(batch)
            pond.catch_up(60)
            (name,) = (t for t in pond.tables() if t.endswith(f"_{table}"))
            rows = pond[name].with_closed().scan()
            for row in rows:
                key = {column.name: row[column.name] for column in pond[name].definition.key}
                seen[tuple(key.values())] = key
        there = {tuple(row[column.name] for column in pond[name].definition.key) for row in pond[name].scan()}
        gone = [key for values, key in seen.items() if values not in there and None not in values]
        assert gone
        for key in gone:
            assert not pond[name].get(key)
            cold = millpond.read_row(job.checkpoint, name, key)
            assert not cold
            # A list may still have expired elements: then the answer is known.
            is_there = bool(pond[name].with_closed().get(key))
            assert pond[name].get(key).evicted is (True if is_there else None)
            assert cold.evicted is (True if is_there else None)
        assert any(pond[name].get(key).evicted is None for key in gone)


def test_where_nothing_expires_no_row_has(golden: Callable[[str], Any], tmp_path: Path) -> None:
    job = golden("counts-hdfs")
    with millpond.open(job.checkpoint, replica_dir=tmp_path / "home") as pond:
        (name,) = pond.tables()
        assert pond[name].get(page="no such page").evicted is False
        assert millpond.read_row(job.checkpoint, name, {"page": "no such page"}).evicted is False


def test_a_checkpoint_alone_doesnt_tell_which_windows_it_had(golden: Callable[[str], Any], tmp_path: Path) -> None:
    job = golden("windows-hdfs")
    with millpond.open(job.checkpoint, replica_dir=tmp_path / "home") as pond:
        (name,) = pond.tables()
        row = pond[name].scan()[0]
        key = {column.name: row[column.name] for column in pond[name].definition.key}
        before = key | {column: time - dt.timedelta(days=1) for column, time in key.items() if isinstance(time, dt.datetime)}
        assert millpond.read_row(job.checkpoint, name, key)
        assert millpond.read_row(job.checkpoint, name, before).evicted is None
        assert pond[name].get(before).evicted is None
