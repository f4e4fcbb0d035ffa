"""`kill -9` between any two requests to a bucket: the old or the new is whole, and the same command succeeds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_job, open_jobs
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.fork import plan_fork
from millpond.savepoint.in_place.rescale import plan_rescale
from millpond.savepoint.in_place.rollback import plan_rollback
from millpond.savepoint.manage.delete import plan_delete_savepoint
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from savepoint.changed import plan_edited
from savepoint.killed import IN_BUCKET, run_killed
from savepoint.test_golden_cells import rows_of
from savepoint.test_killed import refusal
from savepoint.test_rescale import partitions, rows
from servers.s3 import BUCKET, moto_server, use
from spark_files.checkpoint import UploadedCheckpoint
from suite.sizes import IS_LONG

KILLS = 4 if IS_LONG else 1


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A folder in a bucket with a pond, whose job has three batches and a savepoint of each."""
    use(monkeypatch, moto_server())
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(IN_BUCKET, "1")
    root = f"s3://{BUCKET}/{tmp_path.name}"
    job = UploadedCheckpoint(open_storage(create_job(f"{root}/pond", "counts").checkpoint))
    for batch in range(3):
        job.batch([(("k" * (n + 1),), n + batch) for n in range(9)])
        plan_savepoint(f"{root}/pond", f"s{batch}").run()
    return root


def some(steps: int, seed: int) -> list[int]:
    """Before which requests to kill: the first and the last, and some between them."""
    return sorted({1, steps, *random.Random(seed).sample(range(1, steps + 1), min(KILLS, steps))})


@pytest.mark.long
@pytest.mark.parametrize("command", ["create", "edit", "import"])
def test_a_new_savepoint_is_whole_or_incomplete(root: str, tmp_path: Path, command: str) -> None:
    pond, file = f"{root}/pond", str(tmp_path / "s2.tar")
    millpond.export_savepoint(open_savepoint(pond, "s2"), file)
    words = {"create": ("new",), "edit": ("s2", "new"), "import": (file, "new")}[command]

    def again() -> Any:
        if command == "edit":
            return plan_edited(pond, "s2", "new").run()
        return plan_savepoint(pond, "new").run() if command == "create" else millpond.import_savepoint(pond, file, name="new")

    def check() -> None:
        found = open_savepoint(pond, "new")
        assert verify_savepoint(found).problems == ()
        assert rows_of(f"{found.storage.uri}/checkpoint", 2) == expected
        plan_delete_savepoint(pond, "new").run()

    steps = run_killed(0, pond, command, *words)
    expected = rows_of(f"{pond}/savepoints/new/checkpoint", 2)
    assert (expected == rows_of(f"{pond}/savepoints/s2/checkpoint", 2)) == (command != "edit")
    check()
    ends = set()
    for point in some(steps, 3):
        assert run_killed(point, pond, command, *words) < 0
        there = list_savepoints(pond)
        assert not there.broken
        ends.add(tuple(there.incomplete))
        assert [found.manifest.name for found in there.found] == ["s0", "s1", "s2"]  # the manifest is the last request
        if there.incomplete:
            refused = refusal(again)
            assert (refused.condition, "delete … new" in str(refused.hint)) == ("SAVEPOINT_INCOMPLETE", True)
            plan_delete_savepoint(pond, "new").run()
        again()
        check()
    assert ends == {(), ("new",)}


@pytest.mark.long
def test_a_deletion_leaves_the_others_whole(root: str) -> None:
    pond = f"{root}/pond"
    steps, ends = run_killed(0, pond, "delete", "s1"), set()
    for point in some(steps, 5):
        plan_savepoint(pond, "s1", batch=1).run()
        assert run_killed(point, pond, "delete", "s1") < 0
        there = list_savepoints(pond)
        whole = {found.manifest.name: verify_savepoint(found).problems for found in there.found}
        assert whole == dict.fromkeys(["s0", "s2", *(["s1"] if "s1" in whole else [])], ())
        assert there.incomplete in ([], ["s1"])
        ends.add((len(whole), len(there.incomplete)))
        if "s1" in (*there.incomplete, *whole):
            plan_delete_savepoint(pond, "s1").run()
        assert open_storage(f"{pond}/savepoints/s1").names() == []
    assert {(3, 0), (2, 1)} <= ends


@pytest.mark.long
@pytest.mark.parametrize("command", ["restore", "fork"])
def test_a_new_checkpoint_is_whole_or_refused(root: str, command: str) -> None:
    pond = f"{root}/pond"
    target, place = (f"{root}/restored", f"{root}/restored") if command == "restore" else ("other", f"{pond}/jobs/other")
    checkpoint = target if command == "restore" else f"{place}/checkpoint"

    def plan() -> Any:
        return plan_restore(pond, "s2", target) if command == "restore" else plan_fork(pond, "s2", target)

    def remove() -> None:
        for folder in (place, f"{place}.millpond"):
            open_storage(folder).delete_all()

    steps = run_killed(0, pond, command, "s2", target)
    names = open_storage(checkpoint).names()
    expected, ends = rows_of(f"{pond}/savepoints/s2/checkpoint", 2), set()
    for point in some(steps, 7):
        remove()
        assert run_killed(point, pond, command, "s2", target) < 0
        assert rows(f"{pond}/jobs/counts/checkpoint" if command == "fork" else pond) != {}
        is_whole = open_storage(checkpoint).stamp("metadata") is not None
        if command == "fork":
            is_whole = "other" in [folder.job for folder in open_jobs(pond)]
        ends.add(is_whole)
        if not is_whole:
            if open_storage(place).names() or open_storage(place).stamp(".restoring") is not None:
                refused = refusal(lambda: plan().run())
                assert refused.condition == ("TARGET_NOT_EMPTY" if command == "restore" else "TABLE_EXISTS")
                assert "was killed" in refused.message
                assert "that folder" in str(refused.hint)
                remove()
            plan().run()
        assert open_storage(checkpoint).names() == names
        assert rows_of(checkpoint, 2) == expected
    assert ends == {True, False}


@pytest.mark.long
@pytest.mark.parametrize("command", ["rescale", "rollback"])
def test_the_old_or_the_new_takes_the_jobs_place(root: str, command: str) -> None:
    """`job.json` names one of the two; the next command removes what the killed one left."""
    pond = f"{root}/pond"
    (before,) = open_jobs(pond)
    contents = {"old": rows(pond), "new": rows(pond)}
    words = ("5",) if command == "rescale" else ("s1", "none")
    if command == "rollback":
        contents["new"] = {key: value - 1 for key, value in contents["old"].items()}
    file = open_storage(pond)
    job = file.read("jobs/counts/job.json", 1 << 20)
    names = set(open_storage(f"{pond}/jobs/counts").names())
    steps = run_killed(0, pond, command, *words)

    def now() -> str:
        (folder,) = open_jobs(pond)
        return "old" if folder.checkpoint == before.checkpoint else "new"

    def back() -> None:
        """As before: only the first checkpoint is there."""
        file.write("jobs/counts/job.json", job)
        for name in set(open_storage(f"{pond}/jobs/counts").names()) - names:
            open_storage(f"{pond}/jobs/counts").delete_all(name)
            open_storage(f"{pond}/jobs/counts").delete(name)

    assert now() == "new"
    ends = set()
    for point in some(steps, 9):
        back()
        assert run_killed(point, pond, command, *words) < 0
        ends.add(now())
        assert rows(pond) == contents[now()]
        (folder,) = open_jobs(pond)
        if command == "rescale":
            assert partitions(folder.checkpoint, 2) == {"old": 2, "new": 5}[now()]
            plan_rescale(pond, 3).run()
        else:
            plan_rollback(pond, savepoint="s1", no_file_sink=True).run()
            contents_now = rows(pond)
            assert contents_now == contents["new"]
        left = set(open_storage(f"{pond}/jobs/counts").names()) - names
        assert all(name.startswith(("checkpoint-", "lease", "origin")) for name in left), left
        assert now() == "new"
    assert ends == {"old", "new"}
