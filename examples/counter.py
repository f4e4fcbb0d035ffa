"""A counter per visitor that forgets who is gone, by GroupState: exists, get, update, remove, hasTimedOut, and both time-outs.

Run with one of the two clocks, and ask from another terminal:

    python examples/counter.py LOG ./pond event-time
    python examples/counter.py LOG ./pond processing-time
    millpond scan ./pond counter            # host; requests, last_ms, expires_at

applyInPandasWithState is the older call: one state row a key, one time-out, no timers, no lists or maps, and any state store.
For anything more take transformWithState (examples/sessions.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import millpond
from millpond.spark.accesslog.source import log_stream
from millpond.spark.job import Job, run_until_stopped

OUTPUT = "host string, requests long, gone boolean"
STATE = "requests long, last_ms long"
CLOCKS = {"event-time": GroupStateTimeout.EventTimeTimeout, "processing-time": GroupStateTimeout.ProcessingTimeTimeout}
LATE = "10 minutes"


def count(
    key: tuple[str], rows: Iterator[pd.DataFrame], state: GroupState, *, clock: str, after_seconds: float
) -> Iterator[pd.DataFrame]:
    """The requests of a host so far; when its time is out the last number once more, and the host is forgotten."""
    if state.hasTimedOut:
        requests, _ = state.get
        state.remove()
        yield pd.DataFrame({"host": [key[0]], "requests": [requests], "gone": [True]})
        return
    requests, last_ms = state.get if state.exists else (0, 0)
    for chunk in rows:
        requests += len(chunk)
        last_ms = max(last_ms, int(chunk["ms"].max()))
    state.update((requests, last_ms))
    after_ms = int(after_seconds * 1000)
    if clock == "processing-time":
        state.setTimeoutDuration(after_ms)
    else:
        # From the newest request of any batch: a late one doesn't end a host that is here.  It must lie after the watermark.
        state.setTimeoutTimestamp(max(last_ms, state.getCurrentWatermarkMs()) + after_ms)
    yield pd.DataFrame({"host": [key[0]], "requests": [requests], "gone": [False]})


def counted(requests: DataFrame, clock: str, after_seconds: float) -> DataFrame:
    """Table counter (host; requests, last_ms, expires_at)."""
    timed = requests.select("host", "time", F.unix_millis("time").alias("ms"))
    if clock == "event-time":
        timed = timed.withWatermark("time", LATE)
    function = partial(count, clock=clock, after_seconds=after_seconds)
    return timed.groupBy("host").applyInPandasWithState(function, OUTPUT, STATE, "update", CLOCKS[clock])


def start(requests: DataFrame, pond: str, clock: str, after_seconds: float = 1800.0, **options: Any) -> Job:
    """Start the job."""
    return millpond.start(counted(requests, clock, after_seconds), table="counter", pond=pond, **options)


def main(log: str, pond: str, clock: str = "event-time") -> None:
    """Until Ctrl-C."""
    spark = millpond.session("counter")
    requests = log_stream(spark, log).where("error IS NULL")
    run_until_stopped([start(requests, pond, clock, trigger="1 second")])


if __name__ == "__main__":
    main(*sys.argv[1:])
