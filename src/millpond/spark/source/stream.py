"""The changes of a table as a stream: what each batch of its job inserted, updated and deleted.

An offset is a batch of the table's job.  So the same two offsets always give the same rows, also
after a restart: they are read from the checkpoint's own files of these batches.

    {"batch": 41, "job": "3f0c…", "commit": "9f86d081884c7d65"}    all batches to 41 of this run of the job
    {"batch": -1}                                                  before the first read

1. The first micro-batch reads the whole table as of its end offset, as inserts; or nothing, if the
   stream starts at the newest batch.  Its start has no number, so that a restart reads the same.
2. Every later one reads the change files of its batches.  Each task reads some partitions of the
   state; all changes of one key are in one task, in the order of batches.
3. An offset names its job and its commit.  A job that was replaced or rewound ends the query with
   JOB_REPLACED.  Files that Spark has cleaned up end it with HISTORY_GONE.  Nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from millpond.checkpoint.log import CommittedBatch, check_still_committed, committed_batches, job_id, read_batch
from millpond.checkpoint.position import Batch
from millpond.errors import CheckpointError, DefinitionError, MillpondError, ReplicaError
from millpond.native.memory import Memory
from millpond.spark.source.columns import arrow_schema, change_schema, choose_columns, record_batches
from millpond.spark.source.options import SourceOptions
from millpond.storage import Storage, open_storage
from millpond.tables.cold.changes import ChangedColumns, check_changeable, iter_changes, iter_inserts
from millpond.tables.cold.table import ColdTable, find_defined
from millpond.tables.cold.table_batch import TableBatch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Offset = dict[str, Any]
Read = TypeVar("Read")
_START: Offset = {"batch": -1}
_COMMIT_DIGITS = 16


class ChangeTask(InputPartition):  # type: ignore[misc]
    """What one task reads.

    table:       at the last batch
    before:      the batch before the first one; None to read the whole table as inserts
    batches:     whose changes are read
    partitions:  of the state
    """

    def __init__(
        self, table: TableBatch, before: CommittedBatch | None, batches: tuple[CommittedBatch, ...], partitions: tuple[int, ...]
    ) -> None:
        super().__init__(None)
        self.table, self.before, self.batches, self.partitions = table, before, batches, partitions


class ChangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans micro-batches in one process per query; `read` runs in the workers."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._storage: Storage | None = None
        # available-now: the last batch of this run; None without that trigger
        self._last: int | None = None

    def initialOffset(self) -> Offset:
        return dict(_START)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_batches
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:
        newest = self._newest()
        self._last = -1 if newest is None else newest

    def reportLatestOffset(self) -> Offset | None:
        newest = self._newest()
        return None if newest is None or self._storage is None else _offset(self._storage, newest)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The offset of the next micro-batch; equal to `start` if no batch was committed."""
        newest = self._newest()
        if self._storage is not None and start["batch"] >= 0:
            _check_run(self._storage, start, self._options.table)
        if newest is not None and self._last is not None:
            newest = min(newest, self._last)
        if newest is None or self._storage is None or newest <= start["batch"]:
            return start
        if isinstance(limit, ReadMaxFiles) and start["batch"] >= 0:
            newest = min(newest, start["batch"] + limit.max_files)
        return _or_gone(self._options.table, start["batch"], lambda: _offset(self._opened(), newest))

    def partitions(self, start: Offset, end: Offset) -> Sequence[ChangeTask]:
        options, first, last = self._options, int(start["batch"]), int(end["batch"])
        if first == last:
            return []
        self._newest()
        storage = self._opened()
        for offset in (start, end):
            if offset["batch"] >= 0:
                _check_run(storage, offset, options.table)
        if first < 0 and options.start == "latest":  # 1
            return []
        return _or_gone(options.table, first, lambda: self._tasks(storage, first, last))

    def _tasks(self, storage: Storage, first: int, last: int) -> list[ChangeTask]:
        options = self._options
        found = ColdTable(options.pond, options.table, last, options.allow)
        table = found.table_batch(expired=True)
        check_changeable(table.definition, table.schema)
        if change_schema(table.definition, options.columns) != self._schema:
            raise DefinitionError(
                "DEFINITION_CHANGED",
                f"The columns of {options.table} have changed since this query was made.",
                hint="Make the query anew; if its own state depends on these columns, with another checkpoint.",
                table=options.table,
            )
        table = replace(table, definition=choose_columns(table.definition, options.columns))
        before, batches = None, tuple[CommittedBatch, ...]()
        if first >= 0:  # 2
            before = read_batch(storage, Batch(first))
            batches = tuple(read_batch(storage, Batch(number)) for number in range(first + 1, last + 1))
            for batch in (before, *batches):
                if batch.settings.partitions != table.batch.settings.partitions:
                    raise CheckpointError(
                        "UNSUPPORTED",
                        f"The job of {options.table} has {table.batch.settings.partitions} partitions since batch {last}, and had "
                        f"{batch.settings.partitions} at batch {batch.batch}: changes over both can't be read.",
                        hint="Start the query anew, with another checkpoint: it begins with the whole table.",
                    )
        count = min(options.tasks, len(table.partitions))
        return [ChangeTask(table, before, batches, tuple(table.partitions[i::count])) for i in range(count)]

    def read(self, partition: ChangeTask) -> Iterator[Any]:
        task, first = partition, -1 if partition.before is None else partition.before.batch
        rows = _read(task, self._schema)
        while (found := _or_gone(task.table.definition.table, first, lambda: next(rows, None))) is not None:
            yield found

    def _newest(self) -> int | None:
        """The newest committed batch of the table's job; None if it has none yet."""
        if self._storage is None:
            options = self._options
            try:
                self._storage = ColdTable(options.pond, options.table, None, options.allow).storage
            except ReplicaError as error:
                if error.condition != "NO_COMMITTED_BATCH":
                    raise
                defined = find_defined(options.pond, options.table, allow=options.allow)
                if defined is None:
                    raise
                return None
        committed = committed_batches(self._storage)
        return committed[-1] if committed else None

    def _opened(self) -> Storage:
        if self._storage is None:
            raise ReplicaError(
                "JOB_REPLACED",
                f"The job of {self._options.table} has no committed batch, but the query has read some.",
                hint="Start the query anew, with another checkpoint: it begins with the whole table.",
                table=self._options.table,
            )
        return self._storage


def _offset(storage: Storage, number: int) -> Offset:
    batch = read_batch(storage, Batch(number))
    return {"batch": number, "job": job_id(storage), "commit": batch.fingerprint[:_COMMIT_DIGITS]}


def _check_run(storage: Storage, offset: Offset, table: str) -> None:  # 3
    """Raise JOB_REPLACED if an offset is of another job, or of another run of its batch; HISTORY_GONE if it is too old."""
    number = int(offset["batch"])
    committed = committed_batches(storage)
    replaced = job_id(storage) != offset["job"] or not committed or committed[-1] < number
    if not replaced:
        found = _or_gone(table, number, lambda: read_batch(storage, Batch(number)))
        replaced = found.fingerprint[:_COMMIT_DIGITS] != offset["commit"]
    if replaced:
        raise ReplicaError(
            "JOB_REPLACED",
            f"The job of {table} was replaced or rewound: its batch {number} isn't the one that this query has read.",
            hint="Start the query anew, with another checkpoint: it begins with the whole table.",
            table=table,
            batch=number,
        )


def _or_gone(table: str, first: int, read: Callable[[], Read]) -> Read:
    """What `read` gives.  Raises HISTORY_GONE in place of FILE_GONE."""
    try:
        return read()
    except MillpondError as error:
        if error.condition != "FILE_GONE":
            raise
        whole = "the whole table" if first < 0 else f"the changes of {table} after batch {first}"
        raise ReplicaError(
            "HISTORY_GONE",
            f"Spark has cleaned up files that are needed to read {whole}: {error.message}",
            hint="Start the query anew, with another checkpoint; and raise spark.sql.streaming.minBatchesToRetain of the table's "
            "job to more batches than this query may be behind.",
            table=table,
            batch=first,
        ) from error


def _read(task: ChangeTask, schema: StructType) -> Iterator[Any]:
    import pyarrow as pa

    table, shape = task.table, arrow_schema(schema)
    storage = open_storage(table.checkpoint)
    for partition in task.partitions:
        for found in _changes(pa, storage, task, partition):
            yield from record_batches(pa, shape, _columns(pa, shape, table, found))
    for batch in task.batches or (table.batch,):
        check_still_committed(storage, batch)


def _changes(pa: Any, storage: Storage, task: ChangeTask, partition: int) -> Iterator[ChangedColumns]:
    table = task.table
    if task.before is not None:
        yield from iter_changes(pa, storage, table.definition, table.schema, task.before, task.batches, partition)
        return
    chunks = table.chunks(storage, partition, Memory())
    yield from iter_inserts(pa, table.definition, table.schema, table.batch.batch, chunks)


def _columns(pa: Any, shape: Any, table: TableBatch, found: ChangedColumns) -> list[Any]:
    import numpy as np

    batch = pa.array(np.full(len(found.kinds), found.batch, np.int64))
    columns = [*found.key, found.kinds, batch]
    if table.definition.values:
        fields = list(shape.field("_new").type)
        for arrays, there in ((found.old, found.has_old), (found.new, found.has_new)):
            cast = [a if a.type == field.type else a.cast(field.type) for a, field in zip(arrays, fields, strict=True)]
            columns.append(pa.StructArray.from_arrays(cast, fields=fields, mask=pa.array(~there)))
    return columns
