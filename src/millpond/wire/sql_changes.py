"""The JSON of what a batch changed in the answer of a statement."""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.tables.sql.subscribe import SqlChanges, SqlKind
from millpond.wire.answers import FromCut, SqlColumn, cut_json
from millpond.wire.rows import JsonRow, columns_writer


class SqlChangeJson(msgspec.Struct, frozen=True, kw_only=True):
    """One row's change: the row before and after; null if there was none."""

    kind: SqlKind
    old: JsonRow | None
    new: JsonRow | None


class SqlChangesJson(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch changed in an answer since an earlier batch; null for the first one."""

    columns: list[SqlColumn]
    since_batch: int | None
    changes: list[SqlChangeJson]
    jobs: list[FromCut]


def sql_changes_json(changes: SqlChanges) -> SqlChangesJson:
    """Raises WRONG_TYPE for a type that Spark lacks."""
    types = changes.answer.types()
    write = columns_writer(types)

    def shown(row: dict[str, Any] | None) -> JsonRow | None:
        return None if row is None else write(row) or {}

    return SqlChangesJson(
        columns=[SqlColumn(name=name, type=str(type_)) for name, type_ in types],
        since_batch=changes.since_batch,
        changes=[SqlChangeJson(kind=c.kind, old=shown(c.old), new=shown(c.new)) for c in changes],
        jobs=[cut_json("", changes.cut)],
    )
