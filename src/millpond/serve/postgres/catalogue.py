"""The tables that a reader may read, as the catalogue of `serve.sql.postgres.catalog` is made of."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from millpond.errors import MillpondError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import SparkType
from millpond.serve.access.tokens import Reader
from millpond.serve.sql.postgres.types import BY_OID, TEXT, PgType, of_duck

if TYPE_CHECKING:
    from millpond.serve.app import HttpDoor

# As SQL has these types, see `tables.forms.arrow.arrow_type`.
_DUCK = {
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
    "day_time_interval": "INTERVAL",
    "year_month_interval": "INTEGER",
    "time": "TIME",
    "struct": "STRUCT()",
    "map": "MAP()",
}


class Catalogue:
    """Makes the JSON for each reader; columns of a table once for each definition."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._lock = threading.Lock()
        self._known: dict[str, tuple[TableDefinition, dict[str, Any]]] = {}

    def json(self, reader: Reader, database: str) -> str:
        """The catalogue; tables that can't be read now are missing."""
        found = []
        for name in self._door.names(reader):
            try:
                found.append(self._table(name, self._door.ponds[name].definition))
            except MillpondError:
                continue
        return json.dumps({"database": database, "user": reader.name, "tables": found})

    def _table(self, name: str, definition: TableDefinition) -> dict[str, Any]:
        with self._lock:
            known = self._known.get(name)
            if known is None or known[0] is not definition:
                columns = [[column, *_type(type_)] for column, type_ in definition.types.items()]
                made = {"name": name, "key": [column.name for column in definition.key], "columns": columns}
                known = self._known[name] = definition, made
            return known[1]


def _type(type_: SparkType) -> tuple[str, int]:
    found, modifier = of_spark(type_)
    return found.name, modifier


def of_spark(type_: SparkType) -> tuple[PgType, int]:
    """PostgreSQL's type of a column, and its modifier."""
    if type_.kind == "decimal":
        return of_duck(f"DECIMAL({type_.precision},{type_.scale})", "")
    if type_.kind == "array":
        assert type_.element is not None
        element, _ = of_spark(type_.element)
        is_plain = element.array_oid and element.name != "json"
        return (BY_OID[element.array_oid], -1) if is_plain else (BY_OID[114], -1)
    duck = _DUCK.get(type_.kind)
    return (TEXT, -1) if duck is None else of_duck(duck, "")
