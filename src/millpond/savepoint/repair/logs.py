"""The logs of a checkpoint, of which any file may be missing or damaged.

1. offsets/N and commits/N are read and compared with the checksums beside them.  A plan must name
   the offsets of all sources: a cut file may still be readable.
2. Of a file source's log, Spark reads the newest compacted entry and all entries after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from millpond.catalogue import KnownState
from millpond.checkpoint.files.sidecars import verify_file
from millpond.checkpoint.log import BatchPlan, CommitFacts, read_commit, read_plan
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import log_offset
from millpond.checkpoint.source_files import entry_names, iter_entry
from millpond.errors import CheckpointError
from millpond.storage import Storage
from millpond.storage.names import numbers

_READABLE = "readable"
_COMPACT = ".compact"


@dataclass(slots=True)
class Logs:
    """All plans and commits.

    plans, commits:          those that can be read
    bad_plans, bad_commits:  why the others can't
    """

    plans: dict[int, BatchPlan] = field(default_factory=dict)
    bad_plans: dict[int, CheckpointError] = field(default_factory=dict)
    commits: dict[int, CommitFacts] = field(default_factory=dict)
    bad_commits: dict[int, CheckpointError] = field(default_factory=dict)

    @property
    def planned(self) -> int | None:
        """The newest plan, readable or not."""
        return max((*self.plans, *self.bad_plans), default=None)

    @property
    def committed(self) -> int | None:
        """The newest commit, readable or not."""
        return max((*self.commits, *self.bad_commits), default=None)

    @property
    def is_format_2(self) -> bool:
        """Whether a commit names ids of state files."""
        return any(commit.state_ids for commit in self.commits.values())

    def known(self, known: KnownState | None) -> KnownState:
        """What is known of the query's state, also by the logs.

        Only a query without state leaves batches out of both (asynchronous progress).
        """
        there, known = {*self.plans, *self.bad_plans, *self.commits, *self.bad_commits}, known or KnownState()
        leaves_out = bool(there) and len(there) < max(there) - min(there) + 1
        return replace(known, is_stateless=True) if leaves_out else known


def read_logs(storage: Storage) -> Logs:
    """Read all of both logs.

    Raises:  UNSUPPORTED if all plans name a state store provider that can't be read; what the
             storage raises.
    """
    found = Logs()
    unsupported: dict[int, CheckpointError] = {}
    for number in numbers(storage.names("offsets")):
        try:
            plan = read_plan(storage, Batch(number))
            assert plan.settings  # they can be read
            _compare(storage, f"offsets/{number}")
            found.plans[number] = plan
        except CheckpointError as error:
            (unsupported if error.condition == "UNSUPPORTED" else found.bad_plans)[number] = error
    if unsupported and not found.plans:
        raise unsupported[max(unsupported)]
    found.bad_plans |= unsupported
    for number in numbers(storage.names("commits")):
        try:
            commit = read_commit(storage, Batch(number))
            if commit.is_bare:
                raise _cut(f"commits/{number}", "ends after its version", **{_READABLE: True})
            _compare(storage, f"commits/{number}")
            found.commits[number] = commit
        except CheckpointError as error:
            found.bad_commits[number] = error
    most = max((len(plan.offsets) for plan in found.plans.values()), default=0)
    for number, plan in list(found.plans.items()):
        if (cut := lacks_sources(plan, most)) is not None:
            found.bad_plans[number] = cut
            del found.plans[number]
    return found


def lacks_sources(plan: BatchPlan, sources: int) -> CheckpointError | None:
    """The error of a plan that names fewer sources: a cut file may still be readable.

    Sources with names may come and go; those with numbers can't.
    """
    by_number = all(name.isdecimal() for name in plan.offsets)
    if plan.offsets and not (by_number and len(plan.offsets) < sources):
        return None
    return _cut(f"offsets/{plan.batch}", f"names {len(plan.offsets)} of {sources} sources")


def source_problems(storage: Storage, source: str, offset: Any, *, later: bool) -> dict[str, CheckpointError]:
    """What is wrong with a source's log: path -> error.  Only logs of file sources are known.

    offset:  the source's offset
    later:   also look at entries after the offset, which Spark reads when it starts
    Raises:  what the storage raises.
    """
    upto, folder = log_offset(offset), f"sources/{source}"
    if upto is None:
        return {}
    names = entry_names(storage, source)
    if later:
        upto = max([upto, *names])
    first = max((number for number, name in names.items() if name.endswith(_COMPACT) and number <= upto), default=0)
    found = {}
    for number in range(first, upto + 1):
        path = f"{folder}/{names.get(number, number)}"
        try:
            is_compact = path.endswith(_COMPACT)
            for _, entry in iter_entry(storage, path):
                if entry > number or (entry != number and not is_compact):
                    raise CheckpointError(
                        "CORRUPT_FILE",
                        f"{path} has a file of entry {entry}.",
                        hint="Restore the file from a copy.",
                        path=path,
                        **{_READABLE: True},
                    )
            _compare(storage, path)
        except CheckpointError as error:
            found[path] = error
    return found


def _compare(storage: Storage, path: str) -> None:
    # An object store has no such files, and each question for one costs a request.
    if storage.is_remote:
        return
    try:
        verify_file(storage, path)
    except CheckpointError as error:
        raise type(error)(error.condition, error.message, hint=error.hint, **{**error.context, _READABLE: True}) from error


def is_readable(error: CheckpointError | None) -> bool:
    """Whether a file of a log isn't as it was written, but Spark can read it."""
    return error is not None and error.context.get(_READABLE) is True


def _cut(path: str, what: str, **facts: object) -> CheckpointError:
    return CheckpointError("INCOMPLETE_FILE", f"{path} {what}.", hint="Restore the file from a copy.", path=path, **facts)
