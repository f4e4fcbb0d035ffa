"""Rollback: the job is at an earlier batch, and so is the log of its file sink; the old ones are kept."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from millpond.catalogue import create_job, open_jobs
from millpond.checkpoint.log import committed_batches
from millpond.ownership.take_over import finish
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.in_place.file_sink import LOG, entries_upto
from millpond.savepoint.in_place.rollback import plan_rollback
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.savepoint.verify import verify_savepoint
from millpond.schema.definition.operator_name import NamedOperator
from millpond.storage import open_storage, uri_of
from savepoint.killed import run_killed
from savepoint.test_rescale import condition_of, files_of, rows
from servers.s3 import BUCKET, moto_server, use
from spark_files.checkpoint import UploadedCheckpoint, WrittenCheckpoint
from suite.sizes import IS_LONG

KILLS = 30 if IS_LONG else 6


class FileSink:
    """A file sink's folder, written as Spark does: a file for each batch, and a log that is compacted every ten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []

    def write(self, batch: int) -> None:
        file = self.path / "k=a b" / f"part-{batch}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(batch))
        uri = f"file://{file}".replace(" ", "%20")
        self.lines.append(json.dumps({"path": uri, "size": 1, "isDir": False, "action": "add"}))
        log = self.path / LOG
        log.mkdir(exist_ok=True)
        if batch % 10 == 9:
            (log / f"{batch}.compact").write_text("\n".join(["v1", *self.lines]))
        else:
            (log / str(batch)).write_text("\n".join(["v1", self.lines[-1]]))
        (log / (f".{batch}.compact.crc" if batch % 10 == 9 else f".{batch}.crc")).write_bytes(b"crc")

    def listed(self) -> list[int]:
        """The batches whose files a reader sees, by Spark's rule: the newest compacted entry, and those after it."""
        names = [path.name for path in (self.path / LOG).iterdir() if path.name[0] != "."]
        compact = max((int(name.split(".")[0]) for name in names if name.endswith("compact")), default=-1)
        chosen = ([f"{compact}.compact"] if compact >= 0 else []) + sorted(
            (name for name in names if name.isdecimal() and int(name) > compact), key=int
        )
        return [
            int((Path(json.loads(line)["path"].removeprefix("file://").replace("%20", " "))).read_text())
            for name in chosen
            for line in (self.path / LOG / name).read_text().split("\n")[1:]
        ]

    def expire(self) -> None:
        """Delete what compacted entries stand for, as Spark does after ten minutes."""
        compact = max(int(path.stem) for path in (self.path / LOG).glob("*.compact"))
        for path in (self.path / LOG).iterdir():
            if path.name.isdecimal() and int(path.name) < compact:
                path.unlink()


class SinkJob(WrittenCheckpoint):
    """A job with a file sink."""

    def __init__(self, path: Path, sink: FileSink) -> None:
        super().__init__(path)
        self.sink = sink

    def run(self, batches: int) -> None:
        for _ in range(batches):
            batch = self.next_batch
            self.plan([("a", batch), (f"k{batch}", batch)], snapshot=batch % 5 == 4)
            self.sink.write(batch)
            self.commit()


@pytest.fixture
def job(tmp_path: Path) -> SinkJob:
    """A job of a pond that has done 14 batches."""
    folder = create_job(tmp_path / "pond", "counts")
    found = SinkJob(Path(folder.checkpoint.removeprefix("file://")), FileSink(tmp_path / "out"))
    found.run(14)
    return found


def expected(batch: int) -> dict[str, int]:
    return {"a": batch, **{f"k{n}": n for n in range(batch + 1)}}


def test_which_entries_tell_the_files_up_to_a_batch() -> None:
    names = [*map(str, range(14)), "9.compact"]
    assert entries_upto(names, 5) == [str(n) for n in range(6)]
    assert entries_upto(names, 9) == ["9.compact"]
    assert entries_upto(names, 11) == ["9.compact", "10", "11"]
    assert entries_upto(["9.compact", "10"], 8) is None
    assert entries_upto(["9.compact", "11"], 11) is None
    assert entries_upto(["50", "51"], 51) is None
    assert entries_upto([".5.crc", "5.tmp", "05"], 0) is None


@pytest.mark.parametrize("goal", [0, 3, 8, 9, 11, 13])
def test_job_and_sink_go_back_together(job: SinkJob, tmp_path: Path, goal: int) -> None:
    pond, before, log = tmp_path / "pond", files_of(job.path), files_of(job.sink.path / LOG)
    plan = plan_rollback(pond, batch=goal, sink=job.sink.path)
    assert plan.sink is not None
    assert plan.sink.unlisted == tuple(f"k=a b/part-{n}.json" for n in range(goal + 1, 14))
    done = plan.run()
    assert rows(pond) == expected(goal)
    assert committed_batches(open_storage(job.path)) == [goal]
    assert job.sink.listed() == list(range(goal + 1))
    assert done.unlisted == plan.sink.unlisted
    for path in done.unlisted:
        assert (job.sink.path / path).exists()
    assert files_of(Path(str(done.kept).removeprefix("file://"))) == before
    kept = files_of(Path(str(done.kept_sink).removeprefix("file://")))
    assert kept == {name: data for name, data in log.items() if name[0] != "."}
    assert not list((job.sink.path / LOG).glob(".*"))  # checksums of what was there would be in Spark's way


def test_a_savepoint_with_the_log_outlives_its_compaction(job: SinkJob, tmp_path: Path) -> None:
    pond, sink = tmp_path / "pond", job.sink.path
    made = plan_savepoint(pond, "with", batch=12, sink=sink).run()
    plan_savepoint(pond, "without", batch=12).run()
    assert verify_savepoint(made).is_whole
    export_savepoint(made, tmp_path / "with.tar")
    job.run(10)
    job.sink.expire()
    assert condition_of(lambda: plan_rollback(pond, savepoint="without", sink=sink)) == "SINK_MISMATCH"
    assert condition_of(lambda: plan_rollback(pond, batch=13, sink=sink)) == "SINK_MISMATCH"
    assert condition_of(lambda: plan_rollback(pond, savepoint="without")) == "INVALID_REQUEST"
    plan_rollback(pond, savepoint="with").run()
    assert rows(pond) == expected(12)
    assert job.sink.listed() == list(range(13))
    assert import_savepoint(tmp_path / "other", tmp_path / "with.tar").manifest.sink == uri_of(sink)


def test_a_sink_that_was_moved_gets_a_log_with_its_new_paths(job: SinkJob, tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    plan_savepoint(pond, "with", batch=5, sink=job.sink.path).run()
    moved = FileSink(tmp_path / "moved here")
    job.sink.path.rename(moved.path)
    assert condition_of(lambda: plan_rollback(pond, savepoint="with")) == "SINK_MISMATCH"
    for entry in (moved.path / LOG).iterdir():
        if entry.name[0] != ".":
            entry.write_text(entry.read_text().replace(f"{tmp_path}/out/", f"{tmp_path}/moved%20here/"))
    plan = plan_rollback(pond, savepoint="with", sink=moved.path)
    assert plan.sink is not None
    assert len(plan.sink.unlisted) == 8
    plan.run()
    assert moved.listed() == list(range(6))


def test_what_must_be_said_and_what_cant_be(job: SinkJob, tmp_path: Path) -> None:
    pond, sink = tmp_path / "pond", job.sink.path
    plan_savepoint(pond, "ten", batch=10).run()
    for call in (
        lambda: plan_rollback(pond),
        lambda: plan_rollback(pond, savepoint="ten", batch=3),
        lambda: plan_rollback(pond, batch=3),
        lambda: plan_rollback(pond, batch=3, sink=sink, no_file_sink=True),
        lambda: plan_rollback(pond, batch=3, sink=sink, to=tmp_path / "x"),
    ):
        assert condition_of(call) == "INVALID_REQUEST"
    assert condition_of(lambda: plan_rollback(pond, batch=14, sink=sink)) == "BATCH_GONE"
    assert condition_of(lambda: plan_rollback(pond, savepoint="nine", sink=sink)) == "UNKNOWN_SAVEPOINT"
    assert condition_of(lambda: plan_rollback(pond, batch=3, sink=tmp_path)) == "SINK_MISMATCH"
    (sink / "k=a b/part-2.json").rename(tmp_path / "part")
    assert condition_of(lambda: plan_rollback(pond, batch=3, sink=sink)) == "SINK_MISMATCH"
    (tmp_path / "part").rename(sink / "k=a b/part-2.json")
    (folder,) = open_jobs(pond)
    folder.write_sink(uri_of(sink))  # as `start` does
    assert plan_rollback(pond, batch=3).sink is not None
    folder.write_sink(None)
    assert plan_rollback(pond, batch=3).sink is None
    assert "got since that batch, it gets again" in plan_rollback(pond, batch=3, no_file_sink=True).describe()
    other = WrittenCheckpoint(tmp_path / "ck", "job-2")
    other.plan([("a", 1)], snapshot=False)
    other.commit()
    plan_savepoint(tmp_path / "ck", "one").run()
    (job.path / "metadata").write_text('{"id":"another"}')
    assert condition_of(lambda: plan_rollback(pond, savepoint="ten", no_file_sink=True)) == "INVALID_REQUEST"


def test_a_bare_checkpoint_and_its_sink_are_left_alone(tmp_path: Path) -> None:
    job = SinkJob(tmp_path / "ck", FileSink(tmp_path / "out"))
    job.run(12)
    before = files_of(job.path), files_of(job.sink.path)
    done = plan_rollback(job.path, batch=4, sink=job.sink.path).run()
    assert (files_of(job.path), {name: data for name, data in files_of(job.sink.path).items() if ".batch-4-" not in name}) == before
    assert rows(tmp_path / "ck-at-4") == expected(4)
    assert (done.kept, done.kept_sink) == (None, None)
    assert sorted(open_storage(str(done.sink_log)).names()) == ["0", "1", "2", "3", "4"]


@pytest.mark.long
def test_in_a_bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, moto_server())
    root = f"s3://{BUCKET}/{tmp_path.name}"
    job = UploadedCheckpoint(open_storage(create_job(f"{root}/pond", "counts").checkpoint))
    log = open_storage(f"{root}/out/{LOG}")
    for batch in range(4):
        job.batch([("a", batch), (f"k{batch}", batch)])
        open_storage(f"{root}/out").write(f"part-{batch}", b"x")
        log.write(str(batch), b'v1\n{"path":"%s/out/part-%d","action":"add"}' % (root.replace("s3:", "s3a:").encode(), batch))
    done = plan_rollback(f"{root}/pond", batch=1, sink=f"{root}/out").run()
    assert rows(f"{root}/pond") == expected(1)
    assert log.names() == ["0", "1"]
    assert done.unlisted == ("part-2", "part-3")
    assert open_storage(str(done.kept_sink)).names() == ["0", "1", "2", "3"]


@pytest.mark.long
def test_killed_anywhere_job_and_sink_are_both_old_or_both_new(job: SinkJob, tmp_path: Path) -> None:
    """When the next command has finished what the killed one left."""
    pond, seed = tmp_path / "pond", random.Random(11)
    plan_savepoint(pond, "with", batch=5, sink=job.sink.path).run()
    (folder,) = open_jobs(pond)
    folder.write_sink(uri_of(job.sink.path))
    steps = run_killed(0, pond, "rollback", "with")
    found = set()
    for turn in range(KILLS):
        batch = committed_batches(open_storage(job.path))[-1]
        if batch == 5:  # on to batch 13 again, as the job would go
            job.next_batch, job.sink.lines, job.state = 6, job.sink.lines[:6], [{}, {}]
            for key, n in expected(5).items():
                job.state[job._partition(key)][key] = n
            job.run(8)
        run_killed(seed.randrange(1, steps // 2) if turn % 3 == 0 else steps - seed.randrange(1, 45), pond, "rollback", "with")
        batch = committed_batches(open_storage(job.path))[-1]
        assert batch in (5, 13)
        assert rows(pond) == expected(batch)
        found.add(batch)
        if batch == 5 or turn % 2:
            plan_rollback(pond, savepoint="with").run()
        else:
            plan_rollback(pond, batch=13).run()
        batch = committed_batches(open_storage(job.path))[-1]
        assert rows(pond) == expected(batch)
        assert job.sink.listed() == list(range(batch + 1))
        assert not list(job.path.parent.glob("take-over*"))
    assert found == {5, 13}


def test_killed_anywhere_a_job_has_the_tables_of_its_checkpoint(job: SinkJob, tmp_path: Path) -> None:
    """When what the killed command left is finished."""
    pond, fresh = tmp_path / "pond", tmp_path / "fresh"
    (folder,) = open_jobs(pond)
    folder.write_definition(NamedOperator(table="then", operator=0, operator_name="stateStoreSave"))
    plan_savepoint(pond, "then", batch=5).run()
    folder.write_definition(NamedOperator(table="now", operator=0, operator_name="stateStoreSave"))
    shutil.copytree(pond, fresh)
    steps, ends = run_killed(0, pond, "rollback", "then", "none"), set()
    for step in random.Random(3).sample(range(steps - 25, steps), 12 if IS_LONG else 4):
        shutil.rmtree(pond)
        shutil.copytree(fresh, pond)
        assert run_killed(step, pond, "rollback", "then", "none") < 0
        batch = committed_batches(open_storage(job.path))[-1]
        finish(open_jobs(pond)[0])  # as the start of the job does
        ends.add(batch)
        assert committed_batches(open_storage(job.path))[-1] == batch
        assert {entry.table for entry in folder.entries()} == ({"now", "then"} if batch == 5 else {"now"})
    assert 5 in ends
