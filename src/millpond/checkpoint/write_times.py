"""When Spark wrote the files of a batch, as far as the storage's times say it.

Spark writes the plan of a batch (offsets/N), then its changes (version N+1 of each partition), then
its commit (commits/N), each once.  So a file of changes that is older than the plan, or younger than
the commit, isn't the one that the batch wrote: a second job wrote it, or somebody put another file
in its place.  Nothing in such a file says of which batch or store it is.

A copy may have other times.  Times are believed if the logs have them in Spark's order, each near
the time that the plan itself names; and files are called too old only if they are few.  If a job goes
on with a copy, the times of the batches that it adds are believed, and those of the copied ones not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from millpond.checkpoint.position import Batch, version_of
from millpond.settings import CheckpointSettings
from millpond.storage import Storage
from millpond.storage.names import NUMBER, numbers

_LIMITS = CheckpointSettings()
_MS = 1_000_000
# How many of the newest batches are looked at: each costs a few requests on an object store.
BATCHES = 12
_FEWEST = 3
_MOST_OUT_OF_PLACE = 0.25
_STATE_FILE = re.compile(rf"({NUMBER})(?:_[^.]+)?\.(delta|changelog|snapshot|zip)")
_SNAPSHOTS = ("snapshot", "zip")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTimes:
    """Of the newest batches, when the plan and the commit of each were written.

    started_ms:  the time that the plan itself names
    plans, commits:  in nanoseconds, by the storage
    """

    started_ms: Mapping[int, int]
    plans: Mapping[int, int]
    commits: Mapping[int, int]

    @property
    def are_before_their_batches(self) -> bool:
        """Whether no plan was there yet when its batch began: a copy has other times."""
        return all(at // _MS + _LIMITS.clock_tolerance_ms < self.started_ms[n] for n, at in self.plans.items())

    @property
    def of_spark(self) -> tuple[int, ...]:
        """The batches whose files have the times of Spark's writes: none, or all from one on.

        A copy writes its files in an order of its own: the first batch that follows the one before,
        as Spark's do, is the job's. So the oldest batch never counts.
        """
        batches = sorted(self.plans)
        own = batches[next((n for n, batch in enumerate(batches) if n > 0 and self._fits(batch)), len(batches)) :]
        in_order = [self._follows(batch) and self._is_near(batch) for batch in own]
        return tuple(own) if len(own) >= _FEWEST and sum(in_order) >= 0.75 * len(own) else ()

    def _fits(self, batch: int) -> bool:
        return self.plans[batch] <= self.commits[batch] and self._is_near(batch) and self._follows(batch)

    def _is_near(self, batch: int) -> bool:
        """Whether the plan was written at its batch's time."""
        return abs(self.plans[batch] // _MS - self.started_ms[batch]) <= _LIMITS.clock_tolerance_ms

    def _follows(self, batch: int) -> bool:
        """Whether the plan was written after the commit before."""
        return batch - 1 not in self.commits or self.commits[batch - 1] <= self.plans[batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfPlace:
    """A file of changes that its batch didn't write.

    than:  the plan, if the file is older; the commit, if it is younger
    """

    path: str
    batch: int
    age: Literal["older", "younger"]
    than: str


def read_times(storage: Storage, started_ms: Mapping[int, int]) -> WriteTimes:
    """The times of the newest of these batches.

    started_ms:  committed batches, each with the time that its plan names
    """
    plans, commits = dict[int, int](), dict[int, int]()
    for number in sorted(started_ms)[-BATCHES:]:
        plan, commit = storage.stamp(f"offsets/{number}"), storage.stamp(f"commits/{number}")
        if plan is not None and commit is not None:
            plans[number], commits[number] = plan.modified_ns, commit.modified_ns
    return WriteTimes(started_ms=started_ms, plans=plans, commits=commits)


def slack_ns(storage: Storage) -> int:
    """By so much a file's time may be off: an object store's clock isn't that of Spark's machines, nor are its times exact."""
    return _LIMITS.clock_tolerance_ms * _MS if storage.is_remote else 0


def changes_out_of_place(storage: Storage, times: WriteTimes) -> list[OutOfPlace]:
    """The files of changes, among those that Spark reads, that lie in the place of those that their batch wrote.

    If the times aren't those of Spark's writes, they say nothing, and there is no such file.  Of a
    remote checkpoint, only the newest batch is looked at, and only stores that are alone in their
    partition.
    """
    batches = times.of_spark
    if not batches:
        return []
    slack, newest = slack_ns(storage), batches[-1]
    older, younger, seen = list[OutOfPlace](), list[OutOfPlace](), 0
    for path, batch, is_read in _changes(storage, newest):
        stamp = storage.stamp(path) if batch in batches else None
        if stamp is None:
            continue
        seen += 1
        if not is_read:
            continue
        if stamp.modified_ns > times.commits[batch] + slack:
            younger.append(OutOfPlace(path=path, batch=batch, age="younger", than=f"commits/{batch}"))
        elif stamp.modified_ns < times.plans[batch] - slack:
            older.append(OutOfPlace(path=path, batch=batch, age="older", than=f"offsets/{batch}"))
    return younger + (older if len(older) <= _MOST_OUT_OF_PLACE * seen else [])


def _changes(storage: Storage, newest: int) -> Iterator[tuple[str, int, bool]]:
    """The files of changes, each with its batch, and whether Spark reads it: not if there is a snapshot of it, or of later."""
    for operator in numbers(storage.names("state")):
        for partition in numbers(storage.names(f"state/{operator}")):
            folder = f"state/{operator}/{partition}"
            if storage.is_remote:
                version = version_of(Batch(newest))
                yield from ((f"{folder}/{version}.{kind}", newest, True) for kind in ("delta", "changelog"))
                continue
            stores = [name for name in storage.names(folder) if not name.startswith(("_", ".")) and "." not in name]
            for place in (folder, *(f"{folder}/{store}" for store in stores)):
                files = [m for name in storage.sizes(place) if (m := _STATE_FILE.fullmatch(name))]
                snapshot = max((int(m[1]) for m in files if m[2] in _SNAPSHOTS and int(m[1]) <= newest + 1), default=0)
                yield from ((f"{place}/{m[0]}", int(m[1]) - 1, int(m[1]) > snapshot) for m in files if m[2] not in _SNAPSHOTS)
