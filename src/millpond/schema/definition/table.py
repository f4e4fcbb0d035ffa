"""The definition of a table: the meaning of a state store's columns.

Positions count, not names: Spark's schema check ignores names, and buffers of two aggregates may
have the same name.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any

from millpond.errors import DefinitionError, MillpondError, RequestError
from millpond.schema.definition.expression import Expression, parse_expression
from millpond.schema.definition.fits import check_expressions, check_key_column, check_value_column
from millpond.schema.definition.indexes import Indexes, check_indexes, indexes_json, parse_indexes_json
from millpond.schema.definition.meaning import Meaning, parse_meaning
from millpond.schema.definition.parts import Parts, parse_parts
from millpond.schema.definition.resolutions import COLUMNS, Resolutions, parse_resolutions
from millpond.schema.definition.retention import parse_retention_json, retention_json
from millpond.schema.strict_json import DAMAGE
from millpond.schema.types import Field, SparkType, atomic, is_window, parse_fields, parse_type, struct_of
from millpond.settings import Retention

Json = Any
FORMAT = 1
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,127}")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key: `index` in the state's key row, and `path` inside a struct such as a window."""

    name: str
    type: SparkType
    index: int
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """A column computed from key and buffers; `raw` says why it is a stored buffer, None if it isn't."""

    name: str
    type: SparkType
    expression: Expression
    raw: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """The meaning of one state store.

    table:     the name readers use
    operator:  Spark's operator id, counted from the sink
    store:     Spark's store name
    family:    the column family; empty if the store has none
    retention: that of every follower, None if the follower decides
    many:      whether a key has a list of rows; the last key column is then the element's place in
               it, from 0
    key:       key columns in grouping order (a window gives two)
    values:    the other columns, in output order
    having:    a condition; only rows for which it is true are in the table
    parts:     how its rows lie in parts of the store, which reads merge; None if they don't
    resolutions: how its rows are buckets of time, which `total` and `series` merge; None if they
               aren't
    key_schema, value_schema:  the columns of the store's rows by the plan, without the column of
                               parts; held
               against the checkpoint's schema file, which also says which columns are windows
    derived:   False if nobody defined the table, so that it shows the schema's own names
    warnings:  what couldn't be derived and why, one sentence each
    session_time_zone:  of the job's session, as Spark names it; None if unknown.  Expressions that
                        depend on it also have it in their options (`zone`)
    meaning:   the words for its state, None without a plan; a later definition over the same
               checkpoint must have the same
    indexes:   the columns by which every follower sorts its rows besides the key
    """

    table: str
    operator: int
    key: tuple[KeyColumn, ...]
    values: tuple[ValueColumn, ...]
    key_schema: tuple[Field, ...]
    value_schema: tuple[Field, ...]
    store: str = "default"
    having: Expression | None = None
    derived: bool = True
    warnings: tuple[str, ...] = ()
    family: str = ""
    many: bool = False
    retention: Retention | None = None
    parts: Parts | None = None
    resolutions: Resolutions | None = None
    session_time_zone: str | None = None
    meaning: Meaning | None = None
    indexes: Indexes = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All column names, key first."""
        return tuple(c.name for c in self.key) + tuple(c.name for c in self.values)

    @property
    def types(self) -> dict[str, SparkType]:
        """The type of each column by its name."""
        return {c.name: c.type for c in self.key} | {c.name: c.type for c in self.values}

    @property
    def key_fields(self) -> tuple[Field, ...]:
        """The columns of readers' keys: those of the state's key row, and the place in the list."""
        return (*self.key_schema, Field("index", atomic("integer"))) if self.many else self.key_schema

    @property
    def stored_key(self) -> tuple[Field, ...]:
        """The columns of the state's key row."""
        return self.key_schema if self.parts is None else (self.parts.column, *self.key_schema)

    @property
    def store_id(self) -> tuple[int, str, str]:
        """Operator, store and column family."""
        return self.operator, self.store, self.family

    def to_json(self) -> Json:
        out: dict[str, Json] = {
            "format": FORMAT,
            "table": self.table,
            "operator": self.operator,
            "store": self.store,
            "key": [{"name": c.name, "type": c.type.to_json(), "index": c.index, "path": list(c.path)} for c in self.key],
            "values": [
                {"name": c.name, "type": c.type.to_json(), "expression": c.expression.to_json(), "raw": c.raw} for c in self.values
            ],
            "having": self.having.to_json() if self.having else None,
            "key_schema": struct_of(self.key_schema).to_json(),
            "value_schema": struct_of(self.value_schema).to_json(),
            "derived": self.derived,
            "warnings": list(self.warnings),
        }
        if self.family or self.many:
            out |= {"family": self.family, "many": self.many}
        if self.retention is not None:
            out["retention"] = retention_json(self.retention)
        if self.parts is not None:
            out["parts"] = self.parts.to_json()
        if self.resolutions is not None:
            out["resolutions"] = self.resolutions.to_json()
        if self.session_time_zone is not None:
            out["session_time_zone"] = self.session_time_zone
        if self.meaning is not None:
            out["meaning"] = self.meaning.to_json()
        if self.indexes:
            out["indexes"] = indexes_json(self.indexes)
        return out

    def over_parts(self, parts: Parts) -> TableDefinition:
        """The readers' definition of a table in parts: without the first column of the key."""
        key = tuple(replace(c, index=c.index - 1) for c in self.key if c.index)
        return replace(self, key=key, key_schema=self.key_schema[1:], parts=parts)

    def fingerprint(self) -> str:
        """A hash of all that decides what readers see: the columns, their meaning, and which rows.

        Names of buffers, the table's own name, warnings, retention and indexes aren't part of it.
        """
        data = self.to_json()
        for unimportant in ("table", "warnings", "derived", "retention", "session_time_zone", "meaning", "indexes"):
            data.pop(unimportant, None)
        for schema in ("key_schema", "value_schema"):
            data[schema] = [f["type"] for f in data[schema]["fields"]]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def describe(self) -> list[str]:
        """The definition in lines that a person can compare."""
        lines = [f"{c.name}: {c.type} (key)" for c in self.key]
        for column in self.values:
            functions = [_describe_aggregate(e) for e in column.expression.walk() if e.op == "aggregate"]
            source = ", ".join(functions) if functions else (column.raw or column.expression.op)
            lines.append(f"{column.name}: {column.type} from {source}")
        if self.having:
            lines.append("having: " + ", ".join(sorted({e.op for e in self.having.walk()})))
        if self.parts:
            lines.append(self.parts.describe())
        if self.resolutions:
            lines.append("buckets of " + ", ".join(f"{r} kept for {r.keep_words}" for r in self.resolutions.each))
        return lines


def _describe_aggregate(expression: Expression) -> str:
    options = expression.options
    text = options.get("sql") or options["function"]
    return f"{text} in buffers {options['buffers']}"


def parse_definition(data: Json) -> TableDefinition:
    """Turn the JSON form back into a definition.

    A table that nobody defined is called by its job's folder, which may have any name; names that
    somebody gave are checked by `parse_entry`.

    Raises:  DEFINITION_MISMATCH if its format is unknown, or it is damaged.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise DefinitionError(
            "DEFINITION_MISMATCH",
            f"The definition has format {found!r:.40}; this version reads format {FORMAT}.",
            hint="Read this table with the Millpond version that wrote its definition, or a newer one.",
        )
    try:
        return _parse(data)
    except (*DAMAGE, MillpondError) as broken:
        if isinstance(broken, DefinitionError):
            raise
        raise unreadable_definition(broken) from broken


def unreadable_definition(broken: Exception) -> DefinitionError:
    """The error for a definition that is damaged."""
    return DefinitionError(
        "DEFINITION_MISMATCH",
        f"The definition isn't readable: {broken!r:.200}.",
        hint="Define the table again with the DataFrame that the job runs.",
    )


def _parse(data: dict[str, Any]) -> TableDefinition:
    key = tuple(KeyColumn(c["name"], parse_type(c["type"]), c["index"], tuple(c["path"])) for c in data["key"])
    definition = TableDefinition(
        table=data["table"],
        operator=data["operator"],
        store=data["store"],
        key=key,
        values=tuple(
            ValueColumn(c["name"], parse_type(c["type"]), parse_expression(c["expression"]), c["raw"]) for c in data["values"]
        ),
        having=parse_expression(data["having"]) if data["having"] else None,
        key_schema=_with_windows(parse_fields(data["key_schema"]), key),
        value_schema=parse_fields(data["value_schema"]),
        derived=data["derived"],
        warnings=tuple(data["warnings"]),
        family=data.get("family", ""),
        many=data.get("many", False) is True,
        retention=parse_retention_json(data.get("retention")),
        parts=parse_parts(data.get("parts")),
        resolutions=parse_resolutions(data.get("resolutions")),
        session_time_zone=data.get("session_time_zone"),
        meaning=parse_meaning(data.get("meaning")),
        indexes=parse_indexes_json(data.get("indexes")),
    )
    _check_places(definition)
    _check_types(definition)
    check_indexes(definition, definition.indexes)
    return definition


def _check_types(definition: TableDefinition) -> None:
    """Raise ValueError if the table's name is no text, or a column hasn't the type as which it is read or computed."""
    if not isinstance(definition.table, str):
        raise ValueError("its name isn't one")
    keys = definition.key_fields
    for key in definition.key:
        check_key_column(key.name, key.type, keys[key.index], key.path)
    for column in definition.values:
        check_value_column(column.name, column.type, column.expression)
    expressions = [c.expression for c in definition.values] + ([definition.having] if definition.having else [])
    check_expressions(expressions, keys, definition.value_schema)


def _with_windows(fields: tuple[Field, ...], key: tuple[KeyColumn, ...]) -> tuple[Field, ...]:
    """The columns of a key row, with windows marked by the columns that show them.

    Older definitions have no other mark.
    """
    shown = {c.index for c in key if c.path}
    return tuple(replace(f, window=f.window or (i in shown and is_window(f.type))) for i, f in enumerate(fields))


def _check_places(definition: TableDefinition) -> None:
    """Raise ValueError if a place is outside the store's columns, or a part is of the wrong kind."""
    keys, buffers = range(len(definition.key_fields)), range(len(definition.value_schema))
    expressions = [c.expression for c in definition.values] + ([definition.having] if definition.having else [])
    expressions += (definition.parts.merges if definition.parts else None) or ()
    expressions += definition.resolutions.merges if definition.resolutions else ()
    if definition.resolutions and not {c.name for c in definition.key}.issuperset(COLUMNS):
        raise ValueError("it has resolutions, but not their key columns")
    nodes = [node for expression in expressions for node in expression.walk()]
    places = [(c.index, keys) for c in definition.key]
    places += [(n.options["index"], keys if n.op == "key" else buffers) for n in nodes if n.op in ("key", "buffer")]
    places += [(place, buffers) for n in nodes if n.op == "aggregate" for place in n.options["buffers"]]
    if any(not isinstance(place, int) or isinstance(place, bool) or place not in within for place, within in places):
        raise ValueError("it names a column that the state doesn't have")
    if not all(n.options["buffers"] for n in nodes if n.op == "aggregate"):
        raise ValueError("an aggregate has no buffers")
    texts = (
        definition.table,
        definition.store,
        definition.family,
        *definition.columns,
        *definition.warnings,
        *(m for c in definition.key for m in c.path),
        definition.session_time_zone or "",
    )
    if not all(isinstance(text, str) for text in texts) or not isinstance(definition.operator, int):
        raise ValueError("a name isn't one")


def key_columns(key_schema: tuple[Field, ...]) -> tuple[KeyColumn, ...]:
    """The key columns for readers: one of Spark's windows becomes `<name>_start` and `<name>_end`.

    Every other struct stays one column.
    """
    columns: list[KeyColumn] = []
    for index, field in enumerate(key_schema):
        if field.window:
            columns += [
                KeyColumn(f"{field.name}_{member.name}", member.type, index, (member.name,)) for member in field.type.fields
            ]
        else:
            columns.append(KeyColumn(field.name, field.type, index))
    # A column keeps its own name; names of a window's members, which are made here, are numbered if
    # they collide.
    whole = [c.name for c in columns if not c.path]
    numbered = unique_names(whole + [c.name for c in columns if c.path])
    plain, members = iter(numbered[: len(whole)]), iter(numbered[len(whole) :])
    return tuple(KeyColumn(next(members if c.path else plain), c.type, c.index, c.path) for c in columns)


def key_parts(definition: TableDefinition) -> tuple[KeyColumn, ...]:
    """The names in a part of a key: the key columns, and members of structs as `<name>.<member>`."""
    taken = set(definition.columns)
    members = [m for c in definition.key if c.type.kind == "struct" and not c.path for m in _members(c)]
    return (*definition.key, *(m for m in members if m.name not in taken))


def _members(column: KeyColumn) -> list[KeyColumn]:
    """The members of a struct, and their members."""
    out: list[KeyColumn] = []
    for field in column.type.fields:
        member = KeyColumn(f"{column.name}.{field.name}", field.type, column.index, (*column.path, field.name))
        out.append(member)
        if field.type.kind == "struct":
            out += _members(member)
    return out


def unique_names(names: list[str]) -> list[str]:
    """The names in order, later ones of the same name numbered: count, sum, count_2."""
    taken = set(names)
    seen: set[str] = set()
    out: list[str] = []
    for name in names:
        candidate, n = name, 2
        while candidate in seen or (candidate != name and candidate in taken):
            candidate, n = f"{name}_{n}", n + 1
        seen.add(candidate)
        out.append(candidate)
    return out


def check_table_name(name: str) -> str:
    """Return the name of a table or job, if it is valid.

    Names become file names and parts of URLs.

    Raises:  INVALID_NAME.
    """
    if not _TABLE_NAME.fullmatch(name):
        raise RequestError(
            "INVALID_NAME",
            f"{name!r} can't be the name of a table or job.",
            hint="Use a letter or underscore, then letters, digits, underscores, dots or hyphens, at most 128.",
            name=name,
        )
    return name
