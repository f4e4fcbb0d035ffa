"""A table's columns as Spark has them: its schema, and record batches that fit it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import Field, atomic, struct_of
from millpond.tables.forms.arrow import arrow_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

KIND, BATCH, OLD, NEW, SIGN = "_kind", "_batch", "_old", "_new", "_sign"
# In the metadata of _kind if columns of the key are left out, so that several rows may look like one.
PART_OF_KEY = "millpond.part_of_key"
OWN = (KIND, BATCH, OLD, NEW, SIGN)
# So that the JVM gets a large table in pieces.
_BATCH_ROWS = 1 << 16


def choose_columns(definition: TableDefinition, names: Sequence[str] | None) -> TableDefinition:
    """The definition with these columns alone; all if None.

    Raises:  UNKNOWN_COLUMN.
    """
    if names is None:
        return definition
    for name in names:
        if name not in definition.columns:
            raise RequestError(
                "UNKNOWN_COLUMN",
                f"{definition.table} has no column {name!r:.80}.",
                hint=f"Its columns are {', '.join(definition.columns)}.",
                column=name,
            )
    key = tuple(c for c in definition.key if c.name in names)
    return replace(definition, key=key, values=tuple(c for c in definition.values if c.name in names))


def table_schema(definition: TableDefinition) -> StructType:
    """The schema of a table's rows.  Raises WRONG_TYPE for a column that Arrow has no type for."""
    return _spark_type([*_key_fields(definition), *_value_fields(definition)])


def change_schema(whole: TableDefinition, names: Sequence[str] | None) -> StructType:
    """The schema of a table's changes, with these columns alone; all if None.

    Shape:   the key's columns, _kind, _batch, and the value columns before and after as the structs
             _old and _new; these two are missing if the table has no value columns
    Raises:  WRONG_TYPE; UNKNOWN_COLUMN; INVALID_REQUEST if a column has the name of one of these.
    """
    definition = choose_columns(whole, names)
    for name in definition.columns:
        if name in OWN:
            raise RequestError(
                "INVALID_REQUEST",
                f"{definition.table} has a column {name}, which is also a column of changes.",
                hint="Name that column otherwise in the job, or leave it out with the option `columns`.",
                column=name,
            )
    fields = [*_key_fields(definition), Field(KIND, atomic("string"), nullable=False), Field(BATCH, atomic("long"), nullable=False)]
    if definition.values:
        values = struct_of(tuple(_value_fields(definition)))
        fields += [Field(OLD, values), Field(NEW, values)]
    schema = _spark_type(fields)
    if len(definition.key) < len(whole.key):
        schema[KIND].metadata[PART_OF_KEY] = True
    return schema


def record_batches(pa: Any, schema: Any, columns: Iterable[Any]) -> Iterator[Any]:
    """Columns as record batches of exactly this Arrow schema, as Spark demands it."""
    arrays = []
    for field, column in zip(schema, columns, strict=True):
        arrays.append(column if column.type == field.type else column.cast(field.type))
    yield from pa.Table.from_arrays(arrays, schema=schema).to_batches(max_chunksize=_BATCH_ROWS)


def arrow_schema(schema: StructType) -> Any:
    """The Arrow schema with which Spark compares record batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _key_fields(definition: TableDefinition) -> list[Field]:
    return [Field(c.name, c.type) for c in definition.key]


def _value_fields(definition: TableDefinition) -> list[Field]:
    return [Field(c.name, c.type) for c in definition.values]


def _spark_type(fields: Sequence[Field]) -> StructType:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    for field in fields:
        arrow_type(pa, field.type)
    return StructType.fromJson(struct_of(tuple(fields)).to_json())
