"""A replica's own record, written in the same transaction as the rows."""

from __future__ import annotations

import uuid
from typing import Any, Literal

import msgspec

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import UnreadStore
from millpond.checkpoint.position import Batch, Position
from millpond.schema.prepared import ready
from millpond.schema.shard import Shard
from millpond.schema.store import StoreSchema, parse_store
from millpond.storage import FileStamp

# A replica with another number is built again. If the format of keys or values changes, change
# `journal.FORMAT` too.
FORMAT = 4
# The same with indexes, which older versions wouldn't keep up to date.
FORMAT_WITH_INDEXES = 5
# The conditions of a store that may become readable later: missing, incomplete or damaged files.
DAMAGED = frozenset({"FILE_GONE", "INCOMPLETE_FILE", "CORRUPT_FILE"})


class KeptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The kept history and expired rows of one store.

    history_from:      the first batch whose changes are kept, None if none are
    collapsed:         (first, last) of batches whose changes are kept as one change of the last,
                       since the replica was built again there
    closed_bytes:      bytes of expired rows
    closed_forgotten:  the newest batch of whose expired rows some were removed or never seen; None
                       if all are kept
    """

    history_from: int | None = None
    collapsed: tuple[tuple[int, int], ...] = ()
    closed_bytes: int = 0
    closed_forgotten: int | None = None


class ReplicaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's position and state.

    status:        live; replaced (another job is at this path, so reads are refused); superseded (a
                   newer generation serves)
    fingerprint:   of the batch's log files, see `CommittedBatch.fingerprint`
    commit_*:      the stamp of commits/N
    planned_watermark_ms:  the watermark with which the batch was planned
    committed_ns:  when commits/N was written, None if its time isn't that of the commit
    partitions:    of stateful operators in that batch
    kept:          by store, its kept history and expired rows
    """

    status: Literal["live", "replaced", "superseded"] = "live"
    batch: int
    offsets: dict[str, Any]
    watermark_ms: int | None
    planned_watermark_ms: int
    started_ms: int
    fingerprint: str
    commit_identity: str
    commit_modified_ns: int
    commit_size_bytes: int
    partitions: int
    provider: str
    committed_ns: int | None = None
    kept: dict[str, KeptRecord] = {}

    @property
    def committed_ms(self) -> int:
        """When the batch was committed, or began if that isn't known, in milliseconds since 1970."""
        return self.started_ms if self.committed_ns is None else self.committed_ns // 1_000_000

    def age(self, now: float) -> tuple[float, str]:
        """Seconds since the batch was committed, or began if that isn't known; and `Lag.age_from`."""
        if self.committed_ns is None:
            return max(0.0, now - self.started_ms / 1000), "batch_start"
        return max(0.0, now - self.committed_ns / 1e9), "commit"

    @property
    def commit_stamp(self) -> FileStamp:
        """The stamp of commits/N when it was applied."""
        return FileStamp(self.commit_identity, self.commit_modified_ns, self.commit_size_bytes)

    def position(self) -> Position:
        """The same for readers."""
        return Position(
            batch=Batch(self.batch),
            offsets=self.offsets,
            watermark_ms=self.watermark_ms,
            batch_started_ms=self.started_ms,
            committed_ns=self.commit_modified_ns,
        )


class UnreadField(msgspec.Struct, frozen=True):
    """A store that can't be read, and why."""

    operator: int
    operator_name: str
    store: str
    condition: str
    message: str
    hint: str


class _StoresFormat(msgspec.Struct, frozen=True):
    """The part of the record that all formats have."""

    format: int


_parse_format = msgspec.json.Decoder(ready(_StoresFormat)).decode


class IndexRecord(msgspec.Struct, frozen=True):
    """An index of a store.

    digest:  of all that decides its entries; a table of another meaning has another one
    """

    columns: tuple[str, ...]
    digest: str


IndexRecords = dict[str, tuple[IndexRecord, ...]]
"""by store"""


class StoresRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stores of a replica, which never change.

    lineage:  the same for all replicas of one run of a job, if each carried over the history of the
              one before
    shard:   the partitions that it follows, as `parse_shard` reads them; empty for all
    """

    format: int
    job_id: str
    lineage: str
    checkpoint: str
    stores: list[StoreSchema]
    unread: list[UnreadField]
    indexes: IndexRecords = {}
    shard: str = ""

    def operators(self) -> set[int]:
        """Spark's ids of its operators, also of those that can't be read."""
        return {s.operator for s in self.stores} | {u.operator for u in self.unread}

    def is_damaged(self) -> bool:
        """Whether a store couldn't be read because of a missing or incomplete file, which may still come."""
        return any(u.condition in DAMAGED for u in self.unread)


def make_record(batch: CommittedBatch) -> ReplicaRecord:
    """The record after applying `batch`."""
    return ReplicaRecord(
        batch=batch.batch,
        offsets=batch.offsets,
        watermark_ms=batch.watermark_ms,
        planned_watermark_ms=batch.planned_watermark_ms,
        started_ms=batch.started_ms,
        fingerprint=batch.fingerprint,
        commit_identity=batch.commit_stamp.identity,
        commit_modified_ns=batch.commit_stamp.modified_ns,
        commit_size_bytes=batch.commit_stamp.size_bytes,
        partitions=batch.settings.partitions,
        provider=batch.settings.provider,
        committed_ns=batch.committed_ns,
    )


def make_stores_record(
    job_id: str,
    checkpoint: str,
    stores: list[StoreSchema],
    unread: list[UnreadStore],
    lineage: str | None = None,
    shard: Shard | None = None,
) -> StoresRecord:
    """The stores of a new replica without indexes; `lineage` if it continues another one's."""
    return StoresRecord(
        format=FORMAT,
        job_id=job_id,
        lineage=lineage or uuid.uuid4().hex,
        checkpoint=checkpoint,
        stores=stores,
        unread=[
            UnreadField(u.operator, u.operator_name, u.store, u.error.condition, u.error.message, u.error.hint) for u in unread
        ],
        shard="" if shard is None else shard.text,
    )


encode_record = msgspec.json.Encoder().encode
"""a `ReplicaRecord` as JSON"""
decode_record = msgspec.json.Decoder(ready(ReplicaRecord)).decode
"""the reverse"""


def with_indexes(record: StoresRecord, indexes: IndexRecords) -> StoresRecord:
    """The same stores with these indexes."""
    return msgspec.structs.replace(record, format=FORMAT_WITH_INDEXES if indexes else FORMAT, indexes=indexes)


def encode_stores(record: StoresRecord) -> bytes:
    """The record as JSON, which `parse_stores` reads."""
    return msgspec.json.encode({**msgspec.structs.asdict(record), "stores": [store.to_json() for store in record.stores]})


def parse_stores(data: bytes) -> StoresRecord | None:
    """The reverse; None if a replica of another format wrote it."""
    if not data or _parse_format(data).format not in (FORMAT, FORMAT_WITH_INDEXES):
        return None
    record = _parse_record(data)
    stores = [parse_store(store) for store in record.stores]
    return StoresRecord(**{**msgspec.structs.asdict(record), "stores": stores})


class _Written(msgspec.Struct, kw_only=True):
    """The JSON form of a `StoresRecord`."""

    format: int
    job_id: str
    lineage: str
    checkpoint: str
    stores: list[dict[str, Any]]
    unread: list[UnreadField]
    indexes: IndexRecords = {}
    shard: str = ""


_parse_record = msgspec.json.Decoder(ready(_Written)).decode
