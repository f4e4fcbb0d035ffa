"""Metrics pushed by OTLP: a collector that reads OpenTelemetry's own messages gets what /metrics shows."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from millpond.serve.process.server import check_otlp
from oracles.ends import condition_of
from servers.serving import serving, wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

# Metrics that go on while a test looks.
MOVING = ("process_", "millpond_age", "millpond_behind", "millpond_event_lag", "millpond_request", "millpond_connections")
Series = tuple[str, frozenset[tuple[str, str]]]


class Collector:
    """Keeps what it is sent; answers with `status`, or while it hangs only in the end."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], ExportMetricsServiceRequest]] = []
        self.status, self.hangs, self.hanging, self.ends = 200, False, 0, threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                if collector.hangs:
                    collector.hanging += 1
                    collector.ends.wait(600)
                if collector.status == 200 and self.path == "/v1/metrics":
                    if self.headers.get("content-encoding") == "gzip":
                        data = gzip.decompress(data)
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    collector.requests.append((headers, ExportMetricsServiceRequest.FromString(data)))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def series(self) -> dict[Series, Any]:
        """The newest push, as /metrics names it; of histograms the counts by upper bound."""
        found: dict[Series, Any] = {}
        for metric in self.requests[-1][1].resource_metrics[0].scope_metrics[0].metrics:
            kind = metric.WhichOneof("data")
            for point in getattr(metric, kind).data_points:
                labels = frozenset((each.key, each.value.string_value) for each in point.attributes)
                if kind == "histogram":
                    below = 0
                    for bound, number in zip((*point.explicit_bounds, float("inf")), point.bucket_counts, strict=True):
                        below += number
                        found[f"{metric.name}_bucket", labels | {("le", "+Inf" if bound == float("inf") else str(bound))}] = below
                    found[f"{metric.name}_sum", labels] = point.sum
                    found[f"{metric.name}_count", labels] = point.count
                    assert point.start_time_unix_nano <= point.time_unix_nano
                else:
                    name = f"{metric.name}_total" if kind == "sum" else metric.name
                    found[name, labels] = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
                    if kind == "sum":
                        assert metric.sum.is_monotonic
                        assert metric.sum.aggregation_temporality == 2
                        assert 0 < point.start_time_unix_nano <= point.time_unix_nano
                unit = {"seconds": "s", "bytes": "By"}.get(metric.name.rpartition("_")[2], "")
                assert metric.unit == unit
        return found


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.ends.set()
        made.server.shutdown()
        made.server.server_close()
        thread.join()


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    for n in range(3):
        checkpoint.plan([("a", n), ("bb", n)], snapshot=not n)
        checkpoint.commit()
    return checkpoint


def still_of(shown: dict[Series, Any]) -> set[Series]:
    """The series whose values don't change while a server does nothing."""
    return {series for series in shown if not series[0].startswith(MOVING)}


def is_alike(shown: dict[Series, Any], pushed: dict[Series, Any]) -> bool:
    """Whether the collector has what /metrics shows."""
    # /metrics counts the request for itself, and that of the route `metrics` only after the push.
    here, there = ({series for series in found if not dict(series[1]).get("route")} for found in (shown, pushed))
    still = still_of(shown)
    return here == there and {series: pushed.get(series) for series in still} == {series: shown[series] for series in still}


def wait_for(collector: Collector, more: int) -> None:
    wanted = len(collector.requests) + more
    wait_until(lambda: len(collector.requests) >= wanted, f"{more} more pushes")


def shown_by(client: httpx.Client) -> dict[Series, float]:
    """What /metrics has."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_collector_gets_what_metrics_shows(
    job: WrittenCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.name=pond")
    with collector() as made, serving(job.path, "--otlp", made.url, "--workers", str(workers), home=tmp_path / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
            for _ in range(7):
                client.get("/tables/ck.aggregate_0/rows?k=a")
            client.get("/tables/nothing/rows?k=a")
            requests = ("millpond_requests_total", frozenset({("door", "http"), ("route", "rows"), ("status", "200")}))
            wait_for(made, 1)
            # Processes write their counts for each other once a second.
            wait_until(lambda: made.series().get(requests) == 7 == shown_by(client).get(requests), "the counts of all processes")
            wait_for(made, 2)
            # A process that was asked just now may not have the newest series of the others.
            wait_until(lambda: is_alike(shown_by(client), made.series()), "the same series here and there")
            shown = shown_by(client)
        headers, request = made.requests[-1]
        resource = {each.key: each.value.string_value for each in request.resource_metrics[0].resource.attributes}
    assert (headers["authorization"], headers["content-encoding"]) == ("secret", "gzip")
    assert (resource["service.name"], resource["deployment.environment"]) == ("pond", "test")
    still = still_of(shown)
    assert {series[0] for series in still} >= {"millpond_batch", "millpond_job_batch", "millpond_state_bytes", "millpond_rows"}


@pytest.mark.long
def test_a_collector_that_fails_hangs_or_comes_late_keeps_nobody_from_reading(
    job: WrittenCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with collector() as made:
        made.status = 400
        log = tmp_path / "log"
        with (
            log.open("wb") as stderr,
            serving(job.path, "--otlp", made.url, home=tmp_path / "home", stderr=stderr) as (url, process),
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            wait_until_ready(client)
            wait_until(lambda: "otlp.failed" in log.read_text(), "a push that fails")
            assert "TARGET_UNAVAILABLE" in log.read_text()
            assert client.get("/tables/ck.aggregate_0/rows?k=a").json()["rows"][0]["v"] == 2
            made.status = 200
            wait_for(made, 1)
            made.hangs = True
            wait_until(lambda: made.hanging, "a push that hangs")
            process.terminate()
            assert process.wait(60) == 0  # it would hang for longer


@pytest.mark.parametrize("address", ["collector:4318", "http://", "http://c:1/?a=1", "ftp://c"])
def test_an_address_that_is_none_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert condition_of(lambda: check_otlp(address)) == "INVALID_REQUEST"
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "soon")
    assert condition_of(lambda: check_otlp("http://collector:4318")) == "INVALID_REQUEST"
