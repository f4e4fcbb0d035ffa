"""Which savepoints a rule keeps."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.catalogue import create_job
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.fork import plan_fork
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.manage.prune import Keep, prune_by
from millpond.savepoint.manifest import NAME
from spark_files.checkpoint import WrittenCheckpoint

HOUR, DAY = 3600, 86_400


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    """Savepoints of two jobs: a1 to a5 every 12 hours, the last half an hour ago; b1 a hundred days ago."""
    pond = tmp_path / "pond"
    for job in ("a", "b"):
        written = WrittenCheckpoint(Path(create_job(pond, job).checkpoint.removeprefix("file://")), job)
        written.plan([("k", 1)], snapshot=False)
        written.commit()
    noon_ms = (time.time_ns() // 1_000_000 // (DAY * 1000)) * DAY * 1000 + 12 * HOUR * 1000
    for name, job, hours in (*((f"a{n}", "a", (n - 5) * 12) for n in range(1, 6)), ("b1", "b", -2400)):
        made = plan_savepoint(pond, name, job=job).run()
        # As if it had been made then.
        made.storage.write(NAME, replace(made.manifest, created_ms=noon_ms + hours * HOUR * 1000).to_bytes())
    return pond


def kept(pond: Path, keep: Keep, **options: str) -> list[str]:
    plan = prune_by(pond, keep, **options)
    deleted = {one.name for one in plan.deleted}
    assert deleted.isdisjoint(plan.kept)
    return sorted(plan.kept)


def test_the_newest_of_each_job(pond: Path) -> None:
    assert kept(pond, Keep(last=1)) == ["a5", "b1"]
    assert kept(pond, Keep(last=2)) == ["a4", "a5", "b1"]
    assert kept(pond, Keep(last=9)) == ["a1", "a2", "a3", "a4", "a5", "b1"]


def test_the_newest_of_each_day(pond: Path) -> None:
    """Today at noon, today and yesterday at midnight and noon, and so on: a5, a4; a3, a2; a1."""
    assert kept(pond, Keep(days=1)) == ["a5"]
    assert kept(pond, Keep(days=2)) == ["a3", "a5"]
    assert kept(pond, Keep(days=3)) == ["a1", "a3", "a5"]
    assert kept(pond, Keep(days=200)) == ["a1", "a3", "a5", "b1"]


def test_the_young_ones(pond: Path) -> None:
    assert "b1" not in kept(pond, Keep(seconds=99 * DAY))
    assert kept(pond, Keep(seconds=102 * DAY)) == ["a1", "a2", "a3", "a4", "a5", "b1"]


def test_all_parts_of_a_rule_together_and_one_job_alone(pond: Path) -> None:
    assert kept(pond, Keep(last=2, days=2)) == ["a3", "a4", "a5", "b1"]
    assert kept(pond, Keep(days=1), job="a") == ["a5"]
    prune_by(pond, Keep(days=1), job="a").run()
    assert [found.manifest.name for found in list_savepoints(pond).found] == ["b1", "a5"]


def test_where_a_job_comes_from_is_kept(pond: Path) -> None:
    plan_fork(pond, "a2", "c").run()
    assert kept(pond, Keep(last=1)) == ["a2", "a5", "b1"]


def test_a_rule_that_keeps_nothing_is_refused(pond: Path) -> None:
    for keep in (Keep(), Keep(last=-1), Keep(last=1, days=-1)):
        with pytest.raises(MillpondError) as caught:
            prune_by(pond, keep)
        assert caught.value.condition == "INVALID_REQUEST"
