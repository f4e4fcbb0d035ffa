"""What samples say of jobs, as metrics.  A partition is no label: a job may have thousands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from millpond.operate.sample import OperatorSize, Sample
from millpond.settings import SampleSettings

# A sample that is older says nothing of now: nobody measures the job any more.
_OLD_SAMPLES = 5


class _Gauge(NamedTuple):
    """A metric of a job: its meaning, and its value."""

    text: str
    value: Callable[[Sample], float | None]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


_JOBS = {
    "millpond_job_batch": _Gauge("The newest committed batch.", lambda sample: sample.batch),
    "millpond_job_batch_seconds": _Gauge(
        "How long the newest batch took, from its plan to its commit.", lambda sample: sample.batch_seconds
    ),
    "millpond_job_longest_batch_seconds": _Gauge(
        "The same of the longest batch since the sample before.", lambda sample: sample.longest_batch_seconds
    ),
    "millpond_job_waiting_seconds": _Gauge(
        "Since a batch was planned that wasn't committed; 0 if there is none.", lambda sample: sample.waiting_seconds or 0.0
    ),
    "millpond_job_commit_timestamp_seconds": _Gauge(
        "When the newest batch was committed, since 1970.", lambda sample: _seconds(sample.committed_ms)
    ),
    "millpond_job_watermark_timestamp_seconds": _Gauge(
        "The watermark of the newest batch, since 1970.", lambda sample: _seconds(sample.watermark_ms)
    ),
    "millpond_job_behind_records": _Gauge(
        "Records that the sources have and no committed batch.", lambda sample: sample.behind_records
    ),
    "millpond_job_waiting_files": _Gauge(
        "Files that the sources have listed and no batch has begun to read.", lambda sample: sample.waiting_files
    ),
    "millpond_job_file_lag_seconds": _Gauge(
        "Since the oldest of these was written; 0 if there is none.", lambda sample: sample.file_lag_seconds
    ),
    "millpond_job_state_rows": _Gauge("Rows of state, by Spark's newest report.", lambda sample: sample.state_rows),
    "millpond_job_state_memory_bytes": _Gauge("Memory of the state, by Spark's newest report.", lambda sample: sample.memory_bytes),
    "millpond_state_get_seconds": _Gauge("One read of state, in the mean of the newest batch.", lambda sample: sample.get_seconds),
    "millpond_state_commit_seconds": _Gauge(
        "In which the tasks of the newest batch wrote the state, added up.", lambda sample: sample.commit_seconds
    ),
    "millpond_job_recovery_seconds": _Gauge(
        "From the start of the newest run's process to its first commit.", lambda sample: sample.recovery_seconds
    ),
    "millpond_job_savepoint_timestamp_seconds": _Gauge(
        "Up to when all batches are in a scheduled savepoint, since 1970.", lambda sample: _seconds(sample.savepoint_ms)
    ),
    "millpond_job_savepoint_every_seconds": _Gauge(
        "The interval of scheduled savepoints.", lambda sample: sample.savepoint_every_seconds
    ),
    "millpond_job_drill_failed": _Gauge("1 if the newest drill failed, else 0.", lambda sample: sample.drill_failed),
    "millpond_job_drill_seconds": _Gauge("In which the newest drill brought the job back.", lambda sample: sample.drill_seconds),
    "millpond_job_readable": _Gauge(
        "1 if the server's replica of the job can be read, 0 if not; absent while it is built for the first time.",
        lambda sample: sample.readable,
    ),
    "millpond_job_backups_failing": _Gauge(
        "The job's savepoints at intervals and archives whose last try went wrong.", lambda sample: sample.backups_failing
    ),
    "millpond_job_checkpoint_bytes": _Gauge("State files, also of earlier batches.", lambda sample: sample.checkpoint_bytes),
    "millpond_job_sample_timestamp_seconds": _Gauge("When all this was measured, since 1970.", lambda sample: sample.at_ms / 1000),
}
# Counts that grow; those of Spark's reports begin at 0 again with each start of the job.
_COUNTERS = {
    "millpond_job_input_rows": _Gauge("Rows read since the job was started.", lambda sample: sample.input_rows),
    "millpond_job_late_rows": _Gauge("Rows dropped as late since then.", lambda sample: sample.late_rows),
    "millpond_job_changed_rows": _Gauge("Rows of state written since then.", lambda sample: sample.changed_rows),
    "millpond_job_starts": _Gauge("How often the job was started.", lambda sample: sample.starts),
    "millpond_job_failures": _Gauge("How many of these runs an error has ended.", lambda sample: sample.failures),
}
_OPERATORS: dict[str, tuple[str, Callable[[OperatorSize], int]]] = {
    "millpond_state_bytes": ("Files of the state that Spark would load.", lambda size: size.state_bytes),
    "millpond_state_changed_bytes": ("Change files of the newest batch.", lambda size: size.changed_bytes),
    "millpond_state_partitions": ("Partitions of the state.", lambda size: size.partitions),
    "millpond_state_largest_partition_bytes": ("State of the largest partition.", lambda size: size.largest_bytes),
    "millpond_state_median_partition_bytes": ("State of the median partition.", lambda size: size.median_bytes),
}


class SampleFacts(Collector):
    """The newest sample of each job, by its name.

    now:  seconds since 1970; None: now
    """

    def __init__(self, samples: dict[str, Sample], now: float | None = None) -> None:
        oldest = ((time.time() if now is None else now) - _OLD_SAMPLES * SampleSettings().sample_seconds) * 1000
        self._samples = {job: sample for job, sample in samples.items() if sample.at_ms >= oldest}

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The metrics, without a value where it isn't known."""
        gauges = [(GaugeMetricFamily(name, gauge.text, labels=["job"]), gauge) for name, gauge in _JOBS.items()]
        counters = [(CounterMetricFamily(name, gauge.text, labels=["job"]), gauge) for name, gauge in _COUNTERS.items()]
        families: list[tuple[GaugeMetricFamily | CounterMetricFamily, _Gauge]] = [*gauges, *counters]
        for family, gauge in families:
            for job, sample in self._samples.items():
                value = gauge.value(sample)
                if value is not None:
                    family.add_metric([label(job)], value)
            yield family
        for name, (text, of) in _OPERATORS.items():
            family = GaugeMetricFamily(name, text, labels=["job", "operator", "kind"])
            for job, sample in self._samples.items():
                for size in sample.operators:
                    family.add_metric([label(job), str(size.operator), label(size.name)], of(size))
            yield family


def label(text: str) -> str:
    """A name in UTF-8; other bytes of a folder's name become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
