"""Where one event is: which batch read it, whether the replica has that batch, whether it was late.

An event is late if Spark drops it: its window ends at or before the watermark with which the
previous batch was planned.  Spark decides this by operator and key, so the answer is known only if
the table's key has the event's time.

1. The batch that read the event is the first whose end is beyond it.
2. The watermark is that of offsets/(N-1); batch 0 has none.
3. The key's window, or its plain time, is compared with the watermark.  If only the event's time is
   given, every window that may contain it is compared: all of the table's length, wherever they
   begin.

Source:  IncrementalExecution and WatermarkSupport, Spark 4.3, with the default of
         statefulOperator.allowMultiple; compared with Spark's own count of dropped rows in
         tests/spark/accesslog/test_late.py and test_closed.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from millpond.replica.history.as_of import first_position, iter_positions
from millpond.replica.history.delete_cause import loses_rows
from millpond.replica.history.with_expired import SnapshotWithClosed
from millpond.replica.keys.codec import split_value
from millpond.replica.record import ReplicaRecord
from millpond.replica.replica import View
from millpond.tables.answer import Answer, Cut
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.open_read import OpenRead

Late = Literal["yes", "no", "unknown"]
Micros = int
NO_ROWS = "The table is empty, so the length of its windows isn't known."


class EventAnswer(Answer):
    """Where one event is.

    batch_read:  the batch that read the event; None if that isn't known
    applied:     whether the replica has that batch; False if the job hasn't read the event yet
    late:        whether Spark dropped it as too late: yes, no, unknown
    reason:      a sentence that says why `late` is yes, no or unknown
    """

    def __init__(self, cut: Cut, *, batch_read: int | None, applied: bool, late: Late, reason: str) -> None:
        self.cut = cut
        self.batch_read = batch_read
        self.applied = applied
        self.late = late
        self.reason = reason

    def __repr__(self) -> str:
        return f"EventAnswer(batch_read={self.batch_read}, applied={self.applied}, late={self.late!r}, reason={self.reason!r})"


def find_event(
    read: OpenRead,
    is_read: Callable[[ReplicaRecord], bool],
    key: tuple[Any, ...] | None,
    time: Micros | None,
) -> EventAnswer:
    """Where an event is.

    is_read:  says whether the input up to a position contains the event
    key:      the state's key row to which the event belongs; None if unknown
    time:     the event's own time; None if unknown
    """
    view, cut = read.view, read.cut
    if not is_read(view.record):
        return EventAnswer(
            cut, batch_read=None, applied=False, late="unknown", reason="Up to this replica's batch, the job hasn't read it."
        )
    before: ReplicaRecord | None = None
    for record in iter_positions(view.rows):
        if is_read(record):
            break
        before = record
    if before is None and record.batch > 0:
        reason = f"Batch {record.batch} or an earlier one read it; older positions are no longer kept."
        return EventAnswer(cut, batch_read=None, applied=True, late="unknown", reason=reason)
    if before is not None and record.batch != before.batch + 1:
        reason = f"One of the batches {before.batch + 1} to {record.batch} read it; the replica couldn't read these one by one."
        return EventAnswer(cut, batch_read=None, applied=True, late="unknown", reason=reason)
    late, reason = _judge(read, before.planned_watermark_ms * 1000 if before is not None else None, key, time)
    return EventAnswer(cut, batch_read=record.batch, applied=True, late=late, reason=reason)


def _judge(read: OpenRead, watermark: Micros | None, key: tuple[Any, ...] | None, time: Micros | None) -> tuple[Late, str]:
    """Whether a row was late for a batch that dropped late rows by this watermark."""
    view, schema = read.view, read.binding.schema
    if len(view.stores.operators()) > 1:
        return "unknown", "The job has several stateful operators: the input of one depends on the others."
    if view.record.watermark_ms is None:
        return "no", "The job has no watermark."
    if watermark is None:
        return "no", "Nothing is late for a job's first batch."
    if schema.operator_name == "dedupeWithinWatermark":
        return _by_time(watermark, time)
    if schema.operator_name == "sessionWindowStateStoreSaveExec":
        if time is not None and time > watermark:
            return "no", "Its time is after the watermark."
        return "unknown", "The end of a late event's session isn't known."
    if schema.operator_name not in ("stateStoreSave", "dedupe") or not schema.watermarked:
        return "unknown", "The table's key doesn't have the watermark's time."
    column = schema.watermarked[0]
    if schema.key[column].type.kind != "struct":
        return _by_time(watermark, time if key is None else key[column])
    if key is not None:
        end = key[column][1]
        return _said(end <= watermark, "Its window ends", watermark)
    return _by_any_window(read, column, watermark, time)


def _by_any_window(read: OpenRead, column: int, watermark: Micros, time: Micros | None) -> tuple[Late, str]:
    """By the time alone: each window with this time ends after it, by at most the windows' length."""
    if time is None:
        return "unknown", "Its window or its time wasn't given."
    if time >= watermark:
        return "no", "All of its windows end after the watermark."
    first = next(SnapshotWithClosed(read.stored()).iterate(read.binding.table, b"\x00"), None)
    if first is None:
        return "unknown", NO_ROWS
    start, end = read.binding.codec.decode(split_value(*first)[0])[column]
    if time + (end - start) <= watermark:
        return "yes", "All of its windows had ended when its batch was read."
    return "unknown", "Some of its possible windows had ended when its batch was read, others hadn't: give the window."


def _by_time(watermark: Micros, time: Micros | None) -> tuple[Late, str]:
    if time is None:
        return "unknown", "Its time wasn't given."
    return _said(time <= watermark, "Its time is", watermark)


def _said(late: bool, what: str, watermark: Micros) -> tuple[Late, str]:
    relation = "not after" if late else "after"
    return (
        "yes" if late else "no"
    ), f"{what} {relation} the watermark by which its batch dropped late rows, {watermark // 1000} ms."


def is_built_late(view: View) -> bool:
    """Whether rows may have expired before the replica or its kept rows began."""
    first = first_position(view.rows)
    return (view.record.batch if first is None else first) > 0


def may_have_expired(view: View, binding: Binding, key: tuple[Any, ...]) -> bool:
    """Whether the state would no longer have a row with this key."""
    schema = binding.schema
    if loses_rows(schema):
        return schema.ttl or view.record.watermark_ms is not None
    if schema.operator_name not in ("stateStoreSave", "dedupe"):
        return True
    if not schema.watermarked:
        return False
    value = key[schema.watermarked[0]]
    end = value[1] if isinstance(value, tuple) else value
    return end is not None and bool(end <= view.record.planned_watermark_ms * 1000)
