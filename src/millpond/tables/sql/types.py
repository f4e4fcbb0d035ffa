"""The types of an answer's columns, in Spark's words, so that values are written as everywhere else."""

from __future__ import annotations

from typing import Any

from millpond.errors import RequestError
from millpond.schema.types import Field, SparkType, atomic, struct_of

_SIMPLE = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "uint8": "short",
    "uint16": "integer",
    "uint32": "long",
    "uint64": "decimal(20,0)",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
    "timestamp[us]": "timestamp_ntz",
    "timestamp[us, tz=UTC]": "timestamp",
    "duration[us]": "interval day to second",
    "time64[us]": "time(6)",
    "time64[ns]": "time(6)",
    "null": "void",
}


def answer_types(schema: Any) -> list[tuple[str, SparkType]]:
    """Name and type of each column of a pyarrow.Schema.

    Raises:  WRONG_TYPE for a type that Spark doesn't have, such as an interval of months and days.
    """
    import pyarrow.types as kinds

    def read(type_: Any, column: str) -> SparkType:
        if kinds.is_decimal(type_):
            return atomic(f"decimal({type_.precision},{type_.scale})")
        if kinds.is_struct(type_):
            return struct_of(tuple(Field(each.name, read(each.type, column)) for each in type_))
        if kinds.is_map(type_):
            return SparkType("map", "map", key=read(type_.key_type, column), value=read(type_.item_type, column))
        if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
            return SparkType("array", "array", element=read(type_.value_type, column))
        name = _SIMPLE.get(str(type_))
        if name is None:
            raise RequestError(
                "WRONG_TYPE",
                f"Column {column} of the answer has the type {type_}, which has no JSON form here.",
                hint=f'Write CAST("{column}" AS VARCHAR), or read the answer as Arrow.',
                column=column,
            )
        return atomic(name)

    return [(each.name, read(each.type, each.name)) for each in schema]
