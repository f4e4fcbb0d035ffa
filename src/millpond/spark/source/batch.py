"""A table as a batch source: all tasks of one read see one batch, which is fixed when the read is planned.

1. Conditions come as the option `where`.
2. If they name every column of the key, only the partition of that key is read.
3. Of other partitions the columns of conditions are made first, then all columns of the rows that
   stay.

Rejected: `DataSourceReader.pushFilters`.  Spark 4.3 keeps what a reader planned with the DataFrame
that `load` returned.  After `df.where("a = 1")`, which is pushed, `df.where("a = 1 OR b = 2")`,
which can't be, reads the rows of the first filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from millpond.checkpoint.log import check_still_committed
from millpond.checkpoint.partition import may_lie_anywhere, partition_of_key
from millpond.checkpoint.rows.columns import Array, Spans
from millpond.errors import MillpondError, RequestError
from millpond.native.memory import Memory
from millpond.schema.definition.resolutions import BUCKET, RESOLUTION
from millpond.schema.definition.table import KeyColumn, TableDefinition, ValueColumn
from millpond.schema.values import from_text
from millpond.spark.source.columns import arrow_schema, choose_columns, record_batches
from millpond.spark.source.options import SourceOptions
from millpond.storage import open_storage
from millpond.tables.cold.table import ColdTable
from millpond.tables.cold.table_batch import Choice, TableBatch
from millpond.tables.finish.columns import ColumnFinish, RowKeys
from millpond.tables.forms.arrow_errors import KEY, Failures
from millpond.tables.scan.keys import KeyReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Of these kinds Arrow compares values as Spark does. Floats aren't among them (NaN), nor are
# strings with a collation.
_COMPARED = frozenset({"boolean", "byte", "short", "integer", "long", "decimal", "string", "date", "timestamp"})
# The longest first.
_SIGNS = {"!=": "not_equal", "<=": "less_equal", ">=": "greater_equal", "=": "equal", "<": "less", ">": "greater"}
_NULL = {" is null": "is_null", " is not null": "is_valid"}
_Test = tuple[str, str, Any]
"""(column, function of pyarrow.compute, its operand)"""


class TableTask(InputPartition):  # type: ignore[misc]
    """What one task reads.

    names:       of the columns, in Spark's order
    partitions:  of the state
    tests:       conditions on the rows
    """

    def __init__(self, table: TableBatch, names: tuple[str, ...], partitions: tuple[int, ...], tests: tuple[_Test, ...]) -> None:
        super().__init__(None)
        self.table, self.names, self.partitions, self.tests = table, names, partitions, tests


class TableReader(DataSourceReader):  # type: ignore[misc]
    """The rows of a table at one batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[TableTask]:
        options = self._options
        found = ColdTable(options.pond, options.table, options.batch, options.allow)
        table = found.table_batch(expired=options.expired)
        names = tuple(self._schema.fieldNames())
        choose_columns(table.definition, names)
        tests = tuple(_parse_condition(table.definition, text) for text in options.where)  # 1
        if table.definition.parts is not None:
            return [TableTask(table, names, (), tests)]
        one = _partition_of(table, {name: value for name, test, value in tests if test == "equal"})
        wanted: Sequence[int] = table.partitions if one is None else [one]  # 2
        count = min(options.tasks, len(wanted))
        return [TableTask(table, names, tuple(wanted[i::count]), tests) for i in range(count)]

    def read(self, partition: TableTask) -> Iterator[Any]:
        return _read(partition, self._schema)


def _read(task: TableTask, schema: StructType) -> Iterator[Any]:
    import pyarrow as pa

    table, shape = task.table, arrow_schema(schema)
    storage = open_storage(table.checkpoint)
    definition, names = table.definition, list(task.names)
    if definition.parts is not None:
        found = table.read_merged(pa, storage)
        if task.tests:
            _refuse(definition, found)
            found = found.filter(_mask(pa, {name: found[name] for name in found.column_names}, task.tests))
        yield from _batches(pa, shape, definition, found, names)
    else:
        # Columns by which rows are judged are needed, even if nobody asked for them.
        judged = {"expires_at"} if table.judged_ms is not None else set[str]()
        judged |= {RESOLUTION, BUCKET} if table.hidden is not None else set[str]()
        chosen = replace(table, definition=choose_columns(definition, [*{*names, *judged}]))
        finish, memory = chosen.finish(), Memory()
        keep = _choice(pa, definition, task.tests)
        for partition in task.partitions:
            for found in chosen.iter_tables(pa, storage, partition, memory, finish, keep):
                yield from _batches(pa, shape, definition, found, names)
    check_still_committed(storage, table.batch)


def _batches(pa: Any, shape: Any, definition: TableDefinition, found: Any, names: list[str]) -> Iterator[Any]:
    _refuse(definition, found)
    yield from record_batches(pa, shape, found.select(names).columns)


def _refuse(definition: TableDefinition, found: Any) -> None:
    """Raise VALUE_OUT_OF_RANGE if a value couldn't be computed: a NULL in its place would be a wrong answer."""
    failed = (found.schema.metadata or {}).get(KEY)
    if failed is not None:
        raise _failed(definition, failed.decode()[:500])


def _failed(definition: TableDefinition, why: str) -> RequestError:
    return RequestError(
        "VALUE_OUT_OF_RANGE",
        f"A value of {definition.table} can't be computed: {why}",
        hint="Leave the column out, with the option `columns`.",
        table=definition.table,
    )


def _parse_condition(definition: TableDefinition, text: str) -> _Test:
    """A condition from its text.

    Raises:  INVALID_REQUEST, UNKNOWN_COLUMN; WRONG_TYPE if Arrow compares the column's values
             otherwise than Spark, or the value isn't of its type.
    """
    columns: list[KeyColumn | ValueColumn] = [*definition.key, *definition.values]
    # Try the longest name first: a column may be called `a>b`, beside one called `a`.
    for column in sorted(columns, key=lambda c: len(c.name), reverse=True):
        rest = text.strip().removeprefix(column.name)
        if rest == text.strip():
            continue
        if rest.lower() in _NULL:
            return column.name, _NULL[rest.lower()], None
        rest = rest.lstrip()
        sign = next((sign for sign in _SIGNS if rest.startswith(sign)), None)
        if sign is None:
            continue
        if column.type.kind not in _COMPARED or (column.type.kind == "string" and column.type.name != "string"):
            raise RequestError(
                "WRONG_TYPE",
                f"Column {column.name!r} is a {column.type}, by which the source can't choose rows.",
                hint="Choose them in Spark: df.where(…).",
                column=column.name,
            )
        return column.name, _SIGNS[sign], from_text(column.type, column=column.name)(rest.removeprefix(sign).strip())
    raise RequestError(
        "INVALID_REQUEST",
        f"{text!r:.80} isn't a condition on a column of {definition.table}.",
        hint=f"Write a column, one of {' '.join(_SIGNS)}, and a value: `hits > 100`; or `page is null`. "
        f"Its columns are {', '.join(definition.columns)}.",
    )


def _partition_of(table: TableBatch, equal: dict[str, Any]) -> int | None:
    """The partition of the key that has these values; None if they don't determine it."""
    definition, schema = table.definition, table.schema
    if {c.name for c in definition.key} - equal.keys():
        return None
    keys = KeyReader(definition)
    try:
        row = keys.row(keys.stored({c.name: equal[c.name] for c in definition.key}))
        if row is None or not table.batch.settings.is_strict or may_lie_anywhere(schema, row):
            return None
        return partition_of_key(schema, row, len(table.partitions))
    except MillpondError:
        return None  # such as a value that the key's type doesn't have


def _choice(pa: Any, definition: TableDefinition, tests: tuple[_Test, ...]) -> Choice | None:  # 3
    """Which rows meet the conditions; None for all."""
    if not tests:
        return None
    tested = choose_columns(replace(definition, having=None), [*{name for name, _, _ in tests}])
    finish = ColumnFinish(tested)

    def chosen(keys: RowKeys, values: Spans) -> Array:
        failures = Failures()
        arrays = dict(zip(tested.columns, finish.arrays(pa, keys, values, None, failures), strict=True))
        if failures.count:
            raise _failed(definition, failures.first[0]["message"])
        return _mask(pa, arrays, tests).to_numpy(zero_copy_only=False).nonzero()[0]

    return chosen


def _mask(pa: Any, arrays: dict[str, Any], tests: tuple[_Test, ...]) -> Any:
    """Whether each row meets all conditions; NULL meets no comparison."""
    from pyarrow import compute

    masks = []
    for name, function, operand in tests:
        array = arrays[name]
        given = () if function in ("is_null", "is_valid") else (pa.scalar(operand, array.type),)
        masks.append(compute.fill_null(getattr(compute, function)(array, *given), fill_value=False))
    return reduce(compute.and_, masks)
