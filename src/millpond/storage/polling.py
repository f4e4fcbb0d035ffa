"""How a follower polls a storage: how often, how much at a time, how long it waits for an answer.

On a local disk a poll costs microseconds, and the system reports commits.  On an object store each
poll makes requests, a failed request was already tried several times, and a file may appear late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from millpond.errors import StorageError
from millpond.settings import ReplicaSettings
from millpond.storage.base import Storage

# How often to check whether commits were skipped, and the longest pause after errors.
_CHECK_SECONDS, _REMOTE_CHECK_SECONDS = 0.5, 10.0
_MAX_BACKOFF_SECONDS, _REMOTE_MAX_BACKOFF_SECONDS = 1.0, 5.0
# The pause before a caller that may wait asks again.
_AGAIN_SECONDS = 0.05
# How long `stop` waits for a request that nobody answers.
_STOP_SECONDS = 2.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """How to poll one storage.

    check_seconds:      how often to check whether commits were skipped
    longest_pause_seconds:  after errors
    stop_seconds:       how long `stop` waits for the thread; None to wait until it has ended
    shared:             whether readers use the follower's polls and make none themselves
    apply_reads:        how many files of a batch to read at the same time
    build_reads:        how many partitions a build reads at the same time
    lag_seconds:        how long an existing file may stay invisible
    """

    settings: ReplicaSettings
    check_seconds: float = _CHECK_SECONDS
    longest_pause_seconds: float = _MAX_BACKOFF_SECONDS
    stop_seconds: float | None = None
    shared: bool = False
    apply_reads: int = 1
    build_reads: int
    lag_seconds: float = 0.0

    def pause(self, quiet_seconds: float, *, is_notified: bool) -> float:
        """How long to wait before the next poll, given the time since the last commit.

        is_notified:  whether the system reported the last commit, so that it will report the next
        """
        settings = self.settings
        if not self.shared:
            is_rare = is_notified or quiet_seconds > settings.idle_after_seconds
            return settings.idle_poll_seconds if is_rare else settings.poll_seconds
        wanted = max(settings.remote_poll_seconds, settings.remote_patience * quiet_seconds)
        return min(wanted, settings.remote_idle_poll_seconds)


def polling_of(storage: Storage, settings: ReplicaSettings) -> Polling:
    """How to poll this storage."""
    if not storage.is_remote:
        return Polling(settings=settings, build_reads=settings.build_reads)
    return Polling(
        settings=settings,
        check_seconds=_REMOTE_CHECK_SECONDS,
        longest_pause_seconds=_REMOTE_MAX_BACKOFF_SECONDS,
        stop_seconds=_STOP_SECONDS,
        shared=True,
        apply_reads=settings.remote_reads,
        build_reads=settings.remote_build_reads,
        lag_seconds=settings.remote_lag_seconds,
    )


def until_answered(ask: Callable[[], _Answer], deadline: float) -> _Answer:
    """What `ask` returns.  While the storage can't be reached, it is asked again.

    deadline:  of `time.monotonic`; the last error is raised after it
    """
    while True:
        try:
            return ask()
        except StorageError as error:
            if error.condition != "STORAGE_UNAVAILABLE" or time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_SECONDS)
