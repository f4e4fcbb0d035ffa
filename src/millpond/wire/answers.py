"""The answers of all doors, declared once: each class is the JSON of an answer.

A server writes them and a client reads them; the OpenAPI document shows their schemas; the command
line's --json writes the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from millpond.checkpoint.position import Batch, Position
from millpond.errors import MillpondError
from millpond.replica.history.delete_cause import Kind
from millpond.savepoint.manifest import Manifest
from millpond.savepoint.verify import Verified
from millpond.schema.definition.default_table import TIMESTAMP
from millpond.schema.definition.resolutions import OF_BUCKETS
from millpond.schema.definition.retention import retention_json
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import Json, encode_json, from_json, to_json, with_floats
from millpond.tables.answer import Answer, Count, Cut, Lag, Rows
from millpond.tables.buckets.answer import Series, Span, Total, Used
from millpond.tables.history.changes import Changes
from millpond.tables.history.find_event import EventAnswer, Late
from millpond.tables.history.versions import Versions
from millpond.tables.job.cut_token import CutToken
from millpond.tables.job.shards import ShardState
from millpond.tables.job.stored_rows import StoredFacts, StoredRows
from millpond.tables.sql.reading.scan import TableRead
from millpond.wire.declare import says
from millpond.wire.rows import JsonRow, WriteRow

if TYPE_CHECKING:
    from millpond.tables.table import Table


_write_time = to_json(TIMESTAMP)
read_time = from_json(TIMESTAMP, column="since")


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


class PositionJson(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replica has come: times in milliseconds since 1970 UTC, offsets as Spark wrote them."""

    offsets: dict[str, Any]
    watermark_ms: int | None
    batch_started_ms: int
    committed_ms: int


class FromCut(msgspec.Struct, frozen=True, kw_only=True):
    """Where an answer comes from: table, batch, position, the four numbers of lag, job state."""

    table: str
    job: str
    batch: int
    position: PositionJson
    lag: Lag
    job_state: Literal["running", "stopped", "unknown"]

    @property
    def cut(self) -> Cut:
        """The same as a `Cut`; over the wire, times of commits are in milliseconds."""
        at = self.position
        position = Position(
            batch=Batch(self.batch),
            offsets=with_floats(at.offsets),
            watermark_ms=at.watermark_ms,
            batch_started_ms=at.batch_started_ms,
            committed_ns=at.committed_ms * 1_000_000,
        )
        return Cut(job=self.job, position=position, lag=self.lag, job_state=self.job_state)


class RowsAnswer(FromCut, frozen=True, kw_only=True):
    """Rows.  `changed` has the batch that last changed each of them, null if it is unknown."""

    rows: list[JsonRow | None]
    changed: list[int | None]
    final: Annotated[list[int], says("Places in `rows` of expired rows.")]
    evicted: Annotated[list[int], says("Places of keys whose row is missing because it expired.")]
    maybe_evicted: Annotated[list[int], says("Places of keys whose row is missing and may have expired.")]
    more: bool
    token: Annotated[str | None, says("Asks for the next page.")]


class StoredAnswer(FromCut, frozen=True, kw_only=True):
    """Rows as they are stored: keys, then rows, in base64; by an index, the entry comes first."""

    rows: list[tuple[bytes, ...]]
    more: bool
    facts: StoredFacts | None


class CountAnswer(FromCut, frozen=True, kw_only=True):
    """A number of rows."""

    count: int


class ChangeJson(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one row."""

    kind: Kind
    batch: int
    first_batch: int
    old: JsonRow | None
    new: JsonRow | None
    final: JsonRow | None
    repaired: bool = False


class ChangesAnswer(FromCut, frozen=True, kw_only=True):
    """Changes of rows, in order."""

    changes: list[ChangeJson]
    more: bool
    token: str


class VersionJson(msgspec.Struct, frozen=True, kw_only=True):
    """What a row was, from one batch until another."""

    row: JsonRow
    kind: Kind | None
    batch: int | None
    until_batch: int | None
    committed_ms: int | None
    until_ms: int | None


class VersionsAnswer(FromCut, frozen=True, kw_only=True):
    """Versions of rows, by key, then by batch."""

    versions: list[VersionJson]
    more: bool


class EventFound(FromCut, frozen=True, kw_only=True):
    """Where one event is."""

    batch_read: int | None
    applied: bool
    late: Late
    reason: str


class UsedJson(msgspec.Struct, frozen=True, kw_only=True):
    """Buckets of one resolution that an answer merges, and how many of them the group has."""

    resolution: str
    since: str
    until: str
    rows: int


class OfSpan(FromCut, frozen=True, kw_only=True):
    """An answer about a span of time, which begins and ends with a bucket; null if the group has none."""

    since: str | None
    until: str | None
    used: list[UsedJson]

    @property
    def span(self) -> Span:
        """The same with times."""
        used = tuple(Used(u.resolution, read_time(u.since), read_time(u.until), u.rows) for u in self.used)
        return Span(
            None if self.since is None else read_time(self.since), None if self.until is None else read_time(self.until), used
        )


class EstimateJson(msgspec.Struct, frozen=True, kw_only=True):
    """Between which values the true one lies, and how sure that is, from 0 to 1."""

    lower: Any
    upper: Any
    confidence: float


EstimatesJson = dict[str, EstimateJson]


class TotalAnswer(OfSpan, frozen=True, kw_only=True):
    """One row for a group; null if it has no event in the span."""

    row: JsonRow | None
    estimates: Annotated[EstimatesJson, says("How exact columns are that are estimates.")] = {}


class SeriesAnswer(OfSpan, frozen=True, kw_only=True):
    """A row for each step in which the group has events."""

    rows: list[JsonRow]
    untils: Annotated[list[str], says("The end of each row's step.")]
    estimates: Annotated[list[EstimatesJson], says("Of each row, how exact columns are that are estimates.")] = []


class CutAnswer(FromCut, frozen=True, kw_only=True):
    """A batch that stays readable for a while."""

    cut_token: str = msgspec.field(name="cut")
    seconds: float
    state: ShardState


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column with Spark's type; `raw` says why its buffer is shown as stored."""

    name: str
    type: str
    key: bool
    raw: str | None


class RetentionJson(msgspec.Struct, frozen=True, kw_only=True):
    """How long expired rows and history of a table are kept; null is no limit."""

    closed_seconds: float | None
    closed_bytes: int
    history_batches: int | None
    history_seconds: float | None


class TableAnswer(FromCut, frozen=True, kw_only=True):
    """A table: its definition, and how many rows it has; of a shard, those of its partitions."""

    row_count: int
    key: list[str]
    columns: list[Column]
    derived: bool
    warnings: list[str]
    retention: RetentionJson | None
    meant_by: Annotated[str | None, says("The name that means this version of an aggregate now.")] = None
    shard: Annotated[str | None, says("The partitions that this server follows, if these aren't all.")] = None


class ErrorJson(msgspec.Struct, frozen=True, kw_only=True):
    """The error, and what to do."""

    condition: str
    message: str
    hint: str
    context: dict[str, Any]


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An error."""

    error: ErrorJson


class UnreadTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that can't be read."""

    table: str
    error: ErrorJson


class TablesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All tables; for a table that can't be read, why."""

    tables: list[Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": [ref("TableAnswer"), ref("UnreadTable")]})]]


class AlignedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """At which batch each table has read the same input."""

    tables: list[FromCut]


class SqlColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of an answer, with its type in Spark's words."""

    name: str
    type: str


class SqlRead(msgspec.Struct, frozen=True, kw_only=True):
    """How a table was read: `scan`, or by which columns of its key, and how many rows."""

    table: str
    how: str
    rows: int


# In an answer as Arrow: the jobs in the metadata of the schema, the reads in those of the last batch.
CUTS, READS = "millpond.cuts", "millpond.reads"


class SqlRows(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a statement; `jobs` has the batch of each job that it reflects."""

    columns: list[SqlColumn]
    rows: list[JsonRow]
    jobs: list[FromCut]
    reads: list[SqlRead]


class SavepointJson(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint, in short: times in milliseconds since 1970 UTC, offsets as Spark wrote them."""

    name: str
    note: str
    job: str
    job_id: str
    checkpoint: str
    batch: int
    offsets: dict[str, Any]
    watermark_ms: int | None
    created_ms: int
    parent: Annotated[str | None, says("The job's savepoint before it.")]
    shares_with: Annotated[str | None, says("The savepoint whose files it shares.")]
    origin: Annotated[str | None, says("The savepoint from which the job was restored.")]
    files: int
    size_bytes: int
    rows: Annotated[int | None, says("Null if they weren't counted.")]


class PartitionJson(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a store."""

    operator: int
    store: str
    partition: int
    rows: int | None
    size_bytes: int


class SavepointAnswer(SavepointJson, frozen=True, kw_only=True):
    """A savepoint: its job and batch, and what it holds."""

    tables: list[str]
    operators: Annotated[dict[str, str], says("Spark's operator id -> Spark's name of it.")]
    conf: Annotated[dict[str, str], says("The settings that Spark pinned in the batch.")]
    partitions: list[PartitionJson]


class UnreadSavepoint(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint whose manifest can't be read."""

    savepoint: str
    error: ErrorJson


class SavepointsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All savepoints."""

    savepoints: list[SavepointJson]
    incomplete: Annotated[list[str], says("Those that are made now, or whose making was killed.")]
    unread: list[UnreadSavepoint]


class ProblemJson(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a savepoint."""

    path: str
    condition: str
    message: str


class VerifiedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What verifying a savepoint found; without problems it is whole."""

    name: str
    files: int
    size_bytes: int
    rows: int
    problems: list[ProblemJson]


class OperationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on a savepoint, and what it has come to."""

    operation: Annotated[str, says("Its id, to ask for at /operations/{operation}.")]
    kind: Literal["create", "verify"]
    savepoint: str
    state: Literal["running", "done", "failed"]
    files_done: int
    files: Annotated[int, says("In all; 0 if that isn't known yet.")]
    started_ms: int
    ended_ms: int | None
    made: Annotated[SavepointAnswer | None, says("The new savepoint.")]
    verified: VerifiedAnswer | None
    error: Annotated[ErrorJson | None, says("Why it failed; nothing of a failed create is left.")]


class RouteJson(msgspec.Struct, frozen=True, kw_only=True):
    """What can be asked at a path."""

    method: str
    path: str
    summary: str


class IndexAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All routes."""

    millpond: str
    routes: list[RouteJson]


class LiveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The process runs."""

    live: bool


class ReadyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answers are fresh enough."""

    ready: bool
    max_behind_seconds: float


# ------------------------------------------------------------ written


def position_json(position: Position) -> PositionJson:
    """A position."""
    return PositionJson(
        offsets=position.offsets,
        watermark_ms=position.watermark_ms,
        batch_started_ms=position.batch_started_ms,
        committed_ms=position.committed_ns // 1_000_000,
    )


def cut_json(table: str, cut: Cut) -> FromCut:
    """Where an answer comes from."""
    return FromCut(table=table, **_of(cut))


def _of(cut: Cut) -> dict[str, Any]:
    at = position_json(cut.position)
    return {"job": cut.job, "batch": cut.position.batch, "position": at, "lag": cut.lag, "job_state": cut.job_state}


def answer_json(table: str, answer: Answer | Count, write: WriteRow, *, gaps: bool = False) -> FromCut:
    """Any answer of a table.

    gaps:  whether a missing row is null in `rows`, or left out
    """
    source: dict[str, Any] = {"table": table, **_of(answer.cut)}
    match answer:
        case Total():
            row = _write_merged(answer, write)
            return TotalAnswer(**source, **_of_span(answer), row=row, estimates=_write_estimates(answer, write))
        case Series():
            steps = cast("list[Total]", answer)
            return SeriesAnswer(
                **source,
                **_of_span(answer),
                rows=[_write_merged(row, write) or {} for row in steps],
                untils=[_write_time(row.until) for row in steps],
                estimates=[_write_estimates(row, write) for row in steps],
            )
        case Rows():
            there = answer if gaps else [row for row in answer if row]
            return RowsAnswer(
                **source,
                rows=[write(row) for row in there],
                changed=[row.changed_batch for row in there],
                final=[place for place, row in enumerate(answer) if row.final],
                evicted=[place for place, row in enumerate(answer) if row.evicted],
                maybe_evicted=[place for place, row in enumerate(answer) if row.evicted is None],
                more=answer.more,
                token=answer.token,
            )
        case Count():
            return CountAnswer(**source, count=int(answer))
        case Changes():
            changes = [
                ChangeJson(
                    kind=change.kind,
                    batch=change.batch,
                    first_batch=change.first_batch,
                    old=write(change.old or {}),
                    new=write(change.new or {}),
                    final=write(change.final or {}),
                    repaired=change.repaired,
                )
                for change in answer
            ]
            return ChangesAnswer(**source, changes=changes, more=answer.more, token=answer.token)
        case Versions():
            versions = [
                VersionJson(
                    row=write(version.row) or {},
                    kind=version.kind,
                    batch=version.batch,
                    until_batch=version.until_batch,
                    committed_ms=version.committed_ms,
                    until_ms=version.until_ms,
                )
                for version in answer
            ]
            return VersionsAnswer(**source, versions=versions, more=answer.more)
        case EventAnswer():
            late, reason = answer.late, answer.reason
            return EventFound(**source, batch_read=answer.batch_read, applied=answer.applied, late=late, reason=reason)
        case StoredRows():
            return StoredAnswer(**source, rows=answer, more=answer.more, facts=answer.facts)
        case CutToken():
            return CutAnswer(**source, cut_token=answer.token, seconds=answer.seconds, state=answer.state)
    raise AssertionError(answer)


def _of_span(answer: Total | Series) -> dict[str, Any]:
    since, until = (None if time is None else _write_time(time) for time in (answer.since, answer.until))
    used = [
        UsedJson(resolution=u.resolution, since=_write_time(u.since), until=_write_time(u.until), rows=u.rows) for u in answer.used
    ]
    return {"since": since, "until": until, "used": used}


def _write_merged(row: Total, write: WriteRow) -> JsonRow | None:
    """A merged row, which lacks the columns that tell buckets apart."""
    written = write({**dict.fromkeys(OF_BUCKETS), **row}) if row else None
    return None if written is None else {name: value for name, value in written.items() if name not in OF_BUCKETS or name in row}


def _write_estimates(row: Total, write: WriteRow) -> EstimatesJson:
    if not row.estimates:
        return {}
    lower, upper = (
        write({**dict.fromkeys(OF_BUCKETS), **row, **{name: getattr(e, limit) for name, e in row.estimates.items()}}) or {}
        for limit in ("lower", "upper")
    )
    return {
        name: EstimateJson(lower=lower[name], upper=upper[name], confidence=estimate.confidence)
        for name, estimate in row.estimates.items()
    }


def aligned_json(tables: Mapping[str, Table]) -> AlignedAnswer:
    """At which batch each table has read the same input."""
    return AlignedAnswer(tables=[cut_json(name, table.get_all(()).cut) for name, table in tables.items()])


def sql_ends(columns: Iterable[tuple[str, str]], cuts: Iterable[Cut], reads: Iterable[TableRead]) -> tuple[bytes, bytes]:
    """What stands before and after the rows in the JSON of a statement's answer, a `SqlRows`.

    columns:  names and types
    """
    head = encode_json([SqlColumn(name=name, type=type_) for name, type_ in columns])
    return b'{"columns":' + head + b',"rows":[', f'],"jobs":{sql_cuts(cuts)},"reads":{sql_reads(reads)}}}'.encode()


def sql_cuts(cuts: Iterable[Cut]) -> str:
    """`jobs` of a `SqlRows` in JSON."""
    return encode_json([cut_json("", cut) for cut in cuts]).decode()


def sql_reads(reads: Iterable[TableRead]) -> str:
    """`reads` of a `SqlRows` in JSON."""
    return encode_json([SqlRead(table=read.table, how=read.how, rows=read.rows) for read in reads]).decode()


def table_json(
    name: str, count: Count, definition: TableDefinition, meant_by: str | None = None, shard: str | None = None
) -> TableAnswer:
    """A table: its definition, how many rows it has, and the batch of that.

    count, definition:  of the table; take the count first: a table that nobody defined gets its
                        definition from the state that was counted
    meant_by:           the name that means this version of an aggregate
    shard:              to which the rows belong that were counted
    """
    columns = [Column(name=c.name, type=str(c.type), key=True, raw=None) for c in definition.key]
    columns += [Column(name=c.name, type=str(c.type), key=False, raw=c.raw) for c in definition.values]
    retention = retention_json(definition.retention)
    return TableAnswer(
        table=name,
        **_of(count.cut),
        row_count=int(count),
        key=[c.name for c in definition.key],
        columns=columns,
        derived=definition.derived,
        warnings=list(definition.warnings),
        retention=None if retention is None else RetentionJson(**retention),
        meant_by=meant_by,
        shard=shard,
    )


def savepoint_summary(name: str, manifest: Manifest) -> SavepointJson:
    """A savepoint in short.  name: as this door names it"""
    return SavepointJson(name=name, **_facts(manifest))


def savepoint_json(name: str, manifest: Manifest) -> SavepointAnswer:
    """A savepoint.  name: as this door names it"""
    return SavepointAnswer(
        name=name,
        **_facts(manifest),
        tables=sorted(manifest.tables),
        operators={str(operator): text for operator, text in sorted(manifest.operators.items())},
        conf=manifest.conf,
        partitions=[PartitionJson(**asdict(partition)) for partition in manifest.partitions],
    )


def _facts(manifest: Manifest) -> dict[str, Any]:
    facts = {n: getattr(manifest, n) for n in SavepointJson.__struct_fields__ if n not in ("name", "files")}
    return {**facts, "files": len(manifest.files)}


def verified_json(name: str, found: Verified) -> VerifiedAnswer:
    """What verifying a savepoint found.  name: as this door names it"""
    problems = [ProblemJson(**asdict(problem)) for problem in found.problems]
    return VerifiedAnswer(name=name, files=found.files, size_bytes=found.size_bytes, rows=found.rows, problems=problems)


def unread_json(name: str, error: MillpondError) -> UnreadTable:
    """A table that can't be read."""
    return UnreadTable(table=name, error=error_json(error).error)


def error_json(error: MillpondError) -> ErrorAnswer:
    """An error, its context flattened for JSON."""
    context = {name: _plain(fact) for name, fact in error.context.items()}
    return ErrorAnswer(error=ErrorJson(condition=error.condition, message=error.message, hint=error.hint, context=context))


def _plain(fact: Any) -> Json:
    if fact is None or isinstance(fact, (bool, int, float, str)):
        return fact
    if isinstance(fact, (list, tuple, set, frozenset)):
        return [_plain(item) for item in fact]
    return str(fact)


def members(answer: msgspec.Struct) -> dict[str, Any]:
    """The members of an answer, in JSON's form."""
    built: dict[str, Any] = msgspec.to_builtins(answer)
    return built
