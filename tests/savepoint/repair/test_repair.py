"""Repaired copies: they begin at the newest batch that is whole, with exactly its rows, and the checkpoint stays as it is."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond.catalogue import create_beside, create_job
from millpond.errors import MillpondError
from millpond.savepoint.archive.archiver import Archiver
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.schema.definition.operator_name import parse_entry
from millpond.storage import open_storage
from millpond.tables.repair import plan_repair
from savepoint.test_golden_cells import rows_of
from servers.s3 import BUCKET, moto_server, upload, use
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.damage import WAYS, hurt
from spark_files.golden import CELLS, GOLDEN
from suite.sizes import examples

ID = "6a9ed2f5-3f4b-4c61-b1e7-9d53f6a8c0aa"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def repaired(checkpoint: Path, target: Path) -> Path:
    """Repair a checkpoint, and check what holds for every repair."""
    before = content(checkpoint)
    plan = plan_repair(checkpoint, to=target)
    assert plan.is_needed
    assert plan.restart is not None
    made = plan.run()
    assert made.checkpoint == f"file://{target}"
    assert content(checkpoint) == before
    assert diagnose(open_storage(target)).is_sound
    assert not plan_repair(target).is_needed
    assert not [name for name in os.listdir(target) if name.startswith(".")]
    return target


def newest(checkpoint: Path, log: str) -> int:
    return max(int(path.name) for path in (checkpoint / log).iterdir())


def empty(checkpoint: Path, *names: str) -> None:
    for name in names:
        (checkpoint / name).write_bytes(b"")


def test_after_an_empty_commit_the_batch_is_run_again_as_it_was_planned(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("windows-hdfs").checkpoint
    expected = rows_of(checkpoint, 10)
    empty(checkpoint, "commits/11")
    plan = plan_repair(checkpoint)
    assert (plan.restart and plan.restart.batch, plan.restart and plan.restart.again, plan.undone, plan.again) == (10, 11, None, ())
    assert "lost        nothing" in plan.describe()
    target = repaired(checkpoint, tmp_path / "target")
    assert (newest(target, "commits"), newest(target, "offsets")) == (10, 11)
    assert (target / "offsets/11").read_bytes() == (checkpoint / "offsets/11").read_bytes()
    assert rows_of(target, 10) == expected


def test_a_lost_snapshot_is_replaced_by_an_older_one_and_the_changes_after_it(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    expected = rows_of(checkpoint, 11)
    shutil.copy(checkpoint / "state/0/0/12.snapshot", tmp_path / "kept")
    for file in checkpoint.glob("state/0/*/12.snapshot"):
        empty(checkpoint, str(file.relative_to(checkpoint)))
    target = repaired(checkpoint, tmp_path / "target")
    assert newest(target, "commits") == 11
    assert not [*target.glob("state/0/*/12.snapshot")]
    assert rows_of(target, 11) == expected


def test_what_is_lost_is_named(golden: Callable, tmp_path: Path) -> None:
    """A lost change of the last batch but two: its state can't be built, nor that of any later batch."""
    checkpoint = golden("spark-4.3/dedupe-hdfs").checkpoint
    expected = rows_of(checkpoint, 7)
    inputs = tmp_path / "in"
    inputs.mkdir()
    for path in (checkpoint / "sources/0").iterdir():  # the files of the source are partly there
        lines = [path.read_text().split("\n")[0]]
        for line in path.read_text().split("\n")[1:]:
            entry = json.loads(line)
            entry["path"] = f"file://{inputs}/{entry['batchId']}.json"
            if entry["batchId"] != 9:
                (inputs / f"{entry['batchId']}.json").touch()
            lines.append(json.dumps(entry))
        path.write_text("\n".join(lines))
    for file in checkpoint.glob("state/0/*/*.snapshot"):
        if int(file.name.partition(".")[0]) >= 9:
            file.unlink()
    (checkpoint / "state/0/1/9.delta").unlink()
    plan = plan_repair(checkpoint)
    assert plan.restart is not None
    assert (plan.restart.batch, plan.restart.again, plan.undone) == (7, 8, (8, 10))
    (part,) = plan.again
    assert part.files is not None
    assert {Path(path).name for path in part.files} == {"8.json", "9.json"}
    assert [Path(path).name for path in part.gone] == ["9.json"]
    text = plan.describe()
    assert "undone      batches 8 to 10" in text
    assert "1 of these files are gone" in text
    assert rows_of(repaired(checkpoint, tmp_path / "target"), 7) == expected


def test_a_lost_commit_is_written_again_from_the_next_plan(golden: Callable, tmp_path: Path) -> None:
    """RocksDB without change logs keeps few states: there is no other way back than the newest one."""
    checkpoint = golden("spark-4.3/windows-rocksdb-snapshots").checkpoint
    last = newest(checkpoint, "commits")
    expected, commit = rows_of(checkpoint, last - 1), (checkpoint / f"commits/{last - 1}").read_bytes()
    (checkpoint / f"commits/{last}").unlink()
    empty(checkpoint, f"commits/{last - 1}")
    target = repaired(checkpoint, tmp_path / "target")
    assert (target / f"commits/{last - 1}").read_bytes() == commit
    assert rows_of(target, last - 1) == expected


def test_a_lost_plan_before_the_newest_is_written_again(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("counts-rocksdb-changelog").checkpoint
    (checkpoint / "offsets/10").unlink()
    target = repaired(checkpoint, tmp_path / "target")
    assert (newest(target, "commits"), newest(target, "offsets")) == (11, 11)
    assert (target / "offsets/10").read_bytes() == (target / "offsets/11").read_bytes()


def test_a_job_whose_id_is_lost_gets_another(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    identity = json.loads((checkpoint / "metadata").read_text())["id"]
    (checkpoint / "metadata").unlink()
    target = repaired(checkpoint, tmp_path / "target")
    assert len(json.loads((target / "metadata").read_text())["id"]) == len(identity)
    assert json.loads((target / "metadata").read_text())["id"] != identity


def test_a_repartition_that_didnt_end_isnt_run_again_as_a_batch(golden: Callable, tmp_path: Path) -> None:
    """Its plan has another number of partitions, and no input."""
    checkpoint = golden("spark-4.3/counts-repartitioned-rocksdb-changelog").checkpoint
    partitions = {
        number: json.loads((checkpoint / f"offsets/{number}").read_text().split("\n")[1])["conf"]["spark.sql.shuffle.partitions"]
        for number in range(newest(checkpoint, "offsets") + 1)
    }
    number = next(n for n in partitions if n and partitions[n] != partitions[n - 1])
    for later in range(number + 1, len(partitions)):
        (checkpoint / f"offsets/{later}").unlink()
        (checkpoint / f"commits/{later}").unlink()
    empty(checkpoint, f"commits/{number}")
    plan = plan_repair(checkpoint)
    assert plan.restart is not None
    assert (plan.restart.batch, plan.restart.again) == (number - 1, None)
    repaired(checkpoint, tmp_path / "target")


def test_nothing_can_be_saved(golden: Callable, tmp_path: Path) -> None:
    for number, (cell, lost) in enumerate(
        {
            "counts-hdfs": "state/0/1",
            "counts-rocksdb-changelog": "offsets",
            "spark-4.3/transform-state-rocksdb-changelog": "state/0/_stateSchema",
        }.items()
    ):
        checkpoint = golden(cell).checkpoint
        shutil.rmtree(checkpoint / lost)
        plan = plan_repair(checkpoint, to=tmp_path / f"target-{number}")
        assert plan.is_needed
        assert plan.restart is None
        assert "not possible" in plan.describe()
        with pytest.raises(MillpondError) as caught:
            plan.run()
        assert caught.value.condition == "NOT_REPAIRABLE"
        assert not (tmp_path / f"target-{number}").exists()


def test_a_savepoint_an_archive_and_a_replica_that_hold_more_are_named(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("counts-rocksdb-changelog").checkpoint
    plan_savepoint(checkpoint, "monday", batch=10).run()
    Archiver(checkpoint, tmp_path / "archive").run(once=True)
    with millpond.open(checkpoint, replica_dir=tmp_path / "home") as pond:
        rows = len(list(pond[next(iter(pond.tables()))].scan(limit=1000)))
    assert rows
    shutil.rmtree(checkpoint / "state/0/1")
    plan = plan_repair(checkpoint, archive=tmp_path / "archive", replica_dir=tmp_path / "home")
    assert [(other.kind, other.batch) for other in plan.others] == [("savepoint", 10), ("archive", 11), ("replica", 11)]
    with pytest.raises(MillpondError) as caught:
        plan.run()
    assert "archive" in caught.value.hint
    with millpond.open(checkpoint, replica_dir=tmp_path / "home", wait_seconds=60) as pond:  # as the plan says
        assert len(list(pond[next(iter(pond.tables()))].scan(limit=1000))) == rows
    assert plan_repair(checkpoint, replica_dir=tmp_path / "other").others[1:] == ()


def test_a_snapshot_of_another_run_is_left_out(tmp_path: Path) -> None:
    """A job that was rewound in place: Spark would load the snapshot of the deleted batches."""
    checkpoint = WrittenCheckpoint(tmp_path / "ck", ID, sources=lambda batch: [{"topic": {"0": batch}}])
    checkpoint.clock -= 7_200_000
    for n in range(6):
        checkpoint.plan([("a", n), ("bb", n)], snapshot=n in (1, 4))
        checkpoint.commit()
    old = checkpoint.clock / 1000 + 1
    for file in checkpoint.path.rglob("*"):
        os.utime(file, (old, old))
    for n in (3, 4, 5):
        (checkpoint.path / f"offsets/{n}").unlink()
        (checkpoint.path / f"commits/{n}").unlink()
    checkpoint.next_batch, checkpoint.clock = 3, checkpoint.clock + 7_200_000
    for n in range(3, 6):
        checkpoint.plan([("a", 100 + n), ("bb", 100 + n), ("new", n)], snapshot=False)
        checkpoint.commit()
    assert {f.kind for f in diagnose(open_storage(checkpoint.path)).findings} == {"rewound"}
    target = repaired(checkpoint.path, tmp_path / "target")
    assert newest(target, "commits") == 5
    with millpond.open(target, replica_dir="memory://") as pond:
        table = pond[next(iter(pond.tables()))]
        assert {row["k"]: row["v"] for row in table.scan()} == {"a": 105, "bb": 105, "new": 5}


def test_the_state_of_a_second_job_isnt_taken(tmp_path: Path) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck", ID, sources=lambda batch: [{"topic": {"0": batch}}])
    checkpoint.clock -= 3_600_000
    for n in range(6):
        checkpoint.clock += 1000
        checkpoint.plan([("a", n), ("bb", n)], snapshot=n == 2)
        checkpoint.commit()
        at = checkpoint.clock / 1000
        for pattern, late in ((f"offsets/{n}", 0.01), (f"state/0/*/{n + 1}.*", 0.1), (f"commits/{n}", 0.2)):
            for file in checkpoint.path.glob(pattern):
                os.utime(file, (at + late, at + late))
    expected = rows_of(checkpoint.path, 4)
    os.utime(checkpoint.path / "state/0/0/6.delta")
    target = repaired(checkpoint.path, tmp_path / "target")
    assert (newest(target, "commits"), newest(target, "offsets")) == (4, 5)
    assert rows_of(target, 4) == expected


def test_nothing_to_repair_and_bad_targets(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    with pytest.raises(MillpondError) as caught:
        plan_repair(checkpoint).run()
    assert caught.value.condition == "INVALID_REQUEST"
    empty(checkpoint, "commits/11")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    for target, condition in ((tmp_path / "full", "TARGET_NOT_EMPTY"), (checkpoint / "inside", "INVALID_REQUEST")):
        with pytest.raises(MillpondError) as caught:
            plan_repair(checkpoint, to=target)
        assert caught.value.condition == condition
    with pytest.raises(MillpondError) as caught:
        plan_repair(tmp_path / "nothing")
    assert caught.value.condition == "NO_CHECKPOINT"
    plan = plan_repair(checkpoint)
    plan.run()
    with pytest.raises(MillpondError) as caught:
        plan.run()
    assert caught.value.condition == "TARGET_NOT_EMPTY"


def test_a_checkpoint_that_was_moved_out_of_its_pond_goes_back(golden: Callable, tmp_path: Path) -> None:
    source, pond = golden("counts-hdfs"), tmp_path / "pond"
    definition = parse_entry(source.read("definition"))
    folder = create_job(pond, "job")
    folder.write_definition(definition)
    (pond / "jobs/job/checkpoint").parent.mkdir(exist_ok=True, parents=True)
    empty(source.checkpoint, "commits/11")
    made = plan_repair(source.checkpoint, to=pond / "jobs/job/checkpoint").run()
    assert made.job == "job"
    with millpond.open(pond, replica_dir="memory://") as opened:
        assert len(list(opened[definition.table].scan(limit=1000)))
    other = golden("windows-hdfs").checkpoint
    create_beside(other, "windows").write_definition(definition)
    empty(other, "commits/11")
    shutil.rmtree(pond / "jobs/job/checkpoint")
    with pytest.raises(MillpondError) as caught:
        plan_repair(other, to=pond / "jobs/job/checkpoint")
    assert caught.value.condition == "TARGET_NOT_EMPTY"


def test_a_job_without_state_that_leaves_batches_out_of_its_logs_is_healthy(golden: Callable) -> None:
    """As with asynchronous progress."""
    checkpoint = golden("counts-hdfs").checkpoint
    shutil.rmtree(checkpoint / "state")
    for number in (3, 6, 10):
        (checkpoint / f"offsets/{number}").unlink()
        (checkpoint / f"commits/{number}").unlink()
    assert diagnose(open_storage(checkpoint)).findings == ()
    empty(checkpoint, "commits/11")  # and it can be repaired without a word on its state
    plan = plan_repair(checkpoint)
    assert plan.restart is not None
    assert [f.path for f in plan.diagnosis.findings] == ["commits/11"]


def test_damage_between_plan_and_run_leaves_nothing_behind(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    empty(checkpoint, "commits/11")
    plan = plan_repair(checkpoint, to=tmp_path / "target")
    assert plan.restart is not None
    state = next(file.path for file in plan.restart.files if file.path.endswith((".snapshot", ".delta")))
    hurt(checkpoint / state, "cut", random.Random(1))
    with pytest.raises(MillpondError) as caught:
        plan.run()
    assert caught.value.condition in ("INCOMPLETE_FILE", "CORRUPT_FILE")
    assert content(tmp_path / "target") == {} if (tmp_path / "target").exists() else True


@pytest.mark.long
def test_a_checkpoint_in_a_bucket(golden: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, moto_server())
    checkpoint, uri = golden("spark-4.3/transform-state-rocksdb-changelog").checkpoint, f"s3://{BUCKET}/{tmp_path.name}"
    last = newest(checkpoint, "commits")
    expected = rows_of(checkpoint, last - 1)
    empty(checkpoint, f"commits/{last}")
    upload(checkpoint, f"{uri}/ck")
    made = plan_repair(f"{uri}/ck", replica_dir="memory://").run()
    assert made.checkpoint == f"{uri}/ck-repaired"
    assert rows_of(made.checkpoint, last - 1) == expected  # type: ignore[arg-type]
    metadata = open_storage(made.checkpoint)
    (name,) = metadata.names("state/0/_metadata/v2")
    assert (
        f"s3a://{BUCKET}/{tmp_path.name}/ck-repaired/state/0/_stateSchema"
        in metadata.read(f"state/0/_metadata/v2/{name}", 1 << 20).decode()
    )


def described(checkpoint: Path) -> set[str]:
    """The files that say how state is to be read: Spark writes some of them again when it starts."""
    files = checkpoint.glob("state/**/*")
    return {
        str(path.relative_to(checkpoint))
        for path in files
        if path.is_file() and "/v2/" not in str(path) and "metadata/" in str(path)
    }


def test_any_damage_is_repaired_exactly_or_refused(tmp_path: Path) -> None:
    """Files of any cell, lost, emptied, cut or changed: a repaired copy has the rows of its batch, to the byte."""
    golden, done = GOLDEN, 0
    for seed in range(examples(72)):
        numbers = random.Random(seed)
        cell = numbers.choice(CELLS)
        checkpoint = tmp_path / f"{seed}" / "ck"
        shutil.copytree(golden / cell / "checkpoint", checkpoint)
        files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
        damage = [(numbers.choice(files), numbers.choice(WAYS)) for _ in range(numbers.choice((1, 1, 2, 4)))]
        for file, way in damage:
            if file.exists():
                hurt(file, way, numbers)
        what = cell, seed, [(str(file.relative_to(checkpoint)), way) for file, way in damage]
        plan = plan_repair(checkpoint, replica_dir="memory://")
        if plan.is_needed and plan.restart is not None:
            made = Path(plan.run().checkpoint.removeprefix("file://"))
            assert diagnose(open_storage(made)).is_sound, what
            batch = plan.restart.batch
            if batch >= 0 and described(made) == described(golden / cell / "checkpoint"):
                assert rows_of(made, batch) == rows_of(golden / cell / "checkpoint", batch), what
                done += 1
        shutil.rmtree(tmp_path / f"{seed}")
    assert done > examples(72) // 20
