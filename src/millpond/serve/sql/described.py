"""What a statement's answer and parameters will be, before there are values: both as Arrow schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millpond.serve.sql.contexts import Contexts, column_type
from millpond.tables.sql.duck import Duck, Parameters
from millpond.tables.sql.limited import is_number
from millpond.tables.sql.reading.dataset import Relation


class Described:
    """A statement of DuckDB's own words that is described: a `run.Dialect`.

    parameters:  their schema, when the tables are open: in their order, with the types that the
                 statement shows; texts where it shows none
    """

    def __init__(self) -> None:
        self._contexts: Contexts
        self.parameters: Any = None

    def read(self, tree: dict[str, Any]) -> bool:
        """See `run.Dialect`."""
        self._contexts = Contexts(tree)
        return False

    def values(self, duck: Duck, relations: Sequence[Relation], left: frozenset[str] | None) -> Parameters:  # noqa: ARG002
        """See `run.Dialect`.  NULL for each."""
        import pyarrow as pa

        names = sorted(self._contexts.names, key=lambda name: (int(name) if is_number(name) else 0, name))
        schemas = [each.schema for each in relations]
        self.parameters = pa.schema([(name, self._type_of(pa, name, schemas)) for name in names])
        return dict.fromkeys(names if left is None else left) or None

    def _type_of(self, pa: Any, name: str, schemas: Sequence[Any]) -> Any:
        kind, known = self._contexts.find(name)
        found = pa.string()
        if kind in ("type", "array of type"):
            found = _types(pa).get(known, found)
        elif kind in ("column", "array of column"):
            found = column_type(known, schemas) or found
        return pa.list_(found) if kind.startswith("array") else found


def _types(pa: Any) -> dict[str, Any]:
    """Arrow's types of the words of `contexts.WORDS` that have one."""
    return {
        "bool": pa.bool_(),
        "int2": pa.int16(),
        "int4": pa.int32(),
        "int8": pa.int64(),
        "float4": pa.float32(),
        "float8": pa.float64(),
        "bytea": pa.binary(),
        "date": pa.date32(),
        "time": pa.time64("us"),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", tz="UTC"),
    }
