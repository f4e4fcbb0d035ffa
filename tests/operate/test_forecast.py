"""Forecasts of the state's growth, held against what happened: random series whose growth is known."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millpond.catalogue import create_job, find_job
from millpond.operate.forecast import forecast_of
from millpond.operate.sample import OperatorSize, Sample
from millpond.operate.sample_log import SampleLog
from millpond.settings import SampleSettings
from spark_files.checkpoint import WrittenCheckpoint

DAY, MINUTE = 86_400, 60
MIB = 1 << 20


def sample(at: float, state_bytes: float, rows: int | None = None) -> Sample:
    operator = OperatorSize(
        operator=0, name="stateStoreSave", partitions=3, state_bytes=int(state_bytes), changed_bytes=0, largest_partition=0,
        largest_bytes=1, median_bytes=1,
    )  # fmt: skip
    return Sample(at_ms=int(at * 1000), job_state="running", operators=(operator,), sized_ms=int(at * 1000), state_rows=rows)


def series(draw: random.Random, days: float, slope: float, every: float = 10 * MINUTE) -> list[Sample]:
    """Steady growth; noise that goes on for a while; files that come together at each snapshot; days and nights."""
    found, noise, files = [], 0.0, 0.0
    for number in range(int(days * DAY / every)):
        at = number * every
        noise = 0.9 * noise + draw.gauss(0, 0.3 * MIB)
        files = 0.0 if number % 23 == 0 else files + 0.2 * MIB
        night = 2 * MIB * math.sin(2 * math.pi * at / DAY)
        found.append(sample(at, 300 * MIB + slope * at / DAY + noise + files + night))
    return found


def test_the_interval_has_the_growth() -> None:
    """Of 300 random series of some days, in nearly nine cases of ten; and the line is near."""
    draw, within, near = random.Random(20261126), 0, 0
    for _ in range(300):
        slope = draw.choice([-5, 0, 3, 20, 80]) * MIB
        found = forecast_of("a", series(draw, draw.choice([3, 7, 14]), slope), "state_bytes")
        assert found is not None
        assert found.per_day_low <= found.per_day <= found.per_day_high
        within += found.per_day_low <= slope <= found.per_day_high
        near += abs(found.per_day - slope) < 3 * MIB
    assert within >= 250
    assert near >= 290


@pytest.mark.long
def test_a_limit_is_met_when_it_is_met() -> None:
    """The first week is known; the second one is compared with what was said of it."""
    draw, early, late = random.Random(7), 0, 0
    for _ in range(100):
        slope = draw.choice([10, 40]) * MIB
        whole = series(draw, 14, slope)
        half = len(whole) // 2
        limit = 300 * MIB + slope * draw.uniform(8, 13)
        found = forecast_of("a", whole[:half], "state_bytes", limit)
        assert found is not None
        assert found.reaches_ms is not None
        # Where the line without noise meets it.
        truth = (limit - 300 * MIB - 23 * 0.1 * MIB) / slope * DAY * 1000
        early += found.earliest_ms is not None and found.earliest_ms > truth
        late += found.latest_ms is not None and found.latest_ms < truth
        assert abs(found.reaches_ms - truth) < 1.5 * DAY * 1000
    assert early + late < 30


def test_edges() -> None:
    """Too little, no growth, a limit that is met already, and exact lines."""
    assert forecast_of("a", [], "state_bytes") is None
    assert forecast_of("a", [sample(at * MINUTE, at) for at in range(300)], "state_bytes") is None
    assert forecast_of("a", [sample(0, 1), sample(DAY, 2)], "state_bytes") is None
    assert forecast_of("a", series(random.Random(1), 2, MIB), "state_rows") is None
    flat = forecast_of("a", [sample(at * MINUTE, 5000) for at in range(2000)], "state_bytes", 6000)
    assert flat is not None
    assert (flat.per_day, flat.now, flat.reaches_ms, flat.earliest_ms) == (0, 5000, None, None)
    line = forecast_of("a", [sample(at * MINUTE, at * 1000, at) for at in range(2000)], "state_bytes", 1000 * 1440 * 10)
    assert line is not None
    assert line.per_day == pytest.approx(1000 * 1440)
    assert line.reaches_ms == pytest.approx(10 * DAY * 1000, rel=1e-3)
    over = forecast_of("a", [sample(at * MINUTE, at * 1000) for at in range(2000)], "state_bytes", 1000)
    assert over is not None
    assert over.reaches_ms == over.earliest_ms == over.latest_ms == 1999 * MINUTE * 1000
    gap = [sample(at * MINUTE, at * 1000) for at in range(2000) if not 700 < at < 900]
    with_gap = forecast_of("a", gap, "state_bytes")
    assert with_gap is not None
    assert with_gap.per_day == pytest.approx(1000 * 1440, rel=1e-3)


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    """In words, and in JSON."""
    create_job(tmp_path / "pond", "views")
    job = WrittenCheckpoint(tmp_path / "pond/jobs/views/checkpoint", "views")
    job.plan([("k", 1)], snapshot=False)
    job.commit()
    log = SampleLog(find_job(tmp_path / "pond", "views"), SampleSettings(sample_seconds=0))
    words = [sys.executable, "-m", "millpond.cli", "forecast", str(tmp_path / "pond")]
    nothing = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert "views: no forecast" in nothing.stderr
    begin = time.time() - 10 * 3600
    for number in range(120):
        log.add(sample(begin + number * 300, (100 + number) * MIB, rows=1000 + number))
    done = subprocess.run([*words, "--limit", "1GiB"], capture_output=True, text=True, check=True, timeout=60)
    first, second = done.stdout.splitlines()
    assert first.startswith("views: 219.0 MiB, grows 288.0 MiB a day (90 %: 288.0 MiB to 288.0 MiB), by 9.9 h. Meets 1.0 GiB: ")
    assert second == "views: 1,119 rows, grows 288 rows a day (90 %: 288 rows to 288 rows), by 9.9 h."
    done = subprocess.run([*words, "--rows", "2000", "--json"], capture_output=True, text=True, check=True, timeout=60)
    assert [json.loads(line)["fact"] for line in done.stdout.splitlines()] == ["state_bytes", "state_rows"]
    wrong = subprocess.run([*words, "--limit", "much"], capture_output=True, text=True, check=False, timeout=60)
    assert (wrong.returncode, "[INVALID_REQUEST]" in wrong.stderr) == (2, True)
