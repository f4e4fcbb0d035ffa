"""The state of a savepoint in another form: other partitions, another provider, another checkpoint format.

1. Read each partition of each store: key and value, the newest of each key, with all column
   families (`hdfs_state`, `rocksdb_state`).  Give it its new columns, if it gets any.
2. Spark must have put every row where its hash says: else this isn't how Spark divides this state,
   and nothing is written.
3. Turn the row into that of the new provider, and see that it turns back.
4. Collect the rows by their new partitions, on disk.
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from millpond.checkpoint.encoding import bare_row, key_columns, rocksdb_key, rocksdb_value
from millpond.checkpoint.log import CommittedBatch, read_batch, with_settings, with_state_ids
from millpond.checkpoint.operators import PANDAS_TRANSFORM, OperatorFiles, read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole_store import WholeStore, read_whole_stores
from millpond.errors import CheckpointError
from millpond.savepoint.manifest import damaged
from millpond.savepoint.rewrite.form import StateForm, unsupported
from millpond.savepoint.rewrite.hdfs_state import HdfsState
from millpond.savepoint.rewrite.rocksdb_state import RocksDbState
from millpond.savepoint.rewrite.spills import Spills
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.schema.value_change import ValueChange
from millpond.settings import FileBounds
from millpond.storage import Storage

_STATE_FILE = re.compile(r"state/\d+/\d+/(?:[^/]+/)?(?:\d+(?:_[0-9A-Za-z_-]+)?\.(?:delta|snapshot|changelog|zip)|SSTs/[^/]+)")
_BOUNDS = FileBounds()
_SUM = 1 << 256
# Spark ignores a setting that it doesn't know.  This one changes the batch's fingerprint, so a replica of
# the batch as it was is built again.
_CHANGED = "millpond.evolved"
_INT = struct.Struct(">i")
_State = HdfsState | RocksDbState


@dataclass(slots=True)
class _Rows:
    """Rows in any order: how many, and the sum of their hashes."""

    count: int = 0
    sum: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        digest = hashlib.blake2b(_INT.pack(len(key)) + key + value, digest_size=32).digest()
        self.count += 1
        self.sum = (self.sum + int.from_bytes(digest)) % _SUM


class _Turn(NamedTuple):
    """From the bytes of one provider to those of the other."""

    key: Callable[[bytes], bytes]
    value: Callable[[bytes], bytes]


def is_state_file(path: str) -> bool:
    """Whether a file holds rows of one partition."""
    return _STATE_FILE.fullmatch(path) is not None


def rewrite_state(source: Storage, number: int, target: Storage, form: StateForm, changes: Iterable[ValueChange] = ()) -> None:
    """Write the state of a batch into a restored checkpoint, in another form.

    source:  the checkpoint with the state
    target:  the restored checkpoint, with all files but those of partitions
    changes:  stores whose rows get other columns
    Raises:  UNSUPPORTED for state that isn't divided by Spark's hash of its key; CORRUPT_FILE and
             the like from reading; SAVEPOINT_DAMAGED if what was written isn't what was read.
    """
    batch = read_batch(source, Batch(number))
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
    changed = {(change.operator, change.store): change for change in changes}
    for operator, stores in operators:
        for store in stores:
            _rewrite_store(source, batch, target, after, store, changed.get((operator.operator, store.name)))
        _write_metadata(target, operator, settings.partitions)
    _write_log(source, target, batch, after, is_changed=bool(changed))


def _rewrite_store(
    source: Storage,
    batch: CommittedBatch,
    target: Storage,
    after: CommittedBatch,
    store: WholeStore,
    change: ValueChange | None,
) -> None:
    old: _State = HdfsState(source, batch, store) if batch.settings.provider == "hdfs" else RocksDbState(source, batch, store)
    families = old.families if isinstance(old, RocksDbState) else None
    is_hdfs = after.settings.provider == "hdfs"
    new: _State = HdfsState(target, after, store) if is_hdfs else RocksDbState(target, after, store, families)
    forth, back = _turns(batch.settings.provider, after.settings.provider, store)
    before_count, after_count = len(partitions_of(batch, store.files)), len(partitions_of(after, store.files))
    read, written, hash_key = _Rows(), _Rows(), old.hasher()
    with Spills(after_count) as spills:
        for partition in range(before_count):
            rows = old.iter_rows(partition)
            if change is not None:
                rows = _changed(rows, change, batch)
            run = _turned(rows, forth, back, store.files.folder(partition))
            if isinstance(old, HdfsState) and not is_hdfs:
                run = sorted(run, key=_new_key)
            for key, new_key, value in run:
                hashed = 0 if store.is_single else hash_key(key)
                if hashed % before_count != partition:  # 2
                    raise _elsewhere(store, partition)
                read.add(key, value)
                spills.add(hashed % after_count, new_key, forth.value(value))  # 4
            spills.end_run()
        for partition in range(after_count):  # 5
            new.write(partition, spills.iter_rows(partition))
    for partition in range(after_count):  # 6
        for key, value in new.iter_rows(partition):
            written.add(back.key(key), back.value(value))
    if read != written:
        raise damaged(target.uri, f"has {written.count} rows of {store.id} after it was written, and had {read.count}, or others")


def _changed(rows: Iterable[tuple[bytes, bytes]], change: ValueChange, batch: CommittedBatch) -> Iterator[tuple[bytes, bytes]]:
    """The rows with other columns."""
    read, write, apply = decoder(change.before), encoder(change.after), change.apply
    if batch.settings.provider == "hdfs":
        for key, value in rows:
            yield key, write(apply(read(value)))
    else:
        for key, value in rows:
            yield key, rocksdb_value(write(apply(read(bare_row(value)))))


def _elsewhere(store: WholeStore, partition: int) -> CheckpointError:
    message = f"A row of {store.files.folder(partition)} isn't where Spark's hash of its key says."
    if store.operator.name == PANDAS_TRANSFORM:
        return unsupported(
            f"{message} transformWithStateInPandas stores NULL in place of whole numbers that come beside a NULL.",
            "Restore the savepoint with as many partitions as before, or have the query replace NULL in its key.",
        )
    return unsupported(message, "Report this with the query's key columns: this state can't be divided anew.")


def _turned(rows: Iterable[tuple[bytes, bytes]], forth: _Turn, back: _Turn, folder: str) -> Iterable[tuple[bytes, bytes, bytes]]:
    """Each row as (key, the new provider's key, value)."""
    for key, value in rows:  # 1
        new_key = forth.key(key)
        if back.key(new_key) != key:  # 3
            raise unsupported(
                f"A key of {folder} has bytes that Spark doesn't write the same way twice.",
                "Keep the provider: a key with NULL of an interval type can't be moved to another one.",
            )
        yield key, new_key, value


def _new_key(row: tuple[bytes, bytes, bytes]) -> bytes:
    return row[1]


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
