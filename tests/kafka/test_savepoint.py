"""A savepoint of a running job on a topic: restored, in its form and in others, it ends as the job that nobody interrupted."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from servers.kafka import connector_jars, create_topic, kafka_broker

PARTITIONS, RECORDS = 3, 900


@pytest.mark.spark
@pytest.mark.long
def test_a_job_on_a_topic_goes_on_from_a_savepoint(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    broker, jars, topic = kafka_broker(), connector_jars(), f"savepoint-{uuid.uuid4().hex[:8]}"
    create_topic(broker, topic, PARTITIONS)
    draw, producer = random.Random(7), Producer({"bootstrap.servers": broker})
    for _ in range(RECORDS):
        producer.produce(topic, f"/{draw.randrange(40)}".encode(), partition=draw.randrange(PARTITIONS))
    assert producer.flush(60) == 0
    program = [sys.executable, str(Path(__file__).with_name("savepoint_job.py")), str(jars), broker, topic, str(tmp_path)]
    with open(tmp_path / "errors", "w+") as errors, open(tmp_path / "output", "w+") as output:
        done = subprocess.run(["timeout", "-k", "5", "900", *program], stdout=output, stderr=errors, check=False)
    assert done.returncode == 0, (tmp_path / "errors").read_text()[-3000:]
    found = json.loads((tmp_path / "output").read_text().splitlines()[-1])
    assert sum(row[2] for row in found["batch"]) == RECORDS
    for provider in ("hdfs", "rocksdb"):
        job = found[provider]
        left = RECORDS - sum(job["offsets"].values())
        assert 0 < left < RECORDS
        assert job["problems"] == 0
        assert job["read"] == dict.fromkeys(("as-it-was", "five", "other"), left)
        assert job["states"] == dict.fromkeys(("job", "as-it-was", "five", "other", "three"), found["batch"])
