"""/metrics: a server's counts of jobs and requests, in Prometheus' text format.

Labels are jobs, stores, routes and statuses; never a key, a token or a path.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from millpond.operate.durations import BUCKETS, Durations
from millpond.operate.sample import Sample
from millpond.serve.metrics.counts import STORE_BYTES, STORE_KINDS, Counts
from millpond.serve.metrics.samples import SampleFacts, label

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4
Metric = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

# Name -> the fact in `Pond.statistics`, and its meaning.
_GAUGES = {
    "millpond_batch": ("batch", "The batch of answers."),
    "millpond_behind_batches": ("behind_batches", "Batches committed and not applied."),
    "millpond_behind_seconds": ("behind_seconds", "Age of the oldest commit that isn't applied; 0 if there is none."),
    "millpond_age_seconds": ("age_seconds", "Seconds since the newest applied commit."),
    "millpond_event_lag_seconds": ("event_lag_seconds", "Now less the watermark."),
    "millpond_replica_bytes": ("size_bytes", "The replica's size on disk."),
}
_COUNTERS = {
    "millpond_applied_batches": ("batches_applied", "Batches applied."),
    "millpond_applied_rows": ("rows_applied", "Changed rows applied."),
    "millpond_apply_seconds": ("apply_seconds", "Time spent applying batches."),
    "millpond_bootstraps": ("bootstraps", "Builds of replicas."),
    "millpond_bootstrap_rows": ("bootstrap_records", "Records read to build replicas."),
    "millpond_bootstrap_seconds": ("bootstrap_seconds", "Time spent building replicas."),
    "millpond_follower_errors": ("errors", "Errors of followers, which continue by themselves."),
    "millpond_journal_errors": ("journal_errors", "How often expired rows couldn't be flushed; it is tried again."),
    "millpond_aside_errors": ("aside_errors", "How often a batch couldn't be put aside; it is tried again."),
    "millpond_savepoints_made": ("savepoints_made", "Savepoints that this server made at intervals."),
    "millpond_savepoint_errors": ("savepoint_errors", "How often one couldn't be made or deleted; it is tried again."),
    "millpond_archived_batches": ("archived_batches", "Batches that this server archived."),
    "millpond_archive_errors": ("archive_errors", "How often one couldn't be archived; it is tried again."),
}


_LOADS = {
    "millpond_connections": ("connections", "Open connections."),
    "millpond_streams": ("streams", "Open event streams."),
    "millpond_waits": ("waits", "Requests that wait for a batch."),
    "millpond_backups_failing": ("failing_backups", "Savepoints at intervals and archives whose last try went wrong."),
    "process_resident_memory_bytes": ("memory_bytes", "Memory of all processes."),
    "process_open_fds": ("descriptors", "Open files of all processes."),
    "process_start_time_seconds": ("started", "When the first process began, since 1970."),
}


def write_metrics(statistics: dict[str, dict[str, Any]], counts: Counts, samples: dict[str, Sample]) -> bytes:
    """The text of /metrics.

    statistics:  of `Ponds.measured`
    counts:      of all processes
    samples:     the newest of each job
    """
    return write_text(collectors(statistics, counts, samples))


def collectors(statistics: dict[str, dict[str, Any]], counts: Counts, samples: dict[str, Sample]) -> tuple[Collector, ...]:
    """What gives the families of metrics, from the same."""
    return _JobFacts(statistics, counts), DoorFacts(counts), SampleFacts(samples)


def write_text(parts: Iterable[Collector]) -> bytes:
    """All families of metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    for part in parts:
        registry.register(part)
    return generate_latest(registry)


class _JobFacts(Collector):
    """What followers and reads of a server's jobs have counted."""

    def __init__(self, statistics: dict[str, dict[str, Any]], counts: Counts) -> None:
        self._statistics = statistics
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        for name, (fact, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["job"])
            for job, facts in self._statistics.items():
                if facts.get(fact) is not None:
                    gauge.add_metric([label(job)], facts[fact])
            yield gauge
        yield from self._stores_and_states()
        for name, (fact, text) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["job"])
            for job, numbers in self._counts.followers.items():
                counter.add_metric([label(job)], numbers.get(fact, 0))
            yield counter
        yield from self._stores()
        yield self._reads()

    def _stores_and_states(self) -> Iterator[Metric]:
        rows = GaugeMetricFamily("millpond_rows", "Rows in the replica.", labels=["job", "store"])
        readable = GaugeMetricFamily("millpond_readable", "1 if the job's tables can be read.", labels=["job"])
        running = GaugeMetricFamily("millpond_job_running", "1 running, 0 stopped; absent if unknown.", labels=["job"])
        for job, facts in self._statistics.items():
            for store, number in facts.get("rows", {}).items():
                rows.add_metric([label(job), label(store)], number)
            readable.add_metric([label(job)], int(facts.get("batch") is not None))
            if facts.get("job_state") in ("running", "stopped"):
                running.add_metric([label(job)], int(facts["job_state"] == "running"))
        yield rows
        yield readable
        yield running

    def _stores(self) -> Iterator[Metric]:
        asked = CounterMetricFamily("millpond_store_requests", "Requests to object stores.", labels=["job", "kind"])
        moved = CounterMetricFamily("millpond_store_bytes", "Bytes from and to object stores.", labels=["job", "direction"])
        for job, numbers in self._counts.followers.items():
            for kind in STORE_KINDS:
                if f"store_{kind}" in numbers:
                    asked.add_metric([label(job), kind], numbers[f"store_{kind}"])
            for name in STORE_BYTES:
                if f"store_{name}" in numbers:
                    moved.add_metric([label(job), name.removesuffix("_bytes")], numbers[f"store_{name}"])
        yield asked
        yield moved

    def _reads(self) -> Metric:
        reads = HistogramMetricFamily(
            "millpond_read_seconds", "Time to answer reads of the tables of a job, by all doors.", labels=["job"]
        )
        for job, facts in self._statistics.items():
            if "reads" in facts:
                _add(reads, [label(job)], facts["reads"])
        return reads


class DoorFacts(Collector):
    """The requests that were answered, and the processes that did."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._process()

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("millpond_requests", "Requests answered.", labels=["door", "route", "status"])
        durations = HistogramMetricFamily("millpond_request_seconds", "Time to answer requests.", labels=["door", "route"])
        for route, statuses in self._counts.requests.items():
            for status, number in statuses.items():
                requests.add_metric(["http", route, str(status)], number)
            _add(durations, ["http", route], self._counts.durations[route])
        yield requests
        yield durations

    def _process(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("millpond_build_info", "1; the version that answers.", labels=["version", "python"])
        build.add_metric([version("millpond"), platform.python_version()], 1)
        yield build
        for name, (fact, text) in _LOADS.items():
            yield GaugeMetricFamily(name, text, value=getattr(self._counts.process, fact))
        seconds = self._counts.process.cpu_seconds
        yield CounterMetricFamily("process_cpu_seconds", "Processor time of all processes.", value=seconds)


def _add(family: HistogramMetricFamily, labels: list[str], took: Durations) -> None:
    ends = (*map(str, BUCKETS), "+Inf")
    family.add_metric(labels, list(zip(ends, accumulate(took.buckets), strict=True)), took.seconds)
