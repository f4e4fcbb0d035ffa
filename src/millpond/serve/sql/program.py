"""The program of a process for statements: `python -m millpond.serve.sql.program DATA CONTROL BYTES`.

1. It gives up what it doesn't need: files, other processes, more memory than it may have.
2. It answers one statement after the other.  Tables and their rows come from the server.
3. A second pipe says which statement is to end.  When the server closes it, or is gone, so is the
   process.

The limit of memory is the system's (RLIMIT_DATA): it holds for everything, DuckDB's values and
Python's alike.  A value that doesn't fit is an error, or the end of the process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from millpond.errors import MillpondError
from millpond.serve.formats import ARROW, JSON, ROW_FORMATS, write_columns, write_json_rows
from millpond.serve.sql import messages as say
from millpond.serve.sql.described import Described
from millpond.serve.sql.lookup import find_lookup
from millpond.serve.sql.parameters import read_parameters
from millpond.tables.forms.arrow import ipc_batches
from millpond.tables.sql.answer import check_names, values_of
from millpond.tables.sql.duck import Duck, out_of_memory
from millpond.tables.sql.end import SqlEnd, SqlLimits
from millpond.tables.sql.reading.dataset import Relation
from millpond.tables.sql.reading.order import Hint
from millpond.tables.sql.run import Running, start
from millpond.tables.sql.statement import Statement, TableName
from millpond.tables.sql.types import answer_types
from millpond.wire.answers import CUTS, READS

# Beside what DuckDB may count: Arrow's and Python's copies of a piece, and parts of DuckDB that
# don't count.
_BESIDE = 2
# Values of a record batch that become Python's at a time.
_MOST_VALUES = 1 << 16
_FILE_NUMBERS = 64


class FarRelation:
    """A table in the server."""

    def __init__(self, server: FarTables, table: int, schema: Any, sortable: tuple[str, ...]) -> None:
        self._server, self._table = server, table
        self.schema, self.sortable = schema, sortable

    def batches(self, names: Collection[str], condition: bytes | None, hint: Hint) -> Iterator[Any]:
        """See `dataset.Relation`."""
        import pyarrow as pa

        wanted = [name for name in self.schema.names if name in names]
        shape = pa.schema([self.schema.field(name) for name in wanted])
        number = self._server.new_scan()
        found = self._server.ask(say.Scan(number, self._table, wanted, condition, hint))
        while isinstance(found, bytes):
            yield pa.ipc.read_record_batch(pa.py_buffer(found), shape)
            found = self._server.ask(say.More(number))


class FarTables:
    """The tables of a statement, in the server: see `run.Source`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.relations: Sequence[Relation] = ()
        self.failed: list[Exception] = []
        self.cuts = "[]"
        self._scans = 0

    def new_scan(self) -> int:
        """A number for a scan."""
        self._scans += 1
        return self._scans

    def ask(self, message: Any) -> Any:
        """The server's reply.  Raises its error, which is noted."""
        say.send(self._connection, message)
        found = say.receive(self._connection)
        if isinstance(found, say.Failure):
            error = say.error_of(found)
            self.failed.append(error)
            raise error
        return found

    def open(self, names: Sequence[TableName], *, is_dry: bool) -> None:
        """See `run.Source`."""
        import pyarrow as pa

        opened = self.ask(say.Open(list(names), is_dry))
        self.cuts = opened.cuts
        schemas = [pa.ipc.read_schema(pa.py_buffer(each)) for each in opened.schemas]
        found = zip(schemas, opened.sortable, strict=True)
        self.relations = [FarRelation(self, n, schema, tuple(order)) for n, (schema, order) in enumerate(found)]

    def plan_lines(self) -> list[str]:
        """See `run.Source`."""
        lines: list[str] = self.ask(say.Plan()).lines
        return lines


class _Program:
    def __init__(self, connection: Connection, memory_bytes: int) -> None:
        self._connection, self._memory_bytes = connection, memory_bytes
        self._lock = threading.Lock()
        self._running: tuple[int, SqlEnd] | None = None
        with Duck(memory_bytes) as duck:  # now, so that its own memory counts as the process's
            duck.parse("SELECT 1")
        self._most_bytes = _data_bytes() + memory_bytes // 2

    def answer_all(self) -> None:
        """Answer statements until the server closes the connection."""
        while True:
            ask = say.receive(self._connection)
            assert isinstance(ask, say.Ask)
            end = SqlEnd()
            with self._lock:
                self._running = ask.number, end
            try:
                self._answer(ask, end)
                last: Any = say.Done(_data_bytes() > self._most_bytes)
            except MillpondError as error:
                last = say.failure_of(error)
            except Exception as mistake:  # noqa: BLE001 - answered, and the server gets another process
                last = say.failure_of(self._unexpected(mistake))
            finally:
                with self._lock:
                    self._running = None
            say.send(self._connection, last)

    def _unexpected(self, mistake: Exception) -> MillpondError:
        """An error that nobody expected: for want of memory, or a bug."""
        is_memory = isinstance(mistake, MemoryError) or (isinstance(mistake, OSError) and mistake.errno == errno.ENOMEM)
        if is_memory or "can't start new thread" in str(mistake):
            return out_of_memory(self._memory_bytes)
        return say.mistake(mistake)

    def end(self, number: int) -> None:
        """End a statement, if it still runs."""
        with self._lock:
            if self._running is not None and self._running[0] == number:
                self._running[1].now()

    def _answer(self, ask: say.Ask, end: SqlEnd) -> None:
        limits = SqlLimits(rows=ask.rows, bytes=ask.bytes, seconds=ask.seconds, memory_bytes=self._memory_bytes)
        statement, parameters = json.loads(ask.question)
        if ask.postgres is not None:
            from millpond.serve.sql.postgres.answer import answer

            for message in answer(FarTables(self._connection), statement, parameters, limits, end, ask):
                say.send(self._connection, message)
            return
        source = FarTables(self._connection)
        if ask.is_described:
            described = Described()
            with start(source, statement, None, limits, end, ask.at, dialect=described, wanted="schema") as running:
                say.send(self._connection, say.Head([]))
                for schema in (running.schema, described.parameters):
                    say.send(self._connection, schema.serialize().to_pybytes())
            return
        if ask.values is not None:
            parameters = read_parameters(ask.values, statement)
        with start(source, statement, parameters, limits, end, ask.at) as running:
            for piece in self._pieces(source, running, ask.form):
                say.send(self._connection, piece)

    def _pieces(self, source: FarTables, running: Running, form_name: str) -> Iterator[Any]:
        form = next(each for each in ROW_FORMATS if each.name == form_name)
        if form is ARROW:
            yield say.Head([])
            schema = running.schema.with_metadata({CUTS: source.cuts})
            yield from ipc_batches(schema, running.batches(), lambda: {READS: source.ask(say.Reads()).lines[0]})
            return
        types = answer_types(running.schema)
        yield say.Head([(name, str(type_)) for name, type_ in types], _lookup(source, running.statement))
        rows = _rows(running.batches(), [name for name, _ in types])
        yield from write_json_rows(types, rows) if form is JSON else write_columns(form, types, rows)


def _lookup(source: FarTables, statement: Statement) -> say.Lookup | None:
    """The lookup of one key that a statement may be."""
    names = statement.tables
    if statement.is_explained or len(names) != 1 or names[0] != TableName(names[0].name):
        return None
    return find_lookup(statement.node, names[0].name, {name.lower(): name for name in source.relations[0].schema.names})


def _rows(batches: Iterator[Any], names: list[str]) -> Iterator[dict[str, Any]]:
    """The rows as dicts.  Raises WRONG_TYPE as `SqlAnswer.rows`."""
    check_names(names)
    step = max(1, _MOST_VALUES // max(1, len(names)))
    for batch in batches:
        for first in range(0, len(batch), step):
            for row in values_of(batch.slice(first, step).columns):
                yield dict(zip(names, row, strict=True))


def _data_bytes() -> int:
    """The private writable memory of this process: what RLIMIT_DATA limits."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0


def _give_up(memory_bytes: int) -> None:
    most = _data_bytes() + _BESIDE * memory_bytes
    with contextlib.suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, _FILE_NUMBERS)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    with contextlib.suppress(OSError):  # the system should end this process before the server
        Path("/proc/self/oom_score_adj").write_text("1000")


def _mind(control: int, program: _Program) -> None:
    """End statements as the server says; end the process with the server."""
    while data := os.read(control, 8):
        program.end(int.from_bytes(data))
    os._exit(0)


def main() -> None:
    """Answer statements."""
    data, control, memory_bytes = map(int, sys.argv[1:4])
    import pyarrow.acero
    import pyarrow.dataset  # noqa: F401 - now, so that its memory counts as the process's

    connection = Connection(data)
    program = _Program(connection, memory_bytes)
    threading.Thread(target=_mind, args=(control, program), name="millpond-sql-control", daemon=True).start()
    _give_up(memory_bytes)
    with contextlib.suppress(EOFError, OSError):
        program.answer_all()
    os._exit(0)


if __name__ == "__main__":
    main()
