"""DuckDB, which may read nothing but what it is given.  The only module that imports it.

One database in memory for each process, without tables: a new one takes 30 ms.  Each statement has a
connection of its own, in which its tables are known; files, the network, extensions and settings are
closed for good.  A statement runs in the thread that asks, since readers' views are used by one
thread at a time.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from millpond.errors import ReplicaError, RequestError, library_missing
from millpond.tables.forms.arrow import pyarrow

Parameters = Sequence[Any] | Mapping[str, Any] | None
_CONFIG = {
    "threads": "1",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
}
# In this order: what follows is refused after each of the last two.
_LOCKS = (
    "SET GLOBAL temp_directory = ''",
    "SET GLOBAL TimeZone = 'UTC'",
    "SET GLOBAL python_enable_replacements = false",
    "SET GLOBAL enable_external_access = false",
    "SET GLOBAL lock_configuration = true",
)
# How errors begin that say so of memory.
_FULL = ("Out of Memory Error", "std::bad_alloc", "Invalid Input Error: Arrow Appender: The maximum total string size")
# What DuckDB says of a statement that isn't a SELECT, and what it means.
_NO_SELECT = ("Only SELECT statements can be serialized to json", "Only SELECT statements are answered")
# What DuckDB makes of a KeyboardInterrupt.
_CTRL_C = "Query interrupted"
# DuckDB's types whose values become others in Arrow, such as a time without its offset, or have no place there.
_NOT_IN_ARROW = {"uhugeint", "time with time zone", "bit", "bignum", "variant", "geometry", "type"}
_NESTED = {"list", "array", "struct", "map", "union"}
_lock = threading.Lock()
_databases: dict[tuple[int, int], Any] = {}


class Duck:
    """A connection for one statement: a context manager."""

    def __init__(self, memory_bytes: int) -> None:
        """Raises LIBRARY_MISSING.

        memory_bytes:  the most that all statements of this process may use together
        """
        self._memory_bytes = memory_bytes
        self._connection = _database(memory_bytes).cursor()

    def __enter__(self) -> Duck:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def interrupt(self) -> None:
        """End the running statement, from another thread."""
        self._connection.interrupt()

    def parse(self, text: str) -> dict[str, Any]:
        """The tree of a text that consists of SELECT statements.  Raises INVALID_STATEMENT."""
        with _errors(self._memory_bytes):
            rows = self._connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
        tree: dict[str, Any] = json.loads(rows[0][0])
        if tree.get("error"):
            found = str(tree.get("error_message") or "It can't be parsed").replace(*_NO_SELECT)
            raise RequestError("INVALID_STATEMENT", f"{found.rstrip('.!')}.", hint="Write one SELECT over tables of the pond.")
        return tree

    def write(self, tree: dict[str, Any]) -> str:
        """The text of a tree."""
        with _errors(self._memory_bytes):
            return str(self._connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchall()[0][0])

    def add(self, name: str, dataset: Any) -> None:
        """Let the statement read a pyarrow dataset by this name."""
        self._connection.register(name, dataset)

    def explain(self, text: str, parameters: Parameters) -> str:
        """DuckDB's plan."""
        with _errors(self._memory_bytes):
            return str(self._connection.execute(f"EXPLAIN {text}", parameters).fetchall()[0][1])

    def define(self, statement: str) -> None:
        """Run a statement of ours that makes something for this connection alone."""
        with _errors(self._memory_bytes):
            self._connection.execute(statement)

    def value(self, value: Any, type_: str) -> Any:
        """A value of a type of DuckDB, for a parameter."""
        import duckdb

        return duckdb.Value(value, type_)

    def run(self, text: str, parameters: Parameters, batch_rows: int) -> tuple[list[tuple[str, str]], Any]:
        """Names and DuckDB's types of the columns, and a pyarrow.RecordBatchReader of the answer.

        Reading it goes on with the statement.  Raises INVALID_STATEMENT, SQL_OUT_OF_MEMORY, READ_TOO_LONG;
        WRONG_TYPE for a column that Arrow can't have.
        """
        with _errors(self._memory_bytes):
            # Not by `execute`, which has the whole answer in memory before it gives the first row.
            found = self._connection.sql(text, params=parameters)
            return _columns(found), found.to_arrow_reader(batch_rows)

    def describe(self, text: str, parameters: Parameters) -> list[tuple[str, str]]:
        """Names and DuckDB's types of the columns of an answer, without making it."""
        with _errors(self._memory_bytes):
            return _columns(self._connection.sql(text, params=parameters))

    def schema(self, text: str, parameters: Parameters) -> tuple[list[tuple[str, str]], Any]:
        """The same columns, and their pyarrow.Schema."""
        with _errors(self._memory_bytes):
            found = self._connection.sql(text, params=parameters)
            none = found.limit(0).to_arrow_reader(1).schema  # in which no two columns have one name
            fields = [field.with_name(name) for field, name in zip(none, found.columns, strict=True)]
            return _columns(found), pyarrow().schema(fields)

    def read(self, reader: Any) -> Iterator[Any]:
        """The record batches of a reader.  Raises what `run` raises."""
        while True:
            with _errors(self._memory_bytes):
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            yield batch


def to_relation(table: Any, connection: Any) -> Any:
    """A relation of a pyarrow.Table in a caller's own DuckDB.  Raises LIBRARY_MISSING, INVALID_REQUEST."""
    duckdb = _library()
    if connection is None:
        connection = duckdb.default_connection()
    if not isinstance(connection, duckdb.DuckDBPyConnection):
        raise RequestError(
            "INVALID_REQUEST",
            f"A connection of DuckDB is needed, and not a value of type {type(connection).__name__}.",
            hint="Pass what `duckdb.connect` gives.",
        )
    try:
        return connection.from_arrow(table)
    except duckdb.ConnectionException as closed:
        raise RequestError("INVALID_REQUEST", _one_line(str(closed)), hint="Pass a connection that is open.") from closed


def _library() -> Any:
    """DuckDB.  Raises LIBRARY_MISSING."""
    try:
        import duckdb
    except ImportError as missing:
        raise library_missing("duckdb", "sql") from missing
    return duckdb


def _columns(found: Any) -> list[tuple[str, str]]:
    """Names and types of the columns.  Raises WRONG_TYPE for values that Arrow would change."""
    columns = []
    for name, type_ in zip(found.columns, found.types, strict=True):
        if changed := _not_in_arrow(type_):
            raise RequestError(
                "WRONG_TYPE",
                f"Column {name} of the answer has the type {changed}, whose values Arrow can't have unchanged.",
                hint=f'Write CAST("{name}" AS VARCHAR).',
                column=name,
            )
        columns.append((name, str(type_)))
    return columns


def _not_in_arrow(type_: Any, *, in_array: bool = False) -> str:
    """The first type inside a DuckDBPyType that Arrow can't have; "" for none.

    in_array:  whether it is inside of an ARRAY, at any depth; DuckDB reads an ENUM there as a number
    """
    if type_.id in _NOT_IN_ARROW or (in_array and type_.id == "enum"):
        return str(type_)
    is_array = type_.id == "array"
    inner = type_.children if type_.id in _NESTED else ()
    found = (_not_in_arrow(each, in_array=in_array or is_array) for name, each in inner if not (is_array and name == "size"))
    return next(filter(None, found), "")


def _database(memory_bytes: int) -> Any:
    with _lock:
        place = os.getpid(), memory_bytes
        if place not in _databases:
            made = _library().connect(":memory:", config={**_CONFIG, "memory_limit": f"{memory_bytes}B"})
            for statement in _LOCKS:
                made.execute(statement)
            _databases[place] = made
        return _databases[place]


@contextmanager
def _errors(memory_bytes: int) -> Iterator[None]:
    """Errors of DuckDB as ours.  Of an error of a scan DuckDB hands on only the words."""
    import duckdb

    try:
        yield
    except RuntimeError as failed:
        if str(failed) == _CTRL_C:
            raise KeyboardInterrupt from failed
        raise
    except (duckdb.Error, OSError, ValueError, MemoryError) as failed:
        text = str(failed)
        # While the answer is read, pyarrow hands on only the words of an error.
        if isinstance(failed, duckdb.InterruptException) or text.startswith("INTERRUPT Error"):
            raise ReplicaError(
                "READ_TOO_LONG",
                "The statement was ended: its time is over.",
                hint="Name key columns in WHERE, or allow more seconds.",
            ) from failed
        if isinstance(failed, duckdb.OutOfMemoryException | MemoryError) or text.startswith(_FULL):
            raise out_of_memory(memory_bytes) from failed
        raise RequestError(
            "INVALID_STATEMENT", _one_line(text), hint="Correct the statement: DuckDB's SQL, over tables of the pond."
        ) from failed


def out_of_memory(memory_bytes: int) -> RequestError:
    """The error of a statement that needs more memory than it may have."""
    return RequestError(
        "SQL_OUT_OF_MEMORY",
        f"The statement needs more than {memory_bytes:,} bytes of memory.",
        hint="Read, group or join fewer rows: name key columns in WHERE, and make no long texts or lists.",
    )


def _one_line(text: str) -> str:
    first = text.split("\n\nLINE ", 1)[0]
    return f"{' '.join(first.split()).rstrip('.')}."
