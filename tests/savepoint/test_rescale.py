"""Rescale in place: the same rows under another number of partitions, the old checkpoint kept, and readers that go on."""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond.catalogue import create_beside, create_job, open_jobs
from millpond.checkpoint.log import read_batch, read_conf
from millpond.checkpoint.position import Batch
from millpond.errors import MillpondError
from millpond.ownership.lease import take_lease
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.in_place import exchange
from millpond.savepoint.in_place.rescale import plan_rescale
from millpond.savepoint.verify import verify_savepoint
from millpond.schema.definition.operator_name import NamedOperator, parse_entry
from millpond.storage import open_storage, uri_of
from savepoint.killed import NO_EXCHANGE, run_killed
from savepoint.test_golden_cells import rows_of
from savepoint.test_rewrite import whole_state
from servers.s3 import BUCKET, moto_server, use
from spark_files.checkpoint import UploadedCheckpoint, WrittenCheckpoint, log_entry
from suite.sizes import IS_LONG, a_few

ROWS = {"a": 3, "b": 0, "bb": 1, "bbb": 2, "bbbb": 3}


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    """A job of a pond, with four batches and a fifth one that it planned."""
    job = WrittenCheckpoint(Path(create_job(tmp_path / "pond", "counts").checkpoint.removeprefix("file://")))
    for batch in range(4):
        job.plan([(("a",), batch), (("b" * (batch + 1),), batch)], snapshot=False)
        job.commit()
        job.write(f"sources/0/{batch}", log_entry(batch))
    job.plan([(("a",), 99)], snapshot=False)
    job.write("sources/0/4", log_entry(4))
    return job


def condition_of(call: Callable[[], object]) -> str:
    with pytest.raises(MillpondError) as caught:
        call()
    return caught.value.condition


def rows(place: Path | str) -> dict[str, int]:
    (folder,) = open_jobs(place)
    return {row["k"]: row["v"] for row in millpond.read_arrow(place, f"{folder.job}.aggregate_0").to_pylist()}


def partitions(checkpoint: Path | str, batch: int = 3) -> int:
    return read_batch(open_storage(checkpoint), Batch(batch)).settings.partitions


def test_a_job_is_rescaled_in_its_place(job: WrittenCheckpoint, tmp_path: Path) -> None:
    pond, stopped = tmp_path / "pond", (job.path / "state/0/1/1.delta").read_bytes()
    plan = plan_rescale(pond, 5)
    assert "from 2 to 5 partitions, after batch 3" in plan.describe()
    assert partitions(job.path) == 2
    done = plan.run()
    assert (done.rows, done.batch, done.partitions, partitions(job.path)) == (5, 3, 5, 5)
    assert rows(pond) == ROWS
    assert done.checkpoint == uri_of(job.path)
    kept = Path(str(done.kept).removeprefix("file://"))
    assert kept.name.startswith("checkpoint.before-rescale-")
    assert partitions(kept) == 2
    assert (kept / "state/0/1/1.delta").read_bytes() == stopped
    assert sorted(path.name for path in job.path.parent.iterdir() if path.name[0] != ".") == [
        "checkpoint",
        kept.name,
        "job.json",
        "lease.json",
    ]
    # The batch that was planned is done again with its own offsets, under the new number.
    before, after = ((place / "offsets/4").read_text().split("\n") for place in (kept, job.path))
    assert before[2:] == after[2:]
    assert json.loads(after[1])["conf"] == read_conf(open_storage(job.path), Batch(3))
    assert sorted(path.name for path in (job.path / "sources/0").iterdir()) == ["0", "1", "2", "3", "4"]
    assert not list(job.path.glob(".take-over*"))
    assert plan_rescale(pond, 3).run().rows == 5
    assert (rows(pond), partitions(job.path)) == (ROWS, 3)


def test_readers_go_on_and_the_log_says_rescaled(job: WrittenCheckpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pond = tmp_path / "pond"
    with caplog.at_level(logging.INFO), millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60) as opened:
        table = opened["counts.aggregate_0"]
        assert {row["k"]: row["v"] for row in table.scan()} == ROWS
        for number in (5, 3):
            plan_rescale(pond, number).run()
            for _ in range(20):
                assert {row["k"]: row["v"] for row in table.scan()} == ROWS  # never refused
            opened.catch_up(60)
    said = [str(record.msg) for record in caplog.records if "job.rescaled" in str(record.msg)]
    assert any("partitions_before=2" in line and "partitions=5" in line for line in said)
    assert not any("JOB_REPLACED" in str(record.msg) for record in caplog.records)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_replica_that_nobody_followed_meanwhile_knows_the_job_again(job: WrittenCheckpoint, tmp_path: Path, times: int) -> None:
    pond, home = tmp_path / "pond", tmp_path / "home"
    with millpond.open(pond, replica_dir=home, wait_seconds=60) as opened:
        opened.catch_up(60)
    for number in (5, 3, 4, 1, 5)[:times]:
        plan_rescale(pond, number).run()
    with millpond.open(pond, replica_dir=home, follow=False, wait_seconds=60) as opened:
        assert {row["k"]: row["v"] for row in opened["counts.aggregate_0"].scan()} == ROWS
    # Another job at that place isn't taken for it.
    note = job.path / ".rescaled.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "before": ["another"]}))
    assert condition_of(lambda: millpond.open(pond, replica_dir=home, follow=False, wait_seconds=1)) == "JOB_REPLACED"


def test_what_cant_be_rescaled_is_refused(job: WrittenCheckpoint, tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    assert condition_of(lambda: plan_rescale(pond, 2)) == "INVALID_REQUEST"
    assert condition_of(lambda: plan_rescale(pond, 0)) == "UNSUPPORTED"
    assert condition_of(lambda: plan_rescale(pond, 5, job="views")) == "INVALID_REQUEST"
    assert condition_of(lambda: plan_rescale(pond, 5, to=tmp_path / "other")) == "INVALID_REQUEST"
    plan = plan_rescale(pond, 5)
    (folder,) = open_jobs(pond)
    lease = take_lease(folder.storage, "the job counts")
    assert condition_of(lambda: plan_rescale(pond, 5)) == "CHECKPOINT_IN_USE"
    assert condition_of(plan.run) == "CHECKPOINT_IN_USE"
    assert plan_rescale(pond, 5, take_over=True).run().rows == 5
    assert condition_of(lease.check) == "CHECKPOINT_IN_USE"
    state = job.path / "state/0/1/4.snapshot"
    state = state if state.exists() else next((job.path / "state/0").glob("*/4.snapshot"))
    state.write_bytes(state.read_bytes()[:-3])
    before = files_of(job.path)
    assert condition_of(plan_rescale(pond, 7).run) in ("CORRUPT_FILE", "INCOMPLETE_FILE")
    assert files_of(job.path) == before
    assert not list(job.path.parent.glob("take-over*"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_heartbeat_without_a_lease_counts_too(job: WrittenCheckpoint, tmp_path: Path) -> None:
    (folder,) = open_jobs(tmp_path / "pond")
    folder.write_heartbeat("running")
    assert condition_of(lambda: plan_rescale(tmp_path / "pond", 5)) == "CHECKPOINT_IN_USE"
    folder.write_heartbeat("stopped")
    assert plan_rescale(tmp_path / "pond", 5).run().rows == 5


def test_a_job_that_goes_on_meanwhile_is_noticed(job: WrittenCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks nobody for a lease, as plain Spark does."""
    real = exchange.savepoint_in

    def and_commit(*arguments: object, **options: object) -> object:
        made = real(*arguments, **options)  # type: ignore[arg-type]
        job.commit()
        return made

    monkeypatch.setattr("millpond.savepoint.in_place.rescale.savepoint_in", and_commit)
    before = partitions(job.path)
    assert condition_of(plan_rescale(tmp_path / "pond", 5).run) == "CHECKPOINT_IN_USE"
    assert partitions(job.path) == before
    assert not list(job.path.parent.glob("take-over*"))


def test_a_bare_checkpoint_is_left_alone(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "ck")
    job.plan([(("a",), 1), (("b",), 2)], snapshot=False)
    job.commit()
    before = files_of(job.path)
    plan = plan_rescale(job.path, 3)
    assert "can't know whether it runs" in plan.describe()
    done = plan.run()
    assert (done.kept, done.checkpoint) == (None, uri_of(tmp_path / "ck-of-3"))
    assert files_of(job.path) == before
    assert partitions(tmp_path / "ck-of-3", 0) == 3
    assert rows(tmp_path / "ck-of-3") == {"a": 1, "b": 2}
    assert not (tmp_path / "ck-of-3/.rescale").exists()
    assert condition_of(lambda: plan_rescale(job.path, 3)) == "TARGET_NOT_EMPTY"
    assert plan_rescale(job.path, 3, to=tmp_path / "other").run().rows == 2


@pytest.mark.long
def test_in_a_bucket_one_write_names_the_new_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, moto_server())
    pond = f"s3://{BUCKET}/{tmp_path.name}/pond"
    first = create_job(pond, "counts")
    UploadedCheckpoint(open_storage(first.checkpoint)).batch([(("a",), 1), (("b",), 2)])
    done = plan_rescale(pond, 5).run()
    assert re.fullmatch(re.escape(f"{pond}/jobs/counts/checkpoint-") + "[0-9]{9}", done.checkpoint)
    assert done.kept == first.checkpoint
    assert partitions(done.checkpoint, 0) == 5
    assert (partitions(first.checkpoint, 0), rows(pond)) == (2, {"a": 1, "b": 2})
    assert create_job(pond, "counts").checkpoint == done.checkpoint
    assert plan_rescale(pond, 3).run().kept == done.checkpoint
    assert rows(pond) == {"a": 1, "b": 2}
    plan_savepoint(pond, "after").run()


@pytest.mark.parametrize("way", ["exchange", pytest.param("names", marks=pytest.mark.long)])
def test_killed_anywhere_the_old_or_the_new_is_whole(
    job: WrittenCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Then the same command succeeds, and leaves nothing of the killed one."""
    pond, seed = tmp_path / "pond", random.Random(7)
    if way == "names":
        monkeypatch.setenv(NO_EXCHANGE, "1")
        monkeypatch.setattr("millpond.ownership.take_over.try_exchange", lambda _one, _other: False)
    steps = run_killed(0, pond, "rescale", "3")
    found = set()
    for turn in range(30 if IS_LONG else 5):
        (folder,) = open_jobs(pond)
        before = partitions(folder.checkpoint)
        goal = 5 if before != 5 else 4
        step = seed.randrange(1, steps // 2) if turn % 2 else steps - seed.randrange(1, 25)
        killed = run_killed(step, pond, "rescale", str(goal)) < 0
        (folder,) = open_jobs(pond)
        now = partitions(folder.checkpoint)
        assert now in (before, goal)
        assert killed or now == goal
        assert rows(pond) == ROWS
        found.add(now == goal)
        plan_rescale(pond, 7 - turn % 2).run()
        assert rows(pond) == ROWS
        assert not list(job.path.parent.glob("take-over*"))
    assert found == {True, False}


# The job counts; its checkpoint formats have their files under other names.
@pytest.mark.long
@pytest.mark.parametrize("cell", a_few(["counts-rocksdb-changelog", "counts-rocksdb-snapshots", "counts-rocksdb-format2"], 1))
def test_a_job_in_rocksdb_is_rescaled_in_its_place(golden: Callable, tmp_path: Path, cell: str) -> None:
    """Up, down, to one, and after kills; every row of every column family is what Spark wrote, where Spark looks for it."""
    pond, found = tmp_path / "pond", golden(cell)
    folder = create_job(pond, "counts")
    checkpoint = Path(folder.checkpoint.removeprefix("file://"))
    shutil.copytree(found.checkpoint, checkpoint, dirs_exist_ok=True)
    folder.write_definition(parse_entry(found.read("definition")))
    batch = found.last
    expected = whole_state(checkpoint, batch)

    def table() -> list[str]:
        return sorted(map(repr, millpond.read_arrow(pond, "counts").to_pylist()))

    answers = table()
    assert expected
    assert answers
    for number in (5, 3, 1, 7):
        before = files_of(checkpoint)
        done = plan_rescale(pond, number).run()
        assert (done.batch, done.partitions, partitions(checkpoint, batch)) == (batch, number, number)
        assert whole_state(checkpoint, batch) == expected
        assert table() == answers
        assert files_of(Path(str(done.kept).removeprefix("file://"))) == before
        assert verify_savepoint(plan_savepoint(pond, f"of-{number}").run()).problems == ()
    steps, seed = run_killed(0, pond, "rescale", "2"), random.Random(5)
    for turn in range(20 if IS_LONG else 4):
        was, goal = partitions(checkpoint, batch), 3 + turn % 2
        step = seed.randrange(1, steps // 2) if turn % 2 else steps - seed.randrange(1, 25)
        run_killed(step, pond, "rescale", str(goal))
        assert partitions(checkpoint, batch) in (was, goal)
        assert whole_state(checkpoint, batch) == expected
        plan_rescale(pond, 6 - turn % 2).run()
        assert whole_state(checkpoint, batch) == expected
        assert not list(checkpoint.parent.glob("take-over*"))
    with millpond.open(pond, replica_dir="memory://") as opened:
        rows = list(opened["counts"].scan())
        key = [column.name for column in opened["counts"].definition.key]
        for row in rows:  # a lookup goes to the partition of its key
            assert opened["counts"].get(**{name: row[name] for name in key}) == row


@pytest.mark.long
def test_a_bare_checkpoint_whose_rescale_is_killed_has_a_whole_copy_or_none(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "ck")
    for batch in range(3):
        job.plan([((f"k{n}",), n + batch) for n in range(batch, 9)], snapshot=False)
        job.commit()
    create_beside(job.path).write_definition(NamedOperator(table="named", operator=0, operator_name="stateStoreSave"))
    before, target, seed = files_of(job.path), tmp_path / "ck-of-3", random.Random(9)
    steps = run_killed(0, job.path, "rescale", "3")
    undisturbed, expected, ends = sorted(files_of(target)), rows_of(target, 2), set()
    for turn in range(30 if IS_LONG else 8):
        shutil.rmtree(target)
        shutil.rmtree(f"{target}.millpond")
        near = 1 if turn == 1 else seed.randrange(1, 25)  # from the end: once at the last step, when the copy is whole
        run_killed(steps - near if turn % 2 else seed.randrange(1, steps // 2), job.path, "rescale", "3")
        assert files_of(job.path) == before
        is_whole = (target / "metadata").exists()
        ends.add(is_whole)
        if not is_whole and (target / ".restoring").exists():
            with pytest.raises(MillpondError, match="was killed") as caught:
                plan_rescale(job.path, 3).run()
            assert "remove that folder" in str(caught.value.hint)
            shutil.rmtree(target)  # else it goes on by itself
        if not is_whole:
            plan_rescale(job.path, 3).run()
        assert sorted(files_of(target).keys() - {".restoring"}) == undisturbed
        assert rows_of(target, 2) == expected
        assert [entry.table for entry in open_jobs(target)[0].entries()] == ["named"]
    assert ends == {True, False}
