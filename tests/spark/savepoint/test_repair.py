"""Broken checkpoints under real Spark: what the diagnosis says of it is true, and it goes on from the repaired copy.

A job runs over half of its input and stops.  Then its checkpoint is copied, broken and repaired.  The repaired job ends with
the state of the job that nothing happened to.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from live_jobs.broken import FIRST, First, Written, check, write_job
from live_jobs.interrupted import CELLS, last_batch, session_of
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.storage import open_storage
from spark_files.damage import WAYS, copy_checkpoint, hurt
from suite.sizes import IS_LONG, a_few
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = (
    "counts-hdfs",
    "counts-rocksdb-changelog",
    "counts-rocksdb-snapshots",
    "windows-hdfs",
    "keyless-rocksdb-changelog",
    "sessions-rocksdb-changelog",
    "join-inner-format4-rocksdb-changelog",
    "transform-state-rocksdb-changelog",
    "transform-state-checkpoint2-rocksdb-changelog",
)
# All that breaks in the field is tried on these; of the others some.
WHOLE = ("counts-hdfs", "transform-state-checkpoint2-rocksdb-changelog")


@pytest.fixture(scope="module")
def jobs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    """The jobs that were written so far."""

    class Jobs(dict[str, Written]):
        def __missing__(self, name: str) -> Written:
            self[name] = write_job(spark, tmp_path_factory.mktemp("repair"), name)
            return self[name]

    return Jobs()


def field_breakages(checkpoint: Path) -> dict[str, list[tuple[str, str]]]:
    """The ways in which checkpoints break in the field: what happens -> (file, way) of each damage."""
    newest = last_batch(checkpoint)
    found = {
        "an empty commit after a crash of the disk": [(f"commits/{newest}", "empty")],
        "a lost commit": [(f"commits/{newest}", "missing")],
        "an empty plan": [(f"offsets/{newest}", "empty")],
        "a lost plan, so that commits are ahead": [(f"offsets/{newest}", "missing")],
        "the plan before is lost": [(f"offsets/{newest - 1}", "missing")],
        "plan and commit are empty": [(f"offsets/{newest}", "empty"), (f"commits/{newest}", "empty")],
        "two commits are lost": [(f"commits/{newest}", "missing"), (f"commits/{newest - 1}", "missing")],
        "an old commit and an old plan are lost": [("commits/1", "missing"), ("offsets/2", "missing")],
        "the id is lost": [("metadata", "missing")],
        "the id is empty": [("metadata", "empty")],
    }
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    copied = [file for file in files if "/v2/." not in str(file)]
    found["a copy without its times"] = [(str(file.relative_to(checkpoint)), "old") for file in copied]
    for operator in (path.name for path in (checkpoint / "state").iterdir() if path.name.isdecimal()):
        folder = checkpoint / "state" / operator
        for file in sorted(path for path in folder.rglob("*") if path.is_file() and "metadata" in str(path).lower()):
            name = str(file.relative_to(checkpoint))
            if not file.name.startswith("."):
                found[f"{name} is lost"] = [(name, "missing")]
                found[f"{name} is empty"] = [(name, "empty")]
        files = [path for path in (folder / "0").rglob("*") if path.suffix in (".delta", ".changelog", ".snapshot", ".zip", ".sst")]
        for suffix in sorted({path.suffix for path in files}):
            some = max((path for path in files if path.suffix == suffix), key=lambda path: path.stat().st_mtime_ns)
            for way in WAYS:
                found[f"the newest {suffix} of operator {operator}: {way}"] = [(str(some.relative_to(checkpoint)), way)]
    logs = sorted((checkpoint / "sources/0").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    last = next(path for path in reversed(logs) if not path.name.startswith("."))
    found["the newest entry of a source's log is lost"] = [(str(last.relative_to(checkpoint)), "missing")]
    found["the newest entry of a source's log is cut"] = [(str(last.relative_to(checkpoint)), "cut")]
    return found


class Watched(First):
    """The job, looked at all the time while it runs."""

    looks = 0

    def finish(self, df: DataFrame, mode: str, **options: Any) -> None:  # as the first
        query = self.start(df, mode, processingTime="0 seconds")

        def is_over() -> bool:
            for _ in range(20):
                if (self.checkpoint / "metadata").exists():
                    assert diagnose(open_storage(self.checkpoint)).findings == ()
                    self.looks += 1
            return self.looks > FIRST and (self.checkpoint / "commits" / str(FIRST - 1)).exists()

        wait_until(is_over, "the last batch of the first files", seconds=240, unless=query.exception)
        query.stop()


@pytest.mark.long
@pytest.mark.parametrize("name", a_few(NAMES, 1, long=0))
def test_nothing_is_wrong_while_a_job_runs(spark: SparkSession, tmp_path: Path, name: str) -> None:
    own, cell = session_of(spark, name), CELLS[name]
    job = Watched(own, tmp_path / "checkpoint", tmp_path / "inputs")
    cell.write(job)
    assert job.looks > FIRST


@pytest.mark.parametrize("name", a_few(NAMES, 0, long=1))
def test_what_breaks_in_the_field(jobs: dict[str, Written], tmp_path: Path, name: str) -> None:
    job = jobs[name]
    every = field_breakages(job.checkpoint)
    some = ["an empty commit after a crash of the disk", "the newest .delta of operator 0: cut"]
    if IS_LONG:
        some = list(every) if name in WHOLE else random.Random(name).sample(sorted(every), 10)
    problems: list[str] = []
    for number, what in enumerate(some):
        broken = copy_checkpoint(job.checkpoint, tmp_path / f"{number}")
        for file, way in every[what]:
            hurt(broken / file, way, random.Random(number))
        problems += check(job, broken, f"{name}: {what}")
    assert not problems, "\n\n".join(problems)


@pytest.mark.long
@pytest.mark.parametrize("name", a_few(NAMES, 0, long=1))
def test_random_damage(jobs: dict[str, Written], tmp_path: Path, name: str) -> None:
    job, numbers = jobs[name], random.Random(name)
    problems: list[str] = []
    for number in range(6):
        broken = copy_checkpoint(job.checkpoint, tmp_path / f"{number}")
        files = sorted(path for path in broken.rglob("*") if path.is_file() and not path.name.startswith("."))
        # Old state files are most of the files, and Spark doesn't read them.
        newer = sorted(files, key=lambda path: path.stat().st_mtime_ns)[-len(files) // 3 :]
        chosen = [numbers.choice(numbers.choice((files, newer, newer))) for _ in range(numbers.choice((1, 1, 2)))]
        damage = [(file, numbers.choice(WAYS)) for file in chosen]
        for file, way in damage:
            if file.exists():
                hurt(file, way, numbers)
        what = [(str(file.relative_to(broken)), way) for file, way in damage]
        problems += check(job, broken, f"{name}, {number}: {what}")
    assert not problems, "\n\n".join(problems)
