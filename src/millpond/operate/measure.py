"""Measure a job from its checkpoint: names and sizes of files, and the logs of few batches.  No row is read.

1. The log says which batch is the newest, how long it took, and which one is planned.
2. The state of a partition is what Spark would load: the newest snapshot, and the changes after it.
3. Sizes need a list of each partition's files, so they are looked at less often the longer that
   takes, and least often on an object store, where each list is a request that costs money.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.catalogue import JobFolder
from millpond.checkpoint.log import CommittedBatch, committed_batches, planned_batches, read_batch, read_planned_ms
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import partitions_of_stores
from millpond.checkpoint.rocksdb.snapshot import folder_and_name, read_snapshot_metadata
from millpond.checkpoint.state import StateReader, change_path
from millpond.errors import CheckpointError, MillpondError
from millpond.operate.durations import Durations
from millpond.operate.run.drills import read_drills
from millpond.operate.sample import OperatorSize, Sample
from millpond.ownership.runs import Runs, read_runs
from millpond.savepoint.manage.schedule import read_note
from millpond.settings import SampleSettings
from millpond.storage import Storage
from millpond.tables.versions.listing import records_behind

# Of so many batches since the look before the times are read; older ones count only.
_TIMED_BATCHES = 20


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The state's sizes, and when they were measured."""

    batch: Batch
    at_ms: int
    operators: tuple[OperatorSize, ...]
    checkpoint_bytes: int


@dataclass(slots=True)
class OperatorState:
    """The state of one operator.

    name:           Spark's name of it
    state:          partition -> bytes of the files that Spark would load
    changed_bytes:  of the change files of the newest batch
    """

    name: str
    state: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    changed_bytes: int = 0


class JobMeter:
    """Measures one job, look after look.  For one thread."""

    def __init__(self, folder: JobFolder, settings: SampleSettings | None = None) -> None:
        self._folder = folder
        self._settings = settings or SampleSettings()
        self._storage = folder.open_checkpoint()
        self._reader = StateReader(self._storage)
        self._newest: CommittedBatch | None = None
        self._sizes: _Sizes | None = None
        self._sizes_due = 0.0
        self._notes: dict[str, Any] = {}
        self._applied = (0, 0.0)  # batches, and the seconds that they took
        self._answered = Durations()
        self._notes_due = 0.0
        # Folder of a partition -> its newest snapshot, and the names of that one's SSTs.
        self._ssts: dict[str, tuple[str, frozenset[str]]] = {}

    @property
    def checkpoint(self) -> str:
        """The URI of the checkpoint that it measures."""
        return self._folder.checkpoint

    @property
    def is_remote(self) -> bool:
        """Whether each list of files is a request to an object store."""
        return self._storage.is_remote

    @property
    def requests(self) -> dict[str, int]:
        """Requests that looks have made so far, by kind; empty on a local disk."""
        return dict(self._storage.requests)

    def look(self, jobs: int = 1, followed: Mapping[str, Any] | None = None) -> Sample:
        """The job now.  An error leaves out what it hides, and is named; what was measured before stays.

        jobs:      how many the same thread measures, which share its time
        followed:  `Pond.statistics` of the job, if this process has its replica; its server adds `reads`,
                   the `Durations` of the reads that it answered
        """
        at_ms, problem = int(time.time() * 1000), None
        before, times, waiting = self._newest, list[float](), None
        batches = 0
        try:
            batches, times, waiting = self._read_log(before)
            self._read_sizes(at_ms, jobs)
        except MillpondError as error:
            problem = error.condition
        newest, sizes, beat = self._newest, self._sizes, self._folder.beat()
        return Sample(
            at_ms=at_ms,
            job_state=beat.state_given(None if newest is None else newest.committed_ns),
            batch=None if newest is None else newest.batch,
            committed_ms=None if newest is None or newest.committed_ns is None else newest.committed_ns // 1_000_000,
            batches=batches,
            batch_seconds=None if newest is None else newest.took_seconds,
            longest_batch_seconds=max(times, default=None),
            waiting_seconds=waiting,
            watermark_ms=None if newest is None else newest.watermark_ms,
            behind_records=self._behind_records(beat.newest),
            **_counts(beat.progress),
            **self._notes,
            **self._read_replica(followed),
            **self._count_reads(followed),
            backups_failing=_failing_backups(followed),
            checkpoint_bytes=None if sizes is None else sizes.checkpoint_bytes,
            operators=() if sizes is None else sizes.operators,
            sized_ms=None if sizes is None else sizes.at_ms,
            problem=problem,
        )

    def _read_replica(self, followed: Mapping[str, Any] | None) -> dict[str, Any]:
        """The fields that a replica's statistics say."""
        if followed is None or not followed.get("following"):
            return {}
        applied = followed["batches_applied"], followed["apply_seconds"]
        batches, seconds = applied[0] - self._applied[0], applied[1] - self._applied[1]
        self._applied = applied
        found: dict[str, Any] = {"readable": _readable(followed), "behind_seconds": followed.get("behind_seconds")}
        if batches > 0:
            found["apply_seconds"] = seconds / batches
        if requests := followed.get("requests"):
            found["store_requests"] = sum(number for kind, number in requests.items() if kind != "retried")
            found["store_bytes"] = sum(followed["transferred"].values())
        return found

    def _count_reads(self, followed: Mapping[str, Any] | None) -> dict[str, Any]:
        """The fields of reads that the server answered."""
        answered = None if followed is None else followed.get("reads")
        if answered is None:
            return {}
        new, self._answered = answered.since(self._answered), answered
        if min(new.buckets) < 0:  # a table is gone, and what was counted of it
            return {}
        if not new.count:
            return {"reads": 0}
        return {"reads": new.count, "read_seconds": new.seconds / new.count, "read_p99_seconds": new.quantile(0.99)}

    def _read_log(self, before: CommittedBatch | None) -> tuple[int, list[float], float | None]:  # 1
        """How many batches were committed since, how long each took, and for how long a planned one waits."""
        committed, planned = committed_batches(self._storage), planned_batches(self._storage)
        waiting = None
        if planned and (not committed or planned[-1] > committed[-1]):
            waiting = max(0.0, time.time() - read_planned_ms(self._storage, planned[-1]) / 1000)
        if not committed:
            self._newest = None
            return 0, [], waiting
        times: list[float] = []
        newest = read_batch(self._storage, committed[-1])
        if before is not None and newest.digest == before.digest:
            return 0, times, waiting
        self._newest = newest
        if before is None:
            seconds = newest.took_seconds
            return 0, [] if seconds is None else [seconds], waiting
        since = [batch for batch in committed if batch > before.batch]
        # Each costs three requests on an object store.
        timed = since[-1:] if self._storage.is_remote else since[-_TIMED_BATCHES:]
        for batch in timed:
            seconds = (newest if batch == newest.batch else read_batch(self._storage, batch)).took_seconds
            if seconds is not None:
                times.append(seconds)
        return max(0, newest.batch - before.batch), times, waiting

    def _behind_records(self, newest: Mapping[str, Any] | None) -> int | None:
        if newest is None or self._newest is None:
            return None
        try:
            return records_behind(self._storage, newest, self._newest.offsets)
        except MillpondError:
            return None

    def _read_sizes(self, at_ms: int, jobs: int) -> None:  # 2, 3
        newest, known = self._newest, self._sizes
        if not self._storage.is_remote or time.monotonic() >= self._notes_due:
            self._notes = _notes_of(self._folder.storage)
            self._notes_due = time.monotonic() + self._settings.remote_notes_seconds
        if newest is None:
            self._sizes = None
            return
        if (known is not None and known.batch == newest.batch) or time.monotonic() < self._sizes_due:
            return
        began = time.monotonic()
        try:
            self._sizes = self._measured(newest, at_ms)
        finally:
            settings = self._settings
            least = settings.remote_sizes_seconds if self._storage.is_remote else settings.sizes_seconds
            took = time.monotonic() - began
            self._sizes_due = time.monotonic() + max(least, took * jobs / settings.share)

    def partitions(self) -> tuple[Batch | None, dict[int, OperatorState]]:
        """The newest committed batch, and the state of each operator by its number: lists all of its files.

        Raises:  as the storage; CORRUPT_FILE, UNKNOWN_FORMAT.
        """
        committed = committed_batches(self._storage)
        if not committed:
            return None, {}
        newest = read_batch(self._storage, committed[-1])
        return newest.batch, self.partitions_at(newest)

    def partitions_at(self, batch: CommittedBatch) -> dict[int, OperatorState]:
        """The state of each operator at a batch.  Raises as `partitions`."""
        return self._states(batch)[0]

    def _measured(self, batch: CommittedBatch, at_ms: int) -> _Sizes:
        found, all_bytes = self._states(batch)
        operators = tuple(_size(number, operator) for number, operator in sorted(found.items()))
        return _Sizes(batch.batch, at_ms, operators, all_bytes)

    def _states(self, batch: CommittedBatch) -> tuple[dict[int, OperatorState], int]:
        """Each operator by its number, and the bytes of all state files, also of earlier batches."""
        found: dict[int, OperatorState] = {}
        all_bytes = 0
        for files in read_operator_files(self._storage, batch.batch):
            operator = found[files.operator] = OperatorState(files.name)
            for store, partition in partitions_of_stores(self._storage, batch, files):
                folder = store.folder(partition)
                sizes = _listed(self._storage, folder)
                all_bytes += sum(sizes.values())
                base, changes = self._reader.files(batch, store, partition)
                needed = [path for path in (base, *changes) if path is not None]
                operator.changed_bytes += sizes.get(change_path(batch, store, partition), 0)
                if base is not None and base.endswith(".zip"):
                    needed += [f"{folder}/SSTs/{name}" for name in self._ssts_of(folder, base)]
                operator.state[partition] += sum(sizes.get(path, 0) for path in needed)
        return found, all_bytes

    def _ssts_of(self, folder: str, base: str) -> frozenset[str]:
        """The names of a snapshot's SSTs: read once, since a zip never changes."""
        known = self._ssts.get(folder)
        if known is None or known[0] != base:
            names = read_snapshot_metadata(self._storage, *folder_and_name(base)).sst_names.values()
            known = self._ssts[folder] = base, frozenset(names)
        return known[1]


def _readable(followed: Mapping[str, Any]) -> int | None:
    """Whether a replica can be read; None while it is built for the first time."""
    is_readable = followed.get("batch") is not None
    error = followed.get("error")
    return None if not is_readable and error and error["condition"] == "REPLICA_BUILDING" else int(is_readable)


def _failing_backups(followed: Mapping[str, Any] | None) -> int | None:
    """How many of the job's savepoints at intervals and archives went wrong last; None if this process makes none."""
    errors = None if followed is None else followed.get("backup_errors")
    return None if errors is None else len(errors)


def _counts(progress: Mapping[str, int | float]) -> dict[str, Any]:
    """The fields of a sample that Spark's reports say."""
    names = ("input_rows", "late_rows", "changed_rows", "state_rows", "memory_bytes", "waiting_files", "oldest_file_ms")
    whole = {name: int(progress[name]) for name in names if name in progress}
    return whole | {name: float(progress[name]) for name in ("get_seconds", "commit_seconds") if name in progress}


def _notes_of(storage: Storage) -> dict[str, Any]:
    """The fields of a sample that files in the job's folder say: of runs, of scheduled savepoints, of drills."""
    found: dict[str, Any] = {}
    try:
        runs = read_runs(storage)
    except CheckpointError:
        runs = Runs()
    if runs.runs:
        found |= {"starts": runs.count, "failures": runs.failures, "recovery_seconds": runs.runs[-1].recovery_seconds}
    note = read_note(storage)
    if note is not None:
        found |= {"savepoint_ms": note.whole_ms, "savepoint_every_seconds": note.every_ms / 1000}
    drills = read_drills(storage)
    if drills:
        found |= {"drill_failed": int(not drills[-1].is_good), "drill_seconds": drills[-1].recovery_seconds}
    return found


def _listed(storage: Storage, folder: str) -> dict[str, int]:
    """The lengths of a partition's files, by path."""
    return {f"{place}/{name}": size for place in (folder, f"{folder}/SSTs") for name, size in storage.sizes(place).items()}


def _size(number: int, operator: OperatorState) -> OperatorSize:
    largest = max(operator.state, key=lambda partition: operator.state[partition], default=0)
    return OperatorSize(
        operator=number,
        name=operator.name,
        partitions=len(operator.state),
        state_bytes=sum(operator.state.values()),
        changed_bytes=operator.changed_bytes,
        largest_partition=largest,
        largest_bytes=operator.state.get(largest, 0),
        median_bytes=int(statistics.median(operator.state.values())) if operator.state else 0,
    )
