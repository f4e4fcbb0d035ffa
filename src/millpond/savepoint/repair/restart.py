"""The newest batch after which Spark can go on, and the files of a copy that begins there.

For each batch N, the newest first:

1. Its plan is whole, and so is its commit.  In checkpoint format 1, a lost commit has nothing but
   the watermark, which the plan of batch N+1 has too: it is written again.
2. Its state is whole: every operator's metadata and schema, and in each partition a snapshot and
   all changes after it.  A damaged snapshot isn't needed if an older one is there, with all changes
   after that: Spark reads the same rows from them.
3. The sources' logs are whole up to its offsets.
4. The plan of batch N+1, if it is whole, comes along: Spark runs that batch again exactly as it was
   planned, with the same input and number.  Not if its settings differ: then it was a repartition.
5. Without it, Spark needs the plan of batch N-1, and only asks the sources for the range between
   the two, which it throws away.  A lost one is written again as a copy of plan N.

6. A batch from which on nothing is to be trusted, since another job wrote it, isn't taken.

If only batch 0 was ever planned, its plan is enough: there is no state before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from millpond.catalogue import KnownState
from millpond.checkpoint.log import BatchPlan, CommittedBatch
from millpond.checkpoint.operators import check_state, metadata_path, read_operator_files
from millpond.checkpoint.real_time import refuse_real_time
from millpond.checkpoint.restart_files import (
    RestartFile,
    partitions_of_stores,
    plan_files,
    restart_files,
    schema_files,
)
from millpond.errors import CheckpointError
from millpond.savepoint.join_counts import Hole, join_holes
from millpond.savepoint.repair.chains import leave_out_snapshots
from millpond.savepoint.repair.diagnosis import view_of
from millpond.savepoint.repair.finding import Finding
from millpond.savepoint.repair.logs import Logs, source_problems
from millpond.savepoint.repair.operators import make_up, needs_schema_files, older_metadata
from millpond.savepoint.repair.whole_files import WholeFiles
from millpond.savepoint.row_problems import RowProblem, row_problems
from millpond.savepoint.rows import count_rows
from millpond.settings import FileBounds
from millpond.storage import Storage
from millpond.storage.names import numbers
from millpond.storage.patched import PatchedStorage

_BOUNDS = FileBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Where Spark can go on.

    batch:     the newest batch whose state the copy has; -1 for none
    again:     the batch that Spark runs again as it was planned; None if it plans the next one
    files:     of the copy
    made:      paths of files that are written again
    left_out:  damaged files that the copy doesn't need, and why it doesn't
    refused:   newer batches, and why Spark can't go on after them
    view:      the checkpoint, with the files that are written again
    committed: the batch; None before the first one
    """

    batch: int
    again: int | None
    files: tuple[RestartFile, ...]
    made: tuple[str, ...]
    left_out: dict[str, str]
    refused: dict[int, str]
    view: PatchedStorage = field(repr=False)
    committed: CommittedBatch | None = field(repr=False)


def find_restart(
    storage: Storage, logs: Logs, files: WholeFiles, doubtful: Finding | None = None, known: KnownState | None = None
) -> Restart | dict[int, str]:
    """The newest batch after which Spark can go on; if there is none, why not: batch -> reason.

    doubtful:  from whose batch on nothing is to be trusted
    known:     of the query
    Raises:  UNSUPPORTED for real-time mode; what the storage raises.
    """
    refused: dict[int, str] = {}
    known = logs.known(known)
    for number in sorted(logs.plans, reverse=True):
        if doubtful is not None and doubtful.batch is not None and number >= doubtful.batch:
            refused[number] = doubtful.what
            continue
        try:
            return _Attempt(storage, logs, files, number, known).run(refused, doubtful)
        except CheckpointError as error:
            if error.condition == "UNSUPPORTED":
                raise
            refused[number] = error.message
    for number in sorted(logs.bad_plans):
        refused.setdefault(number, logs.bad_plans[number].message)
    if (logs.committed or 0) > 0:  # all of the state is lost: a new checkpoint does the same
        return refused
    try:
        return _before_the_first(storage, logs, refused)
    except CheckpointError as error:
        refused[-1] = error.message
        return refused


class _Attempt:
    """Whether Spark can go on after one batch."""

    def __init__(self, storage: Storage, logs: Logs, files: WholeFiles, number: int, known: KnownState) -> None:
        self._storage, self._logs, self._files, self._number, self._known = storage, logs, files, number, known
        self._left_out: dict[str, str] = {}

    def run(self, refused: dict[int, str], doubtful: Finding | None) -> Restart:
        """The restart.  Raises any CheckpointError if it isn't possible."""
        logs, number = self._logs, self._number
        if number not in logs.commits and (logs.is_format_2 or number + 1 not in logs.plans):  # 1
            raise logs.bad_commits.get(number) or _lost(f"commits/{number}", "is missing")
        view, batch = view_of(self._storage, logs, number)
        if number in logs.commits:
            refuse_real_time(self._storage, batch)
        made_up = self._state(view, batch)  # 2
        plan = logs.plans[number]
        _check_sources(view, plan)  # 3
        after = logs.plans.get(number + 1)
        again = None
        is_doubtful = doubtful is not None and doubtful.batch == number + 1 and not doubtful.path.startswith("state/")
        if after is not None and after.settings == plan.settings and not is_doubtful:  # 4
            again = number + 1 if _sources_are_whole(view, after) else None
        made = [] if number in logs.commits else [f"commits/{number}"]
        needed = {file.path: file for file in restart_files(view, batch)}
        if again is not None:
            assert after is not None
            needed.update((file.path, file) for file in plan_files(view, after.batch, after.offsets))
        if number > 0 and number - 1 not in logs.plans:
            before = f"offsets/{number - 1}"
            if again is None:  # 5
                view.write(before, view.read(f"offsets/{number}", _BOUNDS.log_bytes))
                made.append(before)
            else:
                needed.pop(before)
        for path in made_up:
            needed.pop(path, None)
        needed.pop("metadata")  # it is written last
        return Restart(
            batch=number,
            again=again,
            files=tuple(needed.values()),
            made=tuple(made),
            left_out=self._left_out,
            refused=refused,
            view=view,
            committed=batch,
        )

    def _state(self, view: PatchedStorage, batch: CommittedBatch) -> list[str]:
        """Leave out what is damaged and not needed; returns the paths of what was made up.  Raises for the rest."""
        made_up: list[str] = []
        check_state(view, batch, self._known)
        for operator in numbers(view.names("state")):
            self._describe(view, batch, operator)
            if not needs_schema_files(view, operator):
                made_up += make_up(view, operator, batch)
            for operator_files in read_operator_files(view, batch.batch, only=operator):
                for store, partition in partitions_of_stores(view, batch, operator_files):
                    left = leave_out_snapshots(view, batch, self._files, store, partition)
                    self._left_out.update((path, error.message) for path, error in left.items())
        # Rows may be damaged in files that can be read to their end, and an older snapshot may lack
        # column families that are younger.
        for _, rows in count_rows(view, batch):
            if isinstance(rows, CheckpointError) and rows.condition != "UNSUPPORTED":
                raise rows
        for found in chain[RowProblem | Hole](row_problems(view, batch), join_holes(view, batch)):
            what = f"{found.folder}: {found}"
            raise CheckpointError("CORRUPT_FILE", what, hint="Restore its files from a copy.", path=found.folder)
        return made_up

    def _describe(self, view: PatchedStorage, batch: CommittedBatch, operator: int) -> None:
        """Leave out damaged metadata and schemas that Spark, or an older file, makes good."""
        path = metadata_path(view, operator, batch.batch)
        try:
            found = read_operator_files(view, batch.batch, only=operator)
        except CheckpointError as error:
            if "/v2/" not in path and not needs_schema_files(view, operator):
                self._leave_out(view, path, error)
                return
            older = older_metadata(view, operator, batch)
            if older is None:
                raise
            self._leave_out(view, path, error)
            self._describe(view, batch, operator)
            return
        for file in (file for operator_files in found for file in schema_files(operator_files)):
            problem = self._files.why_not(file, batch.settings)
            if problem is not None and "/_stateSchema/" in file:
                raise problem
            if problem is not None:
                self._leave_out(view, file, problem)

    def _leave_out(self, view: PatchedStorage, path: str, error: CheckpointError) -> None:
        if view.stamp(path) is not None:
            self._left_out[path] = error.message
            view.delete(path)


def _before_the_first(storage: Storage, logs: Logs, refused: dict[int, str]) -> Restart:
    plan = logs.plans.get(0)
    if plan is None:
        raise _lost("offsets/0", "isn't there any more")
    _check_sources(storage, plan)
    return Restart(
        batch=-1,
        again=0,
        files=tuple(plan_files(storage, plan.batch, plan.offsets)),
        made=(),
        left_out={},
        refused=refused,
        view=PatchedStorage(storage),
        committed=None,
    )


def _check_sources(storage: Storage, plan: BatchPlan) -> None:
    for source, offset in plan.offsets.items():
        for error in source_problems(storage, source, offset, later=False).values():
            raise error


def _sources_are_whole(storage: Storage, plan: BatchPlan) -> bool:
    try:
        _check_sources(storage, plan)
    except CheckpointError:
        return False
    return True


def _lost(path: str, what: str) -> CheckpointError:
    return CheckpointError("FILE_GONE", f"{path} {what}.", hint="Restore the file from a copy.", path=path)
