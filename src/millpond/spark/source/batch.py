"""A table as a batch source: all tasks of one read see one batch, which is fixed when the read is planned.

1. Filters on plain columns are pushed down, and Spark applies them again: here they only save work.
2. If they name every column of the key, only the partition of that key is read.
3. Of other partitions the filtered columns are made first, then all columns of the rows that stay.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from millpond.checkpoint.log import check_still_committed
from millpond.checkpoint.partition import partition_of_key
from millpond.checkpoint.rows.columns import Array, Spans
from millpond.errors import MillpondError, RequestError
from millpond.native.memory import Memory
from millpond.schema.definition.table import KeyColumn, TableDefinition, ValueColumn
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

# Of these kinds Arrow compares values as Spark does. Floats aren't among them (NaN, -0.0), nor are
# strings with a collation.
_COMPARED = frozenset({"boolean", "byte", "short", "integer", "long", "decimal", "string", "date", "timestamp"})
_ORDER = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
    StringStartsWith: "starts_with",
}
_Test = tuple[str, str, Any]
"""(column, function of pyarrow.compute, its operand)"""


class TableTask(InputPartition):  # type: ignore[misc]
    """What one task reads.

    partitions:  of the state
    tests:       pushed filters
    """

    def __init__(self, table: TableBatch, names: tuple[str, ...], partitions: tuple[int, ...], tests: tuple[_Test, ...]) -> None:
        super().__init__(None)
        self.table, self.names, self.partitions, self.tests = table, names, partitions, tests


class TableReader(DataSourceReader):  # type: ignore[misc]
    """The rows of a table at one batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._tests: list[_Test] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # 1
        for one in filters:
            test = _test_of(one)
            if test is not None:
                self._tests.append(test)
        return filters

    def partitions(self) -> Sequence[TableTask]:
        options = self._options
        found = ColdTable(options.pond, options.table, options.batch, options.allow)
        table = found.table_batch(expired=options.expired)
        names = tuple(self._schema.fieldNames())
        choose_columns(table.definition, names)
        tests = tuple(test for test in self._tests if _is_compared(table.definition, test[0]))
        wanted: Sequence[int] = table.partitions
        if table.definition.parts is not None:
            return [TableTask(table, names, (), tests)]
        equal = {name: value for name, test, value in tests if test == "equal"}
        one = _partition_of(table, equal)
        if one is not None:  # 2
            wanted = [one]
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
        yield from _batches(pa, shape, definition, table.read_merged(pa, storage), names)
    else:
        # The time of expiry is needed to judge rows, even if nobody asked for it.
        judged = {"expires_at"} if table.judged_ms is not None else set[str]()
        chosen = replace(table, definition=choose_columns(definition, [*{*names, *judged}]))
        finish, memory = chosen.finish(), Memory()
        keep = _choice(pa, definition, task.tests)
        for partition in task.partitions:
            for found in chosen.iter_tables(pa, storage, partition, memory, finish, keep):
                yield from _batches(pa, shape, definition, found, names)
    check_still_committed(storage, table.batch)


def _batches(pa: Any, shape: Any, definition: TableDefinition, found: Any, names: list[str]) -> Iterator[Any]:
    failed = (found.schema.metadata or {}).get(KEY)
    if failed is not None:
        raise RequestError(
            "VALUE_OUT_OF_RANGE",
            f"A value of {definition.table} can't be computed: {failed.decode()[:500]}",
            hint="Leave the column out, with the option `columns`.",
            table=definition.table,
        )
    yield from record_batches(pa, shape, found.select(names).columns)


def _test_of(one: Filter) -> _Test | None:
    """A pushed filter; None for one that is left to Spark."""
    if len(getattr(one, "attribute", ())) != 1:
        return None
    name = one.attribute[0]
    if isinstance(one, IsNull):
        return name, "is_null", None
    if isinstance(one, IsNotNull):
        return name, "is_valid", None
    if isinstance(one, In):
        return name, "is_in", tuple(one.value)
    function = _ORDER.get(type(one))
    return None if function is None else (name, function, one.value)


def _is_compared(definition: TableDefinition, name: str) -> bool:
    columns: list[KeyColumn | ValueColumn] = [*definition.key, *definition.values]
    types = {c.name: c.type for c in columns}
    type_ = types.get(name)
    return type_ is not None and type_.kind in _COMPARED and (type_.kind != "string" or type_.name == "string")


def _partition_of(table: TableBatch, equal: dict[str, Any]) -> int | None:
    """The partition of the key that has these values; None if they don't determine it."""
    definition, schema = table.definition, table.schema
    if {c.name for c in definition.key} - equal.keys():
        return None
    keys = KeyReader(definition)
    try:
        row = keys.row(keys.stored({c.name: equal[c.name] for c in definition.key}))
        return None if row is None else partition_of_key(schema, row, len(table.partitions))
    except MillpondError:
        return None  # such as a value that the key's type doesn't have: Spark's own filter decides


def _choice(pa: Any, definition: TableDefinition, tests: tuple[_Test, ...]) -> Choice | None:  # 3
    """Which rows may pass the filters; None for all."""
    if not tests:
        return None
    tested = choose_columns(replace(definition, having=None), [*{name for name, _, _ in tests}])
    finish = ColumnFinish(tested)

    def chosen(keys: RowKeys, values: Spans) -> Array:
        import numpy as np

        failures = Failures()
        arrays = dict(zip(tested.columns, finish.arrays(pa, keys, values, None, failures), strict=True))
        kept: Array = np.ones(len(values.begin), bool)
        if not failures.count:
            for name, function, operand in tests:
                mask = _mask(pa, arrays[name], function, operand)
                if mask is not None:
                    kept &= mask
        return kept.nonzero()[0]

    return chosen


def _mask(pa: Any, array: Any, function: str, operand: Any) -> Any:
    """Whether each value passes; None if the filter can't be applied here."""
    from pyarrow import compute

    try:
        if function in ("is_null", "is_valid"):
            found = getattr(compute, function)(array)
        elif function == "is_in":
            found = compute.is_in(array, value_set=pa.array([v for v in operand if v is not None], array.type))
        elif function == "starts_with":
            found = compute.starts_with(array, operand)
        else:
            found = getattr(compute, function)(array, pa.scalar(operand, array.type))
    except (pa.ArrowException, TypeError, ValueError, OverflowError, decimal.DecimalException):
        return None
    return compute.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False)
