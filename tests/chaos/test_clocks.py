"""A clock jumps while a process runs, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.clocks import Clocks
from suite.programs import started

_TELL = """
import datetime, sys, time
for line in sys.stdin:
    asked_at = time.monotonic()
    time.sleep(0.05)
    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic() - asked_at, flush=True)
"""


def test_a_clock_jumps_and_the_monotonic_one_does_not(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path / "clocks")
    if not clocks.is_there:
        pytest.skip(clocks.missing)
    environment = {**os.environ, **clocks.environment("one")}
    command = [sys.executable, "-c", _TELL]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for seconds in (0, 7_200, -3_600, 0):
            clocks.set("one", seconds)
            asked_at = time.time()
            process.stdin.write("\n")
            process.stdin.flush()
            answer, dated, slept = map(float, process.stdout.readline().split())
            answered_at = time.time()
            assert asked_at + seconds - 0.001 <= answer <= answered_at + seconds
            assert asked_at + seconds - 0.001 <= dated <= answered_at + seconds
            assert 0.05 <= slept <= answered_at - asked_at
