"""The table of a store without a plan, with sensible names for its columns.

Nobody defined it, or its operator only has a name (see `operator_name`).

    aggregation          its keys (a window as <name>_start and <name>_end), the buffers under the schema's own names
    session windows      the other keys, session_start; session_end, the buffers
    dropDuplicates       its columns; expires_at within a watermark
    limit                rows_so_far
    join, of each side   key (key_1, key_2, …), index or event_time and index; the row, matched
    applyInPandasWithState   its keys; the state's columns, expires_at (NULL if no timeout is set)
    transformWithState, of each variable
        value            its keys; the value's columns
        list             its keys, index; the element's columns
        map              its keys, the user's keys; the value's columns
        timers           its keys, expires_at
                         with a TTL also: expires_at

Columns that Millpond names keep their names; a user's column of the same name is numbered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millpond.schema.definition.expression import Expression, buffer_column
from millpond.schema.definition.table import KeyColumn, TableDefinition, ValueColumn, key_columns, unique_names
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, SparkType, atomic, is_window, struct_of

EXPIRES_AT = "expires_at"
INDEX = "index"
TIMESTAMP = atomic("timestamp")
_LONG, _BOOLEAN, _INTEGER = atomic("long"), atomic("boolean"), atomic("integer")


@dataclass(slots=True)
class _Columns:
    """Columns under their intended names; `our_…` are the places of those that Millpond names."""

    key: list[KeyColumn] = field(default_factory=list)
    values: list[tuple[str, SparkType, Expression]] = field(default_factory=list)
    our_keys: set[int] = field(default_factory=set)
    our_values: set[int] = field(default_factory=set)

    def add_key(self, column: KeyColumn) -> None:
        """Add a key column that Millpond names."""
        self.our_keys.add(len(self.key))
        self.key.append(column)

    def add_value(self, name: str, type_: SparkType, expression: Expression) -> None:
        """Add a value column that Millpond names."""
        self.our_values.add(len(self.values))
        self.values.append((name, type_, expression))

    def names(self) -> list[str]:
        """All names, each once: ours stay; of other equal names, the later ones are numbered."""
        wished = [c.name for c in self.key] + [name for name, _, _ in self.values]
        places = self.our_keys | {len(self.key) + i for i in self.our_values}
        ours = [wished[i] for i in sorted(places)]
        numbered = iter(unique_names(ours + [name for i, name in enumerate(wished) if i not in places])[len(ours) :])
        return [name if i in places else next(numbered) for i, name in enumerate(wished)]


def undefined_table(table: str, schema: StoreSchema, reason: str | None = None) -> TableDefinition:
    """The definition of a store without one.

    reason:  why it shows what is stored, said as the table's warning and of each of its columns;
             None if this is all there is to show, since a user named the table
    """
    columns = _columns(schema)
    if schema.many:
        columns.add_key(KeyColumn(INDEX, _INTEGER, len(schema.key)))
    names = columns.names()
    key = tuple(KeyColumn(name, c.type, c.index, c.path) for name, c in zip(names, columns.key, strict=False))
    values = tuple(
        ValueColumn(name, type_, expression, reason)
        for name, (_, type_, expression) in zip(names[len(key) :], columns.values, strict=True)
    )
    return TableDefinition(
        table=table,
        operator=schema.operator,
        store=schema.store,
        family=schema.family,
        many=schema.many,
        key=key,
        values=values,
        key_schema=schema.key,
        value_schema=schema.value,
        derived=reason is None,
        warnings=() if reason is None else (reason,),
    )


def table_suffix(schema: StoreSchema) -> str:
    """The suffix of the table's name: a join's side, the name of a state variable, `timers`."""
    if schema.variable == "timer":
        return "_timers"
    if schema.variable:
        return f"_{schema.family}"
    side = (schema.family or schema.store).partition("-")[0]
    return f"_{side}" if side in ("left", "right") else ""


def _columns(schema: StoreSchema) -> _Columns:
    if schema.variable:
        return _variable(schema)
    if schema.operator_name == "sessionWindowStateStoreSaveExec":
        return _sessions(schema)
    if schema.operator_name == "symmetricHashJoin":
        return _join_side(schema)
    if schema.operator_name == "applyInPandasWithState":
        return _apply(schema)
    columns = _Columns(list(key_columns(schema.key)))
    if schema.operator_name == "globalLimit":
        columns.key = []
        columns.add_value("rows_so_far", _LONG, buffer_column(0, _LONG))
    elif schema.operator_name == "dedupeWithinWatermark" and schema.value:
        _add_expiry(columns, Expression("timestamp_micros", TIMESTAMP, (buffer_column(0, _LONG),)))
    else:
        _add_buffers(columns, schema.value, range(len(schema.value)))
    return columns


def _variable(schema: StoreSchema) -> _Columns:
    columns = _Columns()
    if schema.variable in ("map", "timer"):
        members = [(i, f) for i, f in enumerate(schema.key) if f.type.kind == "struct"]
        columns.key = [KeyColumn(m.name, m.type, i, (m.name,)) for i, f in members for m in f.type.fields]
    else:
        columns.key = [KeyColumn(f.name, f.type, i) for i, f in enumerate(schema.key)]
    if schema.variable == "timer":
        columns.add_key(KeyColumn(EXPIRES_AT, TIMESTAMP, len(schema.key) - 1))
    elif schema.ttl:
        _add_members(columns, 0, schema.value[0].type)
        _add_expiry(columns, Expression("timestamp_millis", TIMESTAMP, (buffer_column(1, _LONG),)))
    else:
        _add_buffers(columns, schema.value, range(len(schema.value)))
    return columns


def session_place(key: tuple[Field, ...], value: tuple[Field, ...]) -> int | None:
    """The place of the session, a struct of start and end, in the value row; None if the row differs.

    Shape:  the value row is all grouping columns, the session as a window among them, and then the
            buffers.
    """
    grouping = value[: len(key)]
    others = [f.type for f in key[:-1]]
    places = [
        i for i, f in enumerate(grouping) if is_window(f.type) and [g.type for j, g in enumerate(grouping) if j != i] == others
    ]
    named = [i for i in places if [g.name for j, g in enumerate(grouping) if j != i] == [f.name for f in key[:-1]]]
    found = named or places
    return found[0] if found else None


def _sessions(schema: StoreSchema) -> _Columns:
    session = session_place(schema.key, schema.value)
    columns = _Columns(list(key_columns(schema.key)))
    if session is None:  # nothing is left out
        _add_buffers(columns, schema.value, range(len(schema.value)))
        return columns
    columns.key.pop()
    columns.add_key(KeyColumn("session_start", TIMESTAMP, len(schema.key) - 1))
    window = schema.value[session].type
    end = Expression("get_field", TIMESTAMP, (buffer_column(session, window),), {"ordinal": 1})
    columns.add_value("session_end", TIMESTAMP, end)
    _add_buffers(columns, schema.value, range(len(schema.key), len(schema.value)))
    return columns


def _join_side(schema: StoreSchema) -> _Columns:
    *joined, last = schema.key
    names = ["key"] if len(joined) == 1 else [f"key_{n}" for n in range(1, len(joined) + 1)]
    keys = tuple(Field(name, f.type) for name, f in zip(names, joined, strict=True))
    columns = _Columns()
    for column in key_columns(keys):
        columns.add_key(column)
    columns.add_key(KeyColumn("event_time" if schema.many else INDEX, last.type, len(joined)))
    _add_buffers(columns, schema.value, range(len(schema.value)))
    if schema.value and schema.value[-1].name == "matched" and schema.value[-1].type == _BOOLEAN:
        columns.our_values.add(len(columns.values) - 1)
    return columns


def _apply(schema: StoreSchema) -> _Columns:
    columns = _Columns(list(key_columns(schema.key)))
    rest = range(len(schema.value))
    if schema.value and schema.value[0].name == "groupState" and schema.value[0].type.kind == "struct":
        _add_members(columns, 0, schema.value[0].type)
        rest = range(1, len(schema.value))
    for i in rest:
        if schema.value[i].name == "timeoutTimestamp" and schema.value[i].type == _LONG:
            stored = buffer_column(i, _LONG)
            none = Expression("lt", _BOOLEAN, (stored, Expression("literal", _LONG, options={"value": 0})))
            never = Expression("literal", TIMESTAMP, options={"value": None})
            time = Expression("timestamp_millis", TIMESTAMP, (stored,))
            _add_expiry(columns, Expression("if", TIMESTAMP, (none, never, time)))
        else:
            _add_buffers(columns, schema.value, (i,))
    return columns


def _add_buffers(columns: _Columns, fields: tuple[Field, ...], places: range | tuple[int, ...]) -> None:
    # A void column holds nothing (dropDuplicates writes one called __dummy__).
    columns.values += [
        (fields[i].name, fields[i].type, buffer_column(i, fields[i].type)) for i in places if fields[i].type.kind != "void"
    ]


def _add_members(columns: _Columns, place: int, type_: SparkType) -> None:
    """The members of a struct as columns."""
    whole = buffer_column(place, struct_of(type_.fields))
    columns.values += [
        (member.name, member.type, Expression("get_field", member.type, (whole,), {"ordinal": ordinal}))
        for ordinal, member in enumerate(type_.fields)
    ]


def _add_expiry(columns: _Columns, expression: Expression) -> None:
    columns.add_value(EXPIRES_AT, TIMESTAMP, expression)
