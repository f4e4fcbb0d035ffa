"""A job's state is what it reported last, wherever it is shown; unknown if it has committed batches long after that."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import millpond
from millpond.catalogue import create_beside, find_job
from millpond.operate.measure import JobMeter
from millpond.tables.cold.report import inspect_job
from millpond.tables.cold.table import read_row
from millpond.tables.diff.sides import Source
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

TABLE = "ck.aggregate_0"
SILENT_SECONDS = 60


def reported(tmp_path: Path, beat: dict[str, Any] | None, committed: float) -> WrittenCheckpoint:
    """A job that reported this last, and whose newest batch was committed then."""
    job = WrittenCheckpoint(tmp_path / "ck")
    job.clock = int(committed * 1000) - 1000
    job.plan([("a", 1)], snapshot=True)
    os.utime(job.path / "offsets/0", (committed - 1, committed - 1))
    job.commit(at=committed)
    if beat is not None:
        create_beside(str(job.path), "ck").storage.write("heartbeat.json", json.dumps(beat).encode())
    return job


@pytest.mark.parametrize(
    ("state", "seconds_before", "expected"),
    [
        ("running", SILENT_SECONDS - 5, "stopped"),  # killed; the batch was committed before anybody knew
        ("running", SILENT_SECONDS + 5, "unknown"),
        pytest.param("stopped", SILENT_SECONDS - 5, "stopped", marks=pytest.mark.long),
        pytest.param("stopped", SILENT_SECONDS + 5, "unknown", marks=pytest.mark.long),
        ("stopped", -600, "stopped"),
        pytest.param(None, 0, "unknown", marks=pytest.mark.long),
    ],
)
def test_all_show_the_same(serve: Any, tmp_path: Path, state: str | None, seconds_before: int, expected: str) -> None:
    committed = time.time() - 3600
    job = reported(tmp_path, None if state is None else {"state": state, "at": committed - seconds_before}, committed)
    with millpond.open(job.path, replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        shown = {
            "answer": pond[TABLE].get(k="a").job_state,
            "statistics": pond.statistics()["ck"]["job_state"],
        }
    folder = find_job(job.path, None)
    shown |= {
        "sample": JobMeter(folder).look().job_state,
        "inspect": inspect_job(folder).job_state,
        "cold": read_row(job.path, TABLE, {"k": "a"}).job_state,
        "diff": Source(folder).open(int(time.time() * 1000)).side.job_state,
    }
    with serve(job.path) as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        answer = wait_until(lambda: served(client), "an answer")
        shown["served"] = answer["job_state"]
        families = text_string_to_metric_families(client.get("/metrics").text)
        running = {s.labels["job"]: s.value for f in families for s in f.samples if s.name == "millpond_job_running"}
    assert set(shown.values()) == {expected}, shown
    assert running == ({} if expected == "unknown" else {"ck": 0})


def served(client: httpx.Client) -> Any:
    answer = client.get(f"/tables/{TABLE}/rows", params={"k": "a"})
    return answer.json() if answer.status_code == 200 else None
