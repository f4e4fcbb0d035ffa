"""The jobs of golden checkpoints, stopped in the middle: what is said of a broken copy, and what Spark does with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from live_jobs.interrupted import CELLS, OperatorJob, last_batch, ordered, read_batch, session_of
from millpond.errors import CheckpointError, MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.savepoint.repair.restart import Restart
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from millpond.tables.repair import plan_repair
from spark_files.damage import copy_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST, REST = 9, 2
_TIMERS = "event-timers"


class First(OperatorJob):
    """The job over the first part of its input."""

    def feed(self, batches: int) -> None:
        super().feed(FIRST)


class Rest(OperatorJob):
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
    name: str
    cell: Any
    checkpoint: Path
    inputs: Path
    end: dict[str, list[str]]
    last: int
    ends: Counter[tuple[str, bool]] = field(default_factory=Counter)  # (what Spark does, whether it was said to start)

    def run(self, checkpoint: Path) -> dict[str, list[str]]:
        """Let Spark go on from a checkpoint to the end of the input: the state then."""
        self.cell.write(Rest(self.spark, checkpoint, self.inputs))
        return ordered(read_batch(self.spark, checkpoint, last_batch(checkpoint)))

    def end_from(self, restart: Restart | None) -> dict[str, list[str]]:
        """How the undisturbed job ends from an earlier batch.

        Spark divides the input into other batches then, and a timer fires before or after the rows of a batch.
        """
        assert restart is not None
        batch = restart.batch if restart.again is None else restart.again
        place = self.checkpoint.with_name(f"from-{batch}-{len(list(self.checkpoint.parent.iterdir()))}")
        saved = plan_savepoint(self.checkpoint, place.name, batch=batch).run()
        plan_restore(self.checkpoint, saved.manifest.name, place).run()
        return self.run(place)


def write_job(spark: SparkSession, folder: Path, name: str) -> Written:
    """Run the job over its first input, and find out how it ends."""
    own, cell = session_of(spark, name), CELLS[name]
    job = First(own, folder / "checkpoint", folder / "inputs")
    cell.write(job)
    found = Written(own, name, cell, job.checkpoint, folder / "inputs", {}, last_batch(job.checkpoint))
    assert diagnose(open_storage(job.checkpoint)).findings == ()
    super(First, job).feed(REST)
    found.end = found.run(copy_checkpoint(job.checkpoint, folder / "undisturbed"))
    assert any(found.end.values()), "a state without rows shows nothing"
    return found


def check(job: Written, broken: Path, what: str, *, copies: bool = True) -> Iterator[str]:
    """What is said of a broken checkpoint is what Spark does, and the repaired one ends like the undisturbed one.

    No savepoint made of it is called whole, unless Spark goes on from it to the same end.
    copies:  whether Spark also goes on from these copies
    Yields what isn't so.
    """
    try:
        plan = plan_repair(broken, to=broken.with_name(f"{broken.name}-repaired"))
    except CheckpointError as error:
        if error.condition != "NO_CHECKPOINT" or any((broken / name).exists() for name in ("metadata", "offsets", "commits")):
            yield f"{what}: {error}"
        return
    said = f"{what}: {[(f.path, f.kind, f.effect) for f in plan.diagnosis.findings]}"
    new = {"repaired copy": plan.run().checkpoint} if plan.is_needed and plan.restart is not None else {}
    if new and not diagnose(open_storage(*new.values())).is_sound:
        yield f"{said}: the repaired copy isn't sound"
    try:
        savepoint = plan_savepoint(broken, "after").run()
        if verify_savepoint(savepoint).is_whole:
            new["restored savepoint"] = str(
                plan_restore(broken, "after", broken.with_name(f"{broken.name}-restored")).run().checkpoint
            )
    except MillpondError as refused:
        said += f", and a savepoint is refused with {refused.condition}"
    try:
        end = job.run(broken)
    except Exception as error:  # noqa: BLE001 - whatever Spark raises
        job.ends["fails", plan.diagnosis.starts] += 1
        if plan.diagnosis.is_sound:
            yield f"{said}, and Spark fails: {str(error)[:600]}"
    else:
        job.ends["starts", plan.diagnosis.starts] += 1
        if not plan.diagnosis.starts:
            yield f"{said}, and Spark starts; its end is {'equal' if end == job.end else 'another'}"
        if plan.diagnosis.is_sound and end != job.end:
            yield f"{said}, and Spark ends with another state"
    for title, checkpoint in new.items() if copies else ():
        is_undone = title == "repaired copy" and plan.undone is not None and _TIMERS in job.name
        expected = job.end if not is_undone else job.end_from(plan.restart)
        try:
            if job.run(Path(checkpoint.removeprefix("file://"))) != expected:
                yield f"{said}, the {title} ends with another state:\n{plan.describe()}"
        except Exception as error:  # noqa: BLE001 - as above
            yield f"{said}, and Spark fails from the {title}: {str(error)[:600]}\n{plan.describe()}"
