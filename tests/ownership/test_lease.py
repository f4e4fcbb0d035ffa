"""Leases: one owner at a time; they run out by the clock of the file store, and are lost to whoever takes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.errors import MillpondError
from millpond.ownership.lease import NAME, Lease, check_not_held, leased, take_lease
from millpond.settings import LeaseSettings
from millpond.storage import LocalStorage, Storage, open_storage
from servers.s3 import BUCKET, moto_server, use
from suite.waiting import wait_until

# Long, since a busy machine may stall for seconds; renewed often all the same.
LENGTH_SECONDS = 600.0
SETTINGS = LeaseSettings(length_seconds=LENGTH_SECONDS, renew_part=0.2 / LENGTH_SECONDS, dying_seconds=0.5)
OWNER = """
import sys, time
from millpond.ownership.lease import take_lease
from millpond.settings import LeaseSettings
from millpond.storage import open_storage
settings = LeaseSettings(length_seconds=600.0, renew_part=0.2 / 600.0)
lease = take_lease(open_storage(sys.argv[1]), "the job of another process", settings=settings)
lease.keep(on_lost=lambda: print("lost", flush=True))
print("taken", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.long)])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A job's folder."""
    if request.param == "local":
        return open_storage(tmp_path / "pond/jobs/views")
    use(monkeypatch, moto_server())
    return open_storage(f"s3://{BUCKET}/{tmp_path.name}/pond/jobs/views")


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Start another process that has the lease of a folder."""
    started: list[subprocess.Popen[str]] = []

    def start(place: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", OWNER, str(place)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def set_back(storage: Storage) -> None:
    """Make the lease's file on a disk just older than a lease may be."""
    path = storage.local_path(NAME)
    assert path is not None
    found = os.stat(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - round((LENGTH_SECONDS + 1.1) * 1e9)))


def let_run_out(storage: Storage) -> None:
    """Let the lease have run out."""
    if storage.local_path(NAME) is not None:
        set_back(storage)
        return
    # The times on an object store are its own, in whole seconds: it becomes a lease of one second, and ends.
    storage.write(NAME, json.dumps({**json.loads(storage.read(NAME, 10_000)), "length_seconds": 1.0}).encode())
    time.sleep(3.2)


def written(storage: Storage) -> float:
    """When the lease was written, by the clock of the storage."""
    stamp = storage.stamp(NAME)
    assert stamp is not None
    return stamp.modified_ns / 1e9


def refused(take: Callable[[], object]) -> MillpondError:
    with pytest.raises(MillpondError) as caught:
        take()
    assert caught.value.condition == "CHECKPOINT_IN_USE"
    return caught.value


def elsewhere(storage: Storage) -> None:
    """Let the owner be a process of another machine."""
    record = json.loads(storage.read(NAME, 10_000))
    storage.write(NAME, json.dumps({**record, "machine": "another", "host": "elsewhere"}).encode())


def test_the_second_owner_is_told_who_the_first_is(folder: Storage) -> None:
    lease = take_lease(folder, "the job views")
    error = refused(lambda: take_lease(folder, "a second job"))
    assert error.context["pid"] == os.getpid()
    assert "the job views" in error.message
    assert "take_over=True" in error.hint
    refused(lambda: check_not_held(folder))
    folder.write("job.json", b"{}")
    lease.release()
    check_not_held(folder)
    with leased(folder, "a command"):
        refused(lambda: take_lease(folder, "a second job"))
    take_lease(folder, "a second job").release()
    assert folder.names() == ["job.json", NAME]


def test_a_lease_of_a_job_that_never_was_leaves_nothing(folder: Storage) -> None:
    take_lease(folder, "the job views").release()
    assert folder.names() == []


@pytest.mark.long
def test_of_several_at_once_one_has_it(folder: Storage) -> None:
    """First when there is none, then when the last one has run out."""
    for is_first in (True, False):
        taken: list[Lease] = []

        def take(taken: list[Lease] = taken) -> None:
            try:
                taken.append(take_lease(folder, "a job", settings=SETTINGS))
            except MillpondError as error:
                assert error.condition == "CHECKPOINT_IN_USE"

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 1
        if is_first:
            elsewhere(folder)
            let_run_out(folder)


@pytest.mark.long
def test_a_lease_that_is_renewed_doesnt_run_out_and_one_that_isnt_does(folder: Storage) -> None:
    lease = take_lease(folder, "the job views", settings=SETTINGS)
    if folder.local_path(NAME) is not None:
        set_back(folder)  # had nobody renewed it, it would have run out
    taken = written(folder)
    lease.keep()
    wait_until(lambda: written(folder) > taken, "the renewal of the lease")
    refused(lambda: take_lease(folder, "a second job", settings=SETTINGS))
    assert lease.last_error is None
    lease.check()
    elsewhere(folder)  # as if somebody had taken it
    assert not lease.renew()
    assert lease.is_lost
    refused(lease.check)
    let_run_out(folder)
    second = take_lease(folder, "a second job", settings=SETTINGS)
    lease.release()  # what it no longer has, it doesn't give back
    refused(lambda: take_lease(folder, "a third job", settings=SETTINGS))
    second.release()


def test_who_takes_it_by_force_has_it_and_the_other_learns_that(folder: Storage) -> None:
    first = take_lease(folder, "the job views", settings=SETTINGS)
    lost = threading.Event()
    first.keep(on_lost=lost.set)
    second = take_lease(folder, "a second job", take_over=True)
    assert lost.wait(60)
    refused(first.check)
    second.check()
    assert second.last_error is None


def test_age_goes_by_the_clock_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is an hour wrong neither takes a lease too early nor waits for ever."""
    folder = open_storage(tmp_path)
    take_lease(folder, "the job views", settings=SETTINGS)
    elsewhere(folder)
    real = time.time
    for wrong in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: real() + wrong)
        refused(lambda: take_lease(folder, "a second job", settings=SETTINGS))
    let_run_out(folder)
    take_lease(folder, "a second job", settings=SETTINGS)


def test_a_killed_owner_on_this_machine_keeps_nobody_waiting(
    tmp_path: Path, owner: Callable[[Path], subprocess.Popen[str]]
) -> None:
    process = owner(tmp_path)
    refused(lambda: take_lease(open_storage(tmp_path), "a second job", settings=SETTINGS))
    process.kill()
    process.wait()
    take_lease(open_storage(tmp_path), "a second job", settings=SETTINGS)


def test_a_stopped_owner_finds_its_lease_taken(tmp_path: Path, owner: Callable[[Path], subprocess.Popen[str]]) -> None:
    process = owner(tmp_path)
    process.send_signal(signal.SIGSTOP)
    refused(lambda: take_lease(open_storage(tmp_path), "a second job", settings=SETTINGS))
    let_run_out(open_storage(tmp_path))
    second = take_lease(open_storage(tmp_path), "a second job", settings=SETTINGS)
    second.keep()
    process.send_signal(signal.SIGCONT)
    assert process.stdout is not None
    assert process.stdout.readline() == "lost\n"
    second.check()


def test_a_process_that_is_stopped_before_it_renews_doesnt_undo_a_take_over(tmp_path: Path) -> None:
    """It has read the file, and writes only after another one has it: then its write is refused."""

    class Slow(LocalStorage):
        def replace(self, path: str, old: bytes, new: bytes) -> bool:
            take_lease(open_storage(tmp_path), "a second job", take_over=True)
            return super().replace(path, old, new)

    first = take_lease(Slow(tmp_path), "the job views")
    assert not first.renew()
    assert json.loads((tmp_path / NAME).read_text())["what"] == "a second job"


def test_a_damaged_lease_is_named_and_can_be_taken_by_force(folder: Storage) -> None:
    for text in (b"", b"[]", b'{"format": 1}', b'{"format": 9, "owner": "x"}', b'{"format":1,"owner":"x","processes":[]}'):
        folder.write(NAME, text)
        with pytest.raises(MillpondError) as caught:
            take_lease(folder, "a job")
        assert caught.value.condition == "CORRUPT_FILE"
    take_lease(folder, "a job", take_over=True)


def test_trouble_of_the_storage_is_shown_and_passes(tmp_path: Path) -> None:
    lease = take_lease(open_storage(tmp_path), "the job views", settings=SETTINGS)
    text = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    assert not lease.renew()  # it is no file any more: nobody can know who has it
    assert lease.last_error is not None
    (tmp_path / NAME).rmdir()
    (tmp_path / NAME).write_bytes(text)
    refused(lease.check)


def test_a_length_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, seconds in (("5", 5.0), ("0.1", 20.0), ("soon", 20.0), ("nan", 20.0), ("inf", 20.0)):
        monkeypatch.setenv("MILLPOND_LEASE_SECONDS", text)
        assert LeaseSettings.of_environment().length_seconds == seconds
