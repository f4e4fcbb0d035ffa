"""PostgreSQL's types, and which one a column of DuckDB has there.

Source:  PostgreSQL 15, src/include/catalog/pg_type.dat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millpond.errors import RequestError


@dataclass(frozen=True, slots=True)
class PgType:
    """One type.

    name:      as in pg_type
    oid:       its number
    length:    of a value in bytes, -1 if it varies
    array_oid: the number of the array of it, 0 for an array
    shown:     as format_type shows it
    element:   of an array
    category:  as in pg_type.typcategory
    """

    name: str
    oid: int
    length: int
    array_oid: int
    shown: str
    element: PgType | None = None
    category: str = "S"


_BASE = (
    PgType("bool", 16, 1, 1000, "boolean", category="B"),
    PgType("bytea", 17, -1, 1001, "bytea", category="U"),
    PgType("char", 18, 1, 1002, '"char"', category="Z"),
    PgType("name", 19, 64, 1003, "name"),
    PgType("int8", 20, 8, 1016, "bigint", category="N"),
    PgType("int2", 21, 2, 1005, "smallint", category="N"),
    PgType("int4", 23, 4, 1007, "integer", category="N"),
    PgType("text", 25, -1, 1009, "text"),
    PgType("oid", 26, 4, 1028, "oid", category="N"),
    PgType("json", 114, -1, 199, "json", category="U"),
    PgType("float4", 700, 4, 1021, "real", category="N"),
    PgType("float8", 701, 8, 1022, "double precision", category="N"),
    PgType("unknown", 705, -2, 0, "unknown", category="X"),
    PgType("bpchar", 1042, -1, 1014, "character"),
    PgType("varchar", 1043, -1, 1015, "character varying"),
    PgType("date", 1082, 4, 1182, "date", category="D"),
    PgType("time", 1083, 8, 1183, "time without time zone", category="D"),
    PgType("timestamp", 1114, 8, 1115, "timestamp without time zone", category="D"),
    PgType("timestamptz", 1184, 8, 1185, "timestamp with time zone", category="D"),
    PgType("interval", 1186, 16, 1187, "interval", category="T"),
    PgType("numeric", 1700, -1, 1231, "numeric", category="N"),
    PgType("regclass", 2205, 4, 2210, "regclass", category="N"),
    PgType("uuid", 2950, 16, 2951, "uuid", category="U"),
    PgType("jsonb", 3802, -1, 3807, "jsonb", category="U"),
)
_ARRAYS = tuple(PgType("_" + t.name, t.array_oid, -1, 0, t.shown + "[]", t, "A") for t in _BASE if t.array_oid)
TYPES = (*_BASE, *_ARRAYS)
BY_OID = {each.oid: each for each in TYPES}
BY_NAME = {each.name: each for each in TYPES}
TEXT = BY_NAME["text"]

_OF_DUCK = {
    "BOOLEAN": "bool",
    "TINYINT": "int2",
    "SMALLINT": "int2",
    "INTEGER": "int4",
    "BIGINT": "int8",
    "HUGEINT": "numeric",
    "UTINYINT": "int2",
    "USMALLINT": "int4",
    "UINTEGER": "int8",
    "UBIGINT": "numeric",
    "FLOAT": "float4",
    "DOUBLE": "float8",
    "VARCHAR": "text",
    "BLOB": "bytea",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "TIME": "time",
    "TIME_NS": "time",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP_NS": "timestamp",
    "INTERVAL": "interval",
    "UUID": "uuid",
    "JSON": "json",
    '"NULL"': "text",
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
# What DuckDB calls the type of a parameter.
_TO_DUCK = {
    "bool": "BOOLEAN",
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "oid": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "bytea": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "interval": "INTERVAL",
    "uuid": "UUID",
    "numeric": "DECIMAL",
    "json": "JSON",
    "jsonb": "JSON",
}


def of_duck(type_: str, column: str, *, is_catalog: bool = False) -> tuple[PgType, int]:
    """The type of an answer's column, and its modifier (-1 for none).

    type_:       as DuckDB writes it
    is_catalog:  whether the answer is of the catalogue, where unsigned numbers are oids
    Raises:      WRONG_TYPE for a type that has no form here.
    """
    if decimal := _DECIMAL.fullmatch(type_):
        return BY_NAME["numeric"], ((int(decimal[1]) << 16) | int(decimal[2])) + 4
    if is_catalog and type_ == "UINTEGER":
        return BY_NAME["oid"], -1
    if type_.startswith("ENUM("):
        return TEXT, -1
    if type_.endswith("]"):
        element = type_[: type_.rindex("[")]
        if element.endswith("]") or element.startswith(("STRUCT(", "MAP(")):
            return BY_NAME["json"], -1
        return BY_OID[of_duck(element, column, is_catalog=is_catalog)[0].array_oid], -1
    if type_.startswith(("STRUCT(", "MAP(")):
        return BY_NAME["json"], -1
    name = _OF_DUCK.get(type_)
    if name is None:
        raise RequestError(
            "WRONG_TYPE",
            f"Column {column} of the answer has DuckDB's type {type_}, which PostgreSQL's protocol has no form for here.",
            hint=f'Write CAST("{column}" AS VARCHAR).',
            column=column,
        )
    return BY_NAME[name], -1


def to_duck(type_: PgType) -> str | None:
    """The type of a parameter for DuckDB; None for a text."""
    if type_.element is not None:
        return f"{_TO_DUCK.get(type_.element.name, 'VARCHAR')}[]"
    return _TO_DUCK.get(type_.name)
