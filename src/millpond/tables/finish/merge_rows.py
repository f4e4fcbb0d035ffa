"""One row from the rows of all parts: copies must be equal; shares are merged by function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millpond.checkpoint.encoding import iter_elements, join_elements
from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.errors import CheckpointError, DefinitionError
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.merged.snapshot import StoreParts
from millpond.schema.definition.expression import Expression
from millpond.schema.definition.parts import Parts, number_type, why_not_merged
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field
from millpond.tables.finish.merge_buffers import MergeBuffers, compile_buffers

Row = tuple[Any, ...]
"""in stored form; for a list all of its rows"""
MergeRows = Callable[[Row, Sequence[Row | None]], Row]
"""(key without its part, row of each part or None, at least one row) -> the merged row"""


def store_parts(definition: TableDefinition, schema: StoreSchema) -> StoreParts | None:
    """How a replica's rows of a table lie in parts; None if they don't.

    schema:  the store's own, which fits the definition
    Raises:  DEFINITION_MISMATCH if the state can't lie in such parts, or no function can merge a
             column.
    """
    parts = definition.parts
    if parts is None:
        return None
    try:
        number_type(parts.column.type)
        stored, rest = KeyCodec(definition.stored_key), KeyCodec(definition.key_schema)
        prefixes = tuple(stored.encode_prefix([parts.key(value)], []) for value in parts.values)
    except (ValueError, OverflowError) as broken:
        raise _mismatch(definition.table, str(broken)) from broken
    merge = compile_merge(definition, parts, schema)
    decode, encode = _list_decoder(schema), _list_encoder(schema)

    def merge_stored(ordered: bytes, rows: Sequence[bytes | None]) -> bytes:
        there = [row for row in rows if row is not None]
        # Most copies have equal bytes, and most keys of shares are in one part.
        enough = len(rows) if parts.merges is None else 1
        if len(there) == enough and all(row == there[0] for row in there):
            return there[0]
        return encode(merge(rest.decode(ordered), [None if row is None else decode(row) for row in rows]))

    return StoreParts(
        store=schema.id,
        prefixes=prefixes,
        is_single=not definition.key_schema,
        are_copies=parts.merges is None,
        merge=merge_stored,
    )


def compile_merge(definition: TableDefinition, parts: Parts, schema: StoreSchema) -> MergeRows:
    """The function that makes one row from the rows of a key.

    Raises:  DEFINITION_MISMATCH if a column of shares has no merge function, or more than one.
    Raises (the function):  COPIES_DIFFER, VALUE_OUT_OF_RANGE.
    """
    if parts.merges is None:
        return _copies(definition.table, parts)
    merge = compile_shares(definition.table, parts.merges, schema.value, many=schema.many)
    return lambda _, rows: merge([row for row in rows if row is not None])


def compile_shares(
    table: str, merges: Sequence[Expression], value: Sequence[Field], *, many: bool = False
) -> Callable[[Sequence[Row]], Row]:
    """The function that merges the buffers of several rows, at least one, by functions of aggregates.

    merges:  `aggregate` expressions, which must have each buffer of the store once
    value:   the store's columns of buffers
    many:    whether its rows are lists, which can't be merged so
    Raises:  DEFINITION_MISMATCH if a column has no merge function, or more than one.
    Raises (the function):  VALUE_OUT_OF_RANGE.
    """
    places = [place for merge in merges for place in merge.options["buffers"]]
    if sorted(places) != list(range(len(value))) or many:
        lacking = [f.name for i, f in enumerate(value) if places.count(i) != 1]
        raise _mismatch(table, f"the definition doesn't say how to merge {', '.join(lacking) or 'a list'}")
    each: list[tuple[list[int], MergeBuffers]] = []
    for expression in merges:
        why = why_not_merged(expression, [f.type for f in value])
        if why is not None:
            raise _mismatch(table, why)
        buffers = expression.options["buffers"]
        each.append((buffers, compile_buffers(expression, [value[place].type for place in buffers])))

    def merge_shares(rows: Sequence[Row]) -> Row:
        out: list[Any] = [None] * len(value)
        for buffers, merge in each:
            merged = merge([[row[place] for place in buffers] for row in rows])
            for place, buffer in zip(buffers, merged, strict=True):
                out[place] = buffer
        return tuple(out)

    return merge_shares


def _copies(table: str, parts: Parts) -> MergeRows:
    def merge(key: Row, rows: Sequence[Row | None]) -> Row:
        # NaN doesn't equal NaN, and NULLs may have different bytes.
        contents = [None if row is None else repr(row) for row in rows]
        first = rows[0]
        if first is not None and all(text == contents[0] for text in contents):
            return first
        raise copies_differ(table, key, dict(zip(parts.values, contents, strict=True)))

    return merge


def _list_decoder(schema: StoreSchema) -> Callable[[bytes], Row]:
    """A function that decodes a stored row; for a list all of its rows."""
    decode = decoder(schema.value)
    return (lambda row: tuple(map(decode, iter_elements(row)))) if schema.many else decode


def _list_encoder(schema: StoreSchema) -> Callable[[Row], bytes]:
    encode = encoder(schema.value)
    return (lambda rows: join_elements(map(encode, rows))) if schema.many else encode


def copies_differ(table: str, key: tuple[Any, ...], contents: dict[int, str | None]) -> CheckpointError:
    """Parts that should have the same row differ; the message shows the row of each."""
    groups: dict[str | None, list[int]] = {}
    for part, text in contents.items():
        groups.setdefault(text, []).append(part)
    said = "; ".join(f"{', '.join(map(str, at))}: {'no row' if text is None else text[:80]}" for text, at in groups.items())
    return CheckpointError(
        "COPIES_DIFFER",
        f"The parts of {table} should have equal rows for {key!r:.80}, but they have, by part: {said}.",
        hint="Compare them with `millpond inspect`; send the control record again, or start the job from an older checkpoint.",
        table=table,
        key=repr(key)[:200],
        parts=list(groups.values()),
    )


def _mismatch(table: str, why: str) -> DefinitionError:
    return DefinitionError(
        "DEFINITION_MISMATCH",
        f"The parts of {table} can't be read as one table: {why}.",
        hint="Define the table again with the DataFrame that the job runs.",
        table=table,
    )
