"""A hundred kills of a real job, its server, followers and readers: every answer is right, and no change is lost or told twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults
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
    told = json.loads(result.read_text())
    assert told["wrong"] == []
    assert told["kills"] == KILLS
    assert set(told["killed"]) >= {"job", "door", "follower", "following", "attached", "server"}
    assert told["killed"].get("http-1", 0) + told["killed"].get("http-2", 0) > 0
    assert sum(told["paused"].values()) > told["without_follower"] > 0  # an outage is a pause of both followers
    assert (told["disk_filled"] > 0) == told["disk_can_be_filled"]
    assert told["killed"]["job"] == KILLS // 10
    assert told["job_replaced"] >= 1
    # It was a storm over something: answers of each kind, changes across kills, runs and clean-ups.
    assert min(told["answers"][op] for op in ("get", "scan", "at", "changes", "begin")) > 0
    assert told["sent"] > 0
    assert told["by_url"] > 50
    assert sum(told["answers"].values()) > 500
    assert told["batches_replayed"] > 50
    assert told["chains"] > 4
    assert told["batches_collapsed"] > 0
