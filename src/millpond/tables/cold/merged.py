"""The rows of a store that lie in parts, straight from a checkpoint, collected by key and merged.

Memory holds the whole store, decoded, since a key's parts lie in different partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import DefinitionError
from millpond.replica.keys.codec import KeyCodec
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.tables.finish.merge_rows import Row, compile_merge


class MergedRows:
    """Collects the rows of a store in any order, but the rows of a list in the list's order."""

    def __init__(self, definition: TableDefinition, schema: StoreSchema) -> None:
        """Raises DEFINITION_MISMATCH, as `compile_merge`."""
        assert definition.parts is not None
        self._definition, self._parts, self._many = definition, definition.parts, schema.many
        self._places = {definition.parts.key(value): place for place, value in enumerate(definition.parts.values)}
        self._merge = compile_merge(definition, definition.parts, schema)
        self._codec = KeyCodec(definition.key_schema)
        self._decode_key, self._decode = decoder(schema.key), decoder(schema.value)
        # A key with lists or maps can't be a dict's key.
        self._found: dict[bytes, tuple[Row, list[Any]]] = {}

    def add(self, stored_key: bytes, values: Iterable[bytes]) -> None:
        """Add a key's row in its part, or some rows of its list in their order; all bare UnsafeRows."""
        part, *rest = self._decode_key(stored_key)
        place = self._places.get(part)
        if place is None:
            raise self._foreign(part)
        key = tuple(rest)
        _, rows = self._found.setdefault(self._codec.encode(key), (key, [None] * len(self._places)))
        for value in values:
            row = self._decode(value)
            rows[place] = (*(rows[place] or ()), row) if self._many else row

    def rows(self) -> Iterator[tuple[Row, Row]]:
        """(key, value) of each row; its place in a list is the last column of the key.

        Raises:  COPIES_DIFFER, VALUE_OUT_OF_RANGE.
        """
        for key, rows in self._found.values():
            merged = self._merge(key, rows)
            if self._many:
                yield from (((*key, place), element) for place, element in enumerate(merged))
            else:
                yield key, merged

    def _foreign(self, part: Any) -> DefinitionError:
        table = self._definition.table
        return DefinitionError(
            "DEFINITION_MISMATCH",
            f"The state of {table} has rows in part {part!r:.40}, which its definition doesn't list.",
            hint="Define the table again with the DataFrame that the job runs.",
            table=table,
        )
