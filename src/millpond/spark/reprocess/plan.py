"""Reprocess a part of an aggregate: plan it while the job runs, then repair the stopped job's state.

1. Spark computes the part anew, over the events up to the job's last committed batch (`recompute`).
   That takes long if there are many events; the job may run meanwhile.
2. Compare it with the state of that batch: the plan.
3. To run the plan, the job must be stopped.  If it has committed batches since then, Spark computes
   their events too, and the states are compared again.
4. Commit the rows that differ, as a batch without events (`write_patch`).
5. If the part has all buckets from some time on, write into the table's definition that none of them
   is missing any more.

A reader never sees half of it, since the batch is one.  Who is killed before the fourth step has
changed nothing; after it only the fifth is missing, which another run does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from millpond.catalogue import JobFolder, job_of, reopen
from millpond.checkpoint.log import CommittedBatch, committed_batches, is_repair, job_id, read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole.store import WholeStore, read_whole_stores
from millpond.errors import CheckpointError, DefinitionError, RequestError
from millpond.ownership.lease import leased
from millpond.ownership.take_over import finish
from millpond.savepoint.in_place.exchange import Found, find_stopped_job
from millpond.savepoint.in_place.patch import write_patch
from millpond.scalar.time.zones import parse_zone
from millpond.schema.definition.resolutions import Resolution
from millpond.schema.definition.table import TableDefinition
from millpond.spark.aggregate.declare import Aggregate
from millpond.spark.aggregate.meaning import derive_aggregate
from millpond.spark.derive.plan import class_name, require_classic, stateful_nodes
from millpond.spark.derive.same_state import check_same_state
from millpond.spark.past.check import has_watermark
from millpond.spark.past.source import single_source
from millpond.spark.reprocess.compare import Comparison, ResolutionChange, Sample, compare
from millpond.spark.reprocess.part import Part, When, part_of
from millpond.spark.reprocess.recompute import Recomputed
from millpond.storage import Storage
from millpond.tables.kept.calendar import Calendar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Progress = Callable[[int, int], None]
"""called with (partitions compared, partitions in all)"""
_FOLDER = "reprocess-"
_LENIENT = ("failonDataLoss", "false"), ("ignoreMissingFiles", "true"), ("ignoreCorruptFiles", "true")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What a reprocess did.

    batch:    that changes the rows; None if no row differed any more
    rows:     that it wrote or removed, with dead letters
    """

    batch: int | None
    rows: int


@dataclass(slots=True, kw_only=True)
class ReprocessPlan:
    """A reprocess whose rows aren't repaired yet.  Close it to remove what was computed.

    job:        the job's folder
    part:       what was computed anew
    batch:      of the job, whose state was compared
    found:      what differs
    resolutions: of the table, as they will be
    take_over:  whether to take the job's lease from whoever has it
    """

    job: JobFolder
    part: Part
    batch: int
    found: Comparison = field(repr=False)
    resolutions: tuple[Resolution, ...]
    take_over: bool = field(default=False, repr=False)
    _aggregate: Aggregate = field(repr=False)
    _anew: Recomputed = field(repr=False)
    _work: Storage = field(repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was computed; the plan can't be run any more."""
        self._work.delete_all()

    @property
    def changes(self) -> bool:
        """Whether any row differs, or buckets count as missing that are there."""
        return bool(self.found.differs) or self._refills

    @property
    def differences(self) -> Mapping[str, ResolutionChange]:
        """What differs, by resolution."""
        return self.found.each

    @property
    def samples(self) -> tuple[Sample, ...]:
        """A few rows that differ, those that change most first."""
        return self.found.samples

    @property
    def dead_letters(self) -> Mapping[str, int]:
        """Dead letters that go since their events count, by reason."""
        return dict(self.found.letters)

    @property
    def _refills(self) -> bool:
        before = self.part.definition.resolutions
        return before is not None and before.each != self.resolutions

    def describe(self) -> str:
        """What would be done, in a few lines."""
        definition = self.part.definition
        lines = [
            f"reprocess   {definition.table}, after batch {self.batch} of {self.job.job}",
            f"computed    {self.part.words()}, from the events of the source as they are now",
        ]
        for name, each in self.found.each.items():
            lines += _lines(name, each)
        for reason, count in sorted(self.found.letters.items()):
            lines.append(f"dead letters  {count:,} of {reason} go: their events count now")
        for before, after in zip(definition.resolutions.each if definition.resolutions else (), self.resolutions, strict=True):
            if before != after:
                lines.append(f"{after!s:<11} has all buckets again that a shorter retention had removed")
        lines += [f"such as     {_words(sample)}" for sample in self.found.samples]
        if not self.changes:
            lines.append("equals      the state: nothing is to be repaired")
        return "\n".join(lines)

    def run(self, progress: Progress | None = None) -> Repaired:
        """Repair the rows of the stopped job; then start it again.

        Raises:  CHECKPOINT_IN_USE if the job runs; INVALID_REQUEST if nothing differs, the job has
                 a batch that isn't finished, or isn't the one that was planned for; JOB_FAILED if
                 Spark can't compute the events that have come since; NOT_WRITABLE, and what reading
                 the checkpoint raises.  Then the job is as it was.
        """
        if not self.changes:
            raise _invalid(f"{self.part.definition.table} has what its events give.", "Plan another span of time, or other keys.")
        find_stopped_job(self.job.storage.uri, None, take_over=self.take_over)
        with leased(self.job.storage, "millpond reprocess", take_over=self.take_over) as lease:
            finish(self.job)
            folder = reopen(self.job)
            checkpoint = folder.open_checkpoint()
            logs = Found.of(checkpoint)
            batch = self._last(checkpoint, logs)
            if self._anew.batch is None or batch.batch != self._anew.batch.batch:  # 3
                self._anew.run(batch)
            store = _store_of(checkpoint, batch, self.part.definition)
            found = compare(checkpoint, batch, store, self._anew, self.part, self._aggregate.declared, progress)
            rows, number = found.differs, None
            if rows:
                if logs.unfinished is not None:
                    checkpoint.delete(f"offsets/{logs.unfinished}")  # a killed reprocess has left it
                changes = {(store.operator.operator, store.name): found.changes}
                number = write_patch(checkpoint, batch, changes, "reprocess", lease.check)  # 4
            if self._refills:  # 5
                definition = folder.definitions()[self.part.definition.table]
                assert definition.resolutions is not None, "the plan has looked"
                folder.write_definition(replace(definition, resolutions=replace(definition.resolutions, each=self.resolutions)))
        self.close()
        return Repaired(batch=number, rows=rows)

    def _last(self, checkpoint: Storage, logs: Found) -> CommittedBatch:
        """The last committed batch, after which the repair comes.  Raises INVALID_REQUEST."""
        planned_for = self._anew.batch
        assert planned_for is not None, "the plan has computed it"
        if logs.unfinished is not None and not is_repair(checkpoint, Batch(logs.unfinished)):
            raise _invalid(
                f"{self.job.job} has planned batch {logs.unfinished} and not finished it: it was killed, or stopped in a batch.",
                "Start the job, wait until it has committed that batch, and stop it.",
            )
        batch = read_batch(checkpoint, Batch(logs.committed[-1]))
        same = batch.batch != planned_for.batch or batch.fingerprint == planned_for.fingerprint
        if batch.batch < planned_for.batch or not same or batch.settings != planned_for.settings:
            raise _invalid(
                f"{self.job.job} isn't as it was when the plan was made: another command has changed its checkpoint.",
                "Plan it again.",
            )
        return batch


def plan_reprocess(
    aggregate: Aggregate,
    source: DataFrame,
    *,
    pond: str | Path,
    job: str | None = None,
    since: When = None,
    until: When = None,
    key: Mapping[str, Any] | None = None,
    take_over: bool = False,
    progress: Progress | None = None,
) -> ReprocessPlan:
    """Compute buckets of an aggregate anew, and compare them with its state; its job may run.

    It reads the events that the job has read, from its source as it is now: files by the names
    that they had.  What the job reads later isn't touched.

    aggregate:     as the job declares it
    source:        the stream as the job reads it
    pond:          that has the job
    job:           the job's name, by default the table's
    since, until:  buckets with events from here on and before; aware datetimes or ISO texts.  The
                   span grows to whole buckets of every resolution.  None without an end
    key:           column -> value, to compute only these groups; columns may be left out
    take_over:     take the job's lease from whoever has it; only if that can't write any more
    Raises:        DEFINITION_CHANGED if the state is that of another declaration; UNKNOWN_TABLE,
                   NO_CHECKPOINT, NO_COMMITTED_BATCH; UNSUPPORTED for a source that can't be read
                   again exactly; INVALID_REQUEST, also if copies of an event with one id differ;
                   JOB_FAILED if Spark can't read the source; what reading the state raises.
    """
    require_classic(source, "_jdf")
    folder = job_of(pond, job or aggregate.table)
    storage = folder.open_checkpoint()
    identity = job_id(storage)
    committed = committed_batches(storage)
    if not committed:
        raise CheckpointError("NO_COMMITTED_BATCH", f"{storage.uri} has no committed batch.", hint="Start the job first.")
    _check_source(source)
    definition = _definition(aggregate, source, folder)
    part = part_of(definition, since, until, key or {})
    if not part.key and folder.storage.names("erasures"):
        raise _unsupported(
            f"keys were erased from {folder.job}, and its source may still have their events.",
            "Name the keys to compute anew: key.",
        )
    batch = read_batch(storage, committed[-1])
    store = _store_of(storage, batch, definition)
    _check_operators(aggregate, storage, batch)
    work = folder.storage.folder(f"{_FOLDER}{uuid.uuid4().hex[:12]}")
    anew = Recomputed(aggregate, source, part, storage, work)
    try:
        anew.run(batch)
        found = compare(storage, batch, store, anew, part, aggregate.declared, progress)
        if job_id(storage) != identity:
            raise _invalid(f"{folder.job} was replaced meanwhile.", "Plan it again.")
    except BaseException:
        work.delete_all()
        raise
    return ReprocessPlan(
        job=folder,
        part=part,
        batch=batch.batch,
        found=found,
        resolutions=_refilled(part, batch),
        take_over=take_over,
        _aggregate=aggregate,
        _anew=anew,
        _work=work,
    )


def _definition(aggregate: Aggregate, source: DataFrame, folder: JobFolder) -> TableDefinition:
    """The definition in the pond, which must be that of the declaration.  Raises DEFINITION_CHANGED, UNKNOWN_TABLE."""
    check_same_state(folder, derive_aggregate(aggregate, source, folder))
    there = folder.definitions().get(aggregate.table)
    if there is None or there.resolutions is None:
        raise RequestError(
            "UNKNOWN_TABLE",
            f"{folder.job} has no table {aggregate.table} of buckets.",
            hint="Start that job first.",
        )
    return there


def _check_source(source: DataFrame) -> None:
    """Raise UNSUPPORTED for a source that can't be read again exactly."""
    relation = single_source(source)
    if any(stateful_nodes(source._jdf.queryExecution().analyzed(), append=True)) or has_watermark(source):
        raise _unsupported("its source has state of its own, which depends on when events came.", "Read the events without that.")
    kind = class_name(relation)
    convert = source.sparkSession._jvm.scala.jdk.javaapi.CollectionConverters.asJava
    options = (
        relation.extraOptions().asCaseSensitiveMap() if kind == "StreamingRelationV2" else convert(relation.dataSource().options())
    )
    given = {str(name).lower(): str(options[name]).lower() for name in options}
    name = str(relation.sourceName()).lower()
    if name == "millpond":
        raise _unsupported("it counts changes of a table, and changes of older batches are gone.", "Reprocess that table.")
    if name in ("memory", "textsocket", "socket"):
        raise _unsupported(f"a source of the kind {name} can't be read twice.", "Keep the events in files or in Kafka.")
    if wrong := next((option for option, value in _LENIENT if given.get(option.lower()) == value), None):
        raise _unsupported(f"its source has the option {wrong}, so that events may be missing silently.", "Leave it out here.")


def _store_of(storage: Storage, batch: CommittedBatch, definition: TableDefinition) -> WholeStore:
    operator, name, _ = definition.store_id
    stores = (s for o in read_operator_files(storage, batch.batch) for s in read_whole_stores(storage, o))
    store = next(s for s in stores if (s.operator.operator, s.name) == (operator, name))
    if batch.settings.encoding != "unsaferow" or store.has_families:
        raise _unsupported("its state is encoded in a form that only Spark writes.", "Make a new version of it: docs/versions.md.")
    return store


def _check_operators(aggregate: Aggregate, storage: Storage, batch: CommittedBatch) -> None:
    """Raise DEFINITION_CHANGED if the state has ids and the declaration doesn't say so, or the reverse."""
    has_ids = len(read_operator_files(storage, batch.batch)) > 1
    if has_ids != (aggregate.declared.dedupe is not None):
        raise DefinitionError(
            "DEFINITION_CHANGED",
            f"The state of {aggregate.table} has {'ids' if has_ids else 'no ids'}, unlike its declaration.",
            hint="Give the declaration that the job has: dedupe.",
            table=aggregate.table,
        )


def _refilled(part: Part, batch: CommittedBatch) -> tuple[Resolution, ...]:
    """The table's resolutions after the repair: buckets of the part aren't missing any more."""
    before = part.definition.resolutions
    assert before is not None, "the caller has checked it"
    zone, each = parse_zone(before.zone), []
    for resolution in before.each:
        missing_before = resolution.complete_from
        if missing_before is None or part.key or (part.until is not None and part.until < missing_before):
            each.append(resolution)
            continue
        kept = Calendar(replace(resolution, complete_from=None), zone).kept_from(batch.planned_watermark_ms * 1000)
        if part.since is None or (kept is not None and part.since <= kept):
            each.append(replace(resolution, complete_from=None))
        else:
            each.append(replace(resolution, complete_from=min(part.since, missing_before)))
    return tuple(each)


def _lines(name: str, each: ResolutionChange) -> list[str]:
    counts = {
        "change": each.changed,
        "are new": each.added,
        "go": each.removed,
        "have other sketches": each.rebuilt,
    }
    words = [f"{count:,} {word}" for word, count in counts.items() if count]
    lines = [f"{name:<11} {', '.join(words) or 'no row differs'}; {each.same:,} stay"]
    for column, change in each.columns.items():
        by = "" if change.most is None else f": {change.before:,} -> {change.after:,}, at most {change.most:+,} in a row"
        lines.append(f"            {column} in {change.rows:,} rows{by}")
    return lines


def _words(sample: Sample) -> str:
    key = ", ".join(f"{name}={value}" for name, value in sample.key.items() if value is not None)
    columns = (sample.before or sample.after or {}).keys()
    old, new = sample.before or {}, sample.after or {}
    if not old or not new:
        what = "removed" if old else "new"
        return f"{key}: {what}, {', '.join(f'{c} {(old or new)[c]!s:.60}' for c in columns)}"
    return f"{key}: {', '.join(f'{c} {old[c]!s:.60} -> {new[c]!s:.60}' for c in columns if old[c] != new[c])}"


def _unsupported(found: str, hint: str) -> CheckpointError:
    return CheckpointError("UNSUPPORTED", f"The aggregate can't be computed anew: {found}", hint=hint)


def _invalid(found: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", found, hint=hint)
