"""Batches that Spark deletes while a replica is built: they are put aside, so that one build is enough."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.bulk.stream import iter_state, read_changes
from millpond.checkpoint.log import CommittedBatch, committed_batches, read_batch
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.errors import MillpondError
from millpond.replica.aside import Aside, AsideErrors
from millpond.replica.generation import Generations
from millpond.schema.shard import parse_shard
from millpond.schema.store import StoreSchema
from millpond.settings import ReplicaSettings, Retention
from millpond.storage import LocalStorage, Storage, open_storage
from servers.s3 import BUCKET, moto_server, use
from spark_files.batches import Batches
from spark_files.checkpoint import UploadedCheckpoint, WrittenCheckpoint
from spark_files.golden import CELLS, GOLDEN
from suite.mounts import skip_without_mounts
from suite.sizes import a_few
from suite.waiting import stays, wait_until

TABLE = "ck.aggregate_0"
KEPT = 6
OTHER_DISK = Path("/dev/shm")


class QuickJob(Batches):
    """Commits batches, and deletes them as soon as Spark may with so small a `minBatchesToRetain`.

    While batches are put aside it waits until its last one is: on a busy machine that thread may be late.
    """

    def __init__(self, path: Path, home: Path, rows: int, seed: int) -> None:
        super().__init__(0.05)
        self.home = home
        self.chance = random.Random(seed)
        self.checkpoint = WrittenCheckpoint(path)
        self.checkpoint.plan([(f"row {n}" + "." * (n % 7), n) for n in range(rows)], snapshot=True)
        self.checkpoint.commit()
        self.contents = [self.checkpoint.content()]

    def batch(self) -> None:
        job, chance = self.checkpoint, self.chance
        keys = [chance.choice(["a", "bb", "ccc", f"new {len(self.contents)}", "row 1."]) for _ in range(3)]
        job.plan([(key, chance.choice([len(self.contents), None])) for key in keys], snapshot=chance.random() < 0.5)
        job.commit()
        self.contents.append(job.content())
        wait_until(self._is_put_aside, "the last batch put aside")
        job.clean(keep=KEPT)

    def _is_put_aside(self) -> bool:
        folders = list(self.home.glob("replicas/*/aside-*/commits"))
        return not folders or any((folder / str(len(self.contents) - 1)).exists() for folder in folders)


@pytest.fixture(params=["same disk", pytest.param("other disk", marks=pytest.mark.long)])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "same disk":
        yield tmp_path / "home"
        return
    other = OTHER_DISK / tmp_path.name
    if not OTHER_DISK.is_dir() or OTHER_DISK.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has no second file system in memory")
    yield other / "home"
    shutil.rmtree(other, ignore_errors=True)


@pytest.mark.long
def test_a_job_that_is_quicker_than_a_build_needs_one_build(home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="millpond")
    job = QuickJob(tmp_path / "ck", home, 40_000, seed=1)
    settings = ReplicaSettings(rebuild_batch_rows=1, retention=Retention(history_batches=None))
    job.start()
    with millpond.open(job.checkpoint.path, replica_dir=home, settings=settings, wait_seconds=0) as pond:
        wait_until(lambda: pond.statistics()["ck"]["batches_applied"] > 0, "the end of the build")
        job.end()
        pond.catch_up(60)
        rows = pond[TABLE].scan(limit=100_000)
        newest = rows.cut.position.batch
        assert newest == len(job.contents) - 1
        assert {row["k"]: row["v"] for row in rows} == job.contents[newest]
        (begun,) = (int(line.split(" batch=")[1].split()[0]) for line in caplog.messages if line.startswith("replica.built "))
        applied = newest - begun
        wait_until(lambda: pond.statistics()["ck"]["batches_applied"] == applied, "the count of the last batch")
        statistics = pond.statistics()["ck"]
        assert statistics["batches_aside"] > KEPT
        for batch in range(begun, min(begun + 20, newest) + 1):
            assert {row["k"]: row["v"] for row in pond[TABLE].at(batch=batch).scan(limit=100_000)} == job.contents[batch]
        # On another disk, the second one begins with copies.
        assert statistics["bootstraps"] <= (1 if home.is_relative_to(tmp_path) else 2)
        wait_until(lambda: not list(home.glob("replicas/*/aside-*")), "the end of what was put aside")


# ---------------------------------------------------------------- every kind of state


def rows_of(found: RowChunk | Any) -> list[Any]:
    records = found.records(None) if isinstance(found, RowChunk) else found
    return [(kind, bytes(key), bytes(value)) for kind, key, value in records]


def changes_of(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int) -> tuple[list[Any], bool]:
    rows, tells_all = read_changes(reader, batch, store, partition)
    return rows_of(rows), tells_all


def state_of(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int) -> list[Any]:
    return [row for rows in iter_state(reader, batch, store, partition) for row in rows_of(rows)]


def playable(cell: str) -> list[Batch]:
    """Batches in a row at the end of a golden checkpoint's log, all with the same stores and partitions."""
    storage = open_storage(GOLDEN / cell / "checkpoint")
    found: list[Batch] = []
    kind: Any = None
    for batch in committed_batches(storage):
        now = read_batch(storage, batch).settings, read_stores(storage, batch)[0]
        if found and (now != kind or batch != found[-1] + 1):
            found = []
        kind = now
        found.append(batch)
    return found


@pytest.mark.parametrize("cell", a_few(CELLS, 12))
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_put_aside_reads_as_the_checkpoint(cell: str, whole: bool, tmp_path: Path) -> None:
    golden = GOLDEN / cell / "checkpoint"
    batches = playable(cell)
    assert len(batches) > 1
    path = tmp_path / "checkpoint"
    shutil.copytree(golden, path)
    later = batches[(len(batches) + 1) // 2 :]
    for batch in later:  # not committed yet
        (path / f"commits/{batch}").rename(tmp_path / f"commit {batch}")
    storage, expected = open_storage(path), StateReader(open_storage(golden))
    before = read_batch(storage, Batch(later[0] - 1))
    stores = read_stores(storage, before.batch)[0]
    shard = parse_shard("1/2") if whole and before.settings.partitions > 1 else None
    errors = AsideErrors(storage.uri)
    aside = Aside(storage, tmp_path, before, stores, shard=shard, most_bytes=1 << 40, pause_seconds=0.005, errors=errors)
    reader = aside.begin(whole=whole)
    like = StateReader(storage)  # a follower's, which has applied the batch before
    for store in stores if not whole else ():
        for partition in partitions_of(before, store):
            changes_of(like, before, store, partition)
    try:
        assert errors.error is None
        assert (reader is not None) == whole
        for batch in later:
            (tmp_path / f"commit {batch}").rename(path / f"commits/{batch}")
            wait_until(lambda batch=batch: aside.reader(batch, like) is not None, f"batch {batch} put aside")
        newest = path / f"commits/{later[-1]}"
        stamp = newest.stat()
        if whole:  # all that Spark may delete is gone; what remains is the newest batch
            shutil.rmtree(path / "state")
        for store in stores:
            for partition in partitions_of(before, store) if shard is None else shard.partitions(len(partitions_of(before, store))):
                if reader is not None:
                    assert state_of(reader, before, store, partition) == state_of(expected, before, store, partition)
                for number in later:
                    batch = read_batch(expected.storage, number)
                    put = aside.reader(number, reader or like)
                    assert put is not None
                    assert read_batch(put.storage, number).fingerprint == batch.fingerprint
                    assert changes_of(put, batch, store, partition) == changes_of(expected, batch, store, partition)
        assert newest.stat().st_mtime_ns == stamp.st_mtime_ns
    finally:
        aside.end()
    assert not list(tmp_path.glob("aside-*"))


# ---------------------------------------------------------------- jobs that end, and bounds


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    commit(checkpoint, [("a", 0)], snapshot=True)
    return checkpoint


def commit(job: WrittenCheckpoint, changes: list[tuple[str, int | None]], *, snapshot: bool = False) -> None:
    job.plan(changes, snapshot=snapshot)
    job.commit()


def begun(storage: Storage, folder: Path, *, batch: int = 0, most_bytes: int = 1 << 40, errors: AsideErrors | None = None) -> Aside:
    before = read_batch(storage, Batch(batch))
    stores = read_stores(storage, before.batch)[0]
    errors = errors or AsideErrors(storage.uri)
    aside = Aside(storage, folder, before, stores, shard=None, most_bytes=most_bytes, pause_seconds=0.005, errors=errors)
    aside.begin(whole=True)
    return aside


def test_batches_of_a_job_that_was_rewound_or_replaced_arent_read(job: WrittenCheckpoint, tmp_path: Path) -> None:
    storage = LocalStorage(job.path)
    for how in ("rewound", "replaced", "deleted"):
        aside = begun(storage, tmp_path)
        commit(job, [("a", 1)])
        commit(job, [("a", 2)])
        wait_until(lambda aside=aside: aside.reader(2, StateReader(storage)) is not None, "batch 2 put aside")
        assert aside.reader(1, StateReader(storage)) is not None
        (job.path / "commits/2").unlink()
        job.next_batch = 2
        if how == "rewound":
            commit(job, [("a", 3)])
        elif how == "replaced":
            shutil.rmtree(job.path)
            job = WrittenCheckpoint(job.path, "job-2")
            for n in range(3):
                commit(job, [("a", 10 + n)])
        assert aside.reader(1, StateReader(storage)) is None, how
        assert aside.reader(2, StateReader(storage)) is None, how
        aside.end()
        shutil.rmtree(job.path)
        job = WrittenCheckpoint(job.path, f"job {how}")
        commit(job, [("a", 0)], snapshot=True)


def test_a_batch_that_was_missed_ends_it_and_its_batches(job: WrittenCheckpoint, tmp_path: Path) -> None:
    storage = LocalStorage(job.path)
    aside = begun(storage, tmp_path)
    commit(job, [("a", 1)])
    wait_until(lambda: aside.reader(1, StateReader(storage)) is not None, "batch 1 put aside")
    for n in range(2, 6):  # a commit that is there and gone before the next look
        job.plan([("a", n)], snapshot=True)
        if n > 3:
            job.commit()
        else:
            job.next_batch += 1
    (job.path / "commits/1").unlink()
    wait_until(lambda: aside.reader(1, StateReader(storage)) is None, "the end of batch 1 put aside")
    aside.end()


def test_no_more_bytes_are_put_aside_than_allowed(job: WrittenCheckpoint, tmp_path: Path) -> None:
    storage = LocalStorage(job.path)
    aside = begun(storage, tmp_path, most_bytes=1000)
    for n in range(1, 30):
        commit(job, [("a", n)])
    wait_until(lambda: aside.reader(1, StateReader(storage)) is not None, "batch 1 put aside")

    def put() -> list[int]:
        return [int(path.name) for path in tmp_path.glob("aside-*/commits/*")]

    stays(lambda: max(put()) < 29, "the last batch isn't put aside")
    size = sum(path.stat().st_size for path in tmp_path.glob("aside-*/state/**/*.delta") if int(path.stem) > 1)
    assert size < 1000 + 2 * (job.path / "state/0/0/2.delta").stat().st_size
    aside.end()


def test_what_a_killed_follower_put_aside_is_removed_by_the_next(job: WrittenCheckpoint, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with millpond.open(job.path, replica_dir=home) as pond:
        folder = Path(pond.statistics()["ck"]["path"])
    begun(LocalStorage(job.path), folder)  # and not ended
    assert list(folder.glob("aside-*"))
    with millpond.open(job.path, replica_dir=home) as pond:
        assert pond[TABLE].get(k="a")["v"] == 0
        assert not list(folder.glob("aside-*"))


def test_a_folder_that_cant_be_made_is_said(job: WrittenCheckpoint, tmp_path: Path) -> None:
    errors = AsideErrors(str(job.path))
    aside = begun(LocalStorage(job.path), tmp_path / "not there", errors=errors)
    assert isinstance(errors.error, MillpondError)
    assert errors.error.condition == "FOLLOWER_FAILED"
    assert aside.reader(1, StateReader(LocalStorage(job.path))) is None
    aside.end()


def test_why_batches_arent_put_aside_is_shown_until_they_are(
    job: WrittenCheckpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", logger="millpond")
    home, begins, may_begin, real = tmp_path / "home", threading.Event(), threading.Event(), Generations.build

    def build(*words: Any) -> Any:
        begins.set()
        assert may_begin.wait(300)
        return real(*words)

    monkeypatch.setattr(Generations, "build", build)  # a slow build
    with millpond.open(job.path, replica_dir=home, wait_seconds=0) as pond:
        assert begins.wait(60)
        (folder,) = home.glob("replicas/*/aside-*/offsets")
        folder.rename(tmp_path / "away")
        folder.touch()  # no file can be below a file
        commit(job, [("a", 1)])
        wait_until(lambda: pond.statistics()["ck"]["aside_error"] is not None, "the error that a batch isn't put aside")
        assert pond.statistics()["ck"]["aside_errors"] > 0
        folder.unlink()
        (tmp_path / "away").rename(folder)
        wait_until(lambda: pond.statistics()["ck"]["aside_error"] is None, "the end of that error")
        may_begin.set()
        pond.catch_up(60)
        wait_until(lambda: pond.statistics()["ck"]["batches_aside"] == 1, "the count of the batch, which comes after it")
        assert pond[TABLE].get(k="a")["v"] == 1
    lines = [record.getMessage().split(" ")[0] for record in caplog.records]
    assert [line for line in lines if line.startswith("aside.")] == ["aside.failed", "aside.recovered"]


@pytest.mark.long
def test_a_full_disk_is_said_and_the_batch_put_aside_when_there_is_room(tmp_path: Path) -> None:
    skip_without_mounts()
    command = ["unshare", "-m", sys.executable, "-m", "replica.test_aside", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def fill_the_disk(home: Path) -> None:
    """The test's own process, which has a small file system of its own."""
    job, disk = WrittenCheckpoint(home / "ck"), home / "disk"
    commit(job, [("a", 0)], snapshot=True)
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
    storage, errors = LocalStorage(job.path), AsideErrors(str(job.path))
    aside = begun(storage, disk, errors=errors)
    with (disk / "other").open("wb", buffering=0) as other, contextlib.suppress(OSError):
        while other.write(b"x" * 4096):
            pass
    commit(job, [("b" * 10_000, 1)])
    wait_until(lambda: errors.error is not None, "the error of the full disk")
    assert errors.errors > 0
    assert aside.reader(1, StateReader(storage)) is None
    (disk / "other").unlink()
    wait_until(lambda: aside.reader(1, StateReader(storage)) is not None, "batch 1 put aside")
    wait_until(lambda: errors.error is None, "the end of the error")
    aside.end()
    assert not list(disk.iterdir())


def test_from_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, moto_server())
    s3 = open_storage(f"s3://{BUCKET}/{uuid.uuid4().hex}/ck")
    job = UploadedCheckpoint(s3)
    job.batch([("a", 0)], snapshot=True)
    store, batch = read_stores(s3, Batch(0))[0][0], Batch(1)
    aside = begun(s3, tmp_path)
    job.batch([("a", 1), ("bb", 2)])
    wait_until(lambda: aside.reader(batch, StateReader(s3)) is not None, "batch 1 put aside")
    expected = [changes_of(StateReader(s3), read_batch(s3, batch), store, partition) for partition in range(2)]
    committed_ns = read_batch(s3, batch).committed_ns
    for partition in range(2):
        s3.delete(f"state/0/{partition}/2.delta")
    reader = aside.reader(batch, StateReader(s3))
    assert reader is not None
    there = read_batch(reader.storage, batch)
    assert [changes_of(reader, there, store, partition) for partition in range(2)] == expected
    assert all(rows for rows, _ in expected)
    assert there.committed_ns == committed_ns
    aside.end()


if __name__ == "__main__":
    fill_the_disk(Path(sys.argv[1]))
