"""The tables that a reader may read, as the catalogue calls of Flight SQL give them.

Source:  Arrow's format/FlightSql.proto, which gives the schema of each answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from millpond.errors import MillpondError
from millpond.serve.app import HttpDoor
from millpond.serve.flight.call import Call
from millpond.serve.flight.errors import NotTaken
from millpond.tables.forms.arrow import pyarrow, table_schema

CATALOG, SCHEMA, TABLE = "millpond", "public", "TABLE"
_KEYS = (
    "pk_catalog_name",
    "pk_db_schema_name",
    "pk_table_name",
    "pk_column_name",
    "fk_catalog_name",
    "fk_db_schema_name",
    "fk_table_name",
    "fk_column_name",
)


def catalogue_schema(name: str, command: Any) -> Any:
    """The schema of a catalogue call's answer; None for another message."""
    pa = pyarrow()

    def text(column: str, *, null: bool = True) -> Any:
        return pa.field(column, pa.string(), nullable=null)

    match name:
        case "CommandGetCatalogs":
            return pa.schema([text("catalog_name", null=False)])
        case "CommandGetDbSchemas":
            return pa.schema([text("catalog_name"), text("db_schema_name", null=False)])
        case "CommandGetTables":
            more = [pa.field("table_schema", pa.binary(), nullable=False)] if command.include_schema else []
            names = [text("table_name", null=False), text("table_type", null=False)]
            return pa.schema([text("catalog_name"), text("db_schema_name"), *names, *more])
        case "CommandGetTableTypes":
            return pa.schema([text("table_type", null=False)])
        case "CommandGetPrimaryKeys":
            names = [text("table_name", null=False), text("column_name", null=False)]
            more = [pa.field("key_sequence", pa.int32(), nullable=False), text("key_name")]
            return pa.schema([text("catalog_name"), text("db_schema_name"), *names, *more])
        case "CommandGetExportedKeys" | "CommandGetImportedKeys" | "CommandGetCrossReference":
            names = [text(each, null=not each.endswith(("table_name", "column_name"))) for each in _KEYS]
            names += [pa.field("key_sequence", pa.int32(), nullable=False), text("fk_key_name"), text("pk_key_name")]
            return pa.schema([*names, *(pa.field(each, pa.uint8(), nullable=False) for each in ("update_rule", "delete_rule"))])
        case "CommandGetSqlInfo":
            return pa.schema([pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", _union(pa), nullable=False)])
        case "CommandGetXdbcTypeInfo":
            raise NotTaken("This server has no list of types for ODBC.")
    return None


def catalogue_batch(call: Call, name: str, command: Any) -> Any:
    """The answer of a catalogue call, a pyarrow.RecordBatch."""
    pa, schema = pyarrow(), catalogue_schema(name, command)
    if name == "CommandGetSqlInfo":
        return _info(pa, schema, list(command.info))
    rows: list[tuple[Any, ...]] = []
    here = _is(command, "catalog", CATALOG) and _is_like(command, "db_schema_filter_pattern", SCHEMA)
    match name:
        case "CommandGetCatalogs":
            rows = [(CATALOG,)]
        case "CommandGetDbSchemas":
            rows = [(CATALOG, SCHEMA)] if here else []
        case "CommandGetTableTypes":
            rows = [(TABLE,)]
        case "CommandGetTables" if here and (not command.table_types or TABLE in command.table_types):
            names = [each for each in call.door.names(call.caller.reader) if _is_like(command, "table_name_filter_pattern", each)]
            rows = list(_readable(names, lambda each: _table(pa, call.door, each, is_whole=command.include_schema)))
        case "CommandGetPrimaryKeys" if _is(command, "catalog", CATALOG) and _is(command, "db_schema", SCHEMA):
            names = [each for each in call.door.names(call.caller.reader) if each == command.table]
            for keys in _readable(names, lambda each: tuple(call.door.ponds[each].definition.key)):
                rows += [(CATALOG, SCHEMA, command.table, key.name, n, None) for n, key in enumerate(keys, 1)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _readable(names: Iterable[str], read: Callable[[str], tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
    """What is read of each table; one that can't be read now mustn't hide the others."""
    for name in names:
        try:
            yield read(name)
        except MillpondError:
            continue


def _table(pa: Any, door: HttpDoor, name: str, *, is_whole: bool) -> tuple[Any, ...]:
    definition = door.ponds[name].definition
    schema = (table_schema(pa, definition, "", 0).remove_metadata().serialize().to_pybytes(),) if is_whole else ()
    return (CATALOG, SCHEMA, name, TABLE, *schema)


def _is(command: Any, field: str, value: str) -> bool:
    """Whether a field isn't given, or is this value."""
    return field not in command.DESCRIPTOR.fields_by_name or not command.HasField(field) or getattr(command, field) == value


def _is_like(command: Any, field: str, value: str) -> bool:
    """Whether a field isn't given, or is a pattern of LIKE for this value."""
    if field not in command.DESCRIPTOR.fields_by_name or not command.HasField(field):
        return True
    return is_like(value, getattr(command, field))


def is_like(value: str, pattern: str) -> bool:
    """Whether a text fits a pattern of LIKE, however long that is.

    Each part between two `%` is looked for where the one before it ends: no other place has to be tried.
    """
    if len(pattern) - pattern.count("%") > len(value):
        return False
    first, *parts = re.split("%+", pattern)
    if not parts:
        return len(value) == len(first) and _is_at(value, 0, first)
    *between, last = parts
    place, end = len(first), len(value) - len(last)
    if not _is_at(value, 0, first) or not _is_at(value, end, last):
        return False
    for part in between:
        found = next((n for n in range(place, end - len(part) + 1) if _is_at(value, n, part)), None)
        if found is None:
            return False
        place = found + len(part)
    return place <= end


def _is_at(value: str, place: int, part: str) -> bool:
    return all(one in ("_", other) for one, other in zip(part, value[place:], strict=False))


def _union(pa: Any) -> Any:
    kinds = [
        ("string_value", pa.string()),
        ("bool_value", pa.bool_()),
        ("bigint_value", pa.int64()),
        ("int32_bitmask", pa.int32()),
        ("string_list", pa.list_(pa.string())),
        ("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
    ]
    return pa.dense_union([pa.field(name, kind) for name, kind in kinds])


def _info(pa: Any, schema: Any, wanted: list[int]) -> Any:
    """What the server is and can: numbers of SqlInfo in FlightSql.proto."""
    known: dict[int, str | bool | int] = {
        0: "Millpond",
        1: version("millpond"),
        2: pa.__version__,
        3: True,  # it only reads
        4: True,  # SQL
        5: False,  # Substrait
        8: 0,  # no transactions
        9: True,  # cancel
        100: 0,
        500: False,  # DDL of catalogs, schemas, tables
        501: False,
        502: False,
        503: 1,  # names are found whatever their case
        504: '"',
        505: 1,
    }
    found = {number: known[number] for number in (wanted or known) if number in known}
    places = {str: 0, bool: 1, int: 2}
    values: list[list[Any]] = [[] for _ in schema.field("value").type]
    kinds, offsets = [], []
    for value in found.values():
        kind = places[type(value)]
        kinds.append(kind)
        offsets.append(len(values[kind]))
        values[kind].append(value)
    union = schema.field("value").type
    children = [pa.array(each, union.field(n).type) for n, each in enumerate(values)]
    names = [union.field(n).name for n in range(union.num_fields)]
    made = pa.UnionArray.from_dense(pa.array(kinds, pa.int8()), pa.array(offsets, pa.int32()), children, names)
    return pa.RecordBatch.from_arrays([pa.array(list(found), pa.uint32()), made], schema=schema)
