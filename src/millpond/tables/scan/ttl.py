"""Rows that no read shows by default, although the state has them: their TTL has passed, or their bucket is hidden.

For a TTL Spark uses processing time: the next batch that it plans at that time or later removes such a row,
and the job's functions no longer see it.  Until that batch, and while the job is down, the row is
still in the state.  So each read judges rows by a time of its own:

    the newest batch     the reader's clock, or when the batch was planned if that is later
    an earlier batch     when that batch was planned, as the job's functions saw it
    an earlier time      that time, or now if it is in the future; or when its batch was planned if that is later

Buckets are hidden by the watermark of the batch that is read (`kept.shorter`).

Source:  StateTTL.isExpired, Spark 4.3: a row has expired if its time is at or before the batch's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from millpond.replica.row_stamp import as_final
from millpond.tables.kept.shorter import Hidden

Milliseconds = int
Judge = Callable[[tuple[Any, ...], tuple[Any, ...], bytes], bytes | None]
"""(key row, value row, stored value) -> the stored value, marked final if it has expired; None if no read shows it"""


def clock_ms(planned_ms: Milliseconds, asked_ms: Milliseconds | None = None) -> Milliseconds:
    """The time by which rows are judged, of a batch planned at that time, now or as of another time."""
    now_ms = time.time_ns() // 1_000_000
    return max(planned_ms, now_ms if asked_ms is None else min(asked_ms, now_ms))


def has_passed(value: tuple[Any, ...], now_ms: Milliseconds) -> bool:
    """Whether a row has expired at this time.

    Shape:  the value row of a variable with a TTL: the user's columns as a struct, ttlExpirationMs
    """
    expires_ms = value[1]
    return expires_ms is not None and bool(expires_ms <= now_ms)


def judge_by(now_ms: Milliseconds, *, shown: bool) -> Judge:
    """A function that decides how to show a row of a variable with a TTL.

    shown:  whether to show expired rows, marked final, or to leave them out
    """

    def judge(_key: tuple[Any, ...], value: tuple[Any, ...], stored: bytes) -> bytes | None:
        if not has_passed(value, now_ms):
            return stored
        return as_final(stored) if shown else None

    return judge


def judge_buckets(hidden: Hidden, *, shown: bool) -> Judge:
    """The same for a table of buckets."""
    hides = hidden.hides

    def judge(key: tuple[Any, ...], _value: tuple[Any, ...], stored: bytes) -> bytes | None:
        if not hides(key):
            return stored
        return as_final(stored) if shown else None

    return judge
