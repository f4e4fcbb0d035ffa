"""The same promises of every target, over random batches: the table's own rows and changes are what must arrive."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.sending import sender as sender_module
from millpond.sending.sender import Sender
from sending.places import BROKERED, KINDS, Kafka, Place, parse, place
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few, examples
from suite.waiting import wait_until

TABLE = "ck.aggregate_0"
ALL = millpond.Retention(history_batches=None)


class Job:
    """A checkpoint with random batches, and a pond that follows it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.checkpoint = WrittenCheckpoint(folder / "ck")
        self.batch()
        self._folder = folder
        self.pond = self.open()

    def open(self, retention: millpond.Retention = ALL) -> millpond.Pond:
        self.pond = millpond.open(self._folder / "ck", replica_dir=self._folder / "home", retention=retention)
        return self.pond

    @property
    def table(self) -> Any:
        return self.pond[TABLE]

    @property
    def newest(self) -> int:
        return self.checkpoint.next_batch - 1

    def batch(self, rows: int = 20) -> None:
        keys = [f"k{self.random.randrange(60)}" for _ in range(rows)]
        changes = {key: None if self.random.random() < 0.3 else self.random.randrange(100) for key in keys}
        self.checkpoint.plan(list(changes.items()), snapshot=False)
        self.checkpoint.commit()

    def replace(self) -> None:
        """Another job writes to the same place."""
        import shutil

        self.pond.close()
        shutil.rmtree(self.checkpoint.path)
        self.checkpoint = WrittenCheckpoint(self.checkpoint.path, "job-2")
        self.batch()
        self.open()


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    made = Job(tmp_path, 7)
    yield made
    made.pond.close()


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place(request.param, tmp_path) as made:
        yield made


def sender(job: Job, target: Place, **options: Any) -> Sender:
    return Sender(job.table, target.to, options=target.options, **options)


def send(job: Job, target: Place, **options: Any) -> Sender:
    """Send all that is committed."""
    job.pond.catch_up(60)
    made = sender(job, target, **options)
    made.run(once=True)
    return made


def each(kinds: tuple[str, ...], small: tuple[str, ...] = ("sqlite", "ndjson")) -> pytest.MarkDecorator:
    """A test for each kind; a broker takes as long to start as a Spark session, and needs Java as it does."""
    cases = []
    for kind in kinds:
        marks = [pytest.mark.spark] if kind in BROKERED else []
        cases.append(pytest.param(kind, marks=marks if kind in small else [*marks, pytest.mark.long]))
    return pytest.mark.parametrize("target", cases, indirect=True)


def expected_changes(job: Job, since: int) -> list[tuple[str, int, Any, Any, Any]]:
    return sorted(
        parse({"kind": c.kind, "batch": c.batch, "old": c.old, "new": c.new, "final": c.final}) for c in job.table.changes(since)
    )


@each(KINDS, small=("sqlite", "ndjson", "parquet", "webhook", "postgres", "changelog"))
def test_a_target_equals_the_table_after_every_run(job: Job, target: Place) -> None:
    first = job.newest
    made = send(job, target)
    assert target.rows() == job.checkpoint.content()
    assert made.status().whole_reads == 1
    for _ in range(3):
        for _ in range(job.random.randrange(1, 4)):
            job.batch()
        made = send(job, target)
        status = made.status()
        assert (status.batch, status.newest, status.behind_batches, status.last_error) == (job.newest, job.newest, 0, None)
        assert status.whole_reads == 0
        assert target.rows() == job.checkpoint.content()
    if target.is_log:
        logged = target.logged()
        inserts = [change for change in logged if change[1] == first]
        assert len({key for _, _, key, _, _ in inserts}) == len(inserts)
        assert sorted(c for c in map(ordered, logged) if c[1] > first) == sorted(map(ordered, expected_changes(job, first)))


def ordered(change: tuple[str, int, Any, Any, Any]) -> tuple[Any, ...]:
    kind, batch, key, old, new = change
    return kind, batch, key, -1 if old is None else old, -1 if new is None else new


@each(KINDS)
def test_what_isn_t_committed_is_never_seen(job: Job, target: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that dies before the commit, or after it before it knows: nothing is lost, nothing twice."""
    send(job, target)
    first = job.newest
    for when in ("before", "after", "before"):
        job.batch()
        job.pond.catch_up(60)
        made = sender(job, target)
        commit = made.target.commit

        def fail(position: Any, when: str = when, commit: Any = commit) -> None:
            if when == "after":
                commit(position)
            raise OSError("the machine is gone")

        monkeypatch.setattr(made.target, "commit", fail)
        with pytest.raises(OSError, match="gone"):
            made.step()
        made.target.close()
    send(job, target)
    if target.is_log:
        logged = [ordered(change) for change in target.logged() if change[1] > first]
        assert sorted(logged) == sorted(map(ordered, expected_changes(job, first)))
    else:
        assert target.rows() == job.checkpoint.content()


@each(KINDS)
def test_pages_smaller_than_a_batch_lose_nothing(job: Job, target: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "PAGE_ROWS", 7)
    send(job, target)
    first = job.newest
    for _ in range(5):
        job.batch(40)
    send(job, target)
    if target.is_log:
        logged = [ordered(change) for change in target.logged() if change[1] > first]
        assert sorted(logged) == sorted(map(ordered, expected_changes(job, first)))
    else:
        assert target.rows() == job.checkpoint.content()


@each(("sqlite", "ndjson", "postgres", "compacted", "webhook"))
def test_a_replaced_job_is_an_error_until_it_is_sent_again(job: Job, target: Place) -> None:
    send(job, target)
    job.replace()
    with pytest.raises(MillpondError) as raised:
        send(job, target)
    assert raised.value.condition == "HISTORY_GONE"
    assert "--resync" in raised.value.hint
    assert send(job, target, resync=True).status().whole_reads == 1
    assert target.rows() == job.checkpoint.content()
    job.batch()
    send(job, target)
    assert target.rows() == job.checkpoint.content()


@each(("sqlite", "ndjson", "parquet", "webhook", "postgres", "compacted", "changelog"))
def test_a_sender_that_was_away_for_longer_than_history_sends_the_whole_table_if_it_may(job: Job, target: Place) -> None:
    job.pond.close()
    job.open(millpond.Retention(history_batches=3))
    send(job, target)
    for _ in range(10):
        job.batch()
        job.pond.catch_up(60)
    before = target.rows()
    for _ in range(2):
        with pytest.raises(MillpondError) as raised:
            send(job, target)
        assert raised.value.condition == "HISTORY_GONE"
        assert target.rows() == before
    made = send(job, target, resync=True)
    assert made.status().whole_reads == 1
    assert target.rows() == job.checkpoint.content() != before
    first = job.newest
    for _ in range(2):
        job.batch()
    assert send(job, target, resync=True).status().whole_reads == 0
    assert target.rows() == job.checkpoint.content()
    if target.is_log:
        logged = [ordered(change) for change in target.logged() if change[1] > first]
        assert sorted(logged) == sorted(map(ordered, expected_changes(job, first)))


@each(("sqlite", "postgres", "compacted"))
def test_expired_rows_stay_if_they_are_to(job: Job, target: Place) -> None:
    """Nothing else than a watermark deletes rows of this job."""
    last: dict[str, tuple[int, bool]] = {}

    def note(before: dict[str, int], now: dict[str, int]) -> None:
        last.update({key: (before[key], True) for key in before.keys() - now.keys()})
        last.update({key: (value, False) for key, value in now.items()})

    note({}, job.checkpoint.content())
    send(job, target, keep_expired=True)
    for _ in range(5):
        for _ in range(job.random.randrange(1, 4)):
            before = job.checkpoint.content()
            job.batch()
            note(before, job.checkpoint.content())
        send(job, target, keep_expired=True)
    assert target.rows() == {key: value for key, (value, _) in last.items()}
    assert any(gone for _, gone in last.values())
    if not isinstance(target, Kafka):
        assert target.expired() == {key for key, (_, gone) in last.items() if gone}
    # After a whole read nobody knows what became of the rows that are gone.
    before = job.checkpoint.content()
    job.replace()
    note(before, job.checkpoint.content())
    send(job, target, resync=True, keep_expired=True)
    assert target.rows() == {key: value for key, (value, _) in last.items()}
    if not isinstance(target, Kafka):
        assert target.expired() == {key for key, (_, gone) in last.items() if gone}


@each(("sqlite", "ndjson", "postgres", "compacted"))
def test_a_second_sender_of_the_same_name_ends_the_first_or_itself(job: Job, target: Place) -> None:
    one = sender(job, target)
    one.step()
    job.batch()
    job.pond.catch_up(60)
    two = sender(job, target)
    conditions = []
    for made in (two, one):
        try:
            made.run(once=True)
        except MillpondError as error:
            conditions.append(error.condition)
    assert conditions == ["TARGET_TAKEN"]
    one.target.close()
    send(job, target)
    assert target.rows() == job.checkpoint.content()


@each(("sqlite", "changelog"))
def test_from_now_sends_only_what_comes(job: Job, target: Place) -> None:
    send(job, target, begin="now")
    job.batch()
    send(job, target, begin="now")
    if target.is_log:
        assert sorted(map(ordered, target.logged())) == sorted(map(ordered, expected_changes(job, job.newest - 1)))
    else:
        assert target.rows().items() <= job.checkpoint.content().items()


@each(("sqlite", "ndjson", "compacted"))
def test_a_sender_in_a_thread_follows_the_job(job: Job, target: Place) -> None:
    with sender(job, target).start() as made:
        for _ in range(5):
            job.batch()
            made.wait_for_batch(job.newest, 60)
        wait_until(lambda: made.status().state == "following", "a sender that follows")
        status = made.status()
        assert status.lag_seconds is not None
    assert made.status().state == "ended"
    assert target.rows() == job.checkpoint.content()


@pytest.mark.long
@each(("webhook",), small=("webhook",))
def test_a_webhook_that_answers_badly_is_asked_again(job: Job, target: Any) -> None:
    from millpond.wire.signature import parse_secret, sign

    target.answers = [503, 500, 204, 503, 500]
    with sender(job, target).start() as made:
        for _ in range(3):
            job.batch()
            made.wait_for_batch(job.newest, 60)
        assert made.status().errors >= 4
    assert target.rows() == job.checkpoint.content()
    for headers, body in target.requests:
        identity, stamp = headers["webhook-id"], headers["webhook-timestamp"]
        assert headers["webhook-signature"] == sign(parse_secret(target.SECRET, "x"), identity, stamp, body)
        assert headers["x-own"] == "1"
        assert abs(time.time() - int(stamp)) < 600


@pytest.mark.parametrize("seed", a_few(range(examples(20)), 2, long=6))
def test_random_ends_of_a_sender_to_sqlite(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors at random calls of the target, and random pages."""
    job = Job(tmp_path, seed)
    monkeypatch.setattr(sender_module, "PAGE_ROWS", job.random.randrange(1, 30))
    with place("sqlite", tmp_path) as target, job.pond:
        made = sender(job, target)
        for name in ("open", "begin", "add", "commit"):
            call = getattr(made.target, name)

            def failing(*args: Any, call: Any = call, **more: Any) -> Any:
                chance = job.random.random()
                if chance < 0.1:
                    raise OSError("before")
                done = call(*args, **more)
                if chance > 0.9:
                    raise OSError("after")
                return done

            monkeypatch.setattr(made.target, name, failing)
        for _ in range(20):
            job.batch()
            job.pond.catch_up(60)
            try:
                made.step()
            except OSError:
                made._close()
        monkeypatch.undo()
        send(job, target)
        assert target.rows() == job.checkpoint.content()
