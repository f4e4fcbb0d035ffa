"""Answers as Arrow tables.  The only module that imports pyarrow."""

from __future__ import annotations

from typing import Any

from millpond.errors import RequestError, library_missing
from millpond.schema.definition import KeyColumn, TableDefinition, ValueColumn
from millpond.schema.types import SparkType
from millpond.tables.answer import Rows


def to_arrow(definition: TableDefinition, rows: Rows) -> Any:
    """A pyarrow.Table of the rows, a column each, typed as Spark's; batch and job in its schema's metadata.

    Raises:  LIBRARY_MISSING where pyarrow isn't installed; WRONG_TYPE for a column that Arrow has no type for.
    """
    try:
        import pyarrow as pa
    except ImportError as missing:
        raise library_missing("pyarrow", "arrow") from missing
    columns: list[KeyColumn | ValueColumn] = [*definition.key, *definition.values]
    metadata = {"millpond.job": rows.cut.job, "millpond.batch": str(rows.batch)}
    schema = pa.schema([pa.field(c.name, arrow_type(pa, c.type)) for c in columns], metadata=metadata)
    arrays = [
        _arrow_array(pa, c.type, [_arrow_value(c.type, row[c.name]) for row in rows], field.type)
        for c, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def arrow_type(pa: Any, type_: SparkType) -> Any:
    """The Arrow type of a Spark type, as `toArrow` of PySpark gives it."""
    simple = {
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "day_time_interval": pa.duration("us"),
        "year_month_interval": pa.int32(),
        "time": pa.time64("ns"),
        "void": pa.null(),
    }
    if type_.kind in simple:
        return simple[type_.kind]
    if type_.kind == "decimal":
        return pa.decimal128(type_.precision, type_.scale)
    if type_.kind == "struct":
        return pa.struct([pa.field(f.name, arrow_type(pa, f.type)) for f in type_.fields])
    if type_.kind == "array":
        assert type_.element is not None
        return pa.list_(arrow_type(pa, type_.element))
    if type_.kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        return pa.map_(arrow_type(pa, type_.key), arrow_type(pa, type_.value))
    raise RequestError(
        "WRONG_TYPE",
        f"A column of type {type_} has no Arrow form.",
        hint="Read the table by `scan`.",
        type=str(type_),
    )


def _arrow_array(pa: Any, type_: SparkType, values: list[Any], arrow: Any) -> Any:
    if type_.kind != "string":
        return pa.array(values, type=arrow)
    # Spark's strings may hold bytes that aren't UTF-8; they go in as they are, as in Spark's own toArrow.
    return pa.array([None if v is None else v.encode("utf-8", "surrogateescape") for v in values], type=pa.binary()).view(arrow)


def _arrow_value(type_: SparkType, value: Any) -> Any:
    """Maps as lists of pairs, which Arrow takes whatever the keys are."""
    if value is None:
        return None
    if type_.kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        pairs = value.items() if isinstance(value, dict) else value
        return [(_arrow_value(type_.key, k), _arrow_value(type_.value, v)) for k, v in pairs]
    if type_.kind == "array":
        assert type_.element is not None
        return [_arrow_value(type_.element, v) for v in value]
    if type_.kind == "struct":
        return {f.name: _arrow_value(f.type, value[f.name]) for f in type_.fields}
    return value
