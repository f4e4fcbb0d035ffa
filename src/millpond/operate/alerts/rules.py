"""The rules.  Each is declared once: over samples, and as an expression over Prometheus' metrics of them.

1. A rule measures a number from samples.  It is met if the number is above the threshold.
2. A rule fires after it has been met for some time, and ends when the number has been below a part of
   the threshold for as long: so a number near the threshold doesn't fire again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from millpond.operate.sample import Sample

Unit = Literal["bytes", "seconds", "records", "rows", "times", ""]
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
# A partition below this size is no problem, however small the others are.
_SKEW_LEAST_BYTES = 1 << 20
# A replica that follows is behind for less.
_FAR_BEHIND_SECONDS = 60
# A forecast from less is none.
_FORECAST_SECONDS = 6 * _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    id:            its name, in words with hyphens
    title:         what is wrong if it fires
    threshold:     above which the rule is met
    unit:          of the number and the threshold
    value:         the number from the samples up to a moment, oldest first; None if it isn't known
    sliding:       in place of `value`, for long windows: makes a function of all samples and of the places where
                   a window begins and ends, which is asked for one window after the other
    window_seconds: how many seconds of samples it needs
    for_seconds:   for how long it must be met
    expression:    the same for Prometheus; `{threshold}` stands for the threshold
    advice:        what to do, in a sentence
    """

    id: str
    title: str
    threshold: float
    unit: Unit
    value: Callable[[Sequence[Sample]], float | None] | None = None
    sliding: Callable[[], Callable[[Sequence[Sample], int, int], float | None]] | None = None
    window_seconds: float = 0.0
    for_seconds: float = 0.0
    expression: str
    advice: str

    def measure(self) -> Callable[[Sequence[Sample], int, int], float | None]:
        """A function of all samples and of the places where a window begins and ends; windows only move on."""
        if self.sliding is not None:
            return self.sliding()
        value = self.value
        assert value is not None
        return lambda samples, first, end: value(samples[first:end])


def _state_bytes(samples: Sequence[Sample]) -> float | None:
    return samples[-1].state_bytes


def _longest_batch(samples: Sequence[Sample]) -> float | None:
    newest = samples[-1]
    return newest.longest_batch_seconds if newest.longest_batch_seconds is not None else 0.0


def _failed(samples: Sequence[Sample]) -> float | None:
    """Runs that an error has ended, also if the job runs again; 1 at least if it stands in the middle of a batch."""
    newest = samples[-1]
    if newest.job_state == "unknown":
        return None
    stands = newest.job_state == "stopped" and newest.waiting_seconds is not None
    return max(float(stands), _more([sample.failures for sample in samples]) or 0.0)


def _down(samples: Sequence[Sample]) -> float | None:
    return None if samples[-1].job_state == "unknown" else float(samples[-1].job_state == "stopped")


def _waits(samples: Sequence[Sample]) -> float | None:
    """Of a job that has stopped, other rules tell."""
    newest = samples[-1]
    return 0.0 if newest.waiting_seconds is None or newest.job_state == "stopped" else newest.waiting_seconds


def _recovers(samples: Sequence[Sample]) -> float | None:
    """For how long a job has run since it was seen stopped, without a commit."""
    newest = samples[-1]
    if newest.job_state != "running":
        return None
    begun = None
    for sample in reversed(samples):
        if sample.job_state != "running":
            return 0.0 if begun is None else (newest.at_ms - begun) / 1000
        if sample.batch != newest.batch:
            return 0.0
        begun = sample.at_ms
    return 0.0


def _behind(samples: Sequence[Sample]) -> float | None:
    """The fewest records behind, if there are more now than at first."""
    counts = [sample.behind_records for sample in samples]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or not _covers(samples, 15 * _MINUTE):
        return None
    return min(known) if known[-1] > known[0] else 0


def _files_wait(samples: Sequence[Sample]) -> float | None:
    """For how long the oldest file has waited, at least, if it isn't less than at first."""
    known = [sample.file_lag_seconds for sample in samples if sample.file_lag_seconds is not None]
    if samples[-1].file_lag_seconds is None or not _covers(samples, 15 * _MINUTE):
        return None
    return min(known) if known[-1] >= known[0] else 0.0


def _watermark_still(samples: Sequence[Sample]) -> float | None:
    """For how long the watermark has been the same, while batches were committed."""
    newest = samples[-1]
    if newest.watermark_ms is None or newest.batch is None:
        return None
    since, batch = newest.at_ms, newest.batch
    for sample in reversed(samples):
        if sample.watermark_ms != newest.watermark_ms or sample.batch is None:
            break
        since, batch = sample.at_ms, sample.batch
    return (newest.at_ms - since) / 1000 if newest.batch - batch >= 2 else 0.0


class _InAWeek:
    """The state's bytes in a week, by the straight line nearest to the samples of a window that moves on.

    Sums are kept from one window to the next, as whole numbers: so they are exact, and a day of
    samples costs no more than those that are new.
    """

    def __init__(self) -> None:
        self._begin = self._end = 0
        self._count = self._times = self._sizes = self._squares = self._products = 0

    def __call__(self, samples: Sequence[Sample], first: int, end: int) -> float | None:
        """The number of the samples from `first` up to `end`; neither is ever less than in the call before."""
        origin = samples[0].at_ms
        for sample in samples[self._end : end]:
            self._add(sample, origin, 1)
        for sample in samples[self._begin : first]:
            self._add(sample, origin, -1)
        self._begin, self._end = first, end
        known = next((sample for sample in samples[first:end] if sample.state_bytes is not None), None)
        last = next((sample for sample in reversed(samples[first:end]) if sample.state_bytes is not None), None)
        if known is None or last is None or last.at_ms - known.at_ms < _FORECAST_SECONDS * 1000:
            return None
        spread = self._count * self._squares - self._times**2
        slope = self._count * self._products - self._times * self._sizes
        later = self._count * (last.at_ms - origin + 7 * _DAY * 1000) - self._times
        return (self._sizes + slope * later / spread) / self._count

    def _add(self, sample: Sample, origin: int, sign: int) -> None:
        size = sample.state_bytes
        if size is None:
            return
        time = sample.at_ms - origin
        self._count += sign
        self._times += sign * time
        self._sizes += sign * size
        self._squares += sign * time * time
        self._products += sign * time * size


def _skew(samples: Sequence[Sample]) -> float | None:
    if samples[-1].sized_ms is None:
        return None
    large = [size for size in samples[-1].operators if size.largest_bytes > _SKEW_LEAST_BYTES]
    return max((size.largest_bytes / max(1, size.median_bytes) for size in large), default=0.0)


def _late(samples: Sequence[Sample]) -> float | None:
    return _grown([sample.late_rows for sample in samples])


def _starts(samples: Sequence[Sample]) -> float | None:
    return _more([sample.starts for sample in samples])


def _more(counts: Sequence[int | None]) -> float | None:
    """By how much a count in the job's folder has grown; 0 if it begins anew, since somebody has deleted the file."""
    known = [count for count in counts if count is not None]
    if not known:
        return None
    return float(known[-1] - known[0]) if known == sorted(known) else 0.0


def _grown(counts: Sequence[int | None]) -> float | None:
    """By how much a count has grown; it begins at 0 again with each start of the job."""
    known = [count for count in counts if count is not None]
    if not known:
        return None
    return float(sum(now - before if now >= before else now for before, now in pairwise(known)))


def _get_seconds(samples: Sequence[Sample]) -> float | None:
    return samples[-1].get_seconds or 0.0


def _savepoint_overdue(samples: Sequence[Sample]) -> float | None:
    """Since when batches aren't in a scheduled savepoint, in intervals; 0 if there are none."""
    newest = samples[-1]
    if newest.savepoint_ms is None or newest.committed_ms is None or not newest.savepoint_every_seconds:
        return None
    if newest.committed_ms <= newest.savepoint_ms:
        return 0.0
    return (newest.at_ms - newest.savepoint_ms) / 1000 / newest.savepoint_every_seconds


def _drill_failed(samples: Sequence[Sample]) -> float | None:
    failed = samples[-1].drill_failed
    return None if failed is None else float(failed)


def _replica(samples: Sequence[Sample]) -> float | None:
    """1 if a server's replica of a job that has a batch can't be read, or is far behind; 0 once no server tells of one."""
    newest = next((sample for sample in reversed(samples) if sample.readable is not None), None)
    if newest is None:
        return 0.0
    unread = newest.readable == 0 and newest.batch is not None
    return float(unread or (newest.behind_seconds or 0.0) > _FAR_BEHIND_SECONDS)


def _backups(samples: Sequence[Sample]) -> float | None:
    """0 once no server tells of any."""
    return float(next((sample.backups_failing for sample in reversed(samples) if sample.backups_failing is not None), 0))


def _covers(samples: Sequence[Sample], seconds: float) -> bool:
    """Whether samples reach so far back, give or take one."""
    return samples[-1].at_ms - samples[0].at_ms >= (seconds - 2 * _MINUTE) * 1000


_SIZE = "sum by (job) (millpond_state_bytes)"
RULES = (
    Rule(
        id="state-large",
        title="The state is large.",
        threshold=10 * 2**30,
        unit="bytes",
        value=_state_bytes,
        expression=f"{_SIZE} > {{threshold}}",
        advice="Look at `millpond inspect` for what it holds; give it a watermark, a TTL or a shorter retention, or use RocksDB.",
    ),
    Rule(
        id="state-fills",
        title="The state will reach its limit within a week.",
        threshold=10 * 2**30,
        unit="bytes",
        sliding=_InAWeek,
        window_seconds=_DAY,
        for_seconds=10 * _MINUTE,
        expression=f"predict_linear(({_SIZE})[1d:1m], {7 * _DAY}) > {{threshold}} "
        f"and on (job) (time() - min_over_time(timestamp({_SIZE})[1d:1m])) > {_FORECAST_SECONDS}",
        advice="See which operator grows (`millpond samples`), and bound it before it is full.",
    ),
    Rule(
        id="batch-slow",
        title="Batches take long.",
        threshold=60,
        unit="seconds",
        value=_longest_batch,
        for_seconds=2 * _MINUTE,
        expression="millpond_job_longest_batch_seconds > {threshold}",
        advice="Compare with the rows of a batch and the size of the state; give the job more cores, or smaller batches.",
    ),
    Rule(
        id="batch-failed",
        title="An error has ended the job, or it has stopped in the middle of a batch.",
        threshold=0,
        unit="",
        value=_failed,
        window_seconds=15 * _MINUTE,
        for_seconds=_MINUTE,
        expression="(millpond_job_running == 0 and on (job) millpond_job_waiting_seconds > {threshold}) or on (job) "
        "(max_over_time(millpond_job_failures_total[15m]) - min_over_time(millpond_job_failures_total[15m]) > {threshold} "
        "unless on (job) resets(millpond_job_failures_total[15m]) > 0)",
        advice="Read the end of the driver's log, and the error in `runs.json` of the job's folder; `millpond repair` says whether "
        "Spark can start from the checkpoint.",
    ),
    Rule(
        id="job-down",
        title="The job doesn't run.",
        threshold=0,
        unit="",
        value=_down,
        for_seconds=_MINUTE,
        expression="(millpond_job_running == bool 0) > {threshold}",
        advice="Start it; readers get the last committed batch meanwhile.",
    ),
    Rule(
        id="recovery-slow",
        title="The job has started, and commits no batch.",
        threshold=5 * _MINUTE,
        unit="seconds",
        value=_recovers,
        window_seconds=_HOUR,
        expression="time() - millpond_job_commit_timestamp_seconds > {threshold} and on (job) millpond_job_running == 1 "
        "and on (job) min_over_time(millpond_job_running[15m]) == 0",
        advice="A first batch loads all of the state; see how large it is, and how many change logs lie after the snapshots.",
    ),
    Rule(
        id="batch-waits",
        title="A batch was planned long ago, and isn't committed.",
        threshold=10 * _MINUTE,
        unit="seconds",
        value=_waits,
        expression="millpond_job_waiting_seconds > {threshold} unless on (job) millpond_job_running == 0",
        advice="See in Spark's UI what its tasks do; a hot key makes one task long (`partition-skew`).",
    ),
    Rule(
        id="behind",
        title="The job falls behind its source.",
        threshold=0,
        unit="records",
        value=_behind,
        window_seconds=15 * _MINUTE,
        for_seconds=5 * _MINUTE,
        expression="min_over_time(millpond_job_behind_records[15m]) > {threshold} "
        "and on (job) delta(millpond_job_behind_records[15m]) > 0",
        advice="Give it more cores or partitions (`millpond rescale`), or larger batches.",
    ),
    Rule(
        id="files-wait",
        title="Files wait for long.",
        threshold=15 * _MINUTE,
        unit="seconds",
        value=_files_wait,
        window_seconds=15 * _MINUTE,
        for_seconds=5 * _MINUTE,
        expression="min_over_time(millpond_job_file_lag_seconds[15m]) > {threshold} "
        "and on (job) delta(millpond_job_file_lag_seconds[15m]) >= 0",
        advice="Let a batch read more of them (`maxFilesPerTrigger`), or give the job more cores.",
    ),
    Rule(
        id="watermark-still",
        title="The watermark stands still while batches come.",
        threshold=10 * _MINUTE,
        unit="seconds",
        value=_watermark_still,
        window_seconds=_HOUR,
        expression="changes(millpond_job_watermark_timestamp_seconds[{threshold}s]) == 0 "
        "and on (job) delta(millpond_job_batch[{threshold}s]) >= 2",
        advice="One source without events holds it back; see which, and whether its events have the event time.",
    ),
    Rule(
        id="partition-skew",
        title="One partition is far larger than the others.",
        threshold=5,
        unit="times",
        value=_skew,
        for_seconds=5 * _MINUTE,
        expression="millpond_state_largest_partition_bytes / (millpond_state_median_partition_bytes > 0) > {threshold} "
        f"and millpond_state_largest_partition_bytes > {_SKEW_LEAST_BYTES}",
        advice="Spread hot keys with `salted`, or `millpond rescale` if many keys share the partition.",
    ),
    Rule(
        id="state-slow",
        title="Reads of state are slow.",
        threshold=0.1,
        unit="seconds",
        value=_get_seconds,
        for_seconds=2 * _MINUTE,
        expression="millpond_state_get_seconds > {threshold}",
        advice="Give RocksDB more memory or a quicker disk, and look at the state's size and its compaction.",
    ),
    Rule(
        id="late-rows",
        title="Rows are dropped because they come late.",
        threshold=0,
        unit="rows",
        value=_late,
        window_seconds=15 * _MINUTE,
        expression="increase(millpond_job_late_rows_total[15m]) > {threshold}",
        advice="See how late they are: a longer watermark delay keeps them, and keeps state for longer.",
    ),
    Rule(
        id="restarts-often",
        title="The job is started again and again.",
        threshold=3,
        unit="times",
        value=_starts,
        window_seconds=_HOUR,
        expression="max_over_time(millpond_job_starts_total[1h]) - min_over_time(millpond_job_starts_total[1h]) > {threshold} "
        "unless on (job) resets(millpond_job_starts_total[1h]) > 0",
        advice="`runs.json` in the job's folder says why each run ended; `millpond run` says what to do.",
    ),
    Rule(
        id="savepoint-overdue",
        title="Batches of long ago are in no scheduled savepoint.",
        threshold=2,
        unit="times",
        value=_savepoint_overdue,
        for_seconds=5 * _MINUTE,
        expression="((time() - millpond_job_savepoint_timestamp_seconds) / millpond_job_savepoint_every_seconds) > {threshold} "
        "and on (job) millpond_job_commit_timestamp_seconds > millpond_job_savepoint_timestamp_seconds",
        advice="See whether the server that makes them runs (`millpond serve --savepoint-every`), and what its log says.",
    ),
    Rule(
        id="drill-failed",
        title="The newest drill didn't bring the job back in time.",
        threshold=0,
        unit="",
        value=_drill_failed,
        expression="millpond_job_drill_failed > {threshold}",
        advice="`millpond drill` says what is missing; a later drill that goes well ends this.",
    ),
    Rule(
        id="replica-failing",
        title="The server can't follow the job.",
        threshold=0,
        unit="",
        value=_replica,
        window_seconds=3 * _MINUTE,
        for_seconds=2 * _MINUTE,
        expression="((millpond_job_readable == bool 0) and on (job) millpond_job_batch) > {threshold} "
        f"or on (job) (millpond_behind_seconds > bool {_FAR_BEHIND_SECONDS}) > {{threshold}}",
        advice="`GET /jobs` and the server's log say why; other jobs go on.",
    ),
    Rule(
        id="backups-failing",
        title="Savepoints or the archive of the job go wrong.",
        threshold=0,
        unit="",
        value=_backups,
        window_seconds=3 * _MINUTE,
        for_seconds=5 * _MINUTE,
        expression="millpond_job_backups_failing > {threshold}",
        advice="The server's log has the error; it is tried again by itself.",
    ),
)
BY_ID = {rule.id: rule for rule in RULES}
