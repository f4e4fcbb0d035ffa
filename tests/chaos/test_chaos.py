"""Thirty kills in a town of real processes: every answer is right, and all heals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers.kafka import connector_jars
from servers.s3a import fetched_s3a_jars

pytestmark = [pytest.mark.faults, pytest.mark.long]
KILLS = 30
SEED = os.environ.get("MILLPOND_SEED", "20261126")


def test_no_answer_is_wrong_in_the_chaos_and_all_heals(tmp_path: Path) -> None:
    connector_jars(), fetched_s3a_jars()  # or this test is skipped, with the reason
    result, folder = tmp_path / "result.json", tmp_path / "chaos"
    folder.mkdir()
    command = [sys.executable, "-m", "chaos", "--kills", str(KILLS), "--seed", SEED, "--folder", str(folder)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [*command, "--result", str(result)], env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, f"seed {SEED}: {done.stdout[-6000:]}{done.stderr[-3000:]}"
    found = json.loads(result.read_text())
    assert found["wrong"] == []
    assert found["has_ended"]
    assert found["kills"] == KILLS
    # The storm had something to hit.
    assert min(found["answers"][op] for op in ("get", "scan", "at", "changes", "begin", "page", "saved")) > 0
    assert found["by_url"] > 0
    assert found["records_sent"] > 0
    assert found["faults"]["weather"] > 1
    assert set(found["healed_seconds"]) >= {"the job", "a savepoint", "sender", "asks-router", "asks-shards", "asks-console"}
