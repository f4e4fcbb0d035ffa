"""What a replica says of itself, written in the same transaction as the rows."""

from __future__ import annotations

import uuid
from typing import Any, Literal

import msgspec

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import UnreadStore
from millpond.checkpoint.position import Batch, Position
from millpond.schema.store import StoreSchema, parse_store
from millpond.storage import FileStamp

# A replica with another number is built again.  Where keys or values are stored otherwise, `journal.FORMAT` is another as well.
FORMAT = 4
# Why a store can't be read now and perhaps later: files that are missing, cut short or damaged.
DAMAGED = frozenset({"FILE_GONE", "INCOMPLETE_FILE", "CORRUPT_FILE"})


class KeptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of one store beside its rows.

    history_from:      the first batch whose changes are kept, None where none are
    collapsed:         (first, last) of batches whose changes are kept as one, of the last: the replica was built anew there
    closed_bytes:      of rows that expired
    closed_forgotten:  the newest batch of whose expired rows some aren't kept, or may never have been seen, None where all are
    """

    history_from: int | None = None
    collapsed: tuple[tuple[int, int], ...] = ()
    closed_bytes: int = 0
    closed_forgotten: int | None = None


class ReplicaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replica stands.

    status:        live; replaced (the job at this path is another one: reads are refused); superseded (a newer generation serves)
    fingerprint:   of the batch's log files, see `checkpoint.log.fingerprint`
    commit_*:      the stamp of commits/N
    planned_watermark_ms:  the watermark that the batch was planned with
    committed_ns:  when it was written, None where its time doesn't tell
    partitions:    of stateful operators in that batch
    kept:          by store, what is kept beside its rows
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
        """When the batch was committed, or began where that isn't known, in milliseconds since 1970."""
        return self.started_ms if self.committed_ns is None else self.committed_ns // 1_000_000

    def age(self, now: float) -> tuple[float, str]:
        """Seconds since the batch was committed, or began where that isn't known, and which of the two: `Lag.age_from`."""
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
    """A store that has none, and why."""

    operator: int
    operator_name: str
    store: str
    condition: str
    message: str
    hint: str


class _StoresFormat(msgspec.Struct, frozen=True):
    """What can be read of any replica, older ones too."""

    format: int


_parse_format = msgspec.json.Decoder(_StoresFormat).decode


class StoresRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica holds; doesn't change as long as it lives.

    lineage:  the same for all replicas of one run of a job that carried over what the one before had kept
    """

    format: int
    job_id: str
    lineage: str
    checkpoint: str
    stores: list[StoreSchema]
    unread: list[UnreadField]

    def operators(self) -> set[int]:
        """Spark's ids of the operators that it knows, whether their stores can be read or not."""
        return {s.operator for s in self.stores} | {u.operator for u in self.unread}

    def is_damaged(self) -> bool:
        """Whether a store couldn't be read for want of a whole file, which may come yet."""
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
    job_id: str, checkpoint: str, stores: list[StoreSchema], unread: list[UnreadStore], lineage: str | None = None
) -> StoresRecord:
    """What a replica that is being built will hold; `lineage` where it goes on from another one."""
    return StoresRecord(
        format=FORMAT,
        job_id=job_id,
        lineage=lineage or uuid.uuid4().hex,
        checkpoint=checkpoint,
        stores=stores,
        unread=[
            UnreadField(u.operator, u.operator_name, u.store, u.error.condition, u.error.message, u.error.hint) for u in unread
        ],
    )


def encode_stores(record: StoresRecord) -> bytes:
    """The record as JSON, which `parse_stores` reads."""
    return msgspec.json.encode({**msgspec.structs.asdict(record), "stores": [store.to_json() for store in record.stores]})


def parse_stores(data: bytes) -> StoresRecord | None:
    """The reverse; None where a replica of another format wrote it."""
    if not data or _parse_format(data).format != FORMAT:
        return None
    record = _parse_record(data)
    stores = [parse_store(store) for store in record.stores]
    return StoresRecord(**{**msgspec.structs.asdict(record), "stores": stores})


class _Written(msgspec.Struct, kw_only=True):
    """A `StoresRecord` as JSON has it."""

    format: int
    job_id: str
    lineage: str
    checkpoint: str
    stores: list[dict[str, Any]]
    unread: list[UnreadField]


_parse_record = msgspec.json.Decoder(_Written).decode
