"""Jobs of each kind give what an undisturbed run gives, whatever is killed.  `make kills` kills more of them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from faults.kinds import KINDS
from faults.storm import Storm

pytestmark = pytest.mark.faults
KILLS = int(os.environ.get("MILLPOND_KILLS", "2"))
SEED = os.environ.get("MILLPOND_SEED", "20261122")


# Sixty kills of all kinds take half an hour.  `make test` kills the smallest kind that has Python workers, once.
@pytest.mark.parametrize(
    ("kind", "kills"), [("buffered", 1), *(pytest.param(kind, KILLS, marks=pytest.mark.long) for kind in KINDS)]
)
def test_a_killed_job_is_that_of_an_undisturbed_run(kind: str, kills: int, tmp_path: Path) -> None:
    storm = Storm(KINDS[kind](tmp_path, random.Random(f"{SEED}/{kind}")))
    storm.run(kills)
    assert not storm.differences, "\n".join([f"seed {SEED}", *storm.differences])
    assert storm.killed.total() == kills
    assert storm.compared["rows"] > 0
