"""Whether a row that isn't there expired: never no where it may have."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

import millpond
from millpond.schema.types import Field, atomic
from written_checkpoint import WrittenCheckpoint

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
        pond.catch_up(10)
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
