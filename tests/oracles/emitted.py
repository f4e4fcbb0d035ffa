"""The rows that a streaming query emitted, in a form for comparing bit by bit."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

from millpond.schema.convert import to_python
from millpond.schema.types import SparkType, parse_type


def stored_sql(name: str, type_: SparkType) -> str:
    """SQL that gives a column in stored form, if Python can't take it as it is."""
    if type_.kind == "timestamp":
        return f"unix_micros({name})"
    if type_.kind == "timestamp_ntz":
        return f"unix_micros(cast({name} AS timestamp))"
    if type_.kind == "date":
        return f"unix_date({name})"
    if type_.kind == "day_time_interval":
        return (
            f"cast(extract(day FROM {name}) AS bigint) * 86400000000 + cast(extract(hour FROM {name}) AS bigint) * 3600000000"
            f" + cast(extract(minute FROM {name}) AS bigint) * 60000000 + cast(extract(second FROM {name}) * 1000000 AS bigint)"
        )
    if type_.kind == "year_month_interval":
        return f"extract(year FROM {name}) * 12 + extract(month FROM {name})"
    if type_.kind == "array" and type_.element is not None and stored_sql("x", type_.element) != "x":
        return f"transform({name}, x -> {stored_sql('x', type_.element)})"
    if type_.kind == "struct":
        members = ", ".join(f"'{f.name}', {stored_sql(f'{name}.`{f.name}`', f.type)}" for f in type_.fields)
        return f"if({name} IS NULL, NULL, named_struct({members}))"
    return name


def plain(value: Any) -> Any:
    """A value that PySpark gives, in stored form: tuples, lists, bytes."""
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return [(plain(k), plain(v)) for k, v in value.items()]
    return bytes(value) if isinstance(value, bytearray) else value


def stored_rows(frame, prefix: str, types: list[tuple[str, SparkType]]) -> list[tuple[Any, ...]]:
    """Rows of a batch DataFrame in stored form, column by column."""
    frame = frame.toDF(*frame.columns)
    columns = [f"{stored_sql(f'{prefix}`{name}`', type_)} AS c{n}" for n, (name, type_) in enumerate(types)]
    return [tuple(plain(v) for v in row) for row in frame.selectExpr(*columns).collect()]


def bits(value: Any, *, as_set: bool = False) -> Any:
    """A form in which only equal bits are equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else ("float", struct.pack(">d", value))
    if isinstance(value, Decimal):
        return ("decimal", value.as_tuple())
    if isinstance(value, list):
        members = [bits(v) for v in value]
        return sorted(members, key=repr) if as_set else members
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items()}
    return (type(value).__name__, value)


class Emitted:
    """A sink that keeps the rows that Spark emitted, by batch."""

    def __init__(self) -> None:
        self.frames: dict[int, list[dict[str, Any]]] = {}

    def __call__(self, frame, batch: int) -> None:
        types = [(f.name, parse_type(f.dataType.jsonValue())) for f in frame.schema.fields]
        names = [name for name, _ in types]
        converts = [to_python(t) for _, t in types]
        renamed = frame.toDF(*[f"o{n}" for n in range(len(names))])
        rows = stored_rows(renamed, "", [(f"o{n}", t) for n, (_, t) in enumerate(types)])
        self.frames[batch] = [{n: c(v) for n, c, v in zip(names, converts, row, strict=True)} for row in rows]


def by_key(rows: list[dict[str, Any]], key: tuple[str, ...]) -> dict[Any, dict[str, Any]]:
    return {repr([bits(row[k]) for k in key]): row for row in rows}
