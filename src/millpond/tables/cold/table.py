"""A whole table as Arrow, straight from the checkpoint, without a replica.

1. The batch's settings and stores say what to read; the table's definition is compared with the
   store's schema.
2. Each partition's rows become columns (`table_batch`).
3. The partitions' tables are joined.
4. commits/N must still be the file that was read.  If Spark cleaned up meanwhile, begin again with
   the batch that is now the newest.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from millpond.catalogue import JobFolder, open_jobs
from millpond.checkpoint.log import CommittedBatch, check_still_committed, committed_batches, job_id, read_batch
from millpond.checkpoint.lookup import find_row
from millpond.checkpoint.operators import check_state, read_each_operator
from millpond.checkpoint.position import Batch, Position
from millpond.checkpoint.real_time import refuse_real_time
from millpond.errors import CheckpointError, MillpondError, ReplicaError, RequestError
from millpond.native.memory import Memory
from millpond.replica.history.delete_cause import loses_rows, may_expire
from millpond.replica.record import make_record, make_stores_record
from millpond.replica.row_stamp import as_final, stamp_at_most
from millpond.schema.definition.operator_name import Entry
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.storage import Storage, open_storage, uri_of
from millpond.tables.answer import Cut, Lag, Row
from millpond.tables.cold.table_batch import TableBatch
from millpond.tables.default_tables import stored_tables, unknown_table
from millpond.tables.finish.definition import compile_definition
from millpond.tables.finish.merge_rows import compile_merge
from millpond.tables.forms.arrow import pyarrow
from millpond.tables.forms.arrow_errors import join_tables
from millpond.tables.kept.shorter import Hidden, hidden_of, read_shorter
from millpond.tables.scan.binding import store_of
from millpond.tables.scan.keys import Key, KeyReader
from millpond.tables.scan.ttl import clock_ms, has_passed
from millpond.versions import meant_table, parse_job

# How often Spark may remove a batch's files during the read before it fails.
_TRIES = 5
# How many partitions are read at a time; each takes memory for its files.
_MOST_THREADS = 4


def read_arrow(
    path: str | Path, table: str, *, batch: int | None = None, expired: bool = False, allow: Iterable[str | Path] = ()
) -> Any:
    """All rows of a table as a pyarrow.Table, in no particular order.

    Columns and values are those of `Table.to_arrow`.  This reads the checkpoint itself: use it to
    export a state once, or to look at an older batch; to ask often, open the pond.  It needs memory
    for the result, and, for each core up to four, for one partition's unpacked files and some 100
    bytes for each row of that partition.

    path:    a pond or a bare checkpoint
    batch:   a committed batch whose files still exist; by default the newest.  The schema's
             metadata names it
    expired: whether to show rows that have expired before Spark has removed them: by their TTL, or
             by a lower retention that the job doesn't have yet
    allow:   places outside the pond that it may name, as for `open`
    Raises:  UNKNOWN_TABLE, NO_CHECKPOINT, NO_COMMITTED_BATCH, LIBRARY_MISSING; WRONG_TYPE if Arrow
             has no type for a column; DEFINITION_MISMATCH; FILE_GONE if the batch was never
             committed or its files are removed; and what damaged files raise.
    """
    pa = pyarrow()
    for left in reversed(range(_TRIES)):
        try:
            return ColdTable(path, table, batch, allow).read(pa, expired=expired)
        except CheckpointError as error:
            if error.condition != "FILE_GONE" or batch is not None or not left:
                raise
    raise AssertionError


def read_row(path: str | Path, table: str, key: Key, *, expired: bool = False, allow: Iterable[str | Path] = ()) -> Row:
    """One row by its key, straight from the checkpoint: no replica, and no pass over the state.

    This reads the files of the key's own partition, newest first, until one has the key; of each of
    RocksDB's SSTs it reads only the block that may have it.  For lists, timers, join format 4, Avro
    and row checksums it reads the whole partition.  Use it to ask once; to ask often, open the
    pond.

    path:    a pond or a bare checkpoint
    key:     every key column
    expired: whether to show a row that has expired before Spark has removed it, marked final
    allow:   as for `read_arrow`
    Raises:  as `Table.get` for the key, as `read_arrow` for the rest; UNSUPPORTED if the key
             doesn't determine its partition or its bytes: NULL of calendar intervals, and NULL in
             keys of transformWithStateInPandas.
    """
    for left in reversed(range(_TRIES)):
        try:
            return ColdTable(path, table, None, allow).row(key, expired=expired)
        except CheckpointError as error:
            if error.condition != "FILE_GONE" or not left:
                raise
    raise AssertionError


def find_definition(path: str | Path, table: str, *, allow: Iterable[str | Path] = ()) -> TableDefinition:
    """A table's definition, from the checkpoint alone.  Raises as `read_arrow`."""
    return ColdTable(path, table, None, allow).definition


def find_defined(path: str | Path, table: str, *, allow: Iterable[str | Path] = ()) -> tuple[JobFolder, TableDefinition] | None:
    """A table that somebody defined, also before its first batch, with its job; None if nobody did."""
    for folder in open_jobs(path, allow=allow):
        for entry in folder.read_entries()[0]:
            if isinstance(entry, TableDefinition) and entry.table == table:
                return folder, entry
    return None


def find_tables(path: str | Path, *, allow: Iterable[str | Path] = ()) -> list[str]:
    """The names of all tables of a pond or checkpoint, sorted, without a replica.  Raises as `find_names`."""
    return sorted({name for folder in open_jobs(path, allow=allow) for name in find_names(folder)[0]})


def find_names(folder: JobFolder) -> tuple[list[str], bool]:
    """The names of a job's tables from its checkpoint alone, and whether these are all.

    Before the first batch, only tables that somebody defined are known.  An operator that can't be
    read may have others.

    Raises:  what damaged files raise.
    """
    storage, entries = folder.open_checkpoint(), folder.read_entries()[0]
    names = [entry.table for entry in entries if isinstance(entry, TableDefinition)]
    committed = committed_batches(storage)
    if not committed:
        return names, False
    stores, unread = read_each_operator(storage, committed[-1])
    record = make_stores_record(job_id(storage), storage.uri, stores, unread)
    return names + [definition.table for definition, _ in stored_tables(folder, record, entries)], not unread


class ColdTable:
    """A table of one committed batch, found by its name."""

    def __init__(self, path: str | Path, table: str, batch: int | None, allow: Iterable[str | Path]) -> None:  # 1
        known: list[str] = []
        problem: MillpondError | None = None
        self._as_of = batch is not None
        folders = open_jobs(path, allow=allow)
        if any(parse_job(folder.job) for folder in folders):
            table = meant_table(open_storage(path), table)
        for folder in folders:
            storage, entries, broken = folder.open_checkpoint(), list[Entry](), dict[str, MillpondError]()
            try:
                entries, broken = folder.read_entries()
                if table in broken:
                    raise broken[table]
                found = self._find(storage, folder, entries, table, batch, known)
            except MillpondError as error:
                if table in broken or any(entry.table == table for entry in entries):
                    raise
                problem = problem or error  # another job's damage, which matters only if no other job has the table
                continue
            if found is not None:
                self._job, self._storage, self._folder = folder.job, storage, folder
                self._definition, self._batch, self._schema = found
                return
        raise problem or unknown_table(table, uri_of(path), known)

    def _find(
        self, storage: Storage, folder: JobFolder, entries: list[Entry], table: str, number: int | None, known: list[str]
    ) -> tuple[TableDefinition, CommittedBatch, StoreSchema] | None:
        """The table, if it is one of this job; if not, its tables are added to `known`."""
        defined = {entry.table: entry for entry in entries if isinstance(entry, TableDefinition)}
        committed = committed_batches(storage)
        known += defined
        if not committed:
            if table not in defined:
                return None
            raise ReplicaError(
                "NO_COMMITTED_BATCH",
                f"The job at {storage.uri} hasn't committed a batch yet.",
                hint="Start the job, or ask again when its first batch is done.",
                checkpoint=storage.uri,
            )
        at = committed[-1] if number is None else Batch(number)
        committed_batch = read_batch(storage, at)
        refuse_real_time(storage, committed_batch)
        check_state(storage, committed_batch)
        stores, unread = read_each_operator(storage, at)
        record = make_stores_record(job_id(storage), storage.uri, stores, unread)
        others = {definition.table: definition for definition, _ in stored_tables(folder, record, entries)}
        known += others
        definition = defined.get(table) or others.get(table)
        if definition is None:
            return None
        schema = store_of(definition, stores, unread)
        return definition, committed_batch, schema

    @property
    def definition(self) -> TableDefinition:
        """The table's definition."""
        return self._definition

    @property
    def storage(self) -> Storage:
        """The job's checkpoint."""
        return self._storage

    def row(self, key: Key, *, expired: bool) -> Row:
        definition, batch, keys = self._definition, self._batch, KeyReader(self._definition)
        columns = keys.stored(key)
        row = keys.row(columns)
        if row is None:
            missing = [c.name for c in definition.key if c.name not in columns]
            raise RequestError(
                "KEY_MISSING",
                f"A key of {definition.table} needs {', '.join(missing)} as well.",
                hint="Name the end of the window too.",
                table=definition.table,
                missing=missing,
            )
        found = self._find_value(row[:-1] if self._schema.many else row)
        if found is not None and self._schema.many:  # the last column is the element's place
            index = row[-1]
            found = found[index] if index is not None and 0 <= index < len(found) else None
        is_over = found is not None and self._schema.ttl and has_passed(found, clock_ms(batch.started_ms))
        if found is not None and (buckets := self._hidden()) is not None:
            is_over = buckets.hides(row)
        hidden = is_over and not expired
        values = None if found is None or hidden else compile_definition(definition)(row, found)
        position = Position(
            batch=batch.batch,
            offsets=batch.offsets,
            watermark_ms=batch.watermark_ms,
            batch_started_ms=batch.started_ms,
            committed_ns=batch.commit_stamp.modified_ns,
        )
        now = time.time()
        age_seconds, age_from = make_record(batch).age(now)
        lag = Lag(
            behind_batches=0,
            behind_seconds=0.0,
            age_seconds=age_seconds,
            age_from=age_from,
            event_lag_seconds=None if batch.watermark_ms is None else now - batch.watermark_ms / 1000,
        )
        cut = Cut(job=self._job, position=position, lag=lag, job_state=self._folder.job_state(batch.committed_ns))
        evicted = self._may_have_expired() if found is None else hidden
        return Row(values or (), cut, as_final(stamp_at_most(batch.batch)) if is_over and values else None, evicted=evicted)

    def _may_have_expired(self) -> bool | None:
        """None if a watermark or a TTL removes rows from this store, since a checkpoint doesn't say which.

        Otherwise False.
        """
        expires = may_expire(self._schema) or loses_rows(self._schema)
        return None if expires and (self._schema.ttl or self._batch.watermark_ms is not None) else False

    def _find_value(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The value of a key, merged if the table lies in parts."""
        definition, schema, chunks = self._definition, self._schema, self._definition.parts
        if chunks is None:
            return find_row(self._storage, self._batch, schema, key)
        merge = compile_merge(definition, chunks, schema)
        found = [find_row(self._storage, self._batch, schema, (chunks.key(value), *key)) for value in chunks.values]
        return None if all(row is None for row in found) else merge(key, found)

    def read(self, pa: Any, *, expired: bool) -> Any:
        table = self.table_batch(expired=expired)
        in_parts = table.definition.parts is not None
        found = table.read_merged(pa, self._storage) if in_parts else self._read_partitions(pa, table)
        check_still_committed(self._storage, table.batch)  # 4
        return found

    def table_batch(self, *, expired: bool) -> TableBatch:
        """What a read of its partitions needs.

        expired:  whether to show rows whose TTL has passed, and hidden buckets
        """
        definition, batch, schema = self._definition, self._batch, self._schema
        judged_ms = None
        if schema.ttl and not expired:
            judged_ms = batch.started_ms if self._as_of else clock_ms(batch.started_ms)
        return TableBatch(
            job=self._job,
            checkpoint=self._storage.uri,
            definition=definition,
            batch=batch,
            schema=schema,
            judged_ms=judged_ms,
            hidden=None if expired else self._hidden(),
        )

    def _hidden(self) -> Hidden | None:
        """The buckets that readers don't see."""
        if self._definition.resolutions is None:
            return None
        shorter = read_shorter(self._folder.storage, self._definition)
        return hidden_of(self._definition, shorter, self._batch.watermark_ms)

    def _read_partitions(self, pa: Any, table: TableBatch) -> Any:
        finish, of_thread = table.finish(), threading.local()

        def begin_thread() -> None:
            of_thread.memory = Memory()

        def read_partition(partition: int) -> list[Any]:
            return list(table.iter_tables(pa, self._storage, partition, of_thread.memory, finish))

        # Nearly all work happens in libraries that release Python's lock.
        with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), initializer=begin_thread) as threads:
            tables = [one for found in threads.map(read_partition, table.partitions) for one in found]
        return join_tables(pa, tables, table.arrow_schema(pa))
