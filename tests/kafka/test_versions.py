"""A version of an aggregate reads a topic's past at a limited rate while another serves, and takes the name."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kafka.versions_job import AT_ONCE
from servers.kafka import connector_jars, create_topic, kafka_broker

RECORDS = 400


@pytest.mark.spark
@pytest.mark.long
def test_a_version_reads_the_past_of_a_topic_at_its_own_pace_and_takes_the_name(tmp_path: Path) -> None:
    broker, jars, topic = kafka_broker(), connector_jars(), f"versions-{uuid.uuid4().hex[:8]}"
    create_topic(broker, topic, 2)
    program = [sys.executable, str(Path(__file__).with_name("versions_job.py")), str(jars), broker, topic, str(tmp_path)]
    done = subprocess.run(["timeout", "-k", "5", "900", *program, str(RECORDS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    records = found["records"]
    assert records > RECORDS
    # While it reads the past, it is behind by just the records between the two, and readers get the other one.
    assert found["early"] == "VERSION_BEHIND"
    nothing, behind, between = found["behind"]
    assert (nothing, behind > 0) == (0, True)
    assert behind == between
    # It was asked at the last trigger, and the writer has gone on.
    left, written = found["not_read"]
    assert 0 <= left <= written
    assert found["served_by"] == ["views.v1", "views.v1"]
    assert 0 < found["sizes"] <= AT_ONCE
    # At the same offsets only the column that tells the versions apart differs.
    assert (found["diff"][:2], found["diff"][2], found["diff"][3]) == ([0, 0], 0, ["weight"])
    assert found["took"] == ["views.v1", "views.v2"]
    assert found["totals"] == [records, 2 * records]
    # From a table, two files at a time; what it has read can't be compared with offsets.
    assert found["table_batches"] >= 3
    assert found["unlike"] == "NOT_ALIGNED"
    assert found["of_table"] == records
    assert found["left"] == ["views.v2", "views.v3"]
