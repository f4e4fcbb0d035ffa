"""After a restart of the machine LMDB isn't trusted; flushed expired rows are still there."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.replica.journal.segments import decode_segment, read_mark, segments
from millpond.schema.types import Field, atomic
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

TABLE = "ck.aggregate_0"
TIME = (Field("k", atomic("timestamp")),)
Open = Callable[..., millpond.Pond]


class Job:
    """A job whose rows expire by a watermark, and its replica; keys are minutes."""

    def __init__(self, root: Path, *, watermarked: bool = True) -> None:
        self.root = root
        self.watermarked = watermarked
        self.checkpoint = self.new("job-1")

    def new(self, job_id: str) -> WrittenCheckpoint:
        return WrittenCheckpoint(self.root / "ck", job_id=job_id, key=TIME, watermarked=self.watermarked)

    def commit(self, *changes: tuple[int, int | None], snapshot: bool = False) -> None:
        """Commit a batch; keys with None expire, and the watermark has passed them."""
        gone = [minute for minute, value in changes if value is None]
        self.checkpoint.watermark_ms = max([self.checkpoint.watermark_ms, *(minute * 60_000 for minute in gone)])
        self.checkpoint.plan([((minute * 60_000_000,), value) for minute, value in changes], snapshot=snapshot)
        self.checkpoint.commit()

    def open(self, **settings: Any) -> millpond.Pond:
        return millpond.open(self.checkpoint.path, replica_dir=self.root / "home", **settings)

    @property
    def place(self) -> Path:
        (place,) = self.root.glob("home/replicas/*")
        return place

    def reboot(self) -> None:
        """Pretend that the machine restarted: data that wasn't flushed may be anything."""
        for generation in self.place.glob("generation-*"):
            (generation / "boot").write_text("another boot")
            (generation / "data.mdb").write_bytes(b"torn" * 4096)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.commit(*((minute, minute) for minute in range(10)))
    return job


def at(minute: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=minute)


def shown(pond: millpond.Pond) -> list[tuple[Any, ...]]:
    return [(row["k"], row["v"], row.final, row.changed_batch if row.final else None) for row in pond[TABLE].with_closed().scan()]


def condition(ask: Callable[[], Any]) -> str:
    with pytest.raises(MillpondError) as raised:
        ask()
    return raised.value.condition


@pytest.mark.parametrize("watermarked", [True, False])
def test_rows_that_expired_are_after_a_reboot_what_they_were_before(tmp_path: Path, watermarked: bool) -> None:
    job = Job(tmp_path, watermarked=watermarked)
    job.commit(*((minute, minute) for minute in range(10)))
    with job.open() as pond:
        for minute in range(6):
            job.commit((minute, None), (minute + 10, 1))
        pond.catch_up(60)
        before = shown(pond)
    assert [final for *_, final, _ in before].count(True) == 6
    for _ in range(3):
        job.reboot()
        with job.open() as pond:
            assert pond.statistics()["ck"]["bootstraps"] == 1
            assert shown(pond) == before
            assert pond[TABLE].live().get(k=at(3)).evicted is True
    job.commit((6, None))
    with job.open() as pond:
        assert shown(pond)[6] == (at(6), 6, True, 7)


def test_windows_that_expired_before_a_gap_are_told_and_those_in_it_are_unknown(job: Job) -> None:
    with job.open() as pond:
        job.commit((0, None), (1, None))
        pond.catch_up(60)
    job.reboot()
    job.commit((2, None))
    job.commit((3, None), snapshot=True)
    job.checkpoint.clean(keep=1)
    job.commit((12, 12))
    with job.open() as pond:
        assert [row[0] for row in shown(pond) if row[2]] == [at(0), at(1)]
        table = pond[TABLE]
        assert table.live().get(k=at(0)).evicted is True
        assert table.get(k=at(2)).evicted is None
        assert table.get(k=at(15)).evicted is False


def test_of_keys_that_may_come_back_nothing_is_told_after_a_gap_but_that_they_expired(tmp_path: Path) -> None:
    job = Job(tmp_path, watermarked=False)
    job.commit((0, 5), (1, 1))
    with job.open() as pond:
        job.commit((0, None))
        pond.catch_up(60)
    job.reboot()
    job.commit((0, 6))
    job.commit((0, None))
    with job.open() as pond:
        assert [row[:2] for row in shown(pond)] == [(at(1), 1)]
        gone = pond[TABLE].with_closed().get(k=at(0))
        assert (gone, gone.evicted) == ({}, True)
        job.commit((0, 8))
        job.commit((0, None))
        pond.catch_up(60)
        assert shown(pond)[0] == (at(0), 8, True, 5)


def test_a_key_that_is_in_the_state_again_is_live(tmp_path: Path) -> None:
    job = Job(tmp_path, watermarked=False)
    job.commit((0, 5), (1, 1))
    with job.open() as pond:
        job.commit((0, None))
        pond.catch_up(60)
    job.commit((0, 6))
    job.reboot()
    with job.open() as pond:
        assert [row[:3] for row in shown(pond)] == [(at(0), 6, False), (at(1), 1, False)]


def test_of_a_key_that_expired_twice_the_last_value_is_told(tmp_path: Path) -> None:
    job = Job(tmp_path, watermarked=False)
    job.commit((0, 5), (1, 1))
    for value in (6, 7):
        with job.open() as pond:
            job.commit((0, None))
            pond.catch_up(60)
        job.commit((0, value))
    with job.open() as pond:
        job.commit((0, None))
        pond.catch_up(60)
        before = shown(pond)
    assert before[0][:3] == (at(0), 7, True)
    job.reboot()
    with job.open() as pond:
        assert shown(pond) == before


def test_another_job_at_the_path_gets_nothing_of_the_one_before(job: Job) -> None:
    with job.open() as pond:
        job.commit((0, None), (1, None))
        pond.catch_up(60)
    job.reboot()
    shutil.rmtree(job.checkpoint.path)
    job.checkpoint = job.new("job-2")
    for minute in range(20, 25):
        job.commit((minute, 1))
    with job.open() as pond:
        assert not any(row[2] for row in shown(pond))
        assert condition(lambda: pond[TABLE].changes()) == "HISTORY_GONE"


@pytest.mark.parametrize("reboot", [True, False])
@pytest.mark.parametrize("back_to", [2, 4])
def test_a_job_that_was_rewound_gets_nothing_of_what_it_takes_back(job: Job, reboot: bool, back_to: int) -> None:
    """Batches from 3 on run again with other rows.  Rows that expired only in their first run mustn't appear."""
    saved = job.root / "saved"
    with job.open() as pond:
        for minute in range(5):
            if minute == back_to:
                pond.catch_up(60)
                shutil.copytree(job.checkpoint.path, saved)
                state = [dict(rows) for rows in job.checkpoint.state]
            job.commit((minute, None), (minute + 10, 1))
        pond.catch_up(60)
        assert sum(row[2] for row in shown(pond)) == 5
    if reboot:
        job.reboot()
    shutil.rmtree(job.checkpoint.path)
    saved.rename(job.checkpoint.path)
    job.checkpoint.next_batch, job.checkpoint.state = back_to + 1, state
    for minute in range(back_to, 8):
        job.commit((minute, 100 + minute))
    job.commit((8, None))
    with job.open() as pond:
        final = [row for row in shown(pond) if row[2]]
        assert all(row[0] < at(back_to) for row in final)
        for minute in range(back_to):
            assert pond[TABLE].get(k=at(minute)).evicted is not False or pond[TABLE].get(k=at(minute))


def test_whatever_of_the_journal_is_torn_off_nothing_wrong_is_told(job: Job) -> None:
    with job.open() as pond:
        for minute in range(4):
            job.commit((minute, None))
        pond.catch_up(60)
        before = shown(pond)
    shutil.copytree(job.place, job.root / "kept")
    (segment,) = (job.root / "kept").glob("closed-*/*/*")
    data = segment.read_bytes()
    ends = {decode_segment(data[:size]).end for size in range(len(data) + 1)}
    for size in sorted({0, *ends, *(end - 1 for end in ends if end), *(end + 3 for end in ends), len(data)}):
        shutil.rmtree(job.place)
        shutil.copytree(job.root / "kept", job.root / "home/replicas" / "place", dirs_exist_ok=True)
        (job.root / "home/replicas/place").rename(job.root / "home/replicas" / _name(job))
        (torn,) = job.place.glob("closed-*/*/*")
        torn.write_bytes(data[:size])
        job.reboot()
        with job.open() as pond:
            after = shown(pond)
            assert [row for row in after if not row[2]] == [row for row in before if not row[2]]
            final = [row for row in after if row[2]]
            assert final == before[: len(final)]
            assert (len(final) == 4) == (size >= len(data))
            for minute in range(4):
                assert pond[TABLE].live().get(k=at(minute)).evicted is (True if minute < len(final) else None)


def _name(job: Job) -> str:
    from millpond.replica.folder import ReplicaPlace
    from millpond.storage import open_storage

    return ReplicaPlace(job.root / "home", open_storage(job.checkpoint.path).uri).path.name


@pytest.mark.parametrize("what", ["mark", "folder", "not json", "another format"])
def test_without_a_mark_nothing_is_told(job: Job, what: str) -> None:
    with job.open() as pond:
        job.commit((0, None))
        pond.catch_up(60)
    mark = job.place / "closed.json"
    if what == "mark":
        mark.unlink()
    elif what == "folder":
        shutil.rmtree(next(job.place.glob("closed-*")))
    else:
        mark.write_bytes(b"{" if what == "not json" else mark.read_bytes().replace(b'"format":1', b'"format":0'))
    job.reboot()
    with job.open() as pond:
        assert not any(row[2] for row in shown(pond))
        assert pond[TABLE].get(k=at(0)).evicted is None
        job.commit((1, None))
        pond.catch_up(60)
    assert read_mark(job.place) is not None
    assert len(list(job.place.glob("closed-*"))) == 1
    job.reboot()
    with job.open() as pond:
        assert [row[0] for row in shown(pond) if row[2]] == [at(1)]


def test_rows_are_kept_over_another_format_of_the_replica(job: Job) -> None:
    with job.open() as pond:
        job.commit((0, None))
        pond.catch_up(60)
        before = shown(pond)
    (job.place / "current").unlink()
    with job.open() as pond:
        assert pond.statistics()["ck"]["bootstraps"] == 1
        assert shown(pond) == before


def test_history_before_a_reboot_is_gone_and_says_so(job: Job) -> None:
    keep = millpond.Retention(history_batches=None)
    with job.open(retention=keep) as pond:
        token = pond[TABLE].changes().token
        job.commit((20, 20))
        pond.catch_up(60)
        assert len(pond[TABLE].changes(token)) == 1
    job.reboot()
    job.commit((21, 21))
    with job.open(retention=keep) as pond:
        with pytest.raises(MillpondError) as gone:
            pond[TABLE].changes(token)
        assert gone.value.condition == "HISTORY_GONE"
        assert "Start over" in gone.value.hint
        for batch in (0, 1):
            assert condition(lambda batch=batch: pond[TABLE].at(batch=batch)) == "HISTORY_GONE"
            assert condition(lambda batch=batch: pond[TABLE].changes(since=batch)) == "HISTORY_GONE"
        fresh = pond[TABLE].changes().token
        job.commit((22, 22))
        pond.catch_up(60)
        assert [change.new for change in pond[TABLE].changes(fresh)] == [{"k": at(22), "v": 22}]


def test_what_is_forgotten_is_dropped_and_not_told_again(job: Job) -> None:
    keep = millpond.Retention(closed_bytes=200)
    with job.open(retention=keep) as pond:
        for minute in range(10):
            job.commit((minute, None), (minute + 10, 1))
        pond.catch_up(60)
        before = shown(pond)
        assert 1 < sum(row[2] for row in before) < 10
    job.reboot()
    with job.open(retention=keep) as pond:
        assert shown(pond) == before
    with job.open(retention=millpond.Retention(closed_seconds=0)) as pond:
        job.commit((20, 20))
        pond.catch_up(60)
    assert not list(job.place.glob("closed*"))
    assert not segments(job.place)


@pytest.mark.long
def test_a_disk_that_takes_nothing_doesnt_stop_the_replica(job: Job) -> None:
    with job.open() as pond:
        job.commit((0, None))
        pond.catch_up(60)
    (job.place / "closed.json").unlink()
    (job.place / "closed.json").mkdir()  # no file can be renamed to a folder
    with job.open() as pond:
        job.commit((1, None))
        pond.catch_up(60)
        assert sum(row[2] for row in shown(pond)) == 2
        wait_until(lambda: pond.statistics()["ck"]["journal_error"] is not None, "the journal's error")
        assert pond.statistics()["ck"]["journal_errors"] > 0
        (job.place / "closed.json").rmdir()
        wait_until(lambda: pond.statistics()["ck"]["journal_error"] is None, "the end of the journal's error")
        before = shown(pond)
    assert len(list(job.place.glob("closed-*"))) == 1
    job.reboot()
    with job.open() as pond:
        assert shown(pond) == before


def test_a_journal_that_was_damaged_is_written_anew_from_the_replica(job: Job) -> None:
    with job.open() as pond:
        job.commit((0, None), (1, None))
        pond.catch_up(60)
    (segment,) = job.place.glob("closed-*/*/*")
    segment.write_bytes(segment.read_bytes()[:-1])
    with job.open() as pond:
        job.commit((2, None))
        pond.catch_up(60)
        before = shown(pond)
    assert not segment.exists()
    job.reboot()
    with job.open() as pond:
        assert shown(pond) == before
        assert sum(row[2] for row in before) == 3


def test_a_killed_process_leaves_nothing_out(job: Job) -> None:
    """LMDB has everything that the killed process applied; the next process completes the journal from it."""
    with job.open() as pond:
        job.commit((0, None))
        pond.catch_up(60)
    saved = job.root / "saved"
    shutil.copytree(job.place, saved)
    with job.open() as pond:
        job.commit((1, None))
        pond.catch_up(60)
    for name in ("closed.json", *(path.name for path in saved.glob("closed-*"))):
        there = job.place / name
        shutil.rmtree(there) if there.is_dir() else there.unlink()
        shutil.copytree(saved / name, there) if (saved / name).is_dir() else shutil.copy(saved / name, there)
    with job.open() as pond:
        before = shown(pond)
    assert sum(row[2] for row in before) == 2
    job.reboot()
    with job.open() as pond:
        assert shown(pond) == before
