"""Somebody who may write one job of a pond can hide that job, but can't harm the server or another job, or read files elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suite.sizes import a_few
from trust.attack import FOLDERS, KINDS

HERE = Path(__file__).parent
# Many times longer than the first answers of the other job take, or all readers of both.
SECONDS = 60
# The interpreter and its libraries take some 150 MiB; some files have 1 GiB.
MORE_KIB = 160 << 10
# Without these files the job can be read, but some facts are missing.
OPTIONAL = {"heartbeat", "hot keys", "source log"}
# An attack on these removes a list, so there is no file to name.
EMPTY = {"tables", "commits folder", "job"}


def attacked(tmp_path: Path, kind: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, str(HERE / "attack.py"), str(tmp_path), kind]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "MILLPOND_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=20 * SECONDS, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["way"]: line for line in lines}


@pytest.mark.parametrize("kind", a_few([*KINDS, *FOLDERS], 1))
def test_what_lies_in_place_of_a_files_of_a_job_hides_that_job_at_most(tmp_path: Path, kind: str) -> None:
    found = attacked(tmp_path, kind)
    whole = found.pop("none")
    assert whole["good"]
    assert whole["state"] == "running"
    assert whole["ready"]
    assert len(found) > 3
    for way, facts in found.items():
        assert facts["good"], (way, facts)
        assert facts["good_seconds"] < SECONDS, (way, facts)
        assert facts["all_seconds"] < SECONDS, (way, facts)
        assert facts["kib"] < whole["kib"] + MORE_KIB, (way, facts["kib"], whole["kib"])
        assert not facts["secret"], (way, facts)
        assert "FOLLOWER_FAILED" not in str(facts["said"]), (way, facts)
        assert "INTERNAL_ERROR" not in str(facts["said"]), (way, facts)
        if kind == "heartbeat":
            assert facts["state"] == "unknown", (way, facts)
        elif kind not in EMPTY:
            assert re.search("[A-Z]+_[A-Z_]+", str(facts["said"])), (way, facts)
        if kind not in OPTIONAL | EMPTY and way == "link_to_a_copy_outside":
            assert "PLACE_NOT_ALLOWED" in str(facts["said"]), (way, facts)
