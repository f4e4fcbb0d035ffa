"""A definition bound to what one generation of the replica holds: which rows, how their keys and values are decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import CONDITIONS, DefinitionError
from millpond.replica.backends.base import Snapshot
from millpond.replica.history import as_of as history
from millpond.replica.history.as_of import NumberedChange, kept_of
from millpond.replica.history.delete_cause import closes_windows, may_expire
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.merged.changes import iter_merged_changes
from millpond.replica.merged.snapshot import SnapshotOfParts, StoreParts, check_parts
from millpond.replica.record import ReplicaRecord, StoresRecord
from millpond.replica.replica import View
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema, store_id
from millpond.schema.types import Field, shape_of
from millpond.tables.finish.definition import Finish, compile_definition
from millpond.tables.finish.merge_rows import store_parts

Define = Callable[[StoreSchema], TableDefinition]


@dataclass(frozen=True, slots=True)
class Binding:
    """What it takes to read rows of one generation of the replica.

    schema:        of the rows: the store's, without the column that tells their parts
    table:         its name in the replica
    ttl:           whether its rows have a TTL, which may have passed (`expiry`)
    may_expire:    whether a watermark or a TTL takes rows out of it and they are kept
    closes_windows:  whether these are finished windows
    parts:         how the rows lie in parts, None where they don't
    """

    stores: StoresRecord
    definition: TableDefinition
    schema: StoreSchema
    table: str
    many: bool
    codec: KeyCodec
    decode_value: Callable[[bytes], tuple[Any, ...]]
    finish: Finish
    ttl: bool
    may_expire: bool
    closes_windows: bool
    parts: StoreParts | None

    def rows(self, rows: Snapshot, record: ReplicaRecord) -> Snapshot:
        """The rows of a view, those of all parts merged.  Raises DEFINITION_MISMATCH where it has parts that aren't known."""
        parts = self.parts
        if parts is None:
            return rows
        if parts.checked != record.batch:
            now = rows.newest if isinstance(rows, history.SnapshotAsOf) else rows
            check_parts(now, parts, may_expire=self.may_expire)
            parts.checked = record.batch
        return SnapshotOfParts(rows, parts, kept_of(record, self.table).closed_forgotten)


def bind(definition: TableDefinition, stores: StoresRecord, define: Define | None) -> Binding:
    """How to read a table from this generation.

    define:  defines the table anew by what its store looks like now, where that is its definition
    Raises:  DEFINITION_MISMATCH where the state isn't what the definition says; why its store can't be read.
    """
    for schema in stores.stores:
        if (schema.operator, schema.store, schema.family) == definition.store_id:
            if define is not None:
                definition = define(schema)
            check_schemas(definition, schema.key, schema.value)
            finish = compile_definition(definition)
            parts = store_parts(definition, schema)
            if parts is not None:
                schema = replace(schema, key=schema.key[1:], watermarked=tuple(i - 1 for i in schema.watermarked))
            return Binding(
                stores,
                definition,
                schema,
                schema.id,
                schema.many,
                KeyCodec(schema.key),
                decoder(schema.value),
                finish,
                schema.ttl,
                may_expire(schema),
                closes_windows(schema),
                parts,
            )
    for unread in stores.unread:
        if unread.operator == definition.operator:
            kind = CONDITIONS[unread.condition].kind
            raise kind(unread.condition, unread.message, hint=unread.hint, table=definition.table)
    raise store_missing(definition)


def store_number(view: View, binding: Binding) -> int:
    """The table's number among the replica's stores."""
    return [store.id for store in view.stores.stores].index(binding.table)


def iter_changes(view: View, binding: Binding, first: int, number: int = 0) -> Iterator[NumberedChange]:
    """The changes of a table from a batch on, in order; those of parts as changes of the merged rows."""
    store = store_number(view, binding)
    if binding.parts is None:
        return history.iter_changes(view.rows, store, first, number)
    return iter_merged_changes(view.rows, view.stores, view.record, store, binding.parts, first, number)


def store_missing(definition: TableDefinition) -> DefinitionError:
    """The state has no such store."""
    return DefinitionError(
        "DEFINITION_MISMATCH",
        f"{definition.table} is defined on store {store_id(*definition.store_id)}, which isn't there.",
        hint="Define the table again with the DataFrame that the job runs.",
        table=definition.table,
    )


def check_schemas(definition: TableDefinition, key: tuple[Field, ...], value: tuple[Field, ...]) -> None:
    """Hold the definition against the state's schema, position by position, by type: names count for nothing.

    Raises:  DEFINITION_MISMATCH, naming the first difference, or a column that the definition alone takes for a window.
    """
    for what, defined, found in (("key", definition.stored_key, key), ("value", definition.value_schema, value)):
        here, there = [shape_of(f.type) for f in defined], [shape_of(f.type) for f in found]
        if here != there:
            raise DefinitionError(
                "DEFINITION_MISMATCH",
                f"{definition.table} is defined on {what} columns ({', '.join(map(str, (f.type for f in defined)))}), "
                f"but the state has ({', '.join(map(str, (f.type for f in found)))}).",
                hint="Define the table again with the DataFrame that the job runs.",
                table=definition.table,
            )
    _check_windows(definition, key)


def _check_windows(definition: TableDefinition, key: tuple[Field, ...]) -> None:
    """Hold what a definition shows as a window's start and end against what Spark's schema says is a window.

    Older versions showed a user's struct of times so, and then a struct that is NULL looks like one of NULLs.
    """
    before = len(definition.stored_key) - len(definition.key_schema)
    for column in definition.key:
        # The keys of a variable of transformWithState are structs that are no columns of their own.
        if column.path and not definition.family and not key[before + column.index].window:
            raise DefinitionError(
                "DEFINITION_MISMATCH",
                f"{definition.table} shows {column.name} as a part of a window, but Spark's schema doesn't call that column one.",
                hint="Define the table again with the DataFrame that the job runs.",
                table=definition.table,
                column=column.name,
            )
