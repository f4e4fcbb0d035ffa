"""A definition bound to one generation of the replica: which rows, and how to decode them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from millpond.checkpoint.operators import UnreadStore
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import CONDITIONS, DefinitionError
from millpond.replica.backends.base import Snapshot
from millpond.replica.history import as_of as history
from millpond.replica.history.as_of import NumberedChange, kept_of
from millpond.replica.history.delete_cause import closes_windows, may_expire
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.merged.changes import iter_merged_changes
from millpond.replica.merged.snapshot import SnapshotOfParts, StoreParts, check_parts
from millpond.replica.record import IndexRecord, ReplicaRecord, StoresRecord
from millpond.replica.replica import View
from millpond.schema.definition.indexes import Index, digest_of
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema, store_id
from millpond.schema.types import Field, shape_of
from millpond.tables.finish.definition import Finish, compile_definition
from millpond.tables.finish.merge_rows import store_parts

Define = Callable[[StoreSchema], TableDefinition]


@runtime_checkable
class StoredElsewhere(Protocol):
    """A snapshot of rows that others have, who give them by an index too, and check their parts."""

    @property
    def is_earlier(self) -> bool:
        """Whether it is of a batch before the newest, as its history shows it."""

    def by_index(self, number: int, low: bytes, high: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
        """As `iter_by_index`, with expired rows if the table shows them."""


@dataclass(frozen=True, slots=True)
class Binding:
    """How to read rows of one generation of the replica.

    schema:        of the rows: the store's schema without the column that names the part
    table:         the table's name in the replica
    ttl:           whether its rows have a TTL (`ttl`)
    may_expire:    whether a watermark or a TTL removes rows from the state, and the replica keeps
                   them
    closes_windows:  whether the removed rows are finished windows
    parts:         how the rows lie in parts, None if they don't
    indexes:       the number of each index that this generation has for this definition, by columns
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
    indexes: Mapping[Index, int]

    def rows(self, rows: Snapshot, record: ReplicaRecord) -> Snapshot:
        """The rows of a view, those of all parts merged.

        Raises:  DEFINITION_MISMATCH if it has parts of an unknown kind.
        """
        parts = self.parts
        if parts is None:
            return rows
        now = rows.newest if isinstance(rows, history.SnapshotAsOf) else rows
        if parts.checked != record.batch and not isinstance(now, StoredElsewhere):
            check_parts(now, parts, may_expire=self.may_expire)
            parts.checked = record.batch
        return SnapshotOfParts(rows, parts, kept_of(record, self.table).closed_forgotten)


def is_earlier(rows: Snapshot) -> bool:
    """Whether rows are of a batch before the newest, as their history shows them."""
    return rows.is_earlier if isinstance(rows, StoredElsewhere) else isinstance(rows, history.SnapshotAsOf)


def bind(definition: TableDefinition, stores: StoresRecord, define: Define | None) -> Binding:
    """How to read a table from this generation.

    define:  defines the table again by its store's schema, if no user defined it
    Raises:  DEFINITION_MISMATCH if state and definition differ; the error of a store that can't be
             read.
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
                _indexes(definition, stores.indexes.get(schema.id, ())),
            )
    for unread in stores.unread:
        if unread.operator == definition.operator:
            kind = CONDITIONS[unread.condition].kind
            raise kind(unread.condition, unread.message, hint=unread.hint, table=definition.table)
    raise store_missing(definition)


def _indexes(definition: TableDefinition, records: tuple[IndexRecord, ...]) -> dict[Index, int]:
    """The indexes whose entries have this definition's values."""
    if not records:
        return {}
    fingerprint = definition.fingerprint()
    return {r.columns: number for number, r in enumerate(records) if r.digest == digest_of(fingerprint, r.columns)}


def store_number(view: View, binding: Binding) -> int:
    """The table's number among the replica's stores."""
    return [store.id for store in view.stores.stores].index(binding.table)


def iter_changes(view: View, binding: Binding, first: int, number: int = 0) -> Iterator[NumberedChange]:
    """The changes of a table from a batch on, in order; changes of parts as changes of merged rows."""
    store = store_number(view, binding)
    if binding.parts is None:
        return history.iter_changes(view.rows, store, first, number)
    return iter_merged_changes(view.rows, view.stores, view.record, store, binding.parts, first, number)


def store_of(definition: TableDefinition, stores: list[StoreSchema], unread: list[UnreadStore]) -> StoreSchema:
    """The store of a table in a checkpoint.

    Raises:  DEFINITION_MISMATCH if state and definition differ; the error of a store that can't be
             read.
    """
    for schema in stores:
        if (schema.operator, schema.store, schema.family) == definition.store_id:
            check_schemas(definition, schema.key, schema.value)
            return schema
    for store in unread:
        if store.operator == definition.operator:
            raise store.error
    raise store_missing(definition)


def store_missing(definition: TableDefinition) -> DefinitionError:
    """The state has no such store."""
    return DefinitionError(
        "DEFINITION_MISMATCH",
        f"{definition.table} is defined on store {store_id(*definition.store_id)}, which the state doesn't have.",
        hint="Define the table again with the DataFrame that the job runs.",
        table=definition.table,
    )


def check_schemas(definition: TableDefinition, key: tuple[Field, ...], value: tuple[Field, ...]) -> None:
    """Compare the types of the definition with the state's schema, position by position.

    Names don't matter.

    Raises:  DEFINITION_MISMATCH, which names the first difference, or a column that only the
             definition takes for a window.
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
    """Check that Spark's schema calls a window what the definition shows as one.

    Older versions showed a user's struct of times as a window.  A NULL struct then looks like a
    struct of NULLs.
    """
    before = len(definition.stored_key) - len(definition.key_schema)
    for column in definition.key:
        # The keys of a variable of transformWithState are structs, but not columns of their own.
        if column.path and not definition.family and not key[before + column.index].window:
            raise DefinitionError(
                "DEFINITION_MISMATCH",
                f"{definition.table} shows {column.name} as a part of a window, but Spark's schema doesn't call that column one.",
                hint="Define the table again with the DataFrame that the job runs.",
                table=definition.table,
                column=column.name,
            )
