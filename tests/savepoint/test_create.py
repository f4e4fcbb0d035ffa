"""Making savepoints: of running jobs, by several at once, killed at any time, with clean-up running beneath."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.catalogue import create_beside, create_job
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.delete import plan_delete_savepoint
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.savepoint.manifest import _digest, parse_manifest
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from oracles.ends import condition_of, ends_of
from spark_files.checkpoint import WrittenCheckpoint
from suite.programs import started
from suite.sizes import a_few, examples


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    """A job of six batches in a pond."""
    folder = create_job(tmp_path / "pond", "counts")
    written = WrittenCheckpoint(Path(folder.checkpoint.removeprefix("file://")))
    for batch in range(6):
        written.plan([("a", batch), ("bb" * (batch + 1), batch)], snapshot=batch % 3 == 2)
        written.commit()
    return written


def test_a_savepoint_says_what_it_holds(job: WrittenCheckpoint, tmp_path: Path) -> None:
    made = plan_savepoint(tmp_path / "pond", "monday", note="before the upgrade").run()
    manifest = open_savepoint(tmp_path / "pond", "monday").manifest
    assert manifest == made.manifest
    assert (manifest.name, manifest.note, manifest.job, manifest.batch) == ("monday", "before the upgrade", "counts", 5)
    assert manifest.offsets == {"0": {"logOffset": 5}}
    assert manifest.rows == len(job.content())
    assert manifest.size_bytes == sum(
        path.stat().st_size for path in (tmp_path / "pond/savepoints/monday/checkpoint").rglob("*") if path.is_file()
    )
    assert [found.manifest.name for found in list_savepoints(tmp_path / "pond").found] == ["monday"]


def test_the_job_stays_as_it_was(job: WrittenCheckpoint, tmp_path: Path) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        return {str(p): (p.stat().st_ino, p.read_bytes()) for p in sorted(job.path.rglob("*")) if p.is_file()}

    before = state()
    plan_savepoint(tmp_path / "pond", "monday").run()
    plan_delete_savepoint(tmp_path / "pond", "monday").run()
    assert state() == before
    assert not (tmp_path / "pond/savepoints/monday").exists()


def test_wrong_calls_are_refused_and_leave_nothing(job: WrittenCheckpoint, tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    plan_savepoint(pond, "there").run()
    before = sorted(str(path) for path in pond.rglob("*"))
    assert condition_of(lambda: plan_savepoint(pond, "there")) == "SAVEPOINT_EXISTS"
    assert condition_of(lambda: plan_savepoint(pond, "a/b")) == "INVALID_NAME"
    assert condition_of(lambda: plan_savepoint(pond, "..")) == "INVALID_NAME"
    assert condition_of(lambda: plan_savepoint(pond, "x", job="other")) == "INVALID_REQUEST"
    assert condition_of(lambda: plan_savepoint(pond, "x", batch=77)) == "BATCH_GONE"
    assert condition_of(lambda: plan_savepoint(tmp_path / "nowhere", "x")) == "NO_CHECKPOINT"
    assert condition_of(lambda: open_savepoint(pond, "x")) == "UNKNOWN_SAVEPOINT"
    assert condition_of(lambda: plan_delete_savepoint(pond, "x")) == "UNKNOWN_SAVEPOINT"
    assert sorted(str(path) for path in pond.rglob("*")) == before


def test_a_job_without_a_committed_batch_has_nothing_to_save(tmp_path: Path) -> None:
    WrittenCheckpoint(tmp_path / "ck").plan([("a", 1)], snapshot=False)
    assert condition_of(lambda: plan_savepoint(tmp_path / "ck", "x")) == "NO_COMMITTED_BATCH"


def test_a_damaged_checkpoint_makes_no_savepoint(job: WrittenCheckpoint, tmp_path: Path) -> None:
    snapshot = job.path / "state/0/1/6.snapshot"
    snapshot.write_bytes(snapshot.read_bytes()[:-5])
    assert condition_of(plan_savepoint(tmp_path / "pond", "monday").run) in ("CORRUPT_FILE", "INCOMPLETE_FILE")
    assert not (tmp_path / "pond/savepoints/monday").exists()
    snapshot.unlink()
    (job.path / "state/0/1/6.delta").unlink()
    assert condition_of(plan_savepoint(tmp_path / "pond", "monday", batch=5).run) == "FILE_GONE"
    assert not (tmp_path / "pond/savepoints/monday").exists()


def test_of_several_commands_with_one_name_one_makes_it(job: WrittenCheckpoint, tmp_path: Path) -> None:
    plans = [plan_savepoint(tmp_path / "pond", "monday", note=str(n)) for n in range(8)]
    ends = ends_of([plan.run for plan in plans])
    made = [end for end in ends if not isinstance(end, str)]
    assert len(made) == 1
    assert {end for end in ends if end not in made} <= {"SAVEPOINT_EXISTS", "SAVEPOINT_INCOMPLETE"}
    assert open_savepoint(tmp_path / "pond", "monday").manifest == made[0].manifest
    assert verify_savepoint(made[0]).is_whole


def test_a_running_job_whose_old_batches_are_deleted_at_once(tmp_path: Path) -> None:
    """Each savepoint is of one batch, whole, and restores to the state of that batch."""
    written = WrittenCheckpoint(tmp_path / "ck")
    states: dict[int, dict[str, int]] = {}
    ending = threading.Event()
    refused = [0]

    def run() -> None:
        numbers = random.Random(5)
        while not ending.is_set():
            changes = [("x" * numbers.randrange(1, 40), numbers.randrange(1000)) for _ in range(20)]
            written.plan(changes, snapshot=True)
            states[written.next_batch] = written.content()
            written.commit()
            written.clean(keep=2)  # as few as Spark can go on from
            time.sleep(0.005 * (1 + refused[0]) ** 2)  # a busy machine makes no savepoint within a few milliseconds

    written.plan([("x", 1)], snapshot=True)
    states[0] = written.content()
    written.commit()
    job = threading.Thread(target=run)
    job.start()
    try:
        made = []
        for number in range(examples(40)):
            try:
                made.append(plan_savepoint(tmp_path / "ck", f"s{number}").run())
            except MillpondError as error:  # clean-up was quicker each time
                assert error.condition in ("BATCH_GONE", "NO_COMMITTED_BATCH")
                refused[0] += not made
    finally:
        ending.set()
        job.join()
    assert made, "no savepoint in all that time"
    for savepoint in made:
        assert verify_savepoint(savepoint).problems == ()
        assert savepoint.manifest.rows == len(states[savepoint.manifest.batch])
        target = tmp_path / "restored" / savepoint.manifest.name
        plan_restore(tmp_path / "ck", savepoint.manifest.name, target).run()
        assert (target / "metadata").exists()


KILLED = """
import sys
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
place, what = sys.argv[1:3]
form = {"partitions": 9} if what == "rescale" else {}
plan = plan_savepoint(place, "killed") if what == "create" else plan_restore(place, "whole", sys.argv[3], **form)
print("ready", flush=True)
plan.run()
"""


@pytest.mark.long
@pytest.mark.parametrize("what", a_few(["create", "restore", "rescale"], 1))
def test_a_command_that_is_killed_leaves_all_or_nothing_to_use(job: WrittenCheckpoint, tmp_path: Path, what: str) -> None:
    """Whenever it is killed: nothing takes what it leaves for whole, and the same command can be given again."""
    for batch in range(6, 60):
        job.plan([("a" * batch, batch)] * 20, snapshot=False)
        job.commit()
    pond = tmp_path / "pond"
    plan_savepoint(pond, "whole").run()
    numbers, ends = random.Random(11), {"whole": 0, "incomplete": 0, "nothing": 0}
    for number in range(200):
        if number >= examples(24, 5) and (ends["incomplete"] or ends["whole"]):
            break
        target = tmp_path / f"restored-{number}"
        command = [sys.executable, "-c", KILLED, str(pond), what, str(target)]
        with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(numbers.random() * 0.05 * (1 + ends["nothing"]))  # on a busy machine it begins late
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        if what != "create":
            has_all = (target / "metadata").exists()
            ends["whole" if has_all else "incomplete" if target.exists() else "nothing"] += 1
            if has_all and what == "rescale":
                rows = plan_savepoint(target, "again").run().manifest.rows
                assert rows == open_savepoint(pond, "whole").manifest.rows
            elif has_all:
                needed = {file.path for file in open_savepoint(pond, "whole").manifest.files}
                assert {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()} - {".restoring"} == needed
            elif (target / ".restoring").exists():
                assert condition_of(lambda to=target: plan_restore(pond, "whole", to).run()) == "TARGET_NOT_EMPTY"
            continue
        every = list_savepoints(pond)
        assert [found.manifest.name for found in every.found if found.manifest.name == "whole"]
        if "killed" in every.incomplete:
            ends["incomplete"] += 1
            assert condition_of(lambda: open_savepoint(pond, "killed")) == "SAVEPOINT_INCOMPLETE"
            assert condition_of(lambda: plan_savepoint(pond, "killed")) == "SAVEPOINT_INCOMPLETE"
        elif any(found.manifest.name == "killed" for found in every.found):
            ends["whole"] += 1
            assert verify_savepoint(open_savepoint(pond, "killed")).is_whole
        else:
            ends["nothing"] += 1
            continue
        plan_delete_savepoint(pond, "killed").run()
        assert not (pond / "savepoints/killed").exists()
    assert ends["incomplete"] or ends["whole"], ends


def test_files_that_never_change_are_shared_and_others_arent(golden, tmp_path: Path) -> None:
    """SSTs have several names on one disk; a file that Spark may replace under its name is a copy."""
    checkpoint = golden("counts-rocksdb-changelog").checkpoint
    first, second = (plan_savepoint(checkpoint, name).run() for name in ("first", "second"))
    assert second.manifest.shares_with == "first"

    def inode(storage, path: str) -> int:
        return int(storage.stamp(path).identity)

    shared = 0
    for file in first.manifest.files:
        inodes = {(checkpoint / file.path).stat().st_ino, inode(first.checkpoint, file.path), inode(second.checkpoint, file.path)}
        assert len(inodes) == (1 if "/SSTs/" in file.path else 3), file.path
        shared += "/SSTs/" in file.path
    assert shared
    plan_delete_savepoint(checkpoint, "first").run()
    assert verify_savepoint(second).problems == ()
    for path in checkpoint.rglob("*.sst"):
        path.unlink()  # as Spark's clean-up
    assert verify_savepoint(second).problems == ()


def test_a_manifest_without_lineage_is_still_read(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """Its parent was the savepoint whose files it shares."""
    made = plan_savepoint(tmp_path / "pond", "monday").run()
    data = json.loads(made.manifest.to_bytes())
    del data["sha256"], data["shares_with"]
    data["parent"] = "sunday"
    text = json.dumps({**data, "sha256": _digest(data)}).encode()
    assert parse_manifest(text, "") == replace(made.manifest, parent="sunday", shares_with="sunday")


def test_of_several_restores_to_one_folder_one_is_made(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """Of two savepoints: never a mixture of both, and the others leave the folder alone."""
    pond, target = tmp_path / "pond", tmp_path / "restored"
    for batch in (2, 5):
        plan_savepoint(pond, f"s{batch}", batch=batch).run()
    plans = [plan_restore(pond, f"s{batch}", target) for batch in (2, 5) * 4]
    ends = ends_of([plan.run for plan in plans])
    (made,) = (plan.savepoint for plan, end in zip(plans, ends, strict=True) if end != "TARGET_NOT_EMPTY")
    expected = {file.path for file in made.manifest.files}
    assert {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()} == expected


def test_a_folder_whose_tables_are_of_another_job_is_refused(job: WrittenCheckpoint, tmp_path: Path) -> None:
    plan_savepoint(tmp_path / "pond", "monday").run()
    create_beside(tmp_path / "restored", "other")
    assert condition_of(lambda: plan_restore(tmp_path / "pond", "monday", tmp_path / "restored")) == "TARGET_NOT_EMPTY"
    create_beside(tmp_path / "again", "counts")
    plan_restore(tmp_path / "pond", "monday", tmp_path / "again").run()
