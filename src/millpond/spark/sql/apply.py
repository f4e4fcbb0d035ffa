"""What statements would change in a pond, and the start of their jobs.

1. Spark makes the meaning of each aggregate's state, and starts nothing.
2. That is compared with the definition in the pond, first with the retention that is there: another
   meaning is refused, since a state can't become that of other values.
3. Times of retention are compared apart: `plan_retention` says what goes.
4. Clauses that aren't in the state are compared with those of the statement before, which each
   start writes beside the job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.catalogue import JobFolder, job_of
from millpond.checkpoint.log import committed_batches
from millpond.checkpoint.operators import read_operator_files
from millpond.errors import DefinitionError
from millpond.schema.definition.resolutions import parse_seconds
from millpond.schema.definition.table import TableDefinition
from millpond.spark.aggregate.declare import Aggregate
from millpond.spark.aggregate.meaning import derive_aggregate
from millpond.spark.derive.same_state import state_changes
from millpond.spark.job import Job
from millpond.spark.sql.declare import at_place, check_values, declare, open_source
from millpond.spark.sql.statement import Statement, parse_statements
from millpond.spark.sql.words import refused
from millpond.tables.buckets.retention import RetentionPlan, plan_retention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATEMENT = "statement.json"
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateChange:
    """What one statement would change.

    name:       of the aggregate's table: with its version, if it has one
    is_new:     whether the pond has no such table with state
    refused:    why its job can't go on with the statement, a line each
    settings:   changes of clauses that aren't in the state, a line each
    retention:  the plan of another retention, None if that stays
    aggregate, source:  what `run` starts
    clauses:    those that aren't in the state, as `run` writes them beside the job
    """

    name: str
    is_new: bool
    refused: tuple[str, ...]
    settings: tuple[str, ...]
    retention: RetentionPlan | None
    aggregate: Aggregate = field(repr=False)
    source: DataFrame = field(repr=False)
    clauses: Mapping[str, Any] = field(repr=False)

    @property
    def changes(self) -> bool:
        """Whether anything isn't as in the pond."""
        return self.is_new or bool(self.refused or self.settings) or self.retention is not None

    def describe(self) -> str:
        """What would be done, in a few lines."""
        if self.is_new and not self.refused:
            _, *rows = self.aggregate.describe_state().splitlines()
            return "\n".join([f"+ {self.name}: a new aggregate; its state, for a group with events all the time:", *rows])
        if self.refused:
            return "\n".join([f"! {self.name}: its state has other values, and can't go on:", *(f"    {w}" for w in self.refused)])
        if not self.changes:
            return f"= {self.name}: nothing changes"
        lines = [f"~ {self.name}: goes on with its state", *(f"    {line}" for line in self.settings)]
        if self.retention is not None:
            lines += [f"    {line}" for line in self.retention.describe().splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPlan:
    """What the statements of a file would change; nothing is done yet.

    pond:     that has or will have the tables
    changes:  one for each statement, in their order
    """

    pond: str | Path
    changes: tuple[AggregateChange, ...]

    def describe(self) -> str:
        """The changes of each aggregate."""
        return "\n".join(change.describe() for change in self.changes)

    def check(self) -> None:
        """Raises DEFINITION_CHANGED if a job can't go on with its statement."""
        names = [change.name for change in self.changes if change.refused]
        if names:
            first = next(change.aggregate for change in self.changes if change.refused)
            other = f"a new name, such as {first.name}_2" if first.version is None else "a version that isn't there yet"
            raise DefinitionError(
                "DEFINITION_CHANGED",
                f"The state of {', '.join(names)} has other values than the statement.",
                hint=f"Give the aggregate {other}, and read both until the new one has caught up.",
                table=names[0],
            )

    def run(self, *, trigger: str | None = None, partitions: int | None = None, take_over: bool = False) -> list[Job]:
        """Change retentions, then start all jobs, or none of them.

        trigger, partitions, take_over:  as for `millpond.start`
        Raises:  DEFINITION_CHANGED before anything is done; what `RetentionPlan.run` and
                 `millpond.start` raise.
        """
        self.check()
        for change in self.changes:
            if change.retention is not None:
                replace(change.retention, take_over=take_over).run()
        jobs: list[Job] = []
        try:
            for change in self.changes:
                jobs.append(
                    change.aggregate.start(
                        change.source, pond=self.pond, trigger=trigger, partitions=partitions, take_over=take_over
                    )
                )
                written = json.dumps(change.clauses, indent=1).encode()
                job_of(self.pond, change.name).storage.write(_STATEMENT, written)
        except BaseException:
            for job in jobs:
                job.stop()
            raise
        return jobs


def plan_apply(text: str, pond: str | Path, *, spark: SparkSession) -> ApplyPlan:
    """Compare the statements of a text with a pond.

    text:    statements CREATE AGGREGATE …, which `;` ends
    pond:    that has or will have their tables
    spark:   a session, which checks them
    Raises:  INVALID_STATEMENT, with line and column; NOT_DERIVABLE if the buckets of a value can't
             be merged; INVALID_NAME, LIBRARY_MISSING; what reading the state raises.
    """
    statements = parse_statements(text)
    return ApplyPlan(pond=pond, changes=tuple(_plan(statement, pond, spark) for statement in statements))


def _plan(statement: Statement, pond: str | Path, spark: SparkSession) -> AggregateChange:
    if statement.source is None:
        raise refused(f"{statement.name} has no source", statement.place, "Add FROM json.`/data/visits` SCHEMA '…'.")
    source = open_source(spark, statement.source)
    check_values(statement, source)
    aggregate = declare(statement)
    folder = job_of(pond, aggregate.table)
    with at_place(statement.place):
        now = derive_aggregate(aggregate, source, folder)  # 1
    clauses = _clauses(statement)
    there = _there(folder, aggregate.table)
    because: tuple[str, ...] = _other_version(aggregate, pond)
    settings: tuple[str, ...] = ()
    retention = None
    if there is not None:
        kept, same = _kept(there, statement)
        if kept != same:
            now = derive_aggregate(declare(statement, kept=_as_texts(kept)), source, folder)
        because = tuple(state_changes(there, now)) + _other_id(folder, clauses) + because  # 2
        if not because:
            settings = _settings(folder, clauses, there, now)  # 4
            retention = plan_retention(pond, aggregate.table, _as_texts(same)) if kept != same else None  # 3
    return AggregateChange(
        name=aggregate.table,
        is_new=there is None,
        refused=because,
        settings=settings,
        retention=retention,
        aggregate=aggregate,
        source=source,
        clauses=clauses,
    )


def _there(folder: JobFolder, name: str) -> TableDefinition | None:
    """The definition in the pond, if there is a committed batch of it."""
    if not folder.storage.names("tables") or not committed_batches(folder.open_checkpoint()):
        return None
    return folder.definitions().get(name)


def _kept(there: TableDefinition, statement: Statement) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """For how many seconds each resolution is kept in the pond, and by the statement; twice the same if others are kept."""
    wanted = {length: None if keep is None else parse_seconds(keep) for length, keep in statement.resolutions.items()}
    found = {} if there.resolutions is None else {str(r): r.keep_seconds for r in there.resolutions.each}
    return (found, wanted) if found.keys() == wanted.keys() else (wanted, wanted)


def _as_texts(kept: Mapping[str, int | None]) -> dict[str, str | None]:
    return {name: None if seconds is None else f"{seconds} seconds" for name, seconds in kept.items()}


def _clauses(statement: Statement) -> dict[str, Any]:
    """The clauses that the state doesn't have.  Options may be secret, so they aren't among them."""
    source = statement.source
    assert source is not None, "the caller has checked it"
    dedupe = statement.lengths.get("dedupe")
    return {
        "DEDUPE": None if dedupe is None else list(dedupe),
        "FUTURE SKEW": statement.lengths.get("future_skew", "10 minutes"),
        "DEAD LETTERS": statement.lengths.get("dead_letters", "7 days"),
        "FROM": source.format if source.path is None else f"{source.format}.`{source.path}`",
        "SCHEMA": source.schema,
        "WHERE": None if source.where is None else source.where.text,
    }


def _before(folder: JobFolder) -> dict[str, Any] | None:
    """The clauses with which the job was started by a statement; None if it wasn't, or they can't be read."""
    if folder.storage.stamp(_STATEMENT) is None:
        return None
    try:
        found = json.loads(folder.storage.read(_STATEMENT, _MOST_BYTES))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _other_id(folder: JobFolder, clauses: Mapping[str, Any]) -> tuple[str, ...]:
    """Why the ids that the state remembers aren't those of the statement; nothing if they are."""
    now = clauses["DEDUPE"]
    storage = folder.open_checkpoint()
    # Ids are in an operator of their own, and a checkpoint keeps its operators.
    has_ids = len(read_operator_files(storage, committed_batches(storage)[-1])) > 1
    if has_ids != (now is not None):
        return (f"The state has {'ids' if has_ids else 'no ids'} of DEDUPE, and the statement has {_words(now)}.",)
    before = (_before(folder) or {}).get("DEDUPE")
    if isinstance(before, list) and before and now is not None and before[0] != now[0]:
        return (f"The column of DEDUPE was {before[0]}, and is {now[0]}.",)
    return ()


def _other_version(aggregate: Aggregate, pond: str | Path) -> tuple[str, ...]:
    """What one version says doesn't change.  Raises TABLE_EXISTS."""
    try:
        aggregate.check_version(pond)
    except DefinitionError as wrong:
        if wrong.condition != "DEFINITION_CHANGED":
            raise
        return (wrong.message,)
    return ()


def _settings(folder: JobFolder, clauses: Mapping[str, Any], there: TableDefinition, now: TableDefinition) -> tuple[str, ...]:
    before = _before(folder)
    if before is None:
        lines = ["whether source, FUTURE SKEW or DEDUPE change isn't known: no statement has started it so far"]
    else:
        lines = [
            f"{name}: {_words(value)} instead of {_words(before.get(name))}"
            for name, value in clauses.items()
            if value != before.get(name)
        ]
    columns = [list(definition.columns) for definition in (there, now)]
    if columns[0] != columns[1]:
        lines.append(f"columns: {', '.join(columns[1])} instead of {', '.join(columns[0])}")
    return tuple(lines)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return " FOR ".join(map(str, value))
    return "none" if value is None else str(value)
