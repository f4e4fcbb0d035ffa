"""The state of a savepoint in another form: other partitions, another provider, another checkpoint format.

1. Read each partition of each store: key and value, the newest of each key, with all column
   families (`hdfs_state`, `rocksdb_state`).
2. Spark must have put every row where its hash says: else this isn't how Spark divides this state,
   and nothing is written.
3. Edit the rows, if they are to be edited (`row_edit`).  Turn each row into that of the new
   provider, and see that it turns back.
4. Collect the rows by their new partitions, on disk.  Merge those that have the same key now.
5. Write one snapshot for each new partition, also for those without rows.
6. Read what was written, and compare it with what was read: as many rows, and the same sum of their
   hashes, whatever their order.
7. Write the new form into offsets/N, which is what Spark goes by, into operator metadata, and into
   commits/N, which names the files of checkpoint format 2.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import uuid
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from millpond.checkpoint.encoding import bare_row, key_columns, rocksdb_key, rocksdb_value
from millpond.checkpoint.log import CommittedBatch, read_batch, with_settings, with_state_ids
from millpond.checkpoint.operators import OperatorFiles, read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.rows.unsaferow import encoder
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole.rows import StoreCodec
from millpond.checkpoint.whole.store import WholeStore, read_whole_stores
from millpond.errors import CheckpointError, SavepointError
from millpond.savepoint.manifest import damaged
from millpond.savepoint.rewrite.form import StateForm, check_strict, unsupported
from millpond.savepoint.rewrite.hdfs_state import HdfsState
from millpond.savepoint.rewrite.rocksdb_state import RocksDbState
from millpond.savepoint.rewrite.row_edit import Row, RowEdit
from millpond.savepoint.rewrite.spills import ROW_BYTES, RUN_BYTES, Spills
from millpond.savepoint.rewrite.straight import is_straight, rewrite_straight
from millpond.schema.store import PANDAS_TRANSFORM
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage

_STATE_FILE = re.compile(r"state/\d+/\d+/(?:[^/]+/)?(?:\d+(?:_[0-9A-Za-z_-]+)?\.(?:delta|snapshot|changelog|zip)|SSTs/[^/]+)")
_BOUNDS = FileBounds()
# Spark ignores a setting that it doesn't know.  This one changes the batch's fingerprint, so a replica of
# the batch as it was is built again.
_CHANGED = "millpond.evolved"
_INT = struct.Struct(">i")
State = HdfsState | RocksDbState
Turned = tuple[int, bytes, bytes, bytes]
"""(hash, key, the new provider's key, value)"""


@dataclass(slots=True)
class _Rows:
    """Rows in any order: how many, and the sum of their hashes."""

    count: int = 0
    sum: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        self.count += 1
        self.sum += _hash(key, value)

    def remove(self, key: bytes, value: bytes) -> None:
        self.count -= 1
        self.sum -= _hash(key, value)


def _hash(key: bytes, value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(_INT.pack(len(key)) + key + value, digest_size=32).digest())


class _Turn(NamedTuple):
    """From the bytes of one provider to those of the other."""

    key: Callable[[bytes], bytes]
    value: Callable[[bytes], bytes]


def is_state_file(path: str) -> bool:
    """Whether a file holds rows of one partition."""
    return _STATE_FILE.fullmatch(path) is not None


def rewrite_state(
    source: Storage,
    number: int,
    target: Storage,
    form: StateForm,
    edits: Iterable[RowEdit] = (),
    only: Container[int] | None = None,
) -> None:
    """Write the state of a batch into a restored checkpoint, in another form.

    source:  the checkpoint with the state
    target:  the restored checkpoint, with all files but those of partitions
    edits:   of the rows of stores, at most one of each
    only:    the partitions whose rows are read; None: all of them
    Raises:  UNSUPPORTED for state that isn't divided by Spark's hash of its key; CORRUPT_FILE and
             the like from reading; SAVEPOINT_DAMAGED if what was written isn't what was read.
    """
    batch = read_batch(source, Batch(number))
    check_strict(batch)
    operators = [(operator, read_whole_stores(source, operator)) for operator in read_operator_files(source, batch.batch)]
    settings = form.over(batch.settings)
    after = replace(batch, settings=settings, state_ids={})
    if form.format_over(batch) == 2:
        after = replace(
            after,
            state_ids={
                operator.operator: [[str(uuid.uuid4()) for _ in stores] for _ in partitions_of(after, stores[0].files)]
                for operator, stores in operators
            },
        )
    by_store = {(edit.operator, edit.store): edit for edit in edits}
    for operator, stores in operators:
        edited = [(store, by_store.get((operator.operator, store.name))) for store in stores]
        for store, edit in sorted(edited, key=lambda pair: pair[1] is not None and pair[1].follows):
            _rewrite_store(source, batch, target, after, store, edit, only)
        _write_metadata(target, operator, settings.partitions)
    _write_log(source, target, batch, after, is_changed=bool(by_store))


def _rewrite_store(
    source: Storage,
    batch: CommittedBatch,
    target: Storage,
    after: CommittedBatch,
    store: WholeStore,
    edit: RowEdit | None,
    only: Container[int] | None,
) -> None:
    old = open_state(source, batch, store)
    families = old.families if isinstance(old, RocksDbState) else None
    becomes = store
    if edit is not None:
        becomes, families = edit.store_after(store), None if families is None else edit.numbers_after(families)
    is_hdfs = after.settings.provider == "hdfs"
    new: State = HdfsState(target, after, becomes) if is_hdfs else RocksDbState(target, after, becomes, families)
    if edit is None and is_straight(batch, after, store):
        before, now = rewrite_straight(old, new, batch, after, store, _elsewhere, only)
        if before != now:
            raise _differs(target, store, before.count, now.count)
        return
    read, written, back = _Rows(), _Rows(), _turns(batch.settings.provider, after.settings.provider, store)[1]
    with _collected(old, batch, after, store, edit, read, None if becomes is store else (new, becomes), only) as rows_of:
        for partition in partitions_of(after, becomes.files):  # 5
            new.write(partition, rows_of(partition))
    for partition in partitions_of(after, becomes.files):  # 6
        for key, value in new.iter_rows(partition):
            written.add(back.key(key), back.value(value))
    if read != written:
        raise _differs(target, store, read.count, written.count)


def _differs(target: Storage, store: WholeStore, before: int, now: int) -> SavepointError:
    return damaged(target.uri, f"has {now} rows of {store.id} after it was written, and had {before}, or others")


def count_edited(source: Storage, batch: CommittedBatch, store: WholeStore, edit: RowEdit) -> int:
    """How many rows a store would have after an edit; nothing is written.  Raises as `rewrite_state`."""
    with _collected(open_state(source, batch, store), batch, batch, store, edit, _Rows()) as rows_of:
        return sum(1 for partition in partitions_of(batch, store.files) for _ in rows_of(partition))


@contextmanager
def _collected(
    old: State,
    batch: CommittedBatch,
    after: CommittedBatch,
    store: WholeStore,
    edit: RowEdit | None,
    read: _Rows,
    other: tuple[State, WholeStore] | None = None,
    only: Container[int] | None = None,
) -> Iterator[Callable[[int], Iterable[Row]]]:
    """Steps 1 to 4: a function from a new partition to its rows, of the new provider.

    read:   gets these rows, of the old provider
    other:  the state with other columns, and its store
    only:   the partitions to read; None: all
    """
    provider = after.settings.provider
    forth, back = _turns(batch.settings.provider, provider, store)
    codec = StoreCodec(store, batch.settings, old.numbers)
    hash_key = hash_edited = _first_partition if store.is_single else _once(old.hasher())
    becomes = store
    if other is not None:
        new, becomes = other
        hash_edited = _first_partition if becomes.is_single else _once(new.hasher())
    count = len(partitions_of(after, becomes.files))
    with Spills(count) as spills:
        for rows in _edited(old, batch, store, edit, codec, hash_key, only):
            turned = _turned(rows, forth, back, store.id, hash_edited)
            is_sorted = edit is None and (provider == "hdfs" or not isinstance(old, HdfsState))
            for run in (turned,) if is_sorted else _sorted_runs(turned):
                for hashed, key, new_key, value in run:
                    read.add(key, value)
                    spills.add(hashed % count, new_key, forth.value(value))
                spills.end_run()

        def rows_of(partition: int) -> Iterable[Row]:
            placed = spills.iter_rows(partition)
            return placed if edit is None else _merged(placed, edit, codec, back, read)

        yield rows_of


def open_state(source: Storage, batch: CommittedBatch, store: WholeStore) -> State:
    """The rows of a store."""
    return HdfsState(source, batch, store) if batch.settings.provider == "hdfs" else RocksDbState(source, batch, store)


def _edited(
    old: State,
    batch: CommittedBatch,
    store: WholeStore,
    edit: RowEdit | None,
    codec: StoreCodec,
    hash_key: Callable[[bytes], int],
    only: Container[int] | None,
) -> Iterator[Iterable[Row]]:
    """The rows of each partition, and then those that the edit adds.

    Raises (the iterables as well):  UNSUPPORTED for a row that isn't where its hash says; what the
             edit raises; CORRUPT_FILE and the like.
    """
    count = len(partitions_of(batch, store.files))
    for partition in range(count):
        if only is not None and partition not in only:
            continue
        rows = _placed(old.iter_rows(partition), hash_key, store, partition, count)  # 2
        yield rows if edit is None else edit.rows(rows, codec)  # 3
    if edit is not None:
        yield edit.last(codec)


def _placed(rows: Iterable[Row], hash_key: Callable[[bytes], int], store: WholeStore, partition: int, count: int) -> Iterator[Row]:
    for key, value in rows:
        if hash_key(key) % count != partition:
            raise _elsewhere(store, partition)
        yield key, value


def _first_partition(_key: bytes) -> int:
    return 0


def _once(hash_key: Callable[[bytes], int]) -> Callable[[bytes], int]:
    """The same function, which remembers the last key: a row's old and new place need one hash."""
    last: bytes | None = None
    hashed = 0

    def remembered(key: bytes) -> int:
        nonlocal last, hashed
        if key != last:
            hashed = hash_key(key)
            last = key
        return hashed

    return remembered


def _merged(rows: Iterable[Row], edit: RowEdit, codec: StoreCodec, back: _Turn, read: _Rows) -> Iterator[Row]:
    """Rows in order of their keys, each key once."""
    for key, same in groupby(rows, key=itemgetter(0)):
        found = list(same)
        if found[1:]:
            for _, value in found:
                read.remove(back.key(key), back.value(value))
            found = [edit.merge(found, codec)]
            read.add(back.key(key), back.value(found[0][1]))
        yield found[0]


def _elsewhere(store: WholeStore, partition: int) -> CheckpointError:
    message = f"A row of {store.files.folder(partition)} isn't where Spark's hash of its key says."
    if store.operator.name == PANDAS_TRANSFORM:
        return unsupported(
            f"{message} transformWithStateInPandas stores NULL in place of whole numbers that come beside a NULL.",
            "Restore the savepoint with as many partitions as before, or have the query replace NULL in its key.",
        )
    return unsupported(message, "Report this with the query's key columns: this state can't be divided anew.")


def _turned(rows: Iterable[Row], forth: _Turn, back: _Turn, store: str, hash_key: Callable[[bytes], int]) -> Iterable[Turned]:
    is_same = forth.key is _as_it_is
    for key, value in rows:
        new_key = key if is_same else forth.key(key)
        if not is_same and back.key(new_key) != key:  # 3
            raise unsupported(
                f"A key of store {store} has bytes that Spark doesn't write the same way twice.",
                "Keep the provider: a key with NULL of an interval type can't be moved to another one.",
            )
        yield hash_key(key), key, new_key, value


def _sorted_runs(rows: Iterable[Turned]) -> Iterator[list[Turned]]:
    """The rows in runs, each in the order of the new keys."""
    run: list[Turned] = []
    size = 0
    for row in rows:
        run.append(row)
        size += ROW_BYTES + len(row[1]) + len(row[2]) + len(row[3])
        if size >= RUN_BYTES:
            yield sorted(run, key=_new_key)
            run, size = [], 0
    yield sorted(run, key=_new_key)


def _new_key(row: Turned) -> bytes:
    return row[2]


def _turns(before: str, after: str, store: WholeStore) -> tuple[_Turn, _Turn]:
    """From the rows of a store to those of the new provider, and back."""
    if before == after:
        same = _Turn(_as_it_is, _as_it_is)
        return same, same
    fields, prefix = store.families[store.name].key, store.prefix
    to_rocksdb, to_hdfs = _Turn(rocksdb_key(fields, prefix), rocksdb_value), _Turn(bare_row, bare_row)
    if prefix:
        read, write = key_columns(fields, "prefix", tuple(range(prefix)), avro=False), encoder(fields)
        to_hdfs = to_hdfs._replace(key=lambda key: write(read(key)))
    return (to_rocksdb, to_hdfs) if after == "rocksdb" else (to_hdfs, to_rocksdb)


def _as_it_is(row: bytes) -> bytes:
    return row


def _write_log(source: Storage, target: Storage, batch: CommittedBatch, after: CommittedBatch, *, is_changed: bool) -> None:  # 7
    path = f"offsets/{batch.batch}"
    lines = source.read(path, _BOUNDS.log_bytes).decode().split("\n")
    planned = parse_json(lines[1])
    planned["conf"] = with_settings(planned.get("conf", {}), after.settings)
    if is_changed:
        planned["conf"][_CHANGED] = uuid.uuid4().hex
    lines[1] = json.dumps(planned, separators=(",", ":"))
    target.write(path, "\n".join(lines).encode())
    if batch.state_ids or after.state_ids:
        path = f"commits/{batch.batch}"
        target.write(path, with_state_ids(source.read(path, _BOUNDS.log_bytes), path, after.state_ids))


def _write_metadata(target: Storage, operator: OperatorFiles, partitions: int) -> None:
    """Put the number of partitions into the restored metadata, whose paths are those of the target."""
    if operator.metadata is None:
        return
    version, _, text = target.read(operator.metadata, _BOUNDS.schema_bytes).partition(b"\n")
    try:
        data = parse_json(text)
        for store in data["stateStoreInfo"]:
            store["numPartitions"] = partitions
    except DAMAGE as broken:
        raise CheckpointError(
            "CORRUPT_FILE", f"{operator.metadata} isn't readable: {broken!r:.200}.", hint="Restore the file from a copy."
        ) from broken
    target.write(operator.metadata, version + b"\n" + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode())
