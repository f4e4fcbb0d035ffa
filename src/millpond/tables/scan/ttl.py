"""Rows whose TTL has passed: no read shows them by default, whether Spark has removed them yet or not.

Spark goes by processing time: the next batch that it plans at that time or later removes such a row, and its functions don't see
the row any more.  Until that batch, and as long as the job is down, the row is still in the state.  So each read judges by a time
of its own:

    the newest batch     by the clock of the machine that reads, or when the batch was planned where that is later
    an earlier batch     by when that batch was planned, which is what the job's functions saw
    an earlier time      by that time, as far as it has come, or when its batch was planned where that is later

Source:  StateTTL.isExpired, Spark 4.3: a row has expired where its time is at or before the batch's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from millpond.replica.row_stamp import as_final

Milliseconds = int
Judge = Callable[[tuple[Any, ...], bytes], bytes | None]
"""(value row, stored value) -> the stored value, marked final where its TTL has passed; None where it isn't shown"""


def clock_ms(planned_ms: Milliseconds, asked_ms: Milliseconds | None = None) -> Milliseconds:
    """The time by which rows of a batch that was planned then are judged, now or as of a time that is asked for."""
    now_ms = time.time_ns() // 1_000_000
    return max(planned_ms, now_ms if asked_ms is None else min(asked_ms, now_ms))


def has_passed(value: tuple[Any, ...], now_ms: Milliseconds) -> bool:
    """Whether a row has expired by then.

    Shape:  the value row of a variable with a TTL: the user's columns as a struct, ttlExpirationMs
    """
    expires_ms = value[1]
    return expires_ms is not None and bool(expires_ms <= now_ms)


def judge_by(now_ms: Milliseconds, *, shown: bool) -> Judge:
    """A function that decides how a row of a variable with a TTL is shown.

    shown:  whether expired rows are shown, marked final, or left out
    """

    def judge(value: tuple[Any, ...], stored: bytes) -> bytes | None:
        if not has_passed(value, now_ms):
            return stored
        return as_final(stored) if shown else None

    return judge
