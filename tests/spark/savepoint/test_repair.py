"""Broken checkpoints under real Spark: what the diagnosis says of it is true, and it goes on from the repaired copy.

A job runs over half of its input and stops.  Then its checkpoint is copied, broken and repaired.  The repaired job ends with
the state of the job that nothing happened to.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.cloudpickle
import pytest

from millpond.savepoint.repair.diagnosis import diagnose
from millpond.storage import open_storage
from millpond.tables.repair import plan_repair
from spark_files.damage import WAYS, copy_checkpoint, hurt
from spark_files.golden import load_script
from suite.sizes import IS_LONG, a_few
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

sys.path.append(str(Path(__file__).parents[2] / "golden"))  # where the script finds `cells`
_GOLDEN = load_script("make_operators")
pyspark.cloudpickle.register_pickle_by_value(_GOLDEN)  # workers can't import a script
CELLS, DEFAULTS, read_batch, last_batch = _GOLDEN.CELLS, _GOLDEN.DEFAULTS, _GOLDEN.read_batch, _GOLDEN.last_batch
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
FIRST, REST = 9, 2


class First(_GOLDEN.OperatorJob):
    """The job over the first part of its input."""

    def feed(self, batches: int) -> None:
        super().feed(FIRST)


class Rest(_GOLDEN.OperatorJob):
    """The same job over whatever input is there, without a pause for Spark's maintenance."""

    def feed(self, batches: int) -> None:
        """Nothing more."""

    def start(self, df: DataFrame, mode: str, raise_at: int = -1, **trigger: Any) -> Any:
        def sink(rows: DataFrame, batch: int) -> None:
            rows.write.format("noop").mode("overwrite").save()

        writer = df.writeStream.outputMode(mode).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).foreachBatch(sink).start()


@dataclass
class Written:
    """A stopped job with more input to come, and the state with which it ends if nothing happens to it."""

    spark: SparkSession
    cell: Any
    checkpoint: Path
    inputs: Path
    end: dict[str, list[str]]
    last: int

    def run(self, checkpoint: Path) -> dict[str, list[str]]:
        """Let Spark go on from a checkpoint to the end of the input: the state then."""
        self.cell.write(Rest(self.spark, checkpoint, self.inputs))
        return ordered(read_batch(self.spark, checkpoint, last_batch(checkpoint)))


def ordered(state: dict[str, list[Any]]) -> dict[str, list[str]]:
    """The rows of each store: their order means nothing."""
    return {store: sorted(map(repr, rows)) for store, rows in state.items()}


def write(spark: SparkSession, folder: Path, name: str) -> Written:
    """Run the job over its first input, and find out how it ends."""
    own, cell = spark.newSession(), CELLS[name]
    for key, value in {**DEFAULTS, **cell.conf}.items():
        own.conf.set(key, value)
    job = First(own, folder / "checkpoint", folder / "inputs")
    cell.write(job)
    found = Written(own, cell, job.checkpoint, folder / "inputs", {}, last_batch(job.checkpoint))
    assert diagnose(open_storage(job.checkpoint)).findings == ()
    super(First, job).feed(REST)
    found.end = found.run(copy_checkpoint(job.checkpoint, folder / "undisturbed"))
    assert any(found.end.values()), "a state without rows shows nothing"
    return found


@pytest.fixture(scope="module")
def jobs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    """The jobs that were written so far."""

    class Jobs(dict[str, Written]):
        def __missing__(self, name: str) -> Written:
            self[name] = write(spark, tmp_path_factory.mktemp("repair"), name)
            return self[name]

    return Jobs()


def check(job: Written, broken: Path, what: str) -> Iterator[str]:
    """What is said of a broken checkpoint is what Spark does, and the repaired one ends like the undisturbed one.

    Yields what isn't so.
    """
    plan = plan_repair(broken, to=broken.with_name(f"{broken.name}-repaired"))
    said = f"{what}: {[(f.path, f.kind, f.effect) for f in plan.diagnosis.findings]}"
    repaired = None
    if plan.is_needed and plan.restart is not None:
        repaired = Path(plan.run().checkpoint.removeprefix("file://"))
        if not diagnose(open_storage(repaired)).is_sound:
            yield f"{said}: the repaired copy isn't sound"
    try:
        end = job.run(broken)
    except Exception as error:  # noqa: BLE001 - whatever Spark raises
        if plan.diagnosis.is_sound:
            yield f"{said}, and Spark fails: {str(error)[:600]}"
    else:
        if not plan.diagnosis.starts:
            yield f"{said}, and Spark starts; its end is {'equal' if end == job.end else 'another'}"
        if plan.diagnosis.is_sound and end != job.end:
            yield f"{said}, and Spark ends with another state"
    if repaired is not None:
        try:
            if job.run(repaired) != job.end:
                yield f"{said}, the repaired copy ends with another state:\n{plan.describe()}"
        except Exception as error:  # noqa: BLE001 - as above
            yield f"{said}, and Spark fails from the repaired copy: {str(error)[:600]}\n{plan.describe()}"


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
    own, cell = spark.newSession(), CELLS[name]
    for key, value in {**DEFAULTS, **cell.conf}.items():
        own.conf.set(key, value)
    job = Watched(own, tmp_path / "checkpoint", tmp_path / "inputs")
    cell.write(job)
    assert job.looks > FIRST


@pytest.mark.parametrize("name", a_few(NAMES, 1, long=0))
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
