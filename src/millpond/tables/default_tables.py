"""Tables of stores that nobody defined, named after their operator; and why a name has no table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from millpond.catalogue import JobFolder
from millpond.checkpoint.operators import SHORT_NAMES
from millpond.errors import CONDITIONS, DefinitionError, MillpondError, RequestError
from millpond.replica.record import StoresRecord
from millpond.schema.definition.default_table import table_suffix, undefined_table
from millpond.schema.definition.operator_name import Entry, NamedOperator
from millpond.schema.definition.parts import computed_columns
from millpond.schema.definition.table import TableDefinition, ValueColumn, unique_names
from millpond.schema.store import StoreSchema
from millpond.tables.scan.binding import Define

StoredTable = tuple[TableDefinition, Define]
"""a definition, and a function that defines the table again if its store's schema has changed"""
_UNDEFINED = "nobody defined this table: it shows the state's own columns"


def stored_tables(folder: JobFolder, stores: StoresRecord, entries: Iterable[Entry]) -> Iterator[StoredTable]:
    """A definition for each store that has none in `entries`, named after its operator if it can be."""
    defined = {entry.store_id for entry in entries if isinstance(entry, TableDefinition)}
    named = {(e.operator, e.operator_name): e for e in entries if isinstance(e, NamedOperator)}
    schemas = [schema for schema in stores.stores if (schema.operator, schema.store, schema.family) not in defined]
    owners = [named.get((schema.operator, schema.operator_name)) for schema in schemas]
    words = [SHORT_NAMES.get(schema.operator_name, "state") for schema in schemas]
    names = [
        (owner.table if owner else f"{folder.job}.{word}_{schema.operator}") + table_suffix(schema)
        for schema, owner, word in zip(schemas, owners, words, strict=True)
    ]
    # A state variable may have the name of the table of its timers.
    for schema, owner, name in zip(schemas, owners, unique_names(names), strict=True):
        definition = _stored_table(name, schema, owner)
        yield definition, _definer(definition, schema, owner)


def _stored_table(name: str, schema: StoreSchema, owner: NamedOperator | None) -> TableDefinition:
    """The definition of a store of which only the operator's name is known."""
    definition = undefined_table(name, schema, None if owner else _UNDEFINED)
    if owner is None:
        return definition
    is_timer = schema.variable in ("", "timer")
    parts = None if owner.parts is None or is_timer else owner.parts.of(schema.family, schema.key, schema.value)
    if parts is not None and owner.parts is not None:
        definition = _with_computed(definition.over_parts(parts), owner.parts.computed.get(schema.family, {}))
    return replace(definition, retention=owner.retention)


def _with_computed(definition: TableDefinition, made: Mapping[str, Sequence[str]]) -> TableDefinition:
    """The definition with columns that are made of others."""
    stored = [(c.name, i, c.type) for i, c in enumerate(definition.value_schema)]
    values = list(definition.values)
    for name, of, is_instead, expression in computed_columns(stored, made):
        place = next((i for i, c in enumerate(values) if c.name == of), len(values))
        values[place + (not is_instead) : place + 1] = [ValueColumn(name, expression.type, expression)]
    return replace(definition, values=tuple(values))


def _definer(definition: TableDefinition, schema: StoreSchema, owner: NamedOperator | None) -> Define:
    """A function that defines the table again if the job's state has changed its schema."""

    def define(now: StoreSchema) -> TableDefinition:
        if (now.operator_name, now.variable) != (schema.operator_name, schema.variable):
            return definition  # another operator has this number now
        return _stored_table(definition.table, now, owner)

    return define


def why_hidden(entry: NamedOperator, stores: StoresRecord) -> MillpondError | None:
    """Why no table has this name: its operator can't be read, is missing or is another; else None."""
    kinds = {s.operator_name for s in stores.stores if s.operator == entry.operator}
    if entry.operator_name in kinds:
        return None
    for unread in stores.unread:
        if unread.operator == entry.operator and not kinds:
            return CONDITIONS[unread.condition].kind(unread.condition, unread.message, hint=unread.hint, table=entry.table)
    there = f"is {', '.join(sorted(kinds))}" if kinds else "isn't there"
    return DefinitionError(
        "DEFINITION_MISMATCH",
        f"{entry.table} names the tables of operator {entry.operator}, {entry.operator_name}, but that operator {there}.",
        hint="Define the table again with the DataFrame that the job runs.",
        table=entry.table,
    )


def unknown_table(name: str, uri: str, tables: Iterable[str]) -> RequestError:
    """There is no table of that name; the hint lists the tables that exist."""
    names = sorted(tables)
    known = ", ".join(difflib.get_close_matches(name, names, n=3) or names[:10])
    return RequestError(
        "UNKNOWN_TABLE",
        f"There is no table {name!r} in {uri}.",
        hint=f"Did you mean: {known}?" if known else "Start a job with `millpond.start`, or define a table on its checkpoint.",
        table=name,
    )
