"""What a job takes a month: bytes, requests, disks of replicas; each as it was measured, or named as unknown.

1. Batches a month: of the samples that a server keeps; without any, of the log of the checkpoint.
2. Bytes: the mean of the samples; without any, of one look at the files.
3. Requests of Spark: how many files a batch writes is counted in the folders (`files`), how many
   requests a file takes was measured once (`requests`).
4. Requests of followers, and the disks of replicas: of the replicas that are on this machine.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from millpond.catalogue import JobFolder
from millpond.checkpoint.log import CommittedBatch, committed_batches, newest_committed, read_batch
from millpond.checkpoint.position import Batch
from millpond.operate.cost.facts import MONTH_SECONDS, Fact, fact
from millpond.operate.cost.files import StateFiles, count_files
from millpond.operate.cost.requests import Requests, requests_of_batch, requests_of_clock
from millpond.operate.sample import Sample
from millpond.operate.sample_log import samples_of
from millpond.operate.units import seconds_text
from millpond.replica.folder import ReplicaPlace
from millpond.settings import home
from millpond.storage import Storage

# Samples of a shorter time say less than the log, which may have more.
_LEAST_SECONDS = 3600
# A follower that has just begun has asked for whole snapshots.
_LEAST_FOLLOWED_SECONDS = 600
_FORMULA = "requests a file as measured (docs/cost.md)"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a job takes.

    batches:     a month; None if that isn't known
    bytes:       of the state files in its checkpoint, also of earlier batches
    puts, gets:  requests of Spark a month, if the checkpoint is, or were, on an object store
    followed_puts, followed_gets: the same of followers on this machine; None if there are none, or
                 the checkpoint isn't on an object store
    replica:     bytes of the replicas on this machine; None if there are none
    unknown:     what isn't known, and why
    """

    batches: Fact | None
    bytes: Fact
    puts: Fact | None
    gets: Fact | None
    followed_puts: Fact | None
    followed_gets: Fact | None
    replica: Fact | None
    unknown: tuple[str, ...]


class Measured:
    """A job's numbers, measured once, and what it takes by them."""

    def __init__(self, folder: JobFolder, last_seconds: float | None, replica_dir: str | Path | None = None) -> None:
        """Read the samples, the log, the names of all state files, and what replicas on this machine say.

        last_seconds:  of the samples; None for all that are kept
        Raises:        NO_COMMITTED_BATCH; what the storage raises; CORRUPT_FILE, UNKNOWN_FORMAT.
        """
        storage = folder.open_checkpoint()
        self.batch = read_batch(storage, newest_committed(storage))
        self.files = count_files(storage, self.batch)
        begin = 0 if last_seconds is None else int((time.time() - last_seconds) * 1000)
        self.samples = samples_of(folder, begin)
        self.batches = _batches(storage, self.samples, self.batch)
        self.is_remote = storage.is_remote
        places = ReplicaPlace.all_of(Path(replica_dir) if replica_dir is not None else home(), folder.checkpoint)
        self._followed = _followed(places) if self.is_remote else None
        self._replica = _replica(places)

    def usage(self) -> Usage:
        """As the job is."""
        return self.usage_of(self.batches, self.files, _bytes(self.samples, self.files))

    def usage_of(self, batches: Fact | None, files: StateFiles, size: Fact) -> Usage:
        """As if a job had these files."""
        unknown = []
        if batches is None:
            unknown.append("Batches a month: the log has one batch, and no server has kept samples, so requests aren't known.")
        puts, gets = _requests(batches, files)
        followed, replica = self._followed, self._replica
        if self.is_remote and followed is None:
            unknown.append(
                "Requests of followers: none has followed the job from this machine for ten minutes, so they weren't measured."
            )
        if replica is None:
            unknown.append("Disks of replicas: this machine has none of the job, so they weren't measured.")
        return Usage(
            batches=batches,
            bytes=size,
            puts=puts,
            gets=gets,
            followed_puts=None if followed is None else followed[0],
            followed_gets=None if followed is None else followed[1],
            replica=replica,
            unknown=tuple(unknown),
        )


def _batches(storage: Storage, samples: Sequence[Sample], newest: CommittedBatch) -> Fact | None:  # 1
    span = (samples[-1].at_ms - samples[0].at_ms) / 1000 if samples else 0.0
    if span >= _LEAST_SECONDS:
        count = sum(_between(*pair) for pair in pairwise(samples))
        return fact(
            count / span * MONTH_SECONDS,
            f"{count:,} batches in {seconds_text(span)}, by {len(samples):,} samples",
        )
    first = read_batch(storage, Batch(committed_batches(storage)[0]))
    count, span = newest.batch - first.batch, (newest.started_ms - first.started_ms) / 1000
    if count < 1 or span <= 0:
        return None
    source = f"{count:,} batches in {seconds_text(span)}, by the log from batch {first.batch} on"
    return fact(count / span * MONTH_SECONDS, source)


def _between(before: Sample, after: Sample) -> int:
    """How many batches were committed between two samples; of a job that began anew, what its watcher saw."""
    if before.batch is None or after.batch is None or after.batch < before.batch:
        return after.batches
    return after.batch - before.batch


def _bytes(samples: Sequence[Sample], files: StateFiles) -> Fact:  # 2
    sizes = [sample.checkpoint_bytes for sample in samples if sample.checkpoint_bytes is not None]
    span = (samples[-1].at_ms - samples[0].at_ms) / 1000 if samples else 0.0
    if sizes and span >= _LEAST_SECONDS:
        source = f"all state files, mean of {len(sizes):,} samples in {seconds_text(span)}"
        return fact(statistics.fmean(sizes), source, low=min(sizes), high=max(sizes))
    return fact(files.bytes, f"all {files.files:,} state files, now")


def _requests(batches: Fact | None, files: StateFiles) -> tuple[Fact | None, Fact | None]:  # 3
    if batches is None:
        return None, None
    each, clock = requests_of_batch(files), requests_of_clock(files)
    a_month = Requests(
        puts=each.puts * batches.value + clock.puts * MONTH_SECONDS, gets=each.gets * batches.value + clock.gets * MONTH_SECONDS
    )
    source = (
        f"{batches.value:,.0f} batches x {files.a_batch:,.1f} files in {files.partitions:,} partitions of stores, "
        f"by {files.versions:,} versions; {_FORMULA}"
    )
    return fact(a_month.puts, source, "estimate"), fact(a_month.gets, source, "estimate")


def _followed(places: Sequence[ReplicaPlace]) -> tuple[Fact, Fact] | None:  # 4
    puts = gets = 0.0
    longest = 0.0
    for place in places:
        status = place.read_status()
        if status is None or not status.requests or not status.started_at:
            continue
        seconds = status.looked_at - status.started_at
        if seconds < _LEAST_FOLLOWED_SECONDS:
            continue
        longest = max(longest, seconds)
        puts += (status.requests.get("list", 0) + status.requests.get("put", 0)) / seconds
        gets += (status.requests.get("get", 0) + status.requests.get("head", 0)) / seconds
    if not longest:
        return None
    source = f"requests of the follower on this machine, counted for {seconds_text(longest)}"
    return fact(puts * MONTH_SECONDS, source), fact(gets * MONTH_SECONDS, source)


def _replica(places: Sequence[ReplicaPlace]) -> Fact | None:
    sizes = [size for place in places for size in _sizes_below(place.path)]
    if not sizes:
        return None
    return fact(sum(sizes), f"{len(places)} {'replica' if len(places) == 1 else 'replicas'} on this machine, now")


def _sizes_below(folder: Path) -> Iterator[int]:
    """What each file takes of the disk: LMDB's have holes."""
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a follower removes old generations
            if file.is_file():
                yield file.stat().st_blocks * 512
