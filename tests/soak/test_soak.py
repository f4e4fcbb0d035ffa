"""A hundred kills of a real job, its server, followers and readers: every answer is right, and no change is lost or repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.long]
KILLS = 100
SEED = os.environ.get("MILLPOND_SEED", "20261121")


def test_no_answer_is_wrong_while_everything_is_killed(tmp_path: Path) -> None:
    result, folder = tmp_path / "result.json", tmp_path / "soak"
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "soak",
        "--kills",
        str(KILLS),
        "--seed",
        SEED,
        "--folder",
        str(folder),
        "--result",
        str(result),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, f"seed {SEED}: {done.stdout[-6000:]}{done.stderr[-3000:]}"
    found = json.loads(result.read_text())
    assert found["wrong"] == []
    assert found["kills"] == KILLS
    assert set(found["killed"]) >= {"job", "door", "follower", "following", "attached", "server"}
    assert found["killed"].get("http-1", 0) + found["killed"].get("http-2", 0) > 0
    assert sum(found["paused"].values()) > found["without_follower"] > 0  # an outage is a pause of both followers
    assert (found["disk_filled"] > 0) == found["disk_can_be_filled"]
    assert found["killed"]["job"] == KILLS // 10
    assert found["job_replaced"] >= 1
    # The storm had something to hit: answers of each kind, changes across kills, runs and clean-ups.
    assert min(found["answers"][op] for op in ("get", "scan", "at", "changes", "begin")) > 0
    assert found["sent"] > 0
    assert found["by_url"] > 50
    assert sum(found["answers"].values()) > 500
    assert found["batches_replayed"] > 50
    assert found["chains"] > 4
    assert found["batches_collapsed"] > 0
