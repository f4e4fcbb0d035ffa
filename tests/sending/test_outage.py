"""Targets that are gone for a while: the wait is visible and bounded, and afterwards everything arrives once, in order.

`python -m sending.outage --seconds 3600` does the same for an hour.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sending.outage import KINDS, outage
from suite.sizes import IS_EVERY

pytestmark = [pytest.mark.faults, pytest.mark.long]
SECONDS = 120 if IS_EVERY else 20


def test_targets_that_are_gone_for_long_are_waited_for_and_get_everything_in_order(tmp_path: Path) -> None:
    found = outage(tmp_path, KINDS, seconds=SECONDS, seed=7, pause_seconds=0.05)
    assert found["differences"] == []
    for kind, seen in found["targets"].items():
        assert "TARGET_UNAVAILABLE, tries again" in seen["in_its_words"][0], (kind, seen)
        # Pauses are 0.1 s, then twice as long each, up to 10 s.
        assert 1 <= seen["failures"] <= 9 + seen["outage_seconds"] / 10, (kind, seen)
        assert seen["behind_batches"] > 10, (kind, seen)
        assert seen["behind_seconds"] > 0, (kind, seen)
        memory = seen["memory_mib"]
        assert memory["most_of_the_second_half"] < memory["most_of_the_first_half"] + 16, (kind, seen)
