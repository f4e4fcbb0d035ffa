"""What the doors say: one JSON shape for answers, one for tables and one for errors, pinned by tests over all routes.

    answer  {"table", "job", "batch", "position": {…}, "lag": {…}, "job_state", "rows": […], "changed": […],
             "final": […], "evicted": […], "maybe_evicted": […], "more", "token"}
    table   {"table", "job", "batch", "position", "lag", "job_state", "row_count", "key", "columns", "derived", "warnings",
             "retention"}
    error   {"error": {"condition", "message", "hint", "context"}}

The command line's --json uses the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from millpond.checkpoint.position import Position
from millpond.errors import MillpondError
from millpond.schema.definition.retention import retention_json
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import SparkType
from millpond.schema.values import Json, to_json
from millpond.tables import Row
from millpond.tables.answer import Count, Cut, Lag, Rows
from millpond.tables.failed import ERRORS, FailingValues, errors_json, free_name

if TYPE_CHECKING:
    from millpond.tables.history.changes import Changes
    from millpond.tables.history.find_event import EventAnswer
    from millpond.tables.history.versions import Versions
    from millpond.tables.job.cut_token import CutToken
    from millpond.tables.table import Table

WriteRow = Callable[[Mapping[str, Any]], "dict[str, Json] | None"]


def typed_columns(definition: TableDefinition) -> list[tuple[str, SparkType]]:
    """Name and type of each column, key first."""
    return [(c.name, c.type) for c in definition.key] + [(c.name, c.type) for c in definition.values]


def row_writer(definition: TableDefinition) -> WriteRow:
    """A function from a row to its JSON object, columns in the table's order; null where the row isn't there.

    Where values of the row can't be computed they are null, and a member `_errors` says why, see `tables.failed`.
    """
    writers = [(name, to_json(type_)) for name, type_ in typed_columns(definition)]
    errors = free_name(ERRORS, definition.columns)

    def write(row: Mapping[str, Any]) -> dict[str, Json] | None:
        if isinstance(row, FailingValues):
            failed = errors_json(row)
            return {name: None if name in failed else writer(row[name]) for name, writer in writers} | {errors: failed}
        return {name: writer(row[name]) for name, writer in writers} if row else None

    return write


def cut_json(cut: Cut) -> dict[str, Json]:
    """Where an answer comes from: batch, position, the four numbers of lag, job state."""
    return {
        "job": cut.job,
        "batch": cut.position.batch,
        "position": position_json(cut.position),
        "lag": _lag_json(cut.lag),
        "job_state": cut.job_state,
    }


def _lag_json(lag: Lag) -> dict[str, Json]:
    # Spelled out: dataclasses.asdict took a fifth of a whole lookup.
    return {
        "behind_batches": lag.behind_batches,
        "behind_seconds": lag.behind_seconds,
        "age_seconds": lag.age_seconds,
        "age_from": lag.age_from,
        "event_lag_seconds": lag.event_lag_seconds,
    }


def position_json(position: Position) -> dict[str, Json]:
    """A position: times in milliseconds since 1970 UTC, offsets as Spark wrote them."""
    return {
        "offsets": position.offsets,
        "watermark_ms": position.watermark_ms,
        "batch_started_ms": position.batch_started_ms,
        "committed_ms": position.committed_ns // 1_000_000,
    }


def answer_json(table: str, rows: Rows, write: WriteRow, *, gaps: bool) -> dict[str, Json]:
    """An answer.

    gaps:  whether a row that isn't there is null in `rows`, or left out
    """
    present: Iterable[Row] = rows if gaps else [row for row in rows if row]
    return {
        "table": table,
        **cut_json(rows.cut),
        "rows": [write(row) for row in present],
        "changed": [row.changed_batch for row in present],
        "final": [place for place, row in enumerate(rows) if row.final],
        **_misses_json(rows),
    }


def without_rows_json(table: str, rows: Rows) -> dict[str, Json]:
    """An answer without what it says of rows that are there."""
    return {"table": table, **cut_json(rows.cut), **_misses_json(rows)}


def _misses_json(rows: Rows) -> dict[str, Json]:
    return {
        "evicted": [place for place, row in enumerate(rows) if row.evicted],
        "maybe_evicted": [place for place, row in enumerate(rows) if row.evicted is None],
        "more": rows.more,
        "token": rows.token,
    }


def changes_json(table: str, changes: Changes, write: WriteRow) -> dict[str, Json]:
    """Changes of rows, in order."""
    entries = [
        {
            "kind": change.kind,
            "batch": change.batch,
            "first_batch": change.first_batch,
            "old": write(change.old or {}),
            "new": write(change.new or {}),
            "final": write(change.final or {}),
        }
        for change in changes
    ]
    return {"table": table, **cut_json(changes.cut), "changes": entries, "more": changes.more, "token": changes.token}


def versions_json(table: str, versions: Versions, write: WriteRow) -> dict[str, Json]:
    """Versions of rows, by key, then by batch."""
    entries = [
        {
            "row": write(version.row),
            "kind": version.kind,
            "batch": version.batch,
            "until_batch": version.until_batch,
            "committed_ms": version.committed_ms,
            "until_ms": version.until_ms,
        }
        for version in versions
    ]
    return {"table": table, **cut_json(versions.cut), "versions": entries, "more": versions.more}


def event_json(table: str, answer: EventAnswer) -> dict[str, Json]:
    """Where one event is."""
    return {
        "table": table,
        **cut_json(answer.cut),
        "batch_read": answer.batch_read,
        "applied": answer.applied,
        "late": answer.late,
        "reason": answer.reason,
    }


def kept_cut_json(table: str, kept: CutToken) -> dict[str, Json]:
    """A batch that stays readable for a while."""
    return {"table": table, **cut_json(kept.cut), "cut": kept.token, "seconds": kept.seconds}


def aligned_json(tables: Mapping[str, Table]) -> dict[str, Json]:
    """At which batch each table has read the same input."""
    entries = [{"table": name, **cut_json(table.get_all(()).cut)} for name, table in tables.items()]
    return {"tables": entries}


def count_json(table: str, count: Count) -> dict[str, Json]:
    """A number of rows."""
    return {"table": table, **cut_json(count.cut), "count": int(count)}


def describe_table(name: str, count: Count, definition: TableDefinition) -> dict[str, Json]:
    """A table: what it means, how many rows it has, and where that comes from.

    count, definition:  of the table, in this order: a table that nobody defined takes its shape from the state that was counted
    """
    return {"table": name, **cut_json(count.cut), "row_count": int(count), **definition_json(definition)}


def definition_json(definition: TableDefinition) -> dict[str, Json]:
    """What a table means: its columns with Spark's types, and which of them are buffers as stored (`raw` says why)."""
    key = [{"name": c.name, "type": str(c.type), "key": True, "raw": None} for c in definition.key]
    values = [{"name": c.name, "type": str(c.type), "key": False, "raw": c.raw} for c in definition.values]
    return {
        "key": [c.name for c in definition.key],
        "columns": key + values,
        "derived": definition.derived,
        "warnings": list(definition.warnings),
        "retention": retention_json(definition.retention),
    }


def error_json(error: MillpondError) -> dict[str, Json]:
    """An error, its context flattened to what JSON can say."""
    return {
        "error": {
            "condition": error.condition,
            "message": error.message,
            "hint": error.hint,
            "context": {name: _plain(fact) for name, fact in error.context.items()},
        }
    }


def _plain(fact: Any) -> Json:
    if fact is None or isinstance(fact, (bool, int, float, str)):
        return fact
    if isinstance(fact, (list, tuple, set, frozenset)):
        return [_plain(item) for item in fact]
    return str(fact)
