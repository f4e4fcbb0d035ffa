"""A router's metrics: its servers, how far its jobs can be read, and the requests that it has answered.

The numbers of a job and of requests have the names that a server gives them, so that one rule or
chart fits both.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from millpond.router.state import RoutedTable, RouterState
from millpond.serve.metrics.counts import Counts
from millpond.serve.metrics.prometheus import DoorFacts, Metric, write_text
from millpond.serve.metrics.samples import label

# Name -> the count in `Requests`, and its meaning.
_REQUESTS = {
    "millpond_shard_answers": ("answered", "Requests that the server has answered."),
    "millpond_shard_failures": ("failed", "Requests without an answer of the server."),
    "millpond_shard_overtaken": ("overtaken", "Requests that another server answered first."),
}


def write_router_metrics(state: RouterState, counts: Counts) -> bytes:
    """The text of a router's /metrics."""
    return write_text((_ShardFacts(state), DoorFacts(counts)))


class _ShardFacts(Collector):
    def __init__(self, state: RouterState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield from self._jobs()
        yield from self._servers()

    def _jobs(self) -> Iterator[Metric]:
        batch = GaugeMetricFamily("millpond_batch", "The newest batch that a server of each shard has.", labels=["job"])
        behind = GaugeMetricFamily("millpond_behind_seconds", "Lag of the shard that is furthest behind.", labels=["job"])
        readable = GaugeMetricFamily("millpond_readable", "1 if all partitions have a server that answers.", labels=["job"])
        jobs: dict[str, list[RoutedTable]] = {}
        for table in self._state.tables:
            jobs.setdefault(table.job, []).append(table)
        for job, tables in jobs.items():
            batches = [table.batch for table in tables if table.batch is not None]
            is_whole = len(batches) == len(tables)
            readable.add_metric([label(job)], int(is_whole))
            if is_whole:
                batch.add_metric([label(job)], min(batches))
                behind.add_metric([label(job)], max(table.behind_seconds or 0.0 for table in tables))
        yield batch
        yield behind
        yield readable

    def _servers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("millpond_shard_up", "1 if the server answers.", labels=["server"])
        batch = GaugeMetricFamily("millpond_shard_batch", "The batch that the server has.", labels=["server", "job"])
        behind = GaugeMetricFamily("millpond_shard_behind_seconds", "The server's lag.", labels=["server", "job"])
        for server in self._state.servers:
            up.add_metric([label(server.url)], int(server.answers))
            if server.answers:
                lags = {table.job: (table.batch, table.lag.behind_seconds) for table in server.tables}
                for job, (number, seconds) in lags.items():
                    batch.add_metric([label(server.url), label(job)], number)
                    behind.add_metric([label(server.url), label(job)], seconds)
        yield up
        yield batch
        yield behind
        for name, (fact, text) in _REQUESTS.items():
            counter = CounterMetricFamily(name, text, labels=["server"])
            for server in self._state.servers:
                counter.add_metric([label(server.url)], getattr(server.requests, fact))
            yield counter
