"""When another job takes a path, reads are refused until a new replica serves; no read sees a mixture."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import millpond
from millpond.checkpoint.identity import judge
from millpond.checkpoint.log import check_still_committed
from millpond.checkpoint.log import read_batch as read_log
from millpond.checkpoint.position import Batch
from millpond.errors import MillpondError, ReplicaError
from millpond.replica.backends.base import Backend
from millpond.replica.backends.memory import MemoryBackend
from millpond.replica.follower import Follower
from millpond.replica.record import make_record
from millpond.settings import ReplicaSettings, Retention
from millpond.storage import FileStamp, LocalStorage, open_storage
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

PASSING = (
    "JOB_REPLACED",
    "REPLICA_BUILDING",
    "NO_COMMITTED_BATCH",
    "FILE_GONE",
    "INCOMPLETE_FILE",
    "UNKNOWN_TABLE",
    "DEFINITION_MISMATCH",
)


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    for n in range(4):
        commit(checkpoint, [("a", n), ("b", n)])
    return checkpoint


@pytest.fixture(params=["following", "attached"])
def pond(job: WrittenCheckpoint, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[millpond.Pond]:
    """A pond that follows; or one that only reads a replica that another pond keeps up to date."""
    home = tmp_path / "home"
    with millpond.open(job.path, replica_dir=home) as follower:
        if request.param == "following":
            yield follower
        else:
            with millpond.open(job.path, replica_dir=home, follow=False) as reader:
                yield reader


def commit(checkpoint: WrittenCheckpoint, changes: list[tuple[str, int | None]]) -> None:
    checkpoint.plan(changes, snapshot=False)
    checkpoint.commit()


def read_batch(pond: millpond.Pond) -> tuple[int, dict[str, int]]:
    rows = pond["ck.aggregate_0"].scan()
    return int(rows.batch), {row["k"]: row["v"] for row in rows}


def wait_for_batch(pond: millpond.Pond, wanted: int) -> None:
    """While a copy arrives file by file, a read is refused, or right for the batch that it names.

    A follower that looks when the state isn't there yet finds a job without tables, and looks again a moment later.
    """

    def is_at_it() -> bool:
        try:
            batch, found = read_batch(pond)
        except MillpondError as error:
            assert error.condition in PASSING
            return False
        assert found == {"a": batch, "b": min(batch, 3)}
        return batch == wanted

    wait_until(is_at_it, f"batch {wanted}")


def assert_refused(pond: millpond.Pond) -> None:
    time.sleep(0.002)  # one look at the checkpoint is reused for a millisecond
    with pytest.raises(ReplicaError) as caught:
        read_batch(pond)
    assert caught.value.condition == "JOB_REPLACED"


def test_a_checkpoint_that_was_deleted_and_started_over(job: WrittenCheckpoint, pond: millpond.Pond) -> None:
    assert read_batch(pond) == (3, {"a": 3, "b": 3})
    shutil.rmtree(job.path)
    assert_refused(pond)
    again = WrittenCheckpoint(job.path, job_id="job-2")
    again.clock = 5_000
    commit(again, [("a", 100)])
    pond.catch_up(60)
    assert read_batch(pond) == (0, {"a": 100})
    commit(again, [("c", 101)])
    pond.catch_up(60)
    assert read_batch(pond) == (1, {"a": 100, "c": 101})


def test_a_checkpoint_that_was_rewound_in_place(job: WrittenCheckpoint, pond: millpond.Pond) -> None:
    assert read_batch(pond) == (3, {"a": 3, "b": 3})
    for batch in (3, 2):
        (job.path / "commits" / str(batch)).unlink()
    time.sleep(0.002)
    try:  # there is a batch to build from, and the build may be done already
        assert read_batch(pond) == (1, {"a": 1, "b": 1})
    except ReplicaError as error:
        assert error.condition == "JOB_REPLACED"
    pond.catch_up(60)
    assert read_batch(pond) == (1, {"a": 1, "b": 1})
    job.next_batch = 2
    job.clock = 9_000
    commit(job, [("a", 50)])
    pond.catch_up(60)
    assert read_batch(pond) == (2, {"a": 50, "b": 1})


def test_a_rewound_job_that_is_already_further_than_the_replica(job: WrittenCheckpoint, pond: millpond.Pond) -> None:
    """The batch numbers go on as if nothing had happened: only the content of the log shows the rewind."""
    assert read_batch(pond) == (3, {"a": 3, "b": 3})
    moved = job.path.with_name("being rewritten")
    job.path.rename(moved)
    job.path = moved
    for batch in (3, 2):
        (moved / "commits" / str(batch)).unlink()
    job.next_batch = 2
    job.clock = 9_000
    for n in (60, 61, 62):
        commit(job, [("a", n)])
    moved.rename(moved.with_name("ck"))
    pond.catch_up(60)
    assert read_batch(pond) == (4, {"a": 62, "b": 1})


def test_an_older_copy_that_was_restored_to_the_same_path(job: WrittenCheckpoint, pond: millpond.Pond, tmp_path: Path) -> None:
    shutil.copytree(job.path, tmp_path / "copy")
    for n in range(10, 13):
        commit(job, [("a", n)])
    pond.catch_up(60)
    assert read_batch(pond) == (6, {"a": 12, "b": 3})
    shutil.rmtree(job.path)
    assert_refused(pond)
    shutil.copytree(tmp_path / "copy", job.path)
    wait_for_batch(pond, 3)


def test_the_same_checkpoint_moved_away_and_back_is_the_same_job(
    job: WrittenCheckpoint, pond: millpond.Pond, tmp_path: Path
) -> None:
    shutil.copytree(job.path, tmp_path / "copy")
    job.path.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "copy", job.path)
    wait_for_batch(pond, 3)
    commit(job, [("a", 4)])
    pond.catch_up(60)
    wait_for_batch(pond, 4)


def test_a_checkpoint_restored_file_by_file_is_the_same_job(job: WrittenCheckpoint, pond: millpond.Pond, tmp_path: Path) -> None:
    """Meanwhile no read is refused, and no replica is built again."""

    def generations() -> list[str]:
        return sorted(path.name for path in (tmp_path / "home/replicas").glob("*/generation-*"))

    built = generations()
    assert len(built) == 1
    for file in [path for path in job.path.rglob("*") if path.is_file()]:
        restored = file.with_name(f".{file.name}.restored")
        shutil.copy(file, restored)  # another inode, and a new file time
        restored.rename(file)
        assert read_batch(pond) == (3, {"a": 3, "b": 3})
    pond.catch_up(60)
    commit(job, [("a", 4)])
    pond.catch_up(60)
    assert read_batch(pond) == (4, {"a": 4, "b": 3})
    assert generations() == built


@pytest.mark.parametrize("name", ["commits/3", "offsets/3", "metadata"])
def test_a_log_file_that_is_half_written_for_a_moment(
    job: WrittenCheckpoint, pond: millpond.Pond, tmp_path: Path, name: str
) -> None:
    """A program that copies a checkpoint over itself writes in place.  Nothing is built again, and no history is lost."""
    built = sorted((tmp_path / "home/replicas").glob("*/generation-*"))
    file = job.path / name
    data = file.read_bytes()
    for length in (0, 1, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:length])
        (job.path / "commits/3").touch()
        time.sleep(0.002)
        try:  # without its last byte, a file may still be the same
            assert read_batch(pond) == (3, {"a": 3, "b": 3})
        except MillpondError as error:
            assert error.condition in {"INCOMPLETE_FILE", "CORRUPT_FILE"}
        time.sleep(0.05)  # the follower looks meanwhile
        file.write_bytes(data)
        pond.catch_up(60)
        assert read_batch(pond) == (3, {"a": 3, "b": 3})
    commit(job, [("a", 4)])
    pond.catch_up(60)
    assert read_batch(pond) == (4, {"a": 4, "b": 3})
    assert sorted((tmp_path / "home/replicas").glob("*/generation-*")) == built


class CopiedMeanwhile(LocalStorage):
    """A disk on which a program copies a file: it gives it a name, then its bytes, then its time, between two looks at it."""

    def __init__(self, root: Path, path: str, data: bytes, looks: int) -> None:
        """
        looks:  at the empty file
        """
        super().__init__(root)
        self._file, self._path, self._data, self._left = root / path, path, data, looks
        self._file.write_bytes(b"")

    def stamp(self, path: str) -> FileStamp | None:
        found = super().stamp(path)
        if path == self._path:
            self._left -= 1
            if self._left == 0:
                self._file.write_bytes(self._data)
            elif self._left == -1:
                os.utime(self._file, (1_000_000_000, 1_000_000_000))
        return found


@pytest.mark.parametrize("looks", range(1, 6))
def test_a_batch_whose_commit_is_copied_while_it_is_read_is_applied(job: WrittenCheckpoint, looks: int) -> None:
    """It is no other run's, so nothing is built, which would lose what each batch changed."""
    job.plan([("a", 4)], snapshot=False)
    storage = CopiedMeanwhile(job.path, "commits/4", (job.path / "commits/3").read_bytes(), looks)
    serving: list[Backend] = []
    (job.path / "commits/4").rename(job.path / ".4")
    follower = Follower(storage, None, ReplicaSettings(), new_backend=MemoryBackend, on_backend=serving.append)
    assert follower.step()
    (job.path / ".4").rename(job.path / "commits/4")

    def is_applied() -> bool:
        try:
            follower.step()
        except MillpondError as error:
            assert error.condition == "INCOMPLETE_FILE"
        with serving[-1].snapshot() as snapshot:
            return bool(snapshot.record().batch == 4)

    wait_until(is_applied, "batch 4")
    follower.stop()
    assert (follower.counts.bootstraps, follower.counts.batches_applied) == (1, 1)


class HalfOnce(LocalStorage):
    """A disk on which a program writes a file in place: the first look meets its first half, each later one all of it."""

    def __init__(self, root: Path, path: str) -> None:
        super().__init__(root)
        self._path: str | None = path

    def read(self, path: str, most_bytes: int) -> bytes:
        data = super().read(path, most_bytes)
        if path != self._path:
            return data
        self._path = None
        return data[: len(data) // 2]


@pytest.mark.parametrize("path", ["commits/3", "offsets/3", "metadata"])
def test_a_look_that_meets_half_a_log_file_meets_no_other_job(job: WrittenCheckpoint, path: str) -> None:
    batch = read_log(open_storage(job.path), Batch(3))
    record = make_record(batch)
    (job.path / "commits/3").touch()  # so that the log is read again
    storage = HalfOnce(job.path, path)
    with pytest.raises(MillpondError) as refused:
        judge(storage, record, "job-1")
    assert refused.value.condition in {"INCOMPLETE_FILE", "CORRUPT_FILE"}
    assert judge(storage, record, "job-1")[0] == "same"


@pytest.mark.parametrize("change", ["another run", "gone", "half"])
def test_a_batch_whose_commit_is_replaced_while_it_is_read_is_not_applied(job: WrittenCheckpoint, change: str) -> None:
    storage = open_storage(job.path)
    batch = read_log(storage, Batch(3))
    check_still_committed(storage, batch)
    commit = job.path / "commits/3"
    if change == "another run":
        offsets = job.path / "offsets/3"
        offsets.write_bytes(offsets.read_bytes().replace(b'"batchTimestampMs": ', b'"batchTimestampMs": 9'))
        commit.touch()
    elif change == "half":
        commit.write_bytes(commit.read_bytes()[:1])
    else:
        commit.unlink()
    with pytest.raises(MillpondError) as refused:
        check_still_committed(storage, batch)
    assert refused.value.condition == ("INCOMPLETE_FILE" if change == "half" else "FILE_GONE")


def test_a_log_file_that_is_written_again_while_a_newer_batch_is_there(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """A replica that is a batch behind meets half a file, or none of the job's id, while a program copies."""
    home = tmp_path / "home"
    with millpond.open(job.path, replica_dir=home, retention=Retention(history_batches=None)) as pond:
        assert read_batch(pond) == (3, {"a": 3, "b": 3})
    commit(job, [("a", 4)])
    data, name = (job.path / "commits/3").read_bytes(), (job.path / "metadata").read_bytes()
    (job.path / "commits/3").write_bytes(b"")
    with millpond.open(job.path, replica_dir=home, retention=Retention(history_batches=None), wait_seconds=0) as pond:
        time.sleep(0.3)  # the follower looks meanwhile
        (job.path / "metadata").write_bytes(b"")
        (job.path / "commits/3").unlink()
        time.sleep(0.3)
        (job.path / "commits/3").write_bytes(data)  # first: without it, and with its job's id, it was cleaned up
        (job.path / "metadata").write_bytes(name)
        wait_for_batch(pond, 4)
        assert [version.batch for version in pond["ck.aggregate_0"].history("a")] == [None, 4], "one that began again has no change"


def test_a_damaged_log_file_below_a_newer_batch_is_anothers(job: WrittenCheckpoint, pond: millpond.Pond) -> None:
    """Spark writes no file of an earlier batch again, so that half a file would stay for ever."""
    moved = job.path.with_name("elsewhere")
    job.path.rename(moved)
    job.path = moved
    commit(job, [("a", 4)])
    (moved / "commits/3").write_bytes(b"")
    os.utime(moved / "commits/3", (1, 1))
    moved.rename(moved.with_name("ck"))
    pond.catch_up(60)
    assert read_batch(pond) == (4, {"a": 4, "b": 3})
