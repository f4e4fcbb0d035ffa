"""A cut by token: the token reads it as long as it is kept, and never reads another cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.settings import ReplicaSettings
from spark_files.checkpoint import WrittenCheckpoint

TABLE = "job.aggregate_0"


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("a", 0), ("b", 0)], snapshot=False)
    job.commit()
    return job


@pytest.fixture
def opened(job: WrittenCheckpoint, tmp_path: Path) -> Any:
    with millpond.open(job.path, replica_dir=tmp_path / "home", settings=ReplicaSettings(page_views=3)) as pond:
        yield pond


def _commit(job: WrittenCheckpoint, pond: millpond.Pond, value: int) -> None:
    job.plan([("a", value)], snapshot=False)
    job.commit()
    pond.catch_up(60)


def _condition(read: Callable[[], Any]) -> str:
    with pytest.raises(MillpondError) as refused:
        read()
    return refused.value.condition


def test_every_read_of_a_pin_is_of_its_batch(job: WrittenCheckpoint, opened: millpond.Pond) -> None:
    table = opened[TABLE]
    cut = table.cut()
    then = table.at(cut=cut.token)
    for value in (1, 2):
        assert (cut.batch, then.get(k="a").batch, then.get(k="a")["v"]) == (0, 0, 0)
        assert [row["v"] for row in then.scan()] == [0, 0]
        assert then.count() == 2
        assert then.to_arrow().to_pylist() == [{"k": "a", "v": 0}, {"k": "b", "v": 0}]
        page = then.scan(limit=1)
        assert [*page, *then.scan(limit=1, token=page.token)] == list(then.scan())
        assert _condition(lambda: then.get(k="a", bounds=millpond.Bounds(min_batch=1))) == "NOT_UP_TO_BOUND"
        _commit(job, opened, value)
        assert table.get(k="a")["v"] == value
    assert then.get(k="a").lag.behind_batches == 2


def test_of_many_pins_those_that_nobody_read_go_first(job: WrittenCheckpoint, opened: millpond.Pond) -> None:
    table = opened[TABLE]
    cuts = []
    for value in range(1, 6):
        cuts.append(table.cut())
        if len(cuts) == 1:
            assert table.at(cut=cuts[0].token).get(k="a")["v"] == 0
        _commit(job, opened, value)
        if len(cuts) == 1:
            assert table.at(cut=cuts[0].token).get(k="a")["v"] == 0, "the first is the one that somebody read"
    readable = []
    for cut in cuts:
        try:
            readable.append((cut.batch, table.at(cut=cut.token).get(k="a")["v"]))
        except MillpondError as error:
            assert error.condition == "CUT_EXPIRED"
    assert readable == [(0, 0), (3, 3), (4, 4)]


def test_a_batch_that_is_cut_again_is_kept_for_the_whole_time_again(job: WrittenCheckpoint, opened: millpond.Pond) -> None:
    table = opened[TABLE]
    views = table.job_reads.held_views
    table.cut()
    (first,) = views._pages.values()
    until = first.expires
    table.cut()
    assert list(views._pages.values()) == [first]
    assert first.expires > until
    assert first.expires - until < 60


def test_a_pin_of_another_run_of_the_job_is_gone(job: WrittenCheckpoint, opened: millpond.Pond, tmp_path: Path) -> None:
    token = opened[TABLE].cut().token
    job.path.rename(tmp_path / "before")
    other = WrittenCheckpoint(job.path, "job-2")
    other.plan([("a", 7)], snapshot=False)
    other.commit()
    opened.catch_up(60)
    assert opened[TABLE].get(k="a")["v"] == 7
    assert _condition(lambda: opened[TABLE].at(cut=token).get(k="a")) == "CUT_EXPIRED"


def test_catch_up_waits_for_the_job_that_is_there_now(job: WrittenCheckpoint, opened: millpond.Pond, tmp_path: Path) -> None:
    """Even if the last read was less than a millisecond ago, so that its poll would do for another read."""
    for value in range(1, 9):
        other = WrittenCheckpoint(tmp_path / f"job-{value}", f"job-{value}")
        other.plan([("a", value)], snapshot=False)
        other.commit()
        opened[TABLE].get(k="a")
        job.path.rename(tmp_path / f"before-{value}")
        other.path.rename(job.path)
        opened.catch_up(60)
        assert opened[TABLE].get(k="a")["v"] == value


def test_what_is_no_pin_of_this_job_is_refused(job: WrittenCheckpoint, opened: millpond.Pond, tmp_path: Path) -> None:
    table = opened[TABLE]
    page = table.scan(limit=1)
    assert page.token is not None
    for text in ("", "nonsense", page.token, table.cut().token[:-2]):
        assert _condition(lambda text=text: table.at(cut=text)) == "INVALID_TOKEN"
    assert _condition(lambda: table.scan(limit=1, token=table.cut().token)) == "INVALID_TOKEN"
    other = WrittenCheckpoint(tmp_path / "other" / "job")
    other.plan([("a", 0)], snapshot=False)
    other.commit()
    with millpond.open(other.path, replica_dir=tmp_path / "home") as pond:
        assert _condition(lambda: pond[TABLE].at(cut=table.cut().token)) == "OTHER_JOB"
    for given in ({}, {"batch": 0, "cut": table.cut().token}):
        assert _condition(lambda given=given: table.at(**given)) == "INVALID_REQUEST"
