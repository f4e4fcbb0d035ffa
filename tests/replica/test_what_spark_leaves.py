"""A running job replaces files, leaves some behind, writes some late and cleans up; no answer shows that."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import open_jobs
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.storage import open_storage
from millpond.tables.cold.report import inspect_job
from spark_files.checkpoint import WrittenCheckpoint, delta_file
from suite.waiting import stays, wait_until

TABLE = "ck.aggregate_0"
HOUR_NS = 3600 * 10**9


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    for n in range(3):
        checkpoint.plan([("a", n), ("bb", n)], snapshot=False)
        checkpoint.commit()
    return checkpoint


def read(pond: millpond.Pond) -> dict[str, int]:
    return {row["k"]: row["v"] for row in pond[TABLE].scan()}


def test_a_batch_that_failed_and_was_run_again_with_other_input_shows_the_second_run(
    job: WrittenCheckpoint, tmp_path: Path
) -> None:
    with millpond.open(job.path, replica_dir="memory://") as pond:
        before = [dict(rows) for rows in job.state]
        job.plan([("a", 100), ("c", 100)], snapshot=False)
        assert read(pond) == {"a": 2, "bb": 2}
        job.state = before  # the first run's files are there, its commit never comes
        job.plan([("a", 200)], snapshot=False)
        assert read(pond) == {"a": 2, "bb": 2}
        job.commit()
        pond.catch_up(60)
        assert read(pond) == {"a": 200, "bb": 2}


def test_what_a_second_attempt_of_the_same_task_leaves_behind_is_not_read(job: WrittenCheckpoint) -> None:
    """A speculative or killed task leaves its temporary file.  Of two tasks that finish, the later replaces the file."""
    with millpond.open(job.path, replica_dir="memory://") as pond:
        job.plan([("a", 7)], snapshot=False)
        folder = job.path / "state/0/1"
        orphan = folder / ".4.delta.0b6a1f6e.TID7.tmp"
        orphan.write_bytes(delta_file([("a", 666)])[:20])
        (folder / "4.delta.tmp").write_bytes(b"")
        (folder / "_tmp_4").write_bytes(b"x")
        job.write("state/0/1/4.delta", delta_file([("a", 7)]))  # the other attempt, the same content
        job.commit()
        pond.catch_up(60)
        assert read(pond) == {"a": 7, "bb": 2}
    assert inspect_job(open_jobs(job.path)[0]).unread == ()


def test_state_files_that_appear_after_their_commit_are_waited_for(job: WrittenCheckpoint) -> None:
    """On an object store, or in a copy, commits/N may appear first."""
    with millpond.open(job.path, replica_dir="memory://") as pond:
        job.plan([("a", 9), ("bb", 9)], snapshot=False)
        late = job.path / "state/0/0/4.delta"
        late.rename(job.path / "kept")
        job.commit()
        stays(lambda: read(pond) == {"a": 2, "bb": 2}, "the rows of the batch before")
        assert pond[TABLE].get(k="a").batch == 2
        (job.path / "kept").rename(late)
        pond.catch_up(60)
        assert read(pond) == {"a": 9, "bb": 9}


@pytest.mark.long
def test_a_clean_up_during_a_bootstrap_is_met_with_another_bootstrap(tmp_path: Path) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    for n in range(30):
        checkpoint.plan([("a", n), ("bb", n), (f"k{n}", n)], snapshot=n % 5 == 4)
        checkpoint.commit()
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            n = checkpoint.next_batch
            checkpoint.plan([("a", n), ("bb", n)], snapshot=n % 5 == 4)
            checkpoint.commit()
            checkpoint.clean(keep=2)

    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        for _ in range(20):
            with millpond.open(checkpoint.path, replica_dir="memory://", wait_seconds=0) as pond:

                def rows_if_there(pond: millpond.Pond = pond) -> Any:
                    try:
                        return pond[TABLE].scan()
                    except millpond.MillpondError as error:
                        assert error.condition in ("REPLICA_BUILDING", "FILE_GONE", "UNKNOWN_TABLE", "NO_COMMITTED_BATCH"), error
                        return None

                rows = wait_until(rows_if_there, "a replica that can be read")
                found = {row["k"]: row["v"] for row in rows}
                assert found["a"] == found["bb"] == rows.batch
                assert all(found[f"k{n}"] == n for n in range(30))
    finally:
        stop.set()
        writer.join()


def rewound(tmp_path: Path) -> WrittenCheckpoint:
    """A job rewound from batch 5 to 2 by deleting logs, and run again with other input: the old snapshot of version 5 stays."""
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    checkpoint.clock = int(time.time() * 1000) - 7_200_000
    for n in range(6):
        checkpoint.plan([("a", n), ("bb", n)], snapshot=n == 4)
        checkpoint.commit()
    old = time.time_ns() - 2 * HOUR_NS + 10**9
    for file in checkpoint.path.rglob("*.snapshot"):
        os.utime(file, ns=(old, old))
    kept = {str(p): p.read_bytes() for p in checkpoint.path.rglob("5.snapshot")}
    for n in (3, 4, 5):
        (checkpoint.path / f"offsets/{n}").unlink()
        (checkpoint.path / f"commits/{n}").unlink()
    checkpoint.next_batch, checkpoint.clock = 3, int(time.time() * 1000)
    for n in range(3, 6):
        checkpoint.plan([("a", 100 + n), ("bb", 100 + n), ("new", n)], snapshot=False)
        checkpoint.commit()
    assert all(Path(p).read_bytes() == data for p, data in kept.items())
    return checkpoint


def test_a_snapshot_that_outlived_a_rewind_in_place_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = rewound(tmp_path)
    storage = open_storage(checkpoint.path)
    (store,), _ = read_stores(storage, Batch(5))
    with pytest.raises(CheckpointError) as refused:
        list(StateReader(storage).iter_state(read_batch(storage, Batch(5)), store, 0))
    assert refused.value.condition == "REWOUND_IN_PLACE"
    assert refused.value.context["path"].endswith("5.snapshot")
    with (
        pytest.raises(millpond.MillpondError) as at_the_door,
        millpond.open(checkpoint.path, replica_dir="memory://", wait_seconds=60),
    ):
        pass
    assert at_the_door.value.condition == "REWOUND_IN_PLACE"
    report = inspect_job(open_jobs(checkpoint.path)[0])
    assert {u.condition for u in report.unread} == {"REWOUND_IN_PLACE"}
    for file in checkpoint.path.rglob("5.snapshot"):
        file.unlink()  # as the hint says
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond:
        assert read(pond) == {"a": 105, "bb": 105, "new": 5}


def test_a_replica_that_follows_goes_on_over_a_rewind_only_by_its_changes(tmp_path: Path) -> None:
    """Rows applied from change files are right; a follower never starts from the outdated snapshot."""
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    for n in range(3):
        checkpoint.plan([("a", n)], snapshot=False)
        checkpoint.commit()
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond:
        stale = checkpoint.path / "state/0/1/4.snapshot"
        stale.write_bytes(delta_file([("a", 666)]))
        os.utime(stale, ns=(0, 0))
        checkpoint.plan([("a", 3)], snapshot=False)
        checkpoint.commit()
        pond.catch_up(60)
        assert read(pond) == {"a": 3}


def test_a_copy_whose_files_are_all_newer_than_the_job_is_no_rewind(tmp_path: Path) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    for n in range(6):
        checkpoint.plan([("a", n)], snapshot=n == 4)
        checkpoint.commit()
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond:
        assert read(pond) == {"a": 5}
