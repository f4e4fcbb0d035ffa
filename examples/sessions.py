"""Sessions per visitor with event-time timers: a visit ends half an hour after its last request, by the log's own clock.

Run, and ask from another terminal who is on the site now, and which session ends when:

    python examples/sessions.py LOG ./pond
    millpond scan ./pond sessions_open
    millpond scan ./pond sessions_timers

A session that has ended leaves the state and goes to the sink.  Spark's session_window does this without code; timers are for
what it can't do: other ends than a gap, something to be done at the end, other state beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import millpond
from millpond.spark.accesslog.source import log_stream
from millpond.spark.job import Job, run_until_stopped

GAP_MS = 30 * 60 * 1000
LATE = "10 minutes"
STATE = "started_ms long, last_ms long, requests long"


class Session(NamedTuple):
    """One visit: milliseconds since 1970 of its first and last request, and how many there were."""

    started_ms: int
    last_ms: int
    requests: int

    @property
    def ends_ms(self) -> int:
        """When it is over, unless a request comes before."""
        return self.last_ms + GAP_MS


def add(sessions: list[Session], ms: int) -> list[Session]:
    """The sessions with one more request, which may join two of them: requests come late and in no order."""
    near = [s for s in sessions if s.started_ms - GAP_MS < ms < s.ends_ms]
    joined = Session(
        min([ms, *(s.started_ms for s in near)]), max([ms, *(s.last_ms for s in near)]), 1 + sum(s.requests for s in near)
    )
    return [s for s in sessions if s not in near] + [joined]


class Sessions(StatefulProcessor):
    """The open sessions of a host, each with a timer at its end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.open = handle.getListState("open", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        sessions = self.sessions()
        for ms in sorted(ms for chunk in rows for ms in chunk["ms"].tolist()):
            sessions = add(sessions, ms)
        # A timer must lie after the watermark, which may have passed an end while the batch was read.
        over = [s for s in sessions if s.ends_ms <= timerValues.getCurrentWatermarkInMs()]
        self.keep([s for s in sessions if s not in over])
        yield from ended(key, over)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        sessions, now_ms = self.sessions(), expiredTimerInfo.getExpiryTimeInMs()
        self.keep([s for s in sessions if s.ends_ms > now_ms])
        yield from ended(key, [s for s in sessions if s.ends_ms <= now_ms])

    def sessions(self) -> list[Session]:
        return [Session(*stored) for stored in self.open.get()]

    def keep(self, sessions: list[Session]) -> None:
        """Write the sessions that go on, and a timer for each end."""
        wanted, there = {s.ends_ms for s in sessions}, set(self.handle.listTimers())
        for ms in there - wanted:
            self.handle.deleteTimer(ms)
        for ms in wanted - there:
            self.handle.registerTimer(ms)
        if sessions:
            self.open.put([tuple(s) for s in sorted(sessions)])
        else:
            self.open.clear()

    def close(self) -> None:
        pass


def ended(key: Any, sessions: list[Session]) -> Iterator[pd.DataFrame]:
    """The rows of sessions that are over."""
    if sessions:
        yield pd.DataFrame([(key[0], *s) for s in sorted(sessions)], columns=["host", *Session._fields])


def sessions(requests: DataFrame) -> DataFrame:
    """Sessions that have ended; tables sessions_open (host, index; …) and sessions_timers (host, expires_at)."""
    timed = requests.select("host", "time", F.unix_millis("time").alias("ms")).withWatermark("time", LATE)
    return timed.groupBy("host").transformWithStateInPandas(
        Sessions(), outputStructType=f"host string, {STATE}", outputMode="append", timeMode="eventTime"
    )


def start(requests: DataFrame, pond: str, **options: Any) -> Job:
    """Start the job."""
    return millpond.start(sessions(requests), table="sessions", pond=pond, output_mode="append", **options)


def main(log: str, pond: str) -> None:
    """Until Ctrl-C; sessions that have ended are written to the terminal."""
    spark = millpond.session("sessions")
    requests = log_stream(spark, log).where("error IS NULL")
    run_until_stopped([start(requests, pond, trigger="1 second", sink="console")])


if __name__ == "__main__":
    main(*sys.argv[1:])
