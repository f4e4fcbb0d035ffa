"""Spark's data types, from and to the JSON that Spark writes into schema files.

One class for all of them: `kind` says which, the other fields are the parameters of that kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from millpond.errors import CheckpointError

Json = Any

# Spark's JSON name -> kind, for types without parameters.
_SIMPLE = {
    "boolean": "boolean",
    "byte": "byte",
    "short": "short",
    "integer": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "void": "void",
    "variant": "variant",
    "interval": "calendar_interval",
    "decimal": "decimal",
}
_DECIMAL = re.compile(r"decimal\((\d{1,3}),\s*(-?\d{1,3})\)")
_MAX_DIGITS = 38
_TIME = re.compile(r"time\((\d)\)")
_NANOS = re.compile(r"timestamp_(ntz|ltz)\(([789])\)")

INTEGERS = frozenset({"byte", "short", "integer", "long"})
TIMES = frozenset({"timestamp", "timestamp_ntz", "date"})
# Spark's metadata of a column that `window` or `session_window` made.
WINDOW_METADATA = ("spark.timeWindow", "spark.sessionWindow")
# Types without an order in Spark (ORDER BY refuses them): their keys allow lookups, but no ranges.
UNORDERED = frozenset({"map", "variant", "calendar_interval", "geo"})


@dataclass(frozen=True, slots=True)
class SparkType:
    """One Spark data type.

    kind:            boolean, byte, short, integer, long, float, double, decimal, string, binary,
                     date, timestamp, timestamp_ntz, timestamp_nanos, time, year_month_interval,
                     day_time_interval, calendar_interval, variant, geo, void, struct, array, map
    name:            Spark's JSON name for atomic types, e.g. `decimal(10,2)`; the kind for struct,
                     array and map
    precision/scale: of decimals (0 otherwise)
    fields:          of structs
    element:         of arrays
    key, value:      of maps
    """

    kind: str
    name: str
    precision: int = 0
    scale: int = 0
    fields: tuple[Field, ...] = ()
    element: SparkType | None = None
    key: SparkType | None = None
    value: SparkType | None = None

    @property
    def is_time(self) -> bool:
        """Whether values are points in time, or structs of only these (windows)."""
        if self.kind == "struct":
            return bool(self.fields) and all(f.type.is_time for f in self.fields)
        return self.kind in TIMES

    @property
    def is_ordered(self) -> bool:
        """Whether Spark orders values of this type, so that ranges make sense."""
        if self.kind == "struct":
            return all(f.type.is_ordered for f in self.fields)
        if self.kind == "array":
            assert self.element is not None
            return self.element.is_ordered
        return self.kind not in UNORDERED

    def to_json(self) -> Json:
        """The JSON that Spark writes for this type."""
        if self.kind == "struct":
            return {"type": "struct", "fields": [f.to_json() for f in self.fields]}
        if self.kind == "array":
            assert self.element is not None
            return {"type": "array", "elementType": self.element.to_json(), "containsNull": True}
        if self.kind == "map":
            assert self.key is not None
            assert self.value is not None
            return {
                "type": "map",
                "keyType": self.key.to_json(),
                "valueType": self.value.to_json(),
                "valueContainsNull": True,
            }
        return self.name

    def __str__(self) -> str:
        if self.kind == "struct":
            return "struct<" + ",".join(f"{f.name}:{f.type}" for f in self.fields) + ">"
        if self.kind == "array":
            return f"array<{self.element}>"
        if self.kind == "map":
            return f"map<{self.key},{self.value}>"
        return {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}.get(self.name, self.name)


@dataclass(frozen=True, slots=True)
class Field:
    """A named column or struct member.

    window:  whether Spark's `window` or `session_window` made this column, according to Spark's
             metadata.  It doesn't change how bytes are decoded, and fields that differ in nothing
             else are equal
    """

    name: str
    type: SparkType
    nullable: bool = True
    window: bool = field(default=False, compare=False)

    def to_json(self) -> Json:
        metadata = {WINDOW_METADATA[0]: True} if self.window else {}
        return {"name": self.name, "type": self.type.to_json(), "nullable": self.nullable, "metadata": metadata}


def parse_type(data: Json) -> SparkType:
    """Turn Spark's JSON for a type into a SparkType.

    Raises:  UNKNOWN_FORMAT if Spark 4.3 doesn't write such a name.
    Source:  org.apache.spark.sql.types.DataType.json, Spark 4.3.
    """
    if isinstance(data, str):
        return _parse_name(data)
    if isinstance(data, dict):
        kind = data.get("type")
        if kind == "struct":
            return SparkType("struct", "struct", fields=_parse_members(data))
        if kind == "array":
            return SparkType("array", "array", element=parse_type(data["elementType"]))
        if kind == "map":
            return SparkType("map", "map", key=parse_type(data["keyType"]), value=parse_type(data["valueType"]))
        if kind == "udt":
            return parse_type(data["sqlType"])
    raise _unknown(data)


def parse_fields(struct: Json) -> tuple[Field, ...]:
    """The columns of a row, from the JSON of a struct type with their metadata."""
    fields = _parse_members(struct)
    return tuple(replace(f, window=_is_made_by_spark(f, d)) for f, d in zip(fields, struct["fields"], strict=True))


def _is_made_by_spark(column: Field, data: Json) -> bool:
    metadata = data.get("metadata")
    return is_window(column.type) and isinstance(metadata, dict) and any(word in metadata for word in WINDOW_METADATA)


def is_window(type_: SparkType) -> bool:
    """Whether this is the type of windows: a start and an end.  A user's struct may have it too."""
    if type_.kind != "struct" or [f.name for f in type_.fields] != ["start", "end"]:
        return False
    return type_.fields[0].type == type_.fields[1].type and type_.fields[0].type.kind in ("timestamp", "timestamp_ntz")


def _parse_members(struct: Json) -> tuple[Field, ...]:
    if not isinstance(struct, dict) or struct.get("type") != "struct" or not isinstance(struct.get("fields"), list):
        raise _unknown(struct)
    if not all(isinstance(f, dict) and isinstance(f.get("name"), str) and "type" in f for f in struct["fields"]):
        raise _unknown(struct)
    return tuple(Field(f["name"], parse_type(f["type"]), bool(f.get("nullable", True))) for f in struct["fields"])


def atomic(name: str) -> SparkType:
    """A type without members by its JSON name: `atomic("long")`, `atomic("decimal(10,2)")`."""
    return _parse_name(name)


def struct_of(fields: tuple[Field, ...]) -> SparkType:
    """A struct type of these fields."""
    return SparkType("struct", "struct", fields=fields)


def _parse_name(name: str) -> SparkType:
    if name == "decimal":
        return SparkType("decimal", "decimal(10,0)", precision=10, scale=0)
    if name in _SIMPLE:
        return SparkType(_SIMPLE[name], name)
    if (found := _DECIMAL.fullmatch(name)) and 1 <= int(found[1]) <= _MAX_DIGITS and abs(int(found[2])) <= _MAX_DIGITS:
        return SparkType("decimal", name, precision=int(found[1]), scale=int(found[2]))
    if name.startswith(("char(", "varchar(", "string ")):
        return SparkType("string", name)
    if name.startswith(("interval year", "interval month")):
        return SparkType("year_month_interval", name)
    if name.startswith("interval "):
        return SparkType("day_time_interval", name)
    if found := _TIME.fullmatch(name):
        return SparkType("time", name, precision=int(found[1]))
    if found := _NANOS.fullmatch(name):
        return SparkType("timestamp_nanos", name, precision=int(found[2]))
    if name.startswith(("geometry", "geography")):
        return SparkType("geo", name)
    raise _unknown(name)


def _unknown(data: Json) -> CheckpointError:
    return CheckpointError(
        "UNKNOWN_FORMAT",
        f"The schema names a type that isn't known here: {data!r:.200}.",
        hint="Check that this checkpoint was written by a Spark version listed in the documentation.",
        type=f"{data!s:.200}",
    )


def shape_of(type_: SparkType) -> Any:
    """A type without its names."""
    if type_.kind == "struct":
        return ("struct", [shape_of(f.type) for f in type_.fields])
    if type_.kind == "array":
        assert type_.element is not None
        return ("array", shape_of(type_.element))
    if type_.kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        return ("map", shape_of(type_.key), shape_of(type_.value))
    return type_.kind if type_.kind == "string" else type_.name


# Numbers that hold every value of those before them.
_WIDER = ("byte", "short", "integer", "long")


def is_wider(old: SparkType, new: SparkType) -> bool:
    """Whether a type has every value of another one, in the same stored form."""
    if shape_of(old) == shape_of(new):
        return True
    if old.name in _WIDER and new.name in _WIDER:
        return _WIDER.index(old.name) < _WIDER.index(new.name)
    return (old.name, new.name) == ("float", "double")
