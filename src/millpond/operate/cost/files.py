"""The files of a state, counted in its folders: how many a batch writes.

1. The names of a partition's files are versions; each list is of one moment.
2. A batch writes a change file in each partition of each store, if it writes any, and a snapshot in
   some.  How often is counted among the versions that are there.  The oldest ones don't count:
   Spark has removed some of their files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import version_of
from millpond.checkpoint.restart_files import partitions_of_stores
from millpond.storage import Storage

_FILE = re.compile(r"(\d+)(?:_[0-9A-Za-z_-]+)?\.(delta|changelog|snapshot|zip)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFiles:
    """How many files there are, and how many a batch writes, in all partitions of all stores together.

    provider:      hdfs or rocksdb
    partitions:    of all stores together: each is a folder
    single:        of these, those of stores that have one partition only, whatever the job has
    bytes:         of all of them
    change_bytes:  of these, of change files
    files:         how many there are
    change_files:  that a batch writes: deltas, or change logs
    snapshots:     that a batch writes: snapshots of the HDFS-backed provider, or zips
    ssts:          that a batch writes
    versions:      how many versions this was counted in; 0: nothing could be counted
    is_format_2:   whether names have ids, and each file has a checksum beside it
    """

    provider: str
    partitions: int
    single: int
    bytes: int
    change_bytes: int
    files: int
    change_files: float
    snapshots: float
    ssts: float
    versions: int
    is_format_2: bool

    @property
    def a_batch(self) -> float:
        """All files that a batch writes."""
        return self.change_files + self.snapshots + self.ssts

    def over(self, before: int, after: int) -> StateFiles:
        """With another number of partitions of the job: each of them writes as many files."""
        each = after / before
        share = (self.single + (self.partitions - self.single) * each) / self.partitions if self.partitions else 1.0
        return replace(
            self,
            partitions=round(self.partitions * share),
            change_files=self.change_files * share,
            snapshots=self.snapshots * share,
            ssts=self.ssts * share,
        )


def count_files(storage: Storage, batch: CommittedBatch) -> StateFiles:
    """Lists each partition of each store.  Raises as the storage, CORRUPT_FILE, UNKNOWN_FORMAT."""
    partitions = single = size = change_size = files = most = 0
    changes = snapshots = ssts = 0.0
    for operator in read_operator_files(storage, batch.batch):
        for store, partition in partitions_of_stores(storage, batch, operator):  # 1
            folder = store.folder(partition)
            there, shared = storage.sizes(folder), storage.sizes(f"{folder}/SSTs")
            size += sum(there.values()) + sum(shared.values())
            change_size += sum(length for name, length in there.items() if name.endswith((".delta", ".changelog")))
            files += len(there) + len(shared)
            partitions += 1
            single += store.single
            span, found = _counted(there, version_of(batch.batch))
            most = max(most, span)
            if span:
                changes += found["delta"] + found["changelog"]
                snapshots += found["snapshot"] + found["zip"]
                # Snapshots share SSTs; each SST was written once.
                zips = sum(name.endswith(".zip") for name in there)
                ssts += len(shared) / zips * found["zip"] if zips else 0.0
    return StateFiles(
        provider=batch.settings.provider,
        partitions=partitions,
        single=single,
        bytes=size,
        change_bytes=change_size,
        files=files,
        change_files=changes,
        snapshots=snapshots,
        ssts=ssts,
        versions=most,
        is_format_2=bool(batch.state_ids),
    )


def _counted(names: Iterable[str], newest: int) -> tuple[int, dict[str, float]]:  # 2
    """In how many versions files were counted, and how many of each kind there are for each version."""
    kinds: dict[str, set[int]] = {"delta": set(), "changelog": set(), "snapshot": set(), "zip": set()}
    for name in names:
        found = _FILE.fullmatch(name)
        if found is not None and int(found[1]) <= newest:
            kinds[found[2]].add(int(found[1]))
    first = min((version for there in kinds.values() for version in there), default=newest)
    # The first version may have been kept because of its snapshot.
    span = newest - first
    if span == 0:
        span, first = (1, first - 1) if any(kinds.values()) else (0, first)
    return span, {kind: sum(version > first for version in there) / span if span else 0.0 for kind, there in kinds.items()}
