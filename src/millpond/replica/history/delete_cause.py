"""Why a row left the state: the checkpoint only records that it was deleted.

    aggregation, dropDuplicates   expire: nothing but the watermark deletes their rows
    session windows               expire, unless a session of the same key that this batch wrote covers it: then both were merged
                                  and it was deleted
    a variable with a TTL         expire where its time had come when the batch was planned, else the job's own code deleted it
    a variable without, applyInPandasWithState   delete: the job's own code
    a batch that repairs rows     delete: such a batch has no events, and nothing expires in it
    joins, limit                  remove: by the watermark, or because rows moved up in their key's list

Source:  StateStoreSaveExec, StreamingDeduplicateExec, SessionWindowStateStoreSaveExec, TTL state of
         Spark 4.3; golden checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.schema.definition.default_table import session_place
from millpond.schema.store import StoreSchema

Kind = Literal["insert", "update", "delete", "expire", "remove"]
KINDS: tuple[Kind, ...] = ("insert", "update", "delete", "expire", "remove")

Written = Iterable[tuple[bytes, bytes]]
"""(ordered key, row) of all that the batch put into the table, even if deleted later"""
Judge = Callable[[bytes, bytes], Kind]
"""(ordered key, last row) -> why it was deleted"""
Cause = Callable[[int, Callable[[], Written]], Judge]
"""(when the batch was planned in milliseconds, its puts) -> the judge of its deletes"""

# A session's start, the last column of its ordered key: a mark and eight bytes.
_START_BYTES = 9
_SESSIONS = "sessionWindowStateStoreSaveExec"
_BY_WATERMARK = ("stateStoreSave", "dedupe", "dedupeWithinWatermark")
_BY_CODE = ("applyInPandasWithState", "transformWithStateInPandasExec", "transformWithStateInPySparkExec")


def may_expire(schema: StoreSchema) -> bool:
    """Whether a watermark or a TTL removes rows of this store, which may then be kept."""
    return schema.operator_name in (*_BY_WATERMARK, _SESSIONS) or (schema.ttl and not schema.many)


def loses_rows(schema: StoreSchema) -> bool:
    """Whether a watermark or a TTL removes rows that can't be kept: of joins and lists with a TTL.

    Their keys are places in a list, and after a removal later rows may move up.
    """
    return schema.operator_name == "symmetricHashJoin" or (schema.ttl and schema.many)


def only_expires(schema: StoreSchema) -> bool:
    """Whether a missing row must have expired, after any number of batches."""
    return schema.operator_name in _BY_WATERMARK


def may_return(schema: StoreSchema) -> bool:
    """Whether an expired key may be written again: not if the watermark has passed its own time."""
    return schema.operator_name != _SESSIONS and not (
        schema.operator_name in ("stateStoreSave", "dedupe") and bool(schema.watermarked)
    )


def closes_windows(schema: StoreSchema) -> bool:
    """Whether an expired row is a finished window, and not one that merely no longer counts."""
    return schema.operator_name == _SESSIONS or (schema.operator_name == "stateStoreSave" and bool(schema.watermarked))


def judge_of(cause: Cause, batch: CommittedBatch, written: Callable[[], Written]) -> Judge:
    """The judge of a batch's deletes in a store with this cause."""
    return _by_repair if batch.is_repair else cause(batch.started_ms, written)


def _by_repair(_key: bytes, _row: bytes) -> Kind:
    return "delete"


def cause_of(schema: StoreSchema) -> Cause:
    """The function that judges the deletes of this store."""
    kind = only_kind(schema)
    if kind is not None:
        return _always(kind)
    return _sessions(schema) if schema.operator_name == _SESSIONS else _ttl(schema)


def only_kind(schema: StoreSchema) -> Kind | None:
    """The kind of all deletes of this store that aren't repairs; None if each must be judged."""
    if schema.operator_name in _BY_WATERMARK:
        return "expire"
    if schema.operator_name == _SESSIONS or (schema.ttl and not schema.many):
        return None
    return "delete" if schema.operator_name in _BY_CODE and not schema.ttl else "remove"


def _always(kind: Kind) -> Cause:
    return lambda _planned_ms, _written: lambda _key, _row: kind


def _ttl(schema: StoreSchema) -> Cause:
    decode = decoder(schema.value)

    def cause(planned_ms: int, _written: Callable[[], Written]) -> Judge:
        return lambda _key, row: "expire" if decode(row)[1] <= planned_ms else "delete"

    return cause


def _sessions(schema: StoreSchema) -> Cause:
    place = session_place(schema.key, schema.value)
    if place is None:
        return _always("remove")
    decode = decoder(schema.value)

    def cause(_planned_ms: int, written: Callable[[], Written]) -> Judge:
        by_key: dict[bytes, list[tuple[bytes, int, int]]] | None = None

        def judge(key: bytes, row: bytes) -> Kind:
            nonlocal by_key
            if by_key is None:
                by_key = {}
                for other, other_row in written():
                    by_key.setdefault(other[:-_START_BYTES], []).append((other, *decode(other_row)[place]))
            start, end = decode(row)[place]
            near = by_key.get(key[:-_START_BYTES], ())
            return "delete" if any(o != key and s <= start and end <= e for o, s, e in near) else "expire"

        return judge

    return cause
