"""What is said of a checkpoint: nothing of a healthy one, and of a broken one what is broken."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.savepoint.repair.finding import Diagnosis
from millpond.storage import open_storage
from savepoint.test_golden_cells import rows_of
from spark_files.checkpoint import KEY, PARTITIONS, WrittenCheckpoint, delta_file, partition_of
from spark_files.damage import hurt
from spark_files.golden import CELLS, GOLDEN


def look(checkpoint: Path) -> Diagnosis:
    return diagnose(open_storage(checkpoint))


def found(checkpoint: Path) -> set[tuple[str, str, str]]:
    return {(finding.path, finding.kind, finding.effect) for finding in look(checkpoint).findings}


@pytest.mark.long
def test_nothing_is_wrong_with_what_spark_wrote() -> None:
    """Of every operator, provider, format and version."""
    wrong = {}
    for cell in CELLS:
        findings = look(GOLDEN / cell / "checkpoint").findings
        # Here they are copies, and those with schemas of version 3 name the place where Spark wrote them.
        copied = {f.path for f in findings if (f.kind, f.effect) == ("copied", "fails")}
        assert bool(copied) is any((GOLDEN / cell / "checkpoint/state").glob("*/_stateSchema")), cell
        if found := [f for f in findings if f.path not in copied]:
            wrong[cell] = found
    assert wrong == {}


def test_nothing_is_wrong_between_batches(golden: Callable, tmp_path: Path) -> None:
    """After each step of a batch: the source's entry, the plan, the state files, the commit."""
    whole = golden("windows-rocksdb-changelog").checkpoint
    for batch in range(1, 12):
        for step in range(4):
            checkpoint = tmp_path / f"{batch}-{step}"
            shutil.copytree(whole, checkpoint)
            for folder, newest in (("commits", batch if step == 3 else batch - 1), ("offsets", batch if step else batch - 1)):
                for file in (checkpoint / folder).iterdir():
                    if int(file.name) > newest:
                        file.unlink()
            for file in (checkpoint / "sources/0").iterdir():
                if int(file.name.removesuffix(".compact")) > batch:
                    file.unlink()
            for file in checkpoint.glob("state/*/*/*.*"):
                if int(file.name.partition(".")[0]) > batch + (step > 1):
                    file.unlink()
            assert look(checkpoint).findings == (), (batch, step)


@pytest.mark.parametrize(
    ("cell", "file", "way", "kind", "effect"),
    [
        ("counts-hdfs", "metadata", "missing", "missing", "fails"),
        ("counts-hdfs", "metadata", "empty", "empty", "fails"),
        ("counts-hdfs", "offsets/11", "empty", "empty", "fails"),
        ("counts-hdfs", "offsets/10", "missing", "missing", "fails"),
        ("counts-hdfs", "offsets/3", "missing", "missing", "none"),
        ("counts-hdfs", "commits/11", "empty", "empty", "fails"),
        ("counts-hdfs", "commits/4", "missing", "missing", "none"),
        ("counts-hdfs", "commits/4", "empty", "empty", "none"),
        ("spark-4.3/dedupe-hdfs", "state/0/0/11.delta", "cut", "damaged", "fails"),
        ("spark-4.3/dedupe-hdfs", "state/0/1/11.delta", "missing", "missing", "fails"),
        ("counts-hdfs", "state/0/_metadata/metadata", "missing", "missing", "none"),
        ("counts-hdfs", "state/0/_metadata/metadata", "empty", "empty", "may fail"),
        ("counts-hdfs", "state/0/0/_metadata/schema", "missing", "missing", "none"),
        ("counts-hdfs", "state/0/0/_metadata/schema", "cut", "damaged", "fails"),
        ("counts-hdfs", "sources/0/10", "missing", "missing", "fails"),
        ("counts-hdfs", "sources/0/9.compact", "cut", "damaged", "fails"),
        ("counts-rocksdb-snapshots", "state/0/0/12.zip", "cut", "damaged", "fails"),
        ("counts-rocksdb-format2", "commits/11", "cut", "damaged", "fails"),
        ("keyless-hdfs", "state/0/0/_metadata/schema", "missing", "missing", "none"),
    ],
)
def test_each_broken_file_is_named(golden: Callable, cell: str, file: str, way: str, kind: str, effect: str) -> None:
    checkpoint = golden(cell).checkpoint
    if not (checkpoint / file).exists():
        pytest.fail(f"{cell} has {sorted(p.name for p in (checkpoint / file).parent.iterdir())}")
    for seed in range(3):
        good = (checkpoint / file).read_bytes()
        hurt(checkpoint / file, way, random.Random(seed))
        if (checkpoint / file).exists() and way == "cut" and not (checkpoint / file).read_bytes():
            kind = "empty"
        name = "sources/0/9" if way == "missing" and file.endswith(".compact") else file
        assert (name, kind, effect) in found(checkpoint)
        assert len(found(checkpoint)) == 1, found(checkpoint)
        (checkpoint / file).write_bytes(good)
        kind = "damaged" if way == "cut" else kind


def test_a_checksum_that_is_left_of_a_file_that_is_gone(golden: Callable) -> None:
    """Somebody deleted a commit, so that Spark runs its batch again: Spark then can't write it."""
    checkpoint = golden("counts-hdfs").checkpoint
    (checkpoint / "commits/11").rename(checkpoint / "commits/.11.crc")
    (checkpoint / "state/0/_metadata/metadata").rename(checkpoint / "state/0/_metadata/.metadata.crc")
    assert found(checkpoint) == {("commits/.11.crc", "left", "fails"), ("state/0/_metadata/.metadata.crc", "left", "fails")}


def test_old_state_that_spark_no_longer_reads_doesnt_matter(golden: Callable) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    (checkpoint / "state/0/0/1.delta").unlink()
    assert look(checkpoint).findings == ()


def test_a_commit_that_ends_after_its_version_is_cut(golden: Callable) -> None:
    """Spark reads it as a watermark of 0."""
    checkpoint = golden("windows-hdfs").checkpoint
    (checkpoint / "commits/11").write_bytes(b"v1\n")
    assert found(checkpoint) == {("commits/11", "damaged", "wrong")}


def test_commits_ahead_of_plans(golden: Callable) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    (checkpoint / "offsets/11").unlink()
    (checkpoint / "offsets/10").unlink()
    assert ("commits/11", "ahead", "fails") in found(checkpoint)


def test_plans_without_commits(golden: Callable) -> None:
    """In format 1, Spark goes on from there by itself; in format 2 it lacks the ids of the state."""
    for cell, effect in (("counts-hdfs", "none"), ("counts-rocksdb-format2", "may fail")):
        checkpoint = golden(cell).checkpoint
        (checkpoint / "commits/11").unlink()
        (checkpoint / "commits/10").unlink()
        assert ("commits/10", "behind", effect) in found(checkpoint)


def test_all_plans_lost(golden: Callable) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    shutil.rmtree(checkpoint / "offsets")
    assert ("offsets", "missing", "wrong") in found(checkpoint)


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    with pytest.raises(MillpondError) as caught:
        look(tmp_path)
    assert caught.value.condition == "NO_CHECKPOINT"


def test_times_of_a_copy_arent_taken_for_a_rewind(golden: Callable) -> None:
    """Files of a copy that are older than the batches; Millpond reads them all the same."""
    checkpoint = golden("counts-hdfs").checkpoint
    for file in checkpoint.rglob("*"):
        os.utime(file, (1_000_000, 1_000_000))
    assert found(checkpoint) == {("offsets/11", "copied", "none")}
    assert rows_of(checkpoint, 11) == rows_of(GOLDEN / "counts-hdfs/checkpoint", 11)


def kafka(batch: int) -> list[object]:
    return [{"topic": {"0": batch}}]


def written(tmp_path: Path, batches: int = 6, sources: Callable[[int], list[object]] = kafka) -> WrittenCheckpoint:
    """A job of an hour ago, whose files have the times of its batches."""
    checkpoint = WrittenCheckpoint(tmp_path / "ck", "6a9ed2f5-3f4b-4c61-b1e7-9d53f6a8c0aa", sources=sources)
    checkpoint.clock -= 3_600_000
    for n in range(batches):
        checkpoint.clock += 1000
        checkpoint.plan([("a", n), ("bb", n)], snapshot=n == 2)
        checkpoint.commit()
        dated(checkpoint, n)
    return checkpoint


def dated(checkpoint: WrittenCheckpoint, batch: int) -> None:
    """Give a batch's files the times at which Spark would have written them."""
    at = checkpoint.clock / 1000
    for pattern, late in ((f"offsets/{batch}", 0.01), (f"state/0/*/{batch + 1}.*", 0.1), (f"commits/{batch}", 0.2)):
        for file in checkpoint.path.glob(pattern):
            os.utime(file, (at + late, at + late))


def test_a_second_job_that_rewrites_the_state_of_a_committed_batch(tmp_path: Path) -> None:
    checkpoint = written(tmp_path)
    assert look(checkpoint.path).findings == ()
    key = next(key for key in "abcdefgh" if partition_of(KEY, (key,), PARTITIONS) == 1)
    checkpoint.write("state/0/1/6.delta", delta_file([(key, 77)]), at=checkpoint.clock / 1000 + 0.5)
    assert found(checkpoint.path) == {("state/0/1/6.delta", "rewritten", "wrong")}
    for file in checkpoint.path.rglob("*"):  # in a copy, times show nothing
        os.utime(file)
    assert look(checkpoint.path).findings == ()


def test_a_second_job_that_rewrites_a_plan(tmp_path: Path) -> None:
    checkpoint = written(tmp_path)
    os.utime(checkpoint.path / "offsets/4", (checkpoint.clock / 1000 + 1,) * 2)
    assert ("offsets/4", "rewritten", "wrong") in found(checkpoint.path)


@pytest.mark.parametrize("folders", [*permutations(("commits", "offsets", "state"))])
@pytest.mark.parametrize("copied", [1, 2, 5])
def test_a_job_that_goes_on_with_a_copy(tmp_path: Path, folders: tuple[str, ...], copied: int) -> None:
    """Copied batches have the times of the copy, which may have been made at once; the times of the job's own batches count."""
    checkpoint, draw = written(tmp_path, 8), random.Random(f"{folders} {copied}")
    for number in range(8 - copied):  # a savepoint has the newest batches only
        (checkpoint.path / f"commits/{number}").unlink()
        if number < 7 - copied:
            (checkpoint.path / f"offsets/{number}").unlink()
    at = checkpoint.clock / 1000 + draw.choice((0.3, 2, 60, 3600))
    for folder in folders:
        for file in sorted((checkpoint.path / folder).rglob("*")):
            os.utime(file, (at, at))
            at += 0.001
    checkpoint.clock = int(at * 1000)
    for number in range(8, 8 + draw.randrange(3, 15)):
        checkpoint.clock += draw.choice((300, 1000, 20_000))
        checkpoint.plan([("a", number), ("bb", number)], snapshot=False)
        checkpoint.commit()
        dated(checkpoint, number)
        assert found(checkpoint.path) == set()
    assert millpond.plan_savepoint(checkpoint.path, "after").run().manifest.batch == number
    os.utime(checkpoint.path / f"state/0/1/{number + 1}.delta", (checkpoint.clock / 1000 + 0.5,) * 2)
    assert found(checkpoint.path) == {(f"state/0/1/{number + 1}.delta", "rewritten", "wrong")}


def test_offsets_that_go_back(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, sources=lambda batch: [{"topic": {"0": 100 - batch if batch > 3 else batch * 50}}])
    assert found(checkpoint.path) == {("offsets/4", "went_back", "wrong"), ("offsets/5", "went_back", "wrong")}
    assert look(checkpoint.path).findings[0].batch == 4


@pytest.mark.parametrize("cell", ["spark-4.3/transform-ttl-rocksdb-changelog", "spark-4.3/join-full-format4-rocksdb-changelog"])
def test_a_copy_that_names_the_schemas_of_its_old_place(golden: Callable, tmp_path: Path, cell: str) -> None:
    checkpoint = golden(cell).checkpoint
    assert look(checkpoint).findings == ()
    link = tmp_path / "link"
    link.symlink_to(checkpoint)
    assert look(link).findings == ()
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    effects = {finding.effect for finding in look(copy).findings}
    assert effects == {"none"}, "Spark goes on with the files of the first place"
    assert {finding.kind for finding in look(copy).findings} == {"copied"}
    shutil.rmtree(checkpoint)
    diagnosis = look(copy)
    assert {(finding.kind, finding.effect) for finding in diagnosis.findings} == {("copied", "fails")}
    assert str(checkpoint) in diagnosis.findings[0].what
    plan = millpond.plan_repair(copy, to=tmp_path / "repaired")
    plan.run()
    assert look(tmp_path / "repaired").findings == ()


def delta(batch: int) -> Any:
    """As Delta's source has it: after the last file of a version comes -1 of the next one."""
    at = {"sourceVersion": 1, "reservoirId": "a3f1", "reservoirVersion": 7 + batch // 2}
    return {**at, "index": -1 if batch % 2 else 500 - batch, "isStartingVersion": batch < 2}


OWN_ORDER = {
    "delta": delta,
    "iceberg": lambda batch: {"version": 1, "snapshot_id": 10**18 - batch * 977, "position": batch % 3, "scan_all_files": False},
    "python": lambda batch: {"shards": {"a": {"left": 100 - batch}}, "version": batch},
    "python, falling": lambda batch: {"left": 100 - batch},
    "a list": lambda batch: [100 - batch],
    "a text": lambda batch: f"{100 - batch:03}",
    "another source each time": lambda batch: {"t": {"0": 9}} if batch % 2 else {"logOffset": 3},
}


@pytest.mark.parametrize("source", OWN_ORDER)
def test_offsets_whose_order_nobody_knows_say_nothing(tmp_path: Path, source: str) -> None:
    checkpoint = written(tmp_path, sources=lambda batch: [OWN_ORDER[source](batch)])
    assert look(checkpoint.path).findings == ()


def made_anew(batch: int) -> Any:
    return [{"topic": {"0": 500 + batch, "1": 40} if batch < 3 else {"0": batch, "1": 60}, "other": {"0": 7 * batch}}]


def test_a_topic_that_was_made_anew_is_no_second_job(tmp_path: Path) -> None:
    """Spark went on, as with failOnDataLoss=false."""
    checkpoint = written(tmp_path, sources=made_anew)
    diagnosis = look(checkpoint.path)
    (finding,) = diagnosis.findings
    assert (finding.path, finding.kind, finding.effect, finding.batch) == ("offsets/3", "reset", "none", None)
    assert finding.what.startswith("The source was reset at batch 3: topic was made anew, or cut.")
    assert diagnosis.is_sound


@pytest.mark.parametrize(
    "falling",
    [
        lambda batch: {"logOffset": 9 - batch},
        lambda batch: 100 - batch,
        lambda batch: {"offset": 100 - batch, "timestamp": batch},
        lambda batch: {"files": {"/log": {"line": 100 - batch, "byte": batch, "tail": "x"}}},
    ],
)
def test_offsets_that_only_grow_are_wrong_when_they_fall(tmp_path: Path, falling: Any) -> None:
    checkpoint = written(tmp_path, sources=lambda batch: [falling(batch) if batch > 3 else falling(0)])
    assert ("offsets/5", "went_back", "wrong") in found(checkpoint.path)


def test_a_clock_that_goes_back(tmp_path: Path) -> None:
    checkpoint = written(tmp_path)
    checkpoint.clock -= 60_000
    checkpoint.plan([("a", 9)], snapshot=False)
    checkpoint.commit()
    dated(checkpoint, 6)
    assert ("offsets/6", "went_back", "none") in found(checkpoint.path)


def test_an_older_spark_that_drops_a_setting(golden: Callable) -> None:
    """Lists are then read with another delimiter than they were written with."""
    checkpoint = golden("spark-4.3/transform-state-rocksdb-changelog").checkpoint
    for number in (8, 9):
        lines = (checkpoint / f"offsets/{number}").read_text().split("\n")
        planned = json.loads(lines[1])
        del planned["conf"]["spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"]
        (checkpoint / f"offsets/{number}").write_text("\n".join([lines[0], json.dumps(planned), *lines[2:]]))
    (finding,) = look(checkpoint).findings
    assert (finding.path, finding.kind, finding.effect, finding.batch) == ("offsets/8", "settings", "wrong", 8)
    assert "an older Spark wrote it" in finding.what


def test_a_state_file_that_follows_on_another_jobs_version(golden: Callable) -> None:
    """Files of two jobs of checkpoint format 2 that were copied over each other."""
    checkpoint = golden("counts-rocksdb-format2").checkpoint
    text = (checkpoint / "commits/9").read_text()
    ids = json.loads(text.split("\n")[1])["stateUniqueIds"]["0"]
    (checkpoint / "commits/9").write_text(text.replace(ids[0][0], "00000000-0000-0000-0000-000000000000"))
    assert any(kind == "rewritten" for _, kind, _ in found(checkpoint))
