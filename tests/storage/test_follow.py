"""A replica follows a checkpoint in a bucket: with few requests, and none for reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.replica.backends.memory import MemoryBackend
from millpond.replica.follower import Follower
from millpond.settings import ReplicaSettings
from millpond.storage import open_storage
from servers.proxy import proxy
from servers.s3 import QUICK, delete, moto_server, upload, use
from spark_files.checkpoint import PARTITIONS, UploadedCheckpoint
from suite.sizes import a_few
from suite.waiting import wait_until

TABLE = "ck.aggregate_0"
# Requests for a batch besides those for its change files, one for each partition of each store.
PER_BATCH = 7
PER_POLL = 2


@pytest.fixture
def follower(job: UploadedCheckpoint) -> Iterator[Follower]:
    """A follower with a built replica; the test takes its steps."""
    made = Follower(job.storage, None, QUICK, new_backend=MemoryBackend, on_backend=lambda _: None)
    assert made.step()
    yield made
    made.stop()


def requests(follower: Follower) -> int:
    return sum(number for kind, number in follower._storage.requests.items() if kind != "retried")


def test_a_poll_that_finds_nothing_is_two_requests(follower: Follower) -> None:
    follower.step()  # includes the first look for skipped batches, which comes every ten seconds
    follower._skipped_clock.seconds = 3600  # ten seconds may pass on a busy machine
    before = requests(follower)
    for _ in range(10):
        assert not follower.step()
    assert requests(follower) - before == 10 * PER_POLL


def test_a_batch_is_one_request_for_each_partition_and_seven_more(follower: Follower, job: UploadedCheckpoint) -> None:
    for n in range(1, 6):
        job.batch([("a", n), ("bb", n)])
        before = requests(follower)
        assert follower.step()
        assert requests(follower) - before == PARTITIONS + PER_BATCH
        assert not follower.step()


@pytest.mark.long
def test_catching_up_costs_hardly_more_for_each_batch(follower: Follower, job: UploadedCheckpoint) -> None:
    for n in range(20):
        job.batch([("a", n), ("bb", n)])
    before, began = requests(follower), time.monotonic()
    for _ in range(20):
        assert follower.step()
    # Every two seconds it asks how many batches are still to come.
    lists = 1 + (time.monotonic() - began) / 2
    assert requests(follower) - before <= 20 * (PARTITIONS + PER_BATCH) + lists
    assert follower.status.newest == 20


def test_the_pause_between_polls_grows_with_the_time_without_a_batch(job: UploadedCheckpoint) -> None:
    follower = Follower(job.storage, None, ReplicaSettings(), new_backend=MemoryBackend, on_backend=lambda _: None)
    pauses = [round(follower.polling.pause(quiet, is_notified=False), 3) for quiet in (0, 1, 2.5, 10, 20, 60, 1e6)]
    assert pauses == [0.25, 0.25, 0.25, 1.0, 2.0, 3.0, 3.0]
    local = Follower(open_storage("/tmp"), None, ReplicaSettings(), new_backend=MemoryBackend, on_backend=lambda _: None)
    assert [local.polling.pause(quiet, is_notified=False) for quiet in (0, 60)] == [0.005, 0.25]


@pytest.mark.long
def test_reads_make_no_request(job: UploadedCheckpoint, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with millpond.open(place, replica_dir=tmp_path, settings=QUICK), proxy(moto_server()) as (url, faults):
        use(monkeypatch, url)
        with millpond.open(place, replica_dir=tmp_path, settings=QUICK, follow=False) as reader:
            opening = faults.count()
            for n in range(1, 4):
                job.batch([("a", n), ("bb", n)])
                wait_until(lambda n=n: reader[TABLE].get(k="a").batch == n, f"batch {n}")
                for _ in range(50):
                    assert reader[TABLE].get(k="a")["v"] == n
                    assert len(reader[TABLE].scan()) == 2
                    assert reader.tables() == [TABLE]
                    assert reader.ready() == (True, "ready")
                    assert reader[TABLE].get(k="a").behind_seconds < 30
                assert reader.statistics()["ck"]["batch"] == n
            assert faults.count() == opening


def test_what_a_replica_lags_is_told_by_its_follower(job: UploadedCheckpoint, place: str, tmp_path: Path) -> None:
    with millpond.open(place, replica_dir=tmp_path, settings=QUICK) as pond:
        assert pond[TABLE].get(k="a").lag.behind_batches == 0
        job.plan([("a", 1)], snapshot=False)
        good = job.storage.read("state/0/1/2.delta", 1 << 20)
        job.storage.write("state/0/1/2.delta", good[:30])
        job.commit()
        wait_until(lambda: pond[TABLE].get(k="a").lag.behind_batches == 1, "a row that is a batch behind")
        row = pond[TABLE].get(k="a")
        assert (row["v"], row.batch) == (0, 0)
        wait_until(lambda: pond.statistics()["ck"]["error"] is not None, "the follower's error")
        assert pond.statistics()["ck"]["error"]["condition"] == "INCOMPLETE_FILE"
        job.storage.write("state/0/1/2.delta", good)
        wait_until(lambda: pond[TABLE].get(k="a").batch == 1, "the batch whose file is mended")
        row = pond[TABLE].get(k="a")
        assert (row["v"], row.batch, row.lag.behind_batches) == (1, 1, 0)


@pytest.mark.long
def test_a_reader_that_nobody_follows_for_looks_itself_now_and_then(
    job: UploadedCheckpoint, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    millpond.open(place, replica_dir=tmp_path, settings=QUICK).close()
    time.sleep(QUICK.remote_silence_seconds)
    with proxy(moto_server()) as (url, faults):
        use(monkeypatch, url)
        lazy = ReplicaSettings(remote_idle_poll_seconds=0.2, remote_silence_seconds=1.0)
        with millpond.open(place, replica_dir=tmp_path, settings=lazy, follow=False, wait_seconds=0) as reader:
            assert reader[TABLE].get(k="a").lag.behind_batches == 0
            job.batch([("a", 1)])
            wait_until(lambda: reader[TABLE].get(k="a").lag.behind_batches == 1, "a row that is a batch behind")
            before, began = faults.count(), time.monotonic()
            for _ in range(100):
                assert reader[TABLE].get(k="a").batch == 0
            looks = 1 + (time.monotonic() - began) / lazy.remote_idle_poll_seconds
            assert faults.count() - before <= 8 * looks
            faults.before = lambda method, path: "drop"
            wait_until(lambda: reader[TABLE].get(k="a").behind_seconds > 1.5, "a row that is behind")
            faults.before = lambda method, path: None
            for name in ("metadata", *(f"{folder}/{n}" for folder in ("commits", "offsets") for n in (0, 1))):
                delete(job.storage, name)
            wait_until(
                lambda: condition_of(lambda: reader[TABLE].get(k="a")) == "JOB_REPLACED", "the refusal of a job that is gone"
            )


def test_a_job_that_is_replaced_is_noticed_and_never_mixed(
    job: UploadedCheckpoint, upload_job: Callable[[str], UploadedCheckpoint], place: str, tmp_path: Path
) -> None:
    for n in range(1, 5):
        job.batch([("a", n), ("bb", n)])
    with millpond.open(place, replica_dir=tmp_path, settings=QUICK) as pond:
        assert pond[TABLE].get(k="a")["v"] == 4
        for folder in ("commits", "offsets", "state/0/0", "state/0/1"):
            for name in job.storage.sizes(folder):
                delete(job.storage, f"{folder}/{name}")
        wait_until(lambda: condition_of(lambda: pond[TABLE].get(k="a")) is not None, "the refusal of a job that is gone")
        again = upload_job("job-2")
        again.batch([("a", 70)])
        wait_until(lambda: condition_of(lambda: pond[TABLE].get(k="a")) is None, "the new job")
        wait_until(lambda: pond[TABLE].get(k="a").batch == 1, "the new job's second batch")
        rows = {row["k"]: row["v"] for row in pond[TABLE].scan()}
        assert rows == {"a": 70, "bb": 0}


# ---------------------------------------------------------------- golden checkpoints


@pytest.mark.parametrize("cell", a_few(["counts-hdfs", "counts-rocksdb-changelog"], 1))
def test_a_replica_from_s3_equals_the_one_from_disk_at_every_batch(golden: Callable[[str], Any], place: str, cell: str) -> None:
    copy = golden(cell)
    commits = {n: (copy.checkpoint / f"commits/{n}").read_bytes() for n in range(copy.last + 1)}
    copy.uncommit()
    upload(copy.checkpoint, place)
    storage = open_storage(place)
    with (
        millpond.open(copy.checkpoint, replica_dir="memory://", wait_seconds=0) as local,
        millpond.open(place, replica_dir="memory://", settings=QUICK, wait_seconds=0) as remote,
    ):
        for batch, content in commits.items():
            copy.commit(batch)
            storage.write(f"commits/{batch}", content)
            found = {}
            for name, pond in (("local", local), ("remote", remote)):
                pond.catch_up(60)
                tables = [pond[table] for table in pond.tables()]
                assert tables
                rows = [table.scan() for table in tables]
                assert [r.cut.position.batch for r in rows] == [batch] * len(rows)
                found[name] = [list(r) for r in rows]
            assert found["remote"] == found["local"]
        (name,) = remote.statistics()
        wait_until(lambda: remote.statistics()[name]["batches_applied"] == copy.last, "the count of the last batch")
        assert remote.statistics()[name]["bootstraps"] == 1


@pytest.mark.long
def test_a_snapshot_in_place_of_a_change_log_isnt_waited_for(golden: Callable[[str], Any], place: str) -> None:
    copy = golden("counts-rocksdb-snapshots")
    commits = [(copy.checkpoint / f"commits/{n}").read_bytes() for n in range(3)]
    copy.uncommit()
    upload(copy.checkpoint, place)
    storage = open_storage(place)
    patient = ReplicaSettings(remote_poll_seconds=0.02, remote_lag_seconds=60)
    with millpond.open(place, replica_dir="memory://", settings=patient, wait_seconds=0) as pond:
        for batch, content in enumerate(commits):
            storage.write(f"commits/{batch}", content)
            pond.catch_up(60)
        (statistics,) = pond.statistics().values()
        assert (statistics["batch"], statistics["error"], statistics["errors"]) == (2, None, 0)


def condition_of(read: Callable[[], object]) -> str | None:
    try:
        read()
    except MillpondError as error:
        return error.condition
    return None
