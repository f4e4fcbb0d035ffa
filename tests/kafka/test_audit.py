"""Audits of an aggregate whose source is a topic: transactions, records that are gone, a topic made anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers.kafka import connector_jars, kafka_broker

SEED = os.environ.get("MILLPOND_SEED", "20261127")


@pytest.mark.spark
@pytest.mark.long
def test_every_event_of_a_topic_is_accounted_for_and_a_doctored_state_is_found(tmp_path: Path) -> None:
    broker, jars = kafka_broker(), connector_jars()
    print(f"seed {SEED}")
    program = [sys.executable, str(Path(__file__).with_name("audit_job.py")), str(jars), broker, SEED, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(["timeout", "-k", "5", "900", *program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[:3000]
    found = json.loads(done.stdout.splitlines()[-1])
    sound = found["sound"]
    assert (sound["balanced"], sound["unsure"], sound["counts"]) == (True, 0, True), sound["parts"]
    assert sound["events"][0] == sound["events"][1]
    # Aborted records, and the end of each transaction, are offsets without a record, and no gap.
    assert sound["lost_offsets"] > sound["aborted"]
    assert (sound["by_offset"], sound["by_id"]) == (True, True)
    assert sound["hole"] == "There is no record at this offset."
    assert "isn't read yet" in sound["later"]
    retained = found["retained"]
    assert "the oldest offset that" in retained["audit"]
    assert retained["audit"] == retained["event"]
    assert retained["audit"].startswith("INPUT_GONE: It can't be audited.")
    assert retained["later"]
    doctored = found["doctored"]
    assert not doctored["balanced"]
    assert doctored["rows"] == {"/more": ["1 day", 0, 1], "/less": ["1 day", 0, -1]}, doctored["said"]
    assert doctored["kinds"] == ["part of a double", "part of a gap"]
    assert doctored["batches"] == [1, True], doctored["said"]
    anew = found["made_anew"]
    assert all(said.startswith("INPUT_GONE: It can't be audited.") for said in anew.values()), anew
    assert "the topic was made anew" in anew["longer"]
    assert anew["longer"] == anew["event"]
