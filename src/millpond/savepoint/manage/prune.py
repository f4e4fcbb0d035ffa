"""Delete old savepoints by a rule: keep the newest ones, the young ones, one of each day.

A savepoint is kept if any part of the rule keeps it.  One from which a job of the pond was forked
is always kept: it says where that job comes from.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import read_catalogue
from millpond.errors import MillpondError, RequestError
from millpond.savepoint.archive.layout import find_archive
from millpond.savepoint.manage.delete import DeletePlan, deletion
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.manifest import Manifest
from millpond.savepoint.origin import read_origin
from millpond.settings import parse_length

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Which savepoints of each job are kept.

    last:     so many of the newest
    seconds:  those that are younger
    days:     the newest of each of so many days (UTC), counting today
    """

    last: int = 0
    seconds: float = 0.0
    days: int = 0

    def reasons(self, manifests: list[Manifest], now_ms: int) -> dict[str, str]:
        """Why each savepoint of one job is kept; those that aren't don't appear."""
        found: dict[str, str] = {}
        newest_first = sorted(manifests, key=lambda m: (m.created_ms, m.name), reverse=True)
        seen_days: set[int] = set()
        for place, manifest in enumerate(newest_first):
            day = manifest.created_ms // _DAY_MS
            if place < self.last:
                found[manifest.name] = f"one of the newest {self.last}"
            elif now_ms - manifest.created_ms < self.seconds * 1000:
                found[manifest.name] = "young enough"
            elif day not in seen_days and day > now_ms // _DAY_MS - self.days:
                found[manifest.name] = "the newest of its day"
            seen_days.add(day)
        return found


def keep_of(*, last: int = 0, keep_for: str | None = None, daily: int = 0) -> Keep:
    """A rule from words.

    keep_for:  12h, 30d, or forever
    Raises:    INVALID_REQUEST.
    """
    seconds = 0.0 if keep_for is None else parse_length("keep_for", keep_for)
    return Keep(last=last, seconds=math.inf if seconds is None else seconds, days=daily)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """Savepoints that will be deleted.

    kept:     name -> why it is kept
    deleted:  the deletions, oldest first
    """

    kept: dict[str, str]
    deleted: tuple[DeletePlan, ...]

    def describe(self) -> str:
        """Each savepoint, and what happens to it."""
        lines = [f"delete      {plan.name}" for plan in self.deleted]
        return "\n".join([*lines, *(f"keep        {name}: {why}" for name, why in self.kept.items())])

    def run(self) -> None:
        """Delete them.  Raises what the storage raises; then it can be run again."""
        for plan in self.deleted:
            plan.run()


def plan_prune(
    place: str | Path, *, keep_last: int = 0, keep_for: str | None = None, keep_daily: int = 0, job: str | None = None
) -> PrunePlan:
    """Plan to delete the savepoints that a rule doesn't keep.

    keep_last, keep_for, keep_daily: which stay: so many of the newest, those that are younger (12h,
             30d), the newest of each of so many days; and each from which a job was forked
    job:     only those of this job; None for each job by itself
    Raises:  INVALID_REQUEST if the rule would keep none; what the storage raises.
    """
    return prune_by(place, keep_of(last=keep_last, keep_for=keep_for, daily=keep_daily), job=job)


def prune_by(place: str | Path, keep: Keep, *, job: str | None = None, prefix: str = "") -> PrunePlan:
    """The same with a rule.

    prefix:  only those whose names begin with it
    Raises:  INVALID_REQUEST if the rule would keep none; what the storage raises.
    """
    if keep.last < 0 or keep.seconds < 0 or keep.days < 0 or not (keep.last or keep.seconds or keep.days):
        raise RequestError(
            "INVALID_REQUEST",
            "The rule keeps no savepoint.",
            hint="Say which to keep: the newest (last), the young (seconds), one of each day (days).",
        )
    if find_archive(place) is not None:
        raise RequestError(
            "INVALID_REQUEST",
            f"{place} is an archive, which has a window instead of this rule.",
            hint="Let the archiver delete old batches: millpond archive … --keep-for 7d.",
        )
    origins = _origins(place)
    found = list_savepoints(place).found
    judged = [s for s in found if job in (None, s.manifest.job) and s.manifest.name.startswith(prefix)]
    every = [savepoint.manifest for savepoint in judged]
    kept: dict[str, str] = {}
    for name in {manifest.job for manifest in every}:
        kept |= keep.reasons([manifest for manifest in every if manifest.job == name], time.time_ns() // 1_000_000)
    kept |= {m.name: f"the job {origins[m.name]} was made of it" for m in every if m.name in origins}
    gone = tuple(deletion(s.storage, s.manifest.name, s, found) for s in judged if s.manifest.name not in kept)
    return PrunePlan(kept={m.name: kept[m.name] for m in every if m.name in kept}, deleted=gone)


def _origins(place: str | Path) -> dict[str, str]:
    """The name of a savepoint -> a job that was restored or forked from it."""
    found: dict[str, str] = {}
    try:
        folders = read_catalogue(place).jobs
    except MillpondError as error:
        if error.condition != "NO_CHECKPOINT":  # only the savepoints are left
            raise
        return found
    for folder in folders:
        origin = read_origin(folder.storage)
        if origin is not None:
            found[origin] = folder.job
    return found
