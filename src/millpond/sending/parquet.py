"""Changes as rows of Parquet: kind and batches, the row before, after, and at last, and of which read."""

from __future__ import annotations

from typing import IO, Any

from millpond.sending.target import Part, Shape
from millpond.tables.forms.arrow import arrow_type, pyarrow
from millpond.tables.history.changes import RowChange
from millpond.wire.rows import typed_columns

_ROWS = ("old", "new", "final")


def change_schema(shape: Shape) -> Any:
    """The schema of a file.

    Raises:  LIBRARY_MISSING; WRONG_TYPE for a column that Arrow has no type for.
    """
    pa = pyarrow()
    row = pa.struct([pa.field(name, arrow_type(pa, type_)) for name, type_ in typed_columns(shape.definition)])
    facts = [pa.field("kind", pa.string()), pa.field("batch", pa.int64()), pa.field("first_batch", pa.int64())]
    facts += [pa.field("repaired", pa.bool_())]
    return pa.schema([*facts, *(pa.field(name, row) for name in _ROWS), pa.field("run", pa.int64()), pa.field("whole", pa.bool_())])


class ParquetPart:
    """One file, a row group for each page of changes."""

    def __init__(self, file: IO[bytes], schema: Any) -> None:
        from pyarrow import parquet

        self._pa, self._schema = pyarrow(), schema
        self._writer = parquet.ParquetWriter(file, schema)

    def write(self, changes: list[RowChange], part: Part) -> None:
        """Write a row group."""
        names = self._schema.field("new").type
        columns = [field.name for field in names]

        def rows(which: str) -> list[dict[str, Any] | None]:
            found = (getattr(change, which) for change in changes)
            return [None if row is None else {name: row[name] for name in columns} for row in found]

        arrays = [
            self._pa.array([getattr(change, fact) for change in changes], self._schema.field(fact).type)
            for fact in ("kind", "batch", "first_batch", "repaired")
        ]
        arrays += [self._pa.array(rows(which), names) for which in _ROWS]
        arrays += [self._pa.array([part.run] * len(changes), self._pa.int64()), self._pa.array([part.whole] * len(changes))]
        self._writer.write_table(self._pa.table(arrays, schema=self._schema))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()
