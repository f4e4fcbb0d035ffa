"""A statement run over the tables of a pond, all at one batch.

1. Parse it.
2. Open its tables: one view of their job.  Tables of several jobs are read where their batches end
   at the same offsets (`align`), or each at its own newest batch if the caller asks so.
3. DuckDB reads the tables by scans that open only the keys and columns that it needs.
4. The answer comes in record batches, as long as time, rows and bytes allow.

The tables may lie in another process (`serve.sql`): then the source's `open` asks that one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from millpond.errors import MillpondError, RequestError
from millpond.tables.answer import Cut
from millpond.tables.forms.arrow import pyarrow
from millpond.tables.job.bounds import Bounds
from millpond.tables.sql.answer import SqlAnswer
from millpond.tables.sql.duck import Duck, Parameters
from millpond.tables.sql.end import SqlEnd, SqlLimits
from millpond.tables.sql.reading.dataset import Relation, dataset
from millpond.tables.sql.reading.opened import OpenedTables, Opening, Tables, open_tables
from millpond.tables.sql.reading.order import Hint, Unordered
from millpond.tables.sql.reading.scan import TableRead
from millpond.tables.sql.statement import Statement, TableName, parse_statement

_BATCH_ROWS = 1 << 13
_PLAN = [("plan", "VARCHAR")]
Wanted = Literal["answer", "columns", "schema"]


class Source(Protocol):
    """Where the tables of a statement come from.

    relations, failed:  see `OpenedTables`
    """

    @property
    def relations(self) -> Sequence[Relation]:
        """See above."""

    @property
    def failed(self) -> list[Exception]:
        """See above."""

    def open(self, names: Sequence[TableName], *, is_dry: bool) -> None:
        """Open these tables; is_dry: they only say how they would be read."""

    def plan_lines(self) -> list[str]:
        """How each table was read, for EXPLAIN."""


class _Here:
    """Tables of this process."""

    def __init__(self, opening: Opening, opened: ExitStack) -> None:
        self._opening, self._stack = opening, opened
        self.tables = OpenedTables()

    @property
    def relations(self) -> Sequence[Relation]:
        return self.tables.relations

    @property
    def failed(self) -> list[Exception]:
        return self.tables.failed

    def open(self, names: Sequence[TableName], *, is_dry: bool) -> None:
        self.tables = self._stack.enter_context(self._opening(list(names), is_dry=is_dry))

    def plan_lines(self) -> list[str]:
        return self.tables.plan_lines()


class Dialect(Protocol):
    """Another way to write statements and parameters than DuckDB's."""

    def read(self, tree: dict[str, Any]) -> bool:
        """Change a tree as it was parsed to one that means the same to DuckDB.  False if it does already.

        Raises:  INVALID_STATEMENT.
        """

    def values(self, duck: Duck, relations: Sequence[Relation], left: frozenset[str] | None) -> Parameters:
        """The parameters for DuckDB, when the tables are open.  Raises INVALID_STATEMENT.

        left:  see `Statement.parameters`
        """


@dataclass(slots=True)
class Running:
    """A statement that runs: a context manager, which ends it.

    schema:  of the answer, a pyarrow.Schema; None if only columns are wanted
    columns: names of the answer's columns, and their types as DuckDB writes them
    statement: that was parsed; `is_plan`: whether the answer is the text of an EXPLAIN
    """

    schema: Any
    columns: list[tuple[str, str]]
    statement: Statement
    _batches: Iterator[Any] = field(repr=False)
    _opened: ExitStack = field(repr=False)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def is_plan(self) -> bool:
        """See above."""
        return self.statement.is_explained

    def batches(self) -> Iterator[Any]:
        """The answer as pyarrow.RecordBatches.

        Raises:  READ_TOO_LONG, ANSWER_TOO_LARGE, SQL_OUT_OF_MEMORY, INVALID_STATEMENT if a value
                 can't be computed, and what reading the tables raises.
        """
        return self._batches


def start(
    source: Source,
    text: str,
    parameters: Parameters,
    limits: SqlLimits,
    end: SqlEnd,
    at: int | str | None = None,
    *,
    dialect: Dialect | None = None,
    wanted: Wanted = "answer",
) -> Running:
    """Begin a statement over the tables of a source.

    end:     by which another thread may end it
    at:      the batch or time of tables that don't name one
    dialect: in which it is written, None for DuckDB's own
    wanted:  the answer, or only its columns or its schema, before there are parameters
    Raises:  INVALID_STATEMENT, LIBRARY_MISSING, READ_TOO_LONG, SQL_OUT_OF_MEMORY; as `Source.open`.
    """
    with ExitStack() as opened:
        duck = opened.enter_context(Duck(limits.memory_bytes))
        end.begin(duck.interrupt)
        opened.callback(end.stop)
        if limits.seconds is not None:
            timer = threading.Timer(limits.seconds, end.now)
            timer.daemon = True
            timer.start()
            opened.callback(timer.cancel)
        read = None if dialect is None else dialect.read
        statement = parse_statement(duck, text, parameters, at, read, is_described=wanted != "answer")  # 1
        source.open(statement.tables, is_dry=statement.is_explained or wanted != "answer")  # 2
        parameters = (
            statement.left_of(parameters) if dialect is None else dialect.values(duck, source.relations, statement.parameters)
        )
        if wanted == "columns":
            columns = _PLAN if statement.is_explained else _describe(duck, source, statement, parameters)
            return Running(None, columns, statement, iter(()), opened.pop_all())
        if wanted == "schema":
            columns, schema = _schema(duck, source, statement, parameters)
            return Running(schema, columns, statement, iter(()), opened.pop_all())
        columns, schema, batches = _answer(duck, source, statement, parameters, limits)
        return Running(schema, columns, statement, batches, opened.pop_all())


def run_sql(
    pond: Tables,
    text: str,
    parameters: Parameters = None,
    *,
    bounds: Bounds | None = None,
    limits: SqlLimits,
    separate: bool = False,
    at: int | str | None = None,
) -> SqlAnswer:
    """The whole answer of a statement.

    bounds:      what the tables must reflect
    separate:    whether tables of several jobs may be of batches that end at different offsets
    at:          the batch or time of tables that don't name one
    Raises:      as `start` and `open_tables`.
    """

    def open_(names: list[TableName], *, is_dry: bool) -> OpenedTables:
        return open_tables(pond, names, bounds=bounds, separate=separate, is_dry=is_dry, cache_bytes=limits.cache_bytes)

    return run_opened(open_, text, parameters, limits=limits, at=at)


def run_opened(
    opening: Opening, text: str, parameters: Parameters = None, *, limits: SqlLimits, at: int | str | None = None
) -> SqlAnswer:
    """The whole answer of a statement over tables that a function opens.

    Raises:  as `start` and the function.
    """
    pa = pyarrow()
    with ExitStack() as opened:
        source = _Here(opening, opened)
        with start(source, text, parameters, limits, SqlEnd(), at) as running:
            table = pa.Table.from_batches(list(running.batches()), schema=running.schema)
            cuts: tuple[Cut, ...] = source.tables.cuts
            reads: tuple[TableRead, ...] = tuple(source.tables.reads)
            return SqlAnswer(table, cuts, reads, running.is_plan)


Answer = tuple[list[tuple[str, str]], Any, Iterator[Any]]
"""the columns with DuckDB's types, the schema, and the batches"""


def _describe(duck: Duck, source: Source, statement: Statement, parameters: Parameters) -> list[tuple[str, str]]:
    _add(duck, source, statement, Hint())
    with _Failing(source.failed):
        return duck.describe(statement.text, parameters)


def _schema(duck: Duck, source: Source, statement: Statement, parameters: Parameters) -> tuple[list[tuple[str, str]], Any]:
    pa = pyarrow()
    if statement.is_explained:
        return _PLAN, pa.schema([("plan", pa.string())])
    _add(duck, source, statement, Hint())
    with _Failing(source.failed):
        return duck.schema(statement.text, parameters)


def _add(duck: Duck, source: Source, statement: Statement, hint: Hint) -> None:
    pa = pyarrow()
    for table, relation in zip(statement.tables, source.relations, strict=True):
        duck.add(table.alias or table.name, dataset(pa, relation, hint))


def _answer(duck: Duck, source: Source, statement: Statement, parameters: Parameters, limits: SqlLimits) -> Answer:
    pa, order = pyarrow(), statement.hint.order
    if order is not None:
        keys = {name.lower() for name in source.relations[0].sortable}
        if all(name.lower() in keys for name in order.names):
            try:
                return _read_all(_execute(pa, duck, source, statement, statement.unordered, parameters, limits, statement.hint))
            except Unordered:
                source.failed.clear()
    hint = statement.hint if order is None else Hint()
    return _execute(pa, duck, source, statement, statement.text, parameters, limits, hint)


def _read_all(answer: Answer) -> Answer:
    """The same, read to its end: only then is it known that the order fits."""
    columns, schema, batches = answer
    return columns, schema, iter(list(batches))


def _execute(
    pa: Any, duck: Duck, source: Source, statement: Statement, text: str, parameters: Parameters, limits: SqlLimits, hint: Hint
) -> Answer:
    _add(duck, source, statement, hint)  # 3
    failing = _Failing(source.failed)
    with failing:
        if statement.is_explained:
            plan = duck.explain(text, parameters)
            for _ in duck.read(duck.run(text, parameters, _BATCH_ROWS)[1]):
                pass
            batch = pa.record_batch({"plan": ["\n".join([*source.plan_lines(), plan.rstrip()])]})
            return _PLAN, batch.schema, iter([batch])
        columns, reader = duck.run(text, parameters, _BATCH_ROWS)
    return columns, reader.schema, _limited(duck, reader, limits, failing)  # 4


def _limited(duck: Duck, reader: Any, limits: SqlLimits, failing: _Failing) -> Iterator[Any]:
    rows = size = 0
    try:
        with failing:
            for batch in duck.read(reader):
                rows, size = rows + len(batch), size + batch.nbytes
                if limits.rows is not None and rows > limits.rows:
                    raise _too_large(f"{limits.rows:,} rows")
                if limits.bytes is not None and size > limits.bytes:
                    raise _too_large(f"{limits.bytes:,} bytes")
                yield batch
    finally:
        reader.close()


def _too_large(most: str) -> RequestError:
    return RequestError(
        "ANSWER_TOO_LARGE", f"The answer has over {most}.", hint="Add LIMIT, name key columns in WHERE, or group the rows."
    )


class _Failing:
    """Raises the error of a scan in place of DuckDB's words for it."""

    def __init__(self, failed: list[Exception]) -> None:
        self._failed = failed

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MillpondError | MemoryError) and self._failed:
            raise self._failed[0] from None
