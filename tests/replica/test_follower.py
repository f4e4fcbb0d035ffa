"""Who follows, where the replica lies, and when it is built again."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond.errors import CheckpointError, MillpondError, ReplicaError
from millpond.settings import ReplicaSettings
from oracles.ends import condition_of
from spark_files.checkpoint import WrittenCheckpoint, delta_file
from suite.waiting import stays, wait_until

TABLE = "ck.aggregate_0"


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    commit(checkpoint, [("a", 1), ("b", 1)])
    return checkpoint


def commit(checkpoint: WrittenCheckpoint, changes: list[tuple[str, int | None]], *, snapshot: bool = False) -> None:
    checkpoint.plan(changes, snapshot=snapshot)
    checkpoint.commit()


def read(pond: millpond.Pond) -> dict[str, int]:
    return {row["k"]: row["v"] for row in pond[TABLE].scan()}


def test_a_reader_never_sees_half_a_batch(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        for n in range(2, 40):
            commit(job, [("a", n), ("bb", n), ("c", n)])
            rows = pond[TABLE].get_all([{"k": "a"}, {"k": "bb"}])
            assert rows[0]["v"] == rows.batch + 1
            assert not rows[1] or rows[1]["v"] == rows[0]["v"]


def test_a_closed_pond_goes_on_where_it_was(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        assert pond.statistics()["ck"]["bootstraps"] == 1
    commit(job, [("a", 2)])
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        assert read(pond) == {"a": 2, "b": 1}
        assert pond.statistics()["ck"]["bootstraps"] == 0
        wait_until(lambda: pond.statistics()["ck"]["batches_applied"] == 1, "the count of the batch, which comes after it")


def test_a_second_pond_attaches_and_takes_over(job: WrittenCheckpoint, tmp_path: Path) -> None:
    first = millpond.open(job.path, replica_dir=tmp_path / "home")
    with millpond.open(job.path, replica_dir=tmp_path / "home") as second:
        assert second.statistics()["ck"]["following"] is False
        commit(job, [("a", 2)])
        second.catch_up(60)
        assert read(second) == {"a": 2, "b": 1}
        first.close()
        wait_until(lambda: second.statistics()["ck"]["following"], "the second pond's turn to follow")
        commit(job, [("a", 3)])
        second.catch_up(60)
        assert read(second) == {"a": 3, "b": 1}


def test_when_the_follower_is_another_process_that_is_killed(job: WrittenCheckpoint, tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import millpond, time
        pond = millpond.open({str(job.path)!r}, replica_dir={str(tmp_path / "home")!r})
        print("ready", flush=True)
        time.sleep(600)
        """
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
            commit(job, [("a", 2)])
            pond.catch_up(60)
            assert read(pond) == {"a": 2, "b": 1}
            statistics = pond.statistics()["ck"]
            assert (statistics["following"], statistics["pid"]) == (False, other.pid)
            other.kill()
            other.wait()
            commit(job, [("a", 3)])
            pond.catch_up(60)
            assert read(pond) == {"a": 3, "b": 1}
            assert pond.statistics()["ck"]["following"] is True
    finally:
        other.kill()
        other.wait()
        assert other.stdout is not None
        other.stdout.close()


def test_a_gap_is_filled_from_the_newest_snapshot_while_the_old_state_is_served(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        assert read(pond) == {"a": 1, "b": 1}
    for n in range(2, 9):
        commit(job, [("a", n)], snapshot=n == 6)
    job.clean(keep=2)
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        assert read(pond) == {"a": 8, "b": 1}
        assert pond.statistics()["ck"]["bootstraps"] == 1


def test_a_batch_that_was_never_committed_is_not_seen(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        job.plan([("a", 99)], snapshot=False)
        stays(lambda: read(pond) == {"a": 1, "b": 1}, "the rows of the committed batch")
        assert pond[TABLE].get(k="a").lag.behind_batches == 0


def test_the_four_numbers_tell_how_far_behind_a_reader_is(job: WrittenCheckpoint, tmp_path: Path) -> None:
    home = tmp_path / "home"
    millpond.open(job.path, replica_dir=home).close()
    with millpond.open(job.path, replica_dir=home, follow=False, wait_seconds=0) as reader:
        row = reader[TABLE].get(k="a")
        assert (row.lag.behind_batches, row.behind_seconds) == (0, 0.0)
        commit(job, [("a", 2)])
        commit(job, [("a", 3)])
        past = time.time() - 60
        os.utime(job.path / "commits/1", (past, past))
        time.sleep(0.002)  # a look at the commits is valid for a millisecond
        row = reader[TABLE].get(k="a")
        assert row == {"k": "a", "v": 1}
        assert row.batch == 0
        assert row.lag.behind_batches == 2
        assert 59 < row.behind_seconds < 300
        assert row.lag.event_lag_seconds is None
        assert row.job_state == "unknown"
        assert reader.ready(max_behind_seconds=5)[0] is False
        with pytest.raises(ReplicaError) as caught:
            reader.catch_up(0.1)
        assert caught.value.condition == "REPLICA_BEHIND"


# A replica of another format may lack these fields, and its tables.
_ANOTHER_FORMAT = """
    del stores["lineage"], stores["unread"]
    stores["format"] = 0
    transaction.drop(environment.open_db(b"versions", txn=transaction))
"""


def test_a_replica_of_another_boot_is_built_again_and_not_even_opened(job: WrittenCheckpoint, tmp_path: Path) -> None:
    home = tmp_path / "home"
    millpond.open(job.path, replica_dir=home).close()
    (generation,) = home.glob("replicas/*/generation-*")
    (generation / "boot").write_text("another boot")
    (generation / "data.mdb").write_bytes(b"torn" * 4096)
    with pytest.raises(MillpondError) as refused:
        millpond.open(job.path, replica_dir=home, follow=False, wait_seconds=0)[TABLE].scan()
    assert refused.value.condition in ("REPLICA_BUILDING", "UNKNOWN_TABLE")
    with millpond.open(job.path, replica_dir=home) as pond:
        assert read(pond) == {"a": 1, "b": 1}
        assert pond.statistics()["ck"]["bootstraps"] == 1


def test_a_replica_of_another_format_is_built_again(job: WrittenCheckpoint, tmp_path: Path) -> None:
    import lmdb

    home = tmp_path / "home"
    millpond.open(job.path, replica_dir=home).close()
    (generation,) = home.glob("replicas/*/generation-*")
    code = f"""
import json, lmdb
environment = lmdb.open({str(generation)!r}, max_dbs=9, map_size=1 << 30)
meta = environment.open_db(b"meta")
with environment.begin(write=True) as transaction:
    stores = json.loads(transaction.get(b"stores", db=meta))
{_ANOTHER_FORMAT}
    transaction.put(b"stores", json.dumps(stores).encode(), db=meta)
"""
    assert lmdb.version()
    subprocess.run([sys.executable, "-c", code], check=True)
    with millpond.open(job.path, replica_dir=home) as pond:
        assert read(pond) == {"a": 1, "b": 1}
        assert pond.statistics()["ck"]["bootstraps"] == 1


def test_deleting_the_replica_under_a_running_pond_is_safe(job: WrittenCheckpoint, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with millpond.open(job.path, replica_dir=home) as pond:
        home.rename(tmp_path / "gone")  # by a rename: otherwise the follower may write into the folder during the deletion
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)  # the follower deletes what it has open by itself
        wait_until(lambda: list(home.glob("replicas/*/current")), "another replica")
        commit(job, [("a", 2)])
        pond.catch_up(60)
        assert read(pond) == {"a": 2, "b": 1}


def test_only_the_generation_that_serves_is_kept(job: WrittenCheckpoint, tmp_path: Path) -> None:
    home = tmp_path / "home"
    millpond.open(job.path, replica_dir=home).close()
    (folder,) = home.glob("replicas/*")
    (folder / "generation-9-unfinished").mkdir()
    millpond.open(job.path, replica_dir=home).close()
    assert [p.name for p in folder.glob("generation-*")] == [(folder / "current").read_text()]


def _read_after_fork(pond: millpond.Pond, answers: object) -> None:
    try:
        read(pond)
        answers.put("read")  # type: ignore[attr-defined]
    except MillpondError as error:
        answers.put(error.condition)  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_refused(job: WrittenCheckpoint, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        answers = context.Queue()
        child = context.Process(target=_read_after_fork, args=(pond, answers))
        child.start()
        assert answers.get(timeout=60) == "REPLICA_CLOSED"
        child.join()


# ---------------------------------------------------------------- bad input


def test_a_path_that_is_no_checkpoint(tmp_path: Path) -> None:
    assert condition_of(lambda: millpond.open(tmp_path)) == "NO_CHECKPOINT"
    assert condition_of(lambda: millpond.open(tmp_path / "missing")) == "NO_CHECKPOINT"


def test_a_job_that_has_committed_nothing_yet(tmp_path: Path) -> None:
    WrittenCheckpoint(tmp_path / "ck")
    with millpond.open(tmp_path / "ck", replica_dir=tmp_path / "home") as pond:
        assert pond.tables() == []
        assert pond.ready() == (True, "ready")


@pytest.mark.parametrize(
    ("damage", "condition"),
    [
        (lambda data: data[:-30], "INCOMPLETE_FILE"),
        (lambda data: b"", "INCOMPLETE_FILE"),
        (lambda data: data.replace(b"LZ4Block", b"LZ4blocK", 1), "CORRUPT_FILE"),
        (lambda data: data[:25] + bytes([data[25] ^ 1]) + data[26:], "CORRUPT_FILE"),
    ],
)
def test_a_damaged_change_file_stops_the_replica_at_the_batch_before(
    job: WrittenCheckpoint, tmp_path: Path, damage: Callable[[bytes], bytes], condition: str
) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        job.plan([("a", 2), ("a" * 30, 7)], snapshot=False)
        for partition in range(2):
            path = job.path / f"state/0/{partition}/2.delta"
            path.write_bytes(damage(delta_file([("a", 2)])))
        job.commit()
        assert condition_of(lambda: pond.catch_up(60)) == condition
        row = pond[TABLE].get(k="a")
        assert (row["v"], row.batch, row.lag.behind_batches) == (1, 0, 1)
        error = pond.statistics()["ck"]["error"]
        assert error["condition"] == condition
        assert "2.delta" in error["message"]
        assert pond.ready(max_behind_seconds=0.0)[0] is False
        for partition in range(2):
            (job.path / f"state/0/{partition}/2.delta").write_bytes(delta_file([("a", 2)] if partition else []))
        wait_until(lambda: pond[TABLE].get(k="a")["v"] == 2, "the batch whose files are mended")


def test_an_unknown_provider_is_refused_by_name(job: WrittenCheckpoint, tmp_path: Path) -> None:
    path = job.path / "offsets/0"
    lines = path.read_text().split("\n")
    planned = json.loads(lines[1])
    planned["conf"]["spark.sql.streaming.stateStore.providerClass"] = "com.example.Mine"
    path.write_text("\n".join([lines[0], json.dumps(planned), *lines[2:]]))
    with pytest.raises(CheckpointError) as caught:
        millpond.open(job.path, replica_dir=tmp_path / "home")
    assert caught.value.condition == "UNSUPPORTED"
    assert "com.example.Mine" in str(caught.value)


def test_a_replica_folder_that_cannot_be_made(job: WrittenCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert condition_of(lambda: millpond.open(job.path, replica_dir=tmp_path / "file")) == "REPLICA_NOT_WRITABLE"


def test_a_full_disk_is_said_and_nothing_is_lost(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """Here a limit of the address space acts as a full disk; tests/faults fills a real one."""
    small = ReplicaSettings(map_size_bytes=256 * 1024)
    with millpond.open(job.path, replica_dir=tmp_path / "home", settings=small) as pond:
        commit(job, [(f"key {n} " + "x" * 400, n) for n in range(2000)])
        assert condition_of(lambda: pond.catch_up(60)) == "DISK_FULL"
        assert read(pond) == {"a": 1, "b": 1}


def test_wrong_keys_are_refused_with_a_hint(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        table = pond[TABLE]
        assert condition_of(lambda: table.get(nope=1)) == "UNKNOWN_COLUMN"
        assert condition_of(lambda: table.get(v=1)) == "NOT_A_KEY_COLUMN"
        assert condition_of(lambda: table.get()) == "KEY_MISSING"
        assert condition_of(lambda: table.get(k=1)) == "WRONG_TYPE"
        assert condition_of(lambda: table.scan(limit=0)) == "INVALID_LIMIT"
        assert condition_of(lambda: pond["ck.agregate_0"]) == "UNKNOWN_TABLE"
        assert table.get(k="nobody").found is False


def test_what_a_follower_meets_is_logged_once_and_when_it_is_over(
    job: WrittenCheckpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="millpond")

    def lines(event: str) -> list[str]:
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith(event)]

    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        job.plan([("c", 1)], snapshot=False)
        deltas = sorted(job.path.glob("state/0/*/2.delta"))
        whole = [delta.read_bytes() for delta in deltas]
        for delta in deltas:
            delta.write_bytes(b"damaged")
        job.commit()
        wait_until(lambda: pond.statistics()["ck"]["errors"] > 3, "the follower's fourth error")
        (failed,) = lines("follower.failed")
        for fact in ("condition=INCOMPLETE_FILE", "checkpoint=", "message=", "hint="):
            assert fact in failed
        for delta, data in zip(deltas, whole, strict=True):
            delta.write_bytes(data)
        wait_until(lambda: lines("follower.recovered"), "the line of the log that it is over")
        assert read(pond) == {"a": 1, "b": 1, "c": 1}
