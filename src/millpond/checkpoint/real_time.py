"""Checkpoints of queries in real-time mode (`trigger(realTime=…)`, Spark 4.1 and later) are refused.

Its aggregations are operators with another name (`operators.py`).  Nothing else names the mode, but
the times of files show it.  A micro-batch is planned, written to offsets/N, and then run.  In
real-time mode a batch is planned, runs for seconds, writes state, then offsets/N, and is committed.
Copies have other times; in an original, commits/N-1 exists before batch N is planned.
"""

from __future__ import annotations

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.position import version_of
from millpond.errors import real_time_mode
from millpond.storage import Storage

# Between the planning of a micro-batch and its offsets/N lie milliseconds; in real-time mode the
# whole batch, 5 s or more.
_LONG_MS = 1000
_MS = 1_000_000


def refuse_real_time(storage: Storage, batch: CommittedBatch) -> None:
    """Raise UNSUPPORTED if the times of a batch's files show that it was written in real-time mode.

    A job's first batch, and a copy, don't show it.  This looks at three files, only in checkpoint
    format 2, since Spark refuses real-time mode in format 1.

    Source:  Spark 4.3, checked by tests/spark/test_real_time.py.
    """
    if _is_real_time(storage, batch):
        raise real_time_mode(f"Batch {batch.batch} of {storage.uri} was written in real-time mode: its offsets come last.")


def _is_real_time(storage: Storage, batch: CommittedBatch) -> bool:
    partitions = next((found for found in batch.state_ids.values() if found and found[0]), None)
    if partitions is None:
        return False
    offsets = storage.stamp(f"offsets/{batch.batch}")
    if offsets is None or offsets.modified_ns // _MS < batch.started_ms + _LONG_MS:
        return False
    before = storage.stamp(f"commits/{batch.batch - 1}")
    if before is None or before.modified_ns // _MS > batch.started_ms:
        return False
    operator = next(op for op, found in batch.state_ids.items() if found is partitions)
    name = f"state/{operator}/0/{version_of(batch.batch)}_{partitions[0][0]}"
    state = storage.stamp(f"{name}.changelog") or storage.stamp(f"{name}.zip")
    return state is not None and state.modified_ns <= offsets.modified_ns
