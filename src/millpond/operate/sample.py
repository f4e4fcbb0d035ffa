"""What is measured of a job at one moment, and kept."""

from __future__ import annotations

import msgspec


class OperatorSize(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one stateful operator at the newest committed batch.

    operator:             counted from the sink towards the sources, as Spark does
    name:                 Spark's name of it
    partitions:           how many it has
    state_bytes:          of the files that Spark would load: the newest snapshots, and the changes after them
    changed_bytes:        of the change files of the newest batch
    largest_partition:    the partition with the most bytes
    largest_bytes, median_bytes: of a partition's state
    """

    operator: int
    name: str
    partitions: int
    state_bytes: int
    changed_bytes: int
    largest_partition: int
    largest_bytes: int
    median_bytes: int

    @property
    def skew(self) -> float:
        """The largest partition beside the median one; 1.0 if there is nothing."""
        return self.largest_bytes / self.median_bytes if self.median_bytes else 1.0


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job at one moment.

    at_ms:           when it was measured, milliseconds since 1970
    job_state:       running or stopped, as `start` or `publish` reports it; unknown for other jobs
    batch:           the newest committed one; None before the first
    committed_ms:    when that was; None if the checkpoint was copied, so that it isn't known
    batches:         committed since the sample before
    batch_seconds:   how long the newest batch took, from its plan to its commit
    longest_batch_seconds: the same of the longest batch since the sample before; None if there was
                     none
    waiting_seconds: since a batch was planned that isn't committed yet; None if there is none
    watermark_ms:    of the newest committed batch; None without one
    behind_records:  records that the sources have and no committed batch; None if that isn't known
    waiting_files:   files that the sources had when the job last listed them, and that no batch has begun to
                     read; None if neither `start` nor `publish` knows the job, or no source is of files
    oldest_file_ms:  when the oldest of these was written; None if there is none
    input_rows, late_rows, changed_rows: since the job was started, of Spark's own reports: rows read,
                     rows dropped because they were late, rows of state that were written; None if
                     neither `start` nor `publish` knows the job
    state_rows:      rows of state, of the newest report; None if RocksDB doesn't count them
    memory_bytes:    that the state takes of the executors' memory, of the newest report
    get_seconds:     one read of state, in the mean of the newest batch that read any; only of RocksDB
    commit_seconds:  in which the tasks of the newest batch wrote the state's files, added up over its partitions
    starts:          how often the job was started; None if neither `start` nor `publish` knows it
    failures:        how many of these runs an error has ended
    recovery_seconds: of the newest run, from the start of its process to its first commit
    savepoint_ms, savepoint_every_seconds: up to when all batches are in a scheduled savepoint, and the
                     interval; None without a schedule
    drill_failed:    1 if the newest drill failed, 0 if it went well; None if there was none
    drill_seconds:   in which that drill brought the job back
    backups_failing: savepoints at intervals and archives of the job that went wrong last; None if the
                     sampling server makes none
    readable:        of the replica that the sampling server follows: 1 if it can be read, else 0; None
                     while it is built for the first time, or if it follows none
    behind_seconds:  of that replica: the age of the oldest commit that isn't applied; None if it
                     follows none
    apply_seconds:   in which that replica applied a batch, in the mean since the sample before; None
                     if there was none
    store_requests, store_bytes: of that replica, to and from an object store since the server began;
                     None on a local disk
    reads:           that the sampling server answered by any door since the sample before, of rows of the
                     job's tables; None if it isn't known
    read_seconds, read_p99_seconds: how long they took, in the mean, and 99 of 100 at most; None if
                     there were none
    checkpoint_bytes: of all state files, also of earlier batches
    operators:       the operators' state; empty if the sizes weren't looked at
    sized_ms:        when the sizes were measured
    problem:         the condition of an error that left something out
    """

    at_ms: int
    job_state: str
    batch: int | None = None
    committed_ms: int | None = None
    batches: int = 0
    batch_seconds: float | None = None
    longest_batch_seconds: float | None = None
    waiting_seconds: float | None = None
    watermark_ms: int | None = None
    behind_records: int | None = None
    waiting_files: int | None = None
    oldest_file_ms: int | None = None
    input_rows: int | None = None
    late_rows: int | None = None
    changed_rows: int | None = None
    state_rows: int | None = None
    memory_bytes: int | None = None
    get_seconds: float | None = None
    commit_seconds: float | None = None
    starts: int | None = None
    failures: int | None = None
    recovery_seconds: float | None = None
    savepoint_ms: int | None = None
    savepoint_every_seconds: float | None = None
    drill_failed: int | None = None
    drill_seconds: float | None = None
    backups_failing: int | None = None
    readable: int | None = None
    behind_seconds: float | None = None
    apply_seconds: float | None = None
    store_requests: int | None = None
    store_bytes: int | None = None
    reads: int | None = None
    read_seconds: float | None = None
    read_p99_seconds: float | None = None
    checkpoint_bytes: int | None = None
    operators: tuple[OperatorSize, ...] = ()
    sized_ms: int | None = None
    problem: str | None = None

    @property
    def state_bytes(self) -> int | None:
        """Of all operators; None if the sizes weren't looked at."""
        return sum(each.state_bytes for each in self.operators) if self.sized_ms is not None else None

    @property
    def age_seconds(self) -> float | None:
        """From the newest commit to this sample."""
        return None if self.committed_ms is None else max(0.0, (self.at_ms - self.committed_ms) / 1000)

    @property
    def event_lag_seconds(self) -> float | None:
        """From the watermark to this sample."""
        return None if self.watermark_ms is None else (self.at_ms - self.watermark_ms) / 1000

    @property
    def file_lag_seconds(self) -> float | None:
        """Since the oldest file that waits was written; 0.0 if none waits, None if that isn't known."""
        if self.waiting_files is None:
            return None
        return 0.0 if self.oldest_file_ms is None else max(0.0, (self.at_ms - self.oldest_file_ms) / 1000)

    @property
    def behind(self) -> tuple[int, str] | None:
        """How much the job has still to read, and of what: records or files; None if that isn't known."""
        if self.behind_records is not None:
            return self.behind_records, "records"
        return None if self.waiting_files is None else (self.waiting_files, "files")
