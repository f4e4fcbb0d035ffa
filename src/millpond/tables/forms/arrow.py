"""Answers as Arrow tables.  The only module that imports pyarrow."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from millpond.checkpoint.rows.columns import Array, Column
from millpond.errors import RequestError, SetupError, library_missing
from millpond.native import calls
from millpond.native.memory import Memory
from millpond.schema.convert import to_python
from millpond.schema.definition.default_table import EXPIRES_AT
from millpond.schema.definition.resolutions import BUCKET, RESOLUTION
from millpond.schema.definition.table import KeyColumn, TableDefinition, ValueColumn
from millpond.schema.far_time import FarTime
from millpond.schema.types import SparkType
from millpond.tables.answer import Rows
from millpond.tables.failed import FailedValue
from millpond.tables.forms.arrow_errors import KEY, Failures, join_tables, make_table, select_rows, without_errors
from millpond.tables.kept.shorter import Hidden

# Rows of a record batch in a stream: enough to make columns worth it, few enough to send in pieces.
_STREAM_ROWS = 1 << 14


def to_arrow(definition: TableDefinition, rows: Rows) -> Any:
    """A pyarrow.Table of the rows, with Spark's types; its schema's metadata has batch and job.

    Raises:  LIBRARY_MISSING if pyarrow isn't installed; WRONG_TYPE for a column that Arrow has no
             type for.
    """
    return rows_table(pyarrow(), definition, rows, rows.cut.job, rows.batch)


def rows_table(pa: Any, definition: TableDefinition, rows: Sequence[dict[str, Any]], job: str, batch: int) -> Any:
    """The same of rows by column name.  Raises WRONG_TYPE."""
    schema, failures = table_schema(pa, definition, job, batch), Failures()
    columns: list[KeyColumn | ValueColumn] = [*definition.key, *definition.values]
    # Bypass the row's own reads: reading a failed value would raise its error.
    arrays = [python_array(pa, c.type, (dict.__getitem__(row, c.name) for row in rows), failures, c.name) for c in columns]
    return make_table(pa, arrays, schema, failures)


def pyarrow() -> Any:
    """The library.  Raises LIBRARY_MISSING."""
    try:
        import pyarrow as pa
    except ImportError as missing:
        raise library_missing("pyarrow", "arrow") from missing
    return pa


def table_schema(pa: Any, definition: TableDefinition, job: str, batch: int) -> Any:
    """The schema of a table's answers.  Raises WRONG_TYPE for a column that Arrow has no type for."""
    columns: list[KeyColumn | ValueColumn] = [*definition.key, *definition.values]
    metadata = {"millpond.job": job, "millpond.batch": str(batch)}
    return pa.schema([pa.field(c.name, arrow_type(pa, c.type)) for c in columns], metadata=metadata)


def shown_rows(pa: Any, table: Any, judged_ms: int | None, hidden: Hidden | None) -> Any:
    """The rows of a table that reads show.

    judged_ms:  without those whose TTL had passed at this time; None for tables without a TTL
    hidden:     without these buckets
    """
    if judged_ms is not None:
        table = _unexpired(pa, table, judged_ms)
    return table if hidden is None else _seen(pa, table, hidden)


def _seen(pa: Any, table: Any, hidden: Hidden) -> Any:
    from pyarrow import compute

    mask = pa.array([True] * table.num_rows, pa.bool_())
    for name, first in hidden.first.items():
        start = pa.scalar(first, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        other = compute.fill_null(compute.not_equal(table[RESOLUTION], name), fill_value=True)
        later = compute.fill_null(compute.greater_equal(table[BUCKET], start), fill_value=True)
        mask = compute.and_(mask, compute.or_(other, later))
    return select_rows(table, mask)


def _unexpired(pa: Any, table: Any, now_ms: int) -> Any:
    from pyarrow import compute

    now = pa.scalar(now_ms * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    alive = compute.greater(table[EXPIRES_AT], now)
    return select_rows(table, compute.fill_null(alive, fill_value=True))


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


def python_array(pa: Any, type_: SparkType, values: Iterable[Any], failures: Failures, column: str) -> Any:
    """An array of values as Python programs have them.

    NULL stands for values that failed, and for those that pyarrow refuses: strings in lists, maps
    and structs that aren't UTF-8, and decimals with more digits than their type.

    failures:  collects both, as values of `column`
    """
    arrow, plain = arrow_type(pa, type_), []
    for row, value in enumerate(values):
        if type(value) is FailedValue:
            failures.add(row, column, value.error)
            value = None
        plain.append(_arrow_value(type_, value))
    if type_.kind != "string":
        try:
            return pa.array(plain, type=arrow)
        except (pa.ArrowInvalid, UnicodeEncodeError):
            return pa.array([_or_null(pa, arrow, value, row, failures, column) for row, value in enumerate(plain)], type=arrow)
    # Spark's strings may hold bytes that aren't UTF-8; they stay as they are, as in Spark's own
    # toArrow.
    return pa.array([None if v is None else v.encode("utf-8", "surrogateescape") for v in plain], type=pa.binary()).view(arrow)


def _or_null(pa: Any, arrow: Any, value: Any, row: int, failures: Failures, column: str) -> Any:
    try:
        pa.array([value], type=arrow)
    except (pa.ArrowInvalid, UnicodeEncodeError) as refused:
        message = f"Column {column!r}: The value has no form as {arrow} in Arrow: {refused!s:.200}."
        failures.add(row, column, RequestError("VALUE_OUT_OF_RANGE", message, hint="Read the row by `get` or `scan`."))
        return None
    return value


def column_array(pa: Any, column: Column, memory: Memory | None = None, *, failures: Failures, name: str) -> Any:
    """An array of a column of rows; its texts may have up to 2 GiB less one byte together.

    memory:    where texts are written; it must stay
    failures:  as for `python_array`, of the column `name`
    """
    import numpy as np

    type_, kind, size = column.type, column.type.kind, column.size
    arrow = arrow_type(pa, type_)
    if kind == "void":
        return pa.nulls(size)
    if column.stored is not None:
        convert = to_python(type_)
        return python_array(pa, type_, (None if v is None else convert(v) for v in column.stored), failures, name)
    valid = None if column.valid is None else pa.py_buffer(np.packbits(column.valid, bitorder="little"))
    if column.numbers is not None:
        numbers = np.packbits(column.numbers != 0, bitorder="little") if kind == "boolean" else column.numbers
        return pa.Array.from_buffers(arrow, size, [valid, pa.py_buffer(np.ascontiguousarray(numbers))])
    if column.texts is not None:
        gathered = calls.gather_texts(*column.texts, memory)
        if gathered is not None:
            return pa.Array.from_buffers(arrow, size, [valid, pa.py_buffer(gathered[1]), pa.py_buffer(gathered[0])])
        offsets: Array = np.zeros(size + 1, np.int32)
        np.cumsum(column.texts.size, out=offsets[1:])
        return pa.Array.from_buffers(arrow, size, [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(column.texts.tolist()))])
    members = [column_array(pa, member, memory, failures=failures, name=name) for member in column.members]
    return pa.Array.from_buffers(arrow, size, [valid], children=members)


def _arrow_value(type_: SparkType, value: Any) -> Any:
    """Maps as lists of pairs, so that Arrow takes any keys; times without a Python object as numbers."""
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
    return value.since_1970 if type(value) is FarTime else value


class _ChunkReader(io.RawIOBase):
    """A file to which a writer appends bytes, and from which a reader takes them piece by piece."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.waiting.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """What was written since the last call."""
        taken = b"".join(self.waiting)
        self.waiting.clear()
        return taken


def ipc_stream(tables: Iterable[Any]) -> Iterator[bytes]:
    """The pieces of an Arrow IPC stream of pyarrow.Tables of one schema, a record batch each.

    There is at least one table.  The errors of a table's failed values are in its batch's metadata;
    those of the first table are in the stream's schema.
    """
    pa, sink, rest = pyarrow(), _ChunkReader(), iter(tables)
    first = next(rest)
    with pa.ipc.new_stream(sink, first.schema) as writer:
        yield sink.take()
        for number, table in enumerate(chain([first], rest)):
            metadata = table.schema.metadata or {}
            custom = {KEY: metadata[KEY]} if KEY in metadata and number else None
            for batch in table.to_batches(max_chunksize=_STREAM_ROWS):
                writer.write_batch(batch, custom_metadata=custom)
                custom = None
                yield sink.take()
    yield sink.take()


def ipc_batches(schema: Any, batches: Iterable[Any], closing: Callable[[], Mapping[str, str]]) -> Iterator[bytes]:
    """The pieces of an Arrow IPC stream of record batches; the last one is empty.

    closing:  the metadata of that one, asked for when the others are written
    """
    pa, sink = pyarrow(), _ChunkReader()
    with pa.ipc.new_stream(sink, schema) as writer:
        yield sink.take()
        for batch in batches:
            writer.write_batch(batch)
            yield sink.take()
        writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema), custom_metadata=dict(closing()))
    yield sink.take()


def write_parquet(path: Path, definition: TableDefinition, pages: Iterable[Rows]) -> int:
    """Write pages of rows to a Parquet file, as `write_tables`."""
    return write_tables(path, (to_arrow(definition, rows) for rows in pages))


def write_tables(path: Path, tables: Iterable[Any]) -> int:
    """Write pyarrow.Tables of one schema to a Parquet file, a row group each, and return the number of rows.

    The file appears whole or not at all.

    Raises:  LIBRARY_MISSING; NOT_WRITABLE; WRONG_TYPE for a column, or a text, that Parquet can't
             hold.
    """
    pa, count, failures = pyarrow(), 0, Failures()
    from pyarrow import parquet

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with ExitStack() as opened:
            opened.callback(temporary.unlink, missing_ok=True)
            writer = None
            for table in tables:
                table.validate(full=True)  # Spark's strings may hold any bytes
                failures.add_table(table.schema.metadata, count)
                plain = table.replace_schema_metadata(without_errors(table.schema.metadata))
                if writer is None:
                    writer = opened.enter_context(parquet.ParquetWriter(temporary, plain.schema))
                writer.write_table(plain)
                count += len(plain)
            if writer is not None:
                writer.add_key_value_metadata(failures.metadata())
                writer.close()
            temporary.replace(path)
    except OSError as broken:
        raise SetupError(
            "NOT_WRITABLE", f"{path} can't be written: {_reason(broken)}.", hint="Name another file, or free some room."
        ) from broken
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as refused:
        raise RequestError("WRONG_TYPE", f"Parquet can't hold this table: {refused}.", hint="Write it as CSV or JSON.") from refused
    return count


def _reason(broken: OSError) -> str:
    """The error's reason, without the file's name that pyarrow puts before it."""
    return str(broken) if broken.errno is None else os.strerror(broken.errno)


def read_ipc_stream(data: bytes) -> Any:
    """The pyarrow.Table of an Arrow IPC stream.  Raises LIBRARY_MISSING."""
    pa = pyarrow()
    tables: list[Any] = []
    with pa.ipc.open_stream(data) as reader:
        schema = reader.schema.remove_metadata().with_metadata(without_errors(reader.schema.metadata))
        while True:
            try:
                batch, custom = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            metadata = reader.schema.metadata if not tables else dict(custom or {})
            tables.append(pa.Table.from_batches([batch]).replace_schema_metadata(metadata))
    return join_tables(pa, tables, schema)
