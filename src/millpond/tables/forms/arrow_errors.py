"""Values that can't be computed in Arrow tables: NULL, with the error in the schema's metadata.

    millpond.errors   {"count": 2, "errors": [{"row": 0, "column": "ratio", "condition", "message"}, …]}, the first hundred

`row` is the row's place in the table.  In a stream, the schema's metadata is about the rows of the
first table, and a record batch's own metadata about its rows; `read_ipc_stream` joins them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from millpond.errors import MillpondError

KEY = b"millpond.errors"
_MOST = 100


class Failures:
    """Values that can't be computed, by row and column."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[dict[str, Any]] = []

    def add(self, row: int, column: str, error: MillpondError) -> None:
        """Add one value."""
        self.count += 1
        if len(self.first) < _MOST:
            self.first.append({"row": row, "column": column, "condition": error.condition, "message": error.message})

    def add_table(self, metadata: Any, begin: int) -> None:
        """Add those of a table whose first row is at `begin`."""
        data = (metadata or {}).get(KEY)
        if data is not None:
            failures = json.loads(data)
            self.count += failures["count"]
            self.first += [{**one, "row": one["row"] + begin} for one in failures["errors"]][: _MOST - len(self.first)]

    def metadata(self) -> dict[bytes, bytes]:
        """The schema's metadata; empty if there are none."""
        return {KEY: json.dumps({"count": self.count, "errors": self.first}).encode()} if self.count else {}


def make_table(pa: Any, arrays: Sequence[Any], schema: Any, failures: Failures) -> Any:
    """A table whose metadata says which of its values failed."""
    return _with(pa.Table.from_arrays(arrays, schema=schema), failures)


def join_tables(pa: Any, tables: Sequence[Any], schema: Any) -> Any:
    """Tables of one schema as one."""
    if not tables:
        return schema.empty_table()
    failures, begin = Failures(), 0
    for table in tables:
        failures.add_table(table.schema.metadata, begin)
        begin += len(table)
    return _with(pa.concat_tables([table.replace_schema_metadata(schema.metadata) for table in tables]), failures)


def select_rows(table: Any, mask: Any) -> Any:
    """The rows of a table that a mask, a boolean array without NULL, selects."""
    chosen = table.filter(mask)
    before = (table.schema.metadata or {}).get(KEY)
    if before is None:
        return chosen
    places = {place: new for new, place in enumerate(i for i, there in enumerate(mask.to_pylist()) if there)}
    failures = Failures()
    failures.first = [{**one, "row": places[one["row"]]} for one in json.loads(before)["errors"] if one["row"] in places]
    failures.count = len(failures.first)
    return _with(chosen.replace_schema_metadata(without_errors(table.schema.metadata)), failures)


def _with(table: Any, failures: Failures) -> Any:
    added = failures.metadata()
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **added}) if added else table


def without_errors(metadata: dict[bytes, bytes] | None) -> dict[bytes, bytes]:
    """A schema's metadata without the errors."""
    return {name: value for name, value in (metadata or {}).items() if name != KEY}
