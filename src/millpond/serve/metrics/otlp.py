"""The server's metrics, pushed to a collector of OpenTelemetry by OTLP over HTTP.

They have the names, labels and values of /metrics; a counter's name ends without `_total`, and what
the name says of the unit is also the metric's unit.  OpenTelemetry's own exporter sends them, so
its environment variables count:

    OTEL_EXPORTER_OTLP_HEADERS, …_TIMEOUT, …_COMPRESSION, …_CERTIFICATE, …_CLIENT_KEY
    OTEL_METRIC_EXPORT_INTERVAL      milliseconds between two pushes, by default a minute
    OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME

Import this only where metrics are pushed: it needs `millpond[otlp]`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import pairwise
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from millpond.errors import MillpondError
from millpond.logs import EventLog, Trouble

# What a name says of its unit, and the unit by UCUM.
_UNITS = {"seconds": "s", "bytes": "By"}
log = EventLog(__name__)
Families = Callable[[], Iterable[Any]]
"""The families of metrics of /metrics, with present values."""


class Push:
    """Pushes metrics at intervals, in a thread; a context manager.

    endpoint:  of the collector; /v1/metrics is added
    seconds:   between two pushes
    started:   when the counts began, seconds since 1970
    """

    def __init__(self, endpoint: str, families: Families, *, seconds: float, started: float) -> None:
        self._seconds = seconds
        self._endpoint = endpoint
        self._families = families
        self._started_ns = int(started * 1e9)
        # The exporter logs each failure by itself; here it is an event, said once.
        own_log = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        own_log.addHandler(logging.NullHandler())
        own_log.propagate = False
        self._exporter = OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics")
        own = {"service.name": "millpond", "service.version": version("millpond"), "service.instance.id": str(os.getpid())}
        self._resource = Resource(own).merge(OTELResourceDetector().detect())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millpond-otlp", daemon=True)
        self._trouble = Trouble(log, "otlp", endpoint=endpoint)
        self.pushes = 0

    def __enter__(self) -> Push:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._exporter.shutdown()  # ends its pause before another try
        self._thread.join(1)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.push()
                self._trouble.over()
            except Exception as error:  # noqa: BLE001 - the next push may go well
                if not self._stop.is_set():
                    self._trouble.met(error)

    def push(self) -> None:
        """Push once.  Raises TARGET_UNAVAILABLE if the collector doesn't take it."""
        data = metrics_data(self._families(), self._resource, started_ns=self._started_ns, now_ns=time.time_ns())
        if self._exporter.export(data) is not MetricExportResult.SUCCESS:
            raise MillpondError(
                "TARGET_UNAVAILABLE",
                f"{self._endpoint} didn't take the metrics.",
                hint="Check the collector's address and its log, and OTEL_EXPORTER_OTLP_HEADERS.",
            )
        self.pushes += 1


def metrics_data(families: Iterable[Any], resource: Resource, *, started_ns: int, now_ns: int) -> MetricsData:
    """Families of metrics as OpenTelemetry has them; those without a value are left out."""
    metrics = [metric for family in families if (metric := _metric(family, started_ns, now_ns)) is not None]
    scope = ScopeMetrics(InstrumentationScope("millpond", version("millpond")), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Any, started_ns: int, now_ns: int) -> Metric | None:
    points: list[Any]
    data: Any
    if family.type == "histogram":
        points = list(_histograms(family, started_ns, now_ns))
        data = Histogram(points, AggregationTemporality.CUMULATIVE)
    elif family.type == "counter":
        points = list(_numbers(family, started_ns, now_ns))
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        points = list(_numbers(family, 0, now_ns))
        data = Gauge(points)
    unit = next((unit for word, unit in _UNITS.items() if family.name.endswith(f"_{word}")), "")
    return Metric(family.name, family.documentation, unit, data) if points else None


def _numbers(family: Any, started_ns: int, now_ns: int) -> Iterator[Any]:
    for sample in family.samples:
        yield NumberDataPoint(dict(sample.labels), started_ns, now_ns, sample.value)


def _histograms(family: Any, started_ns: int, now_ns: int) -> Iterator[Any]:
    """Prometheus counts what is at most a bound; OpenTelemetry, what is between two."""
    by_labels: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        found = by_labels.setdefault(tuple(sorted(labels.items())), {"bounds": [], "below": [0]})
        if sample.name.endswith("_bucket"):
            found["bounds"].append(float(sample.labels["le"]))
            found["below"].append(int(sample.value))
        else:
            found[sample.name.rpartition("_")[2]] = sample.value
    for labels_of, found in by_labels.items():
        yield HistogramDataPoint(
            attributes=dict(labels_of),
            start_time_unix_nano=started_ns,
            time_unix_nano=now_ns,
            count=found["below"][-1],
            sum=found["sum"],
            bucket_counts=[after - before for before, after in pairwise(found["below"])],
            explicit_bounds=found["bounds"][:-1],  # the last one is infinite
            min=None,  # type: ignore[arg-type] # nobody has counted these
            max=None,  # type: ignore[arg-type]
        )
