"""Archivers as people use them: killed, two at once, on a storage that fails, with a window, from the command line."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import millpond
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.savepoint.archive.archiver import Archiver, archive
from millpond.savepoint.archive.layout import find_archive
from millpond.savepoint.archive.metrics import metrics_text
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import LocalStorage, open_storage
from savepoint.archive.test_interleavings import content
from savepoint.test_create import condition_of
from servers.proxy import proxy
from servers.s3 import BUCKET, moto_server, use
from spark_files.checkpoint import UploadedCheckpoint, WrittenCheckpoint
from suite.programs import started
from suite.waiting import wait_until


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    written = WrittenCheckpoint(tmp_path / "ck")
    batch(written)
    return written


def batch(job: WrittenCheckpoint, *, snapshot: bool = False) -> None:
    """One more batch, whose content tells it from the others."""
    job.clock = max(job.clock, time.time_ns() // 1_000_000)  # a commit ten seconds after its plan counts as a copy's
    job.plan([("a", job.next_batch), ("b" * (job.next_batch + 1), job.next_batch)], snapshot=snapshot)
    job.commit()


def test_each_batch_is_restored_by_number_or_time(job: WrittenCheckpoint, tmp_path: Path) -> None:
    states, times = [job.content()], []
    with millpond.archive(tmp_path / "ck", tmp_path / "archive") as archiver:
        archiver.wait_for_batch(0, timeout_seconds=60)
        for _ in range(5):
            times.append(time.time())
            time.sleep(0.02)
            batch(job)
            states.append(job.content())
            archiver.wait_for_batch(job.next_batch - 1, timeout_seconds=60)
        status = archiver.status()
    assert (status.batch, status.newest, status.behind_batches, status.behind_seconds) == (5, 5, 0, 0.0)
    assert (status.batches, status.lost, status.last_error) == (6, (), None)
    assert status.lag_seconds is not None
    assert status.lag_seconds < 300
    assert archiver.status().state == "ended"
    shutil.rmtree(tmp_path / "ck")
    for number, state in enumerate(states):
        assert content(open_savepoint(tmp_path / "archive", f"batch-{number}")) == state
    for number, moment in enumerate(times):  # each is after the commit of `number` and before the next one
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f"{moment % 1:.3f}"[1:] + "Z"
        plan = plan_restore(tmp_path / "archive", None, tmp_path / f"at-{number}", time=when)
        assert plan.savepoint.manifest.batch == number
    assert condition_of(lambda: open_savepoint(tmp_path / "archive", time="2020-01-01T00:00:00Z")) == "UNKNOWN_SAVEPOINT"
    assert condition_of(lambda: open_savepoint(tmp_path / "archive", "batch-6")) == "UNKNOWN_SAVEPOINT"
    assert condition_of(lambda: open_savepoint(tmp_path / "archive", "monday")) == "UNKNOWN_SAVEPOINT"
    assert condition_of(lambda: open_savepoint(tmp_path / "archive", "newest", time="2020-01-01")) == "INVALID_REQUEST"
    assert condition_of(lambda: open_savepoint(tmp_path / "archive", time="yesterday")) == "WRONG_TYPE"
    assert [found.manifest.batch for found in list_savepoints(tmp_path / "archive").found] == [0, 1, 2, 3, 4, 5]
    plan_restore(tmp_path / "archive", "newest", tmp_path / "restored").run()
    assert (tmp_path / "restored/metadata").exists()
    (tmp_path / "archive/generations/1/files/5/commits/5").write_bytes(b"v1\n{}")
    assert condition_of(plan_restore(tmp_path / "archive", "newest", tmp_path / "again").run) == "SAVEPOINT_DAMAGED"
    assert not (tmp_path / "again").exists() or not any((tmp_path / "again").iterdir())


def test_clean_up_that_was_quicker_is_named(job: WrittenCheckpoint, tmp_path: Path) -> None:
    Archiver(tmp_path / "ck", tmp_path / "archive").step()
    for _ in range(8):
        batch(job, snapshot=True)
    job.clean(keep=2)
    archiver = Archiver(tmp_path / "ck", tmp_path / "archive")
    archiver.run(once=True)
    assert archiver.status().lost == ((1, 7),)
    assert archiver.status().generation == 2
    assert content(open_savepoint(tmp_path / "archive", "newest")) == job.content()
    with pytest.raises(MillpondError, match="doesn't have batch 4"):
        open_savepoint(tmp_path / "archive", "batch-4")
    assert content(open_savepoint(tmp_path / "archive", "batch-0")) == {"a": 0, "b": 0}
    again = Archiver(tmp_path / "ck", tmp_path / "archive")
    again.run(once=True)
    assert again.status().lost == ((1, 7),), "another archiver doesn't know of the gap"


def test_a_deleted_checkpoint_leaves_the_archive_as_it_is(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """While files disappear one by one, no older batch is taken for a new run."""
    for _ in range(6):
        batch(job)
    archiver = Archiver(tmp_path / "ck", tmp_path / "archive")
    while archiver.step():
        pass
    batch(job)
    archiver.step()
    before = archiver.archive.batches()
    for number in (7, 6, 3):
        (tmp_path / f"ck/commits/{number}").unlink()
        assert not archiver.step()
    shutil.rmtree(tmp_path / "ck")
    assert condition_of(archiver.step) == "NO_CHECKPOINT"
    assert archiver.archive.batches() == before


def test_another_job_is_refused(job: WrittenCheckpoint, tmp_path: Path) -> None:
    Archiver(tmp_path / "ck", tmp_path / "archive").run(once=True)
    other = WrittenCheckpoint(tmp_path / "other", "job-9")
    batch(other)
    assert condition_of(lambda: Archiver(tmp_path / "other", tmp_path / "archive").run(once=True)) == "OTHER_JOB"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "other").rename(tmp_path / "elsewhere/ck")
    assert condition_of(lambda: Archiver(tmp_path / "elsewhere/ck", tmp_path / "archive").run(once=True)) == "OTHER_JOB"
    assert condition_of(lambda: Archiver(tmp_path / "ck", tmp_path / "ck/archive")) == "INVALID_REQUEST"
    assert condition_of(lambda: Archiver(tmp_path / "ck", tmp_path / "x", keep_for="no")) == "INVALID_REQUEST"
    assert condition_of(lambda: Archiver(tmp_path / "ck", tmp_path / "x", keep_for="long")) == "INVALID_REQUEST"
    assert condition_of(lambda: Archiver(tmp_path / "nowhere", tmp_path / "x")) == "NO_CHECKPOINT"
    (tmp_path / "archive/archive.json").write_text('{"format": 2}')
    assert condition_of(lambda: Archiver(tmp_path / "ck", tmp_path / "archive").run(once=True)) == "SAVEPOINT_TOO_NEW"
    assert condition_of(lambda: open_savepoint(tmp_path / "archive", "newest")) == "SAVEPOINT_TOO_NEW"


def test_the_newest_of_two_archivers_goes_on(job: WrittenCheckpoint, tmp_path: Path) -> None:
    first = archive(tmp_path / "ck", tmp_path / "archive")
    first.wait_for_batch(0, timeout_seconds=60)
    second = archive(tmp_path / "ck", tmp_path / "archive")
    second.wait_for_batch(0, timeout_seconds=60)
    for _ in range(10):
        batch(job)
    second.wait_for_batch(10, timeout_seconds=60)
    with pytest.raises(MillpondError) as caught:
        first.wait_for_batch(11, timeout_seconds=60)
    assert caught.value.condition == "ARCHIVE_TAKEN"
    assert first.status().state == "ended"
    first.stop()
    second.stop()
    found = find_archive(tmp_path / "archive")
    assert found is not None
    assert [b.batch for b in found.batches()] == [*range(11)]
    assert all(verify_savepoint(found.savepoint(b)).is_whole for b in found.batches())


@pytest.mark.long
def test_a_window(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """Of the batches before the window only the newest stays, and no file that none needs."""
    states = [job.content()]
    archiver = Archiver(tmp_path / "ck", tmp_path / "archive", keep_for="1h")
    archiver.step()
    for number in range(1, 90):
        batch(job, snapshot=number % 20 == 0)
        states.append(job.content())
        archiver.step()
    (tmp_path / "archive/generations/1/files/3/left").write_text("by a try that was killed")
    every = archiver.archive.batches()
    for gone in (1, 30, 31, 70):
        # So much later that the window begins right after batch `gone`.
        now_ms = every[gone].committed_ms + 3_600_000
        for batch_there in every:  # commits within one millisecond
            if batch_there.committed_ms == every[gone].committed_ms:
                gone = max(gone, batch_there.batch)
        archiver._window.expire(now_ms)
        left = archiver.archive.batches()
        assert [b.batch for b in left] == [*range(gone, 90)]
        needed = set()
        for there in left:
            if there.batch % 4 == 0 or there is left[0]:
                assert content(archiver.archive.savepoint(there)) == states[there.batch]
            needed |= {file.path for file in archiver.archive.manifest(there).files}
        root = tmp_path / "archive/generations/1/files"
        assert {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} - {"3/left"} == needed
        assert archiver.archive.expired(1) == []
    assert not (tmp_path / "archive/generations/1/files/3").exists()
    # The job is replaced, and then all of the first run is too old.
    shutil.rmtree(tmp_path / "ck")
    again = WrittenCheckpoint(tmp_path / "ck", "job-2")
    batch(again)
    archiver.step()
    archiver._window.expire(int(time.time() * 1000) + 3_600_000 + 60_000)
    assert not (tmp_path / "archive/generations/1").exists()
    assert [(b.generation, b.batch) for b in archiver.archive.batches()] == [(2, 0)]


@pytest.mark.long
def test_a_disk_that_fails(job: WrittenCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "full").write_text("a file where the archive's folder should be")
    with archive(tmp_path / "ck", tmp_path / "full/archive") as archiver:
        error = wait_until(lambda: archiver.last_error, "the archiver's error")
        assert error.condition == "NOT_WRITABLE"
        status = archiver.status()
        assert (status.state, status.batch) == ("failed", None)
        assert 'millpond_archive_failed{job="ck",condition="NOT_WRITABLE"} 1' in metrics_text(status)
        (tmp_path / "full").unlink()
        archiver.wait_for_batch(0, timeout_seconds=60)
    assert archiver.status().last_error is None
    assert archiver.status().errors > 0


KILLED = """
import sys
from millpond.savepoint.archive.archiver import Archiver
archiver = Archiver(sys.argv[1], sys.argv[2], keep_for="1s")
print("ready", flush=True)
archiver._expire_at = 0
while True:
    archiver.step()
    archiver._expire_at = 0
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[WrittenCheckpoint, dict[int, dict[str, int]]]]:
    """A job that commits all the time, and what each of its batches has."""
    job, states, ending = WrittenCheckpoint(tmp_path / "ck"), {}, threading.Event()

    def commit() -> None:
        states[job.next_batch] = {**job.content(), "a": job.next_batch}
        job.plan([("a", job.next_batch), ("b" * (job.next_batch % 9 + 2), job.next_batch)], snapshot=job.next_batch % 10 == 3)
        states[job.next_batch] = job.content()
        job.commit()

    def run() -> None:
        while not ending.is_set():
            commit()
            if job.next_batch % 7 == 0:
                job.clean(keep=30)
            time.sleep(0.01)

    commit()
    thread = threading.Thread(target=run)
    thread.start()
    yield job, states
    ending.set()
    thread.join()


def newest_of(place: Path) -> int:
    """The newest batch of an archive; -1 if there is none."""
    found = find_archive(place)
    return -1 if found is None else max((there.batch for there in found.batches()), default=-1)


@pytest.mark.parametrize("kills", [3, pytest.param(24, marks=pytest.mark.long)])
def test_kills(running: tuple[WrittenCheckpoint, dict[int, dict[str, int]]], tmp_path: Path, kills: int) -> None:
    """After each `kill -9`: every batch in the archive is exact."""
    _, states = running
    numbers, newest = random.Random(7), -1
    for number in range(kills):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "ck"), str(tmp_path / "archive")]
        with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            if number == kills - 1 and newest < 1:  # on a busy machine each was killed before its first batches
                wait_until(
                    lambda: newest_of(tmp_path / "archive") > 0, "a batch in the archive", unless=lambda: process.poll() is not None
                )
            time.sleep(numbers.random() * 0.3)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        found = find_archive(tmp_path / "archive")
        if found is None:
            continue
        for there in found.batches():
            if there.batch > newest - 10:
                assert content(found.savepoint(there)) == states[there.batch]
        newest = max(newest, newest_of(tmp_path / "archive"))
    assert newest > 0
    archiver = Archiver(tmp_path / "ck", tmp_path / "archive")
    archiver.step()
    batches = archiver.archive.batches()
    assert verify_savepoint(archiver.archive.savepoint(batches[-1])).problems == ()
    assert content(archiver.archive.savepoint(batches[-1])) == states[batches[-1].batch]


class TestBucket:
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> str:
        return f"s3://{BUCKET}/{tmp_path.name}"

    @pytest.mark.long
    def test_an_archive_in_a_bucket(self, job: WrittenCheckpoint, monkeypatch, bucket: str, tmp_path: Path) -> None:
        use(monkeypatch, moto_server())
        states = [job.content()]
        archiver = Archiver(tmp_path / "ck", f"{bucket}/archive", keep_for="1h")
        archiver.step()
        for _ in range(11):
            batch(job, snapshot=job.next_batch == 5)
            states.append(job.content())
            before = sum(archiver.status().requests.values())
            assert archiver.step()
            # offsets/N, commits/N, sources/0/N, two deltas, the manifest, and a look at who has the archive.
            assert sum(archiver.status().requests.values()) - before == 7
        for number, state in enumerate(states):
            assert content(open_savepoint(f"{bucket}/archive", f"batch-{number}")) == state
        plan_restore(f"{bucket}/archive", "newest", tmp_path / "restored").run()
        plan_restore(f"{bucket}/archive", "batch-7", f"{bucket}/restored").run()
        every = archiver.archive.batches()
        archiver._window.expire(every[9].committed_ms + 3_600_000)
        left = archiver.archive.batches()
        assert left[-1].batch == 11
        assert left[0].batch >= 9
        for there in left:
            assert verify_savepoint(archiver.archive.savepoint(there)).is_whole

    @pytest.mark.long
    def test_a_job_in_a_bucket(self, monkeypatch, bucket: str, tmp_path: Path) -> None:
        use(monkeypatch, moto_server())
        job = UploadedCheckpoint(open_storage(f"{bucket}/ck"))
        states = []
        for number in range(5):
            job.batch([("a", number), ("b" * (number + 1), number)], snapshot=number == 2)
            states.append(job.content())
            if not number:
                archiver = Archiver(f"{bucket}/ck", f"{bucket}/archive")
            assert archiver.step()
        assert not archiver.step()
        for number, state in enumerate(states):
            assert content(open_savepoint(f"{bucket}/archive", f"batch-{number}")) == state
        plan_restore(f"{bucket}/archive", None, f"{bucket}/restored").run()
        assert verify_savepoint(plan_savepoint(f"{bucket}/restored", "again").run()).is_whole

    @pytest.mark.long
    def test_a_bucket_that_fails_for_a_while(self, job: WrittenCheckpoint, monkeypatch, bucket: str, tmp_path: Path) -> None:
        with proxy(moto_server()) as (url, faults):
            use(monkeypatch, url)
            with archive(tmp_path / "ck", f"{bucket}/archive") as archiver:
                archiver.wait_for_batch(0, timeout_seconds=60)
                faults.before = lambda method, path: 503
                batch(job)
                error = wait_until(lambda: archiver.last_error, "the archiver's error")
                assert error.condition == "STORAGE_UNAVAILABLE"
                assert archiver.status().behind_batches == 1
                assert archiver.status().behind_seconds > 0
                faults.before = lambda method, path: None
                archiver.wait_for_batch(1, timeout_seconds=60)
            assert content(open_savepoint(f"{bucket}/archive", "newest")) == job.content()


def test_the_command(job: WrittenCheckpoint, tmp_path: Path) -> None:
    def call(*words: str) -> str:
        result = CliRunner().invoke(main, list(words), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    place, to = str(tmp_path / "ck"), str(tmp_path / "archive")
    said = call("archive", place, "--to", to, "--once", "--metrics", str(tmp_path / "metrics.prom"))
    assert "batch 0, up to date" in said
    assert 'millpond_archive_batch{job="ck"} 0' in (tmp_path / "metrics.prom").read_text()
    for _ in range(3):
        batch(job, snapshot=True)
    job.clean(keep=2)
    call("archive", place, "--to", to, "--once")
    lines = [json.loads(line) for line in call("savepoint", "list", to, "--json").splitlines()]
    assert [(line["first"], line["last"], line["lost"]) for line in lines] == [(0, 0, None), (3, 3, [1, 2])]
    assert "1 to 2" in call("savepoint", "list", to)
    assert "batch-3.generation-2" in call("savepoint", "show", to, "newest")
    call("savepoint", "verify", to, "batch-3")
    call("savepoint", "restore", to, "--to", str(tmp_path / "restored"))
    assert (tmp_path / "restored/commits/3").exists()
    differing = CliRunner().invoke(main, ["diff", to, "batch-0", "batch-3"])
    assert (differing.exit_code, differing.output.count("added")) == (1, 4)
    call("savepoint", "export", to, "batch-0", "--to", str(tmp_path / "zero.tar"))
    call("savepoint", "import", str(tmp_path / "pond"), str(tmp_path / "zero.tar"), "--name", "zero")
    assert content(open_savepoint(tmp_path / "pond", "zero")) == {"a": 0, "b": 0}
    for words in (("savepoint", "delete", to, "batch-0"), ("savepoint", "prune", to, "--keep-last", "1")):
        assert CliRunner().invoke(main, list(words)).exit_code != 0


@pytest.mark.long
def test_the_command_ends_at_a_signal(job: WrittenCheckpoint, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millpond.cli", "archive", str(tmp_path / "ck"), "--to", str(tmp_path / "archive")]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        batches = tmp_path / "archive/generations/1/batches"
        wait_until(batches.exists, "the first batch in the archive", unless=lambda: process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "batch 0, up to date" in said


def test_a_local_archive_may_be_on_the_job_s_disk(job: WrittenCheckpoint, tmp_path: Path) -> None:
    Archiver(tmp_path / "ck", LocalStorage(tmp_path / "archive").uri).run(once=True)
    assert content(open_savepoint(tmp_path / "archive")) == job.content()
