"""Work on many files in a few threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millpond.storage import Storage

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""called with (files done, files in all)"""


# Hashes take two cores; requests to a bucket wait most of their time.
_LOCAL_THREADS, _REMOTE_THREADS = 2, 16


def threads_between(*places: Storage) -> int:
    """How many files to copy at a time between places."""
    return _REMOTE_THREADS if any(place.is_remote for place in places) else _LOCAL_THREADS


def do_each(
    work: Callable[[Item], Result], items: Sequence[Item], *, threads: int, progress: Progress | None = None
) -> list[Result]:
    """The results of `work` for each item, in order.

    After an error of one, work that hasn't begun is dropped.  Raises that error.
    """
    found: list[Result] = []
    with ThreadPoolExecutor(threads) as pool:
        try:
            for result in pool.map(work, items):
                found.append(result)
                if progress is not None:
                    progress(len(found), len(items))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return found
