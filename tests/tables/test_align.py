"""Two jobs over one source, read at the same point of its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_job
from millpond.errors import MillpondError
from spark_files.checkpoint import WrittenCheckpoint

ALL = millpond.Retention(history_batches=None)
EVENTS = [f"k{n % 5}" for n in range(40)]
FAST, SLOW = "fast.aggregate_0", "slow.aggregate_0"


def condition(ask: Callable[[], Any]) -> str:
    with pytest.raises(MillpondError) as raised:
        ask()
    return raised.value.condition


class Counting:
    """A job that counts the events of a topic with one partition, so many in each batch."""

    def __init__(self, pond: Path, name: str, step: int, sources: Callable[[int, int], list[Any]] | None = None) -> None:
        """sources: gives its offsets from the batch and the end in the topic."""
        self.end = 0
        self._ends: list[int] = []
        self._step = step
        offsets = sources or (lambda _, end: [{"views": {"0": end}}])
        self.written = WrittenCheckpoint(pond / name / "ck", job_id=name, sources=lambda batch: offsets(batch, self._ends[batch]))
        create_job(pond / "pond", name, str(pond / name / "ck"))

    def run_batch(self) -> None:
        counts = self.counts(self.end)
        self.end = min(self.end + self._step, len(EVENTS))
        self._ends.append(self.end)
        now = self.counts(self.end)
        self.written.plan([(k, v) for k, v in now.items() if counts.get(k) != v], snapshot=False)
        self.written.commit()

    @staticmethod
    def counts(end: int) -> dict[str, int]:
        return {key: EVENTS[:end].count(key) for key in EVENTS[:end]}


@pytest.fixture
def jobs(tmp_path: Path) -> tuple[Counting, Counting]:
    return Counting(tmp_path, "fast", 6), Counting(tmp_path, "slow", 4)


@contextmanager
def followed(jobs: Sequence[Counting], folder: Path, retention: millpond.Retention | None = ALL) -> Iterator[millpond.Pond]:
    """A pond whose jobs ran five batches, the last four of them while it was followed."""
    for job in jobs:
        job.run_batch()
    with millpond.open(folder / "pond", replica_dir=folder / "home", retention=retention) as opened:
        for job in jobs:
            for _ in range(4):
                job.run_batch()
        opened.catch_up(60)
        yield opened


@pytest.fixture
def pond(jobs: tuple[Counting, Counting], tmp_path: Path) -> Iterator[millpond.Pond]:
    with followed(jobs, tmp_path) as opened:
        yield opened


def test_both_jobs_show_the_same_events(jobs: tuple[Counting, Counting], pond: millpond.Pond) -> None:
    assert [job.end for job in jobs] == [30, 20]
    both = pond.at([FAST, SLOW])
    for name, batch in ((FAST, 1), (SLOW, 2)):  # both had read 12 of the events then
        rows = both[name].scan()
        assert rows.batch == batch
        assert rows.position.offsets == {"0": {"views": {"0": 12}}}
        assert {row["k"]: row["v"] for row in rows} == Counting.counts(12)


def test_by_offsets_each_job_is_read_at_the_batch_that_ends_there(pond: millpond.Pond) -> None:
    assert pond.at([SLOW], offsets={"0": {"views": {"0": 16}}})[SLOW].scan().batch == 3
    assert condition(lambda: pond.at([FAST, SLOW], offsets={"0": {"views": {"0": 16}}})) == "NOT_ALIGNED"
    assert condition(lambda: pond.at([FAST], offsets={"0": {"views": {"0": 13}}})) == "NOT_ALIGNED"
    assert condition(lambda: pond.at(["nobody"])) == "UNKNOWN_TABLE"


def test_jobs_that_keep_no_history_arent_read_at_another_point(jobs: tuple[Counting, Counting], tmp_path: Path) -> None:
    with followed(jobs, tmp_path, retention=None) as pond:
        assert condition(lambda: pond.at([FAST, SLOW])) == "HISTORY_GONE"


def test_offsets_that_count_a_jobs_own_log_are_never_taken_for_anothers(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "ck")
    written.plan([("a", 1)], snapshot=False)
    written.commit()
    with millpond.open(written.path, replica_dir=tmp_path / "home", retention=ALL) as pond:
        assert condition(lambda: pond.at(["ck.aggregate_0"])) == "NOT_ALIGNED"


def test_what_only_one_of_the_jobs_reads_doesnt_matter(tmp_path: Path) -> None:
    """Such as another topic, in the same source or its own, and files."""

    def with_clicks(batch: int, end: int) -> list[Any]:
        return [{"logOffset": batch}, {"clicks": {"0": 100 + batch}, "views": {"0": end}}]

    def with_orders(batch: int, end: int) -> list[Any]:
        return [{"views": {"0": end}}, {"orders": {"0": 7 * batch, "1": 3}}]

    steps = {"fast": (6, with_clicks), "slow": (4, with_orders), "other": (4, with_files)}
    with followed([Counting(tmp_path, name, *sources) for name, sources in steps.items()], tmp_path) as opened:
        both = opened.at([FAST, SLOW])
        for name, batch in ((FAST, 1), (SLOW, 2)):
            rows = both[name].scan()
            assert rows.batch == batch
            assert {row["k"]: row["v"] for row in rows} == Counting.counts(12)
        # The whole position of one job's answer chooses the batch of the other that agrees with it.
        again = opened.at([SLOW], offsets=both[FAST].scan().position.offsets)[SLOW].scan()
        assert again.batch == 2
        assert opened.at([FAST], offsets={"0": {"clicks": {"0": 103}}})[FAST].scan().batch == 3
        assert condition(lambda: opened.at([FAST, SLOW], offsets={"0": {"clicks": {"0": 103}}})) == "NOT_ALIGNED"
        assert condition(lambda: opened.at([FAST], offsets={"0": {"clicks": {"0": 103}, "views": {"0": 12}}})) == "NOT_ALIGNED"
        assert condition(lambda: opened.at([FAST, "other.aggregate_0"])) == "NOT_ALIGNED"


def with_files(batch: int, _: int) -> list[Any]:
    return [{"logOffset": batch}, {"payments": {"0": batch}}]


def test_a_topic_that_one_job_reads_twice_is_at_one_point_where_both_readings_are(tmp_path: Path) -> None:
    twice = Counting(tmp_path, "fast", 6, lambda batch, end: [{"views": {"0": end}}, {"views": {"0": min(end, 12 + batch)}}])
    once = Counting(tmp_path, "slow", 4)
    with followed([twice, once], tmp_path) as opened:
        # Both readings are at 12 after batch 1 of this job; only one of them is at 24, like the other job.
        both = opened.at([FAST, SLOW])
        assert [both[name].scan().batch for name in (FAST, SLOW)] == [1, 2]
