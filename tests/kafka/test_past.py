"""A job on a topic begins with the records up to an offset, and goes on from there: it ends as the job that read all of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from servers.kafka import connector_jars, create_topic, kafka_broker

PARTITIONS = 3


@pytest.mark.spark
@pytest.mark.long
def test_a_job_on_a_topic_begins_with_its_past(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    broker, jars, topic = kafka_broker(), connector_jars(), f"past-{uuid.uuid4().hex[:8]}"
    create_topic(broker, topic, PARTITIONS)
    draw, producer = random.Random(3), Producer({"bootstrap.servers": broker})
    counts = [0] * PARTITIONS
    for _ in range(300):
        partition = draw.randrange(PARTITIONS)
        producer.produce(topic, f"/{draw.randrange(9)}".encode(), partition=partition)
        counts[partition] += 1
    assert producer.flush(60) == 0
    middle = {topic: {str(partition): draw.randrange(count) for partition, count in enumerate(counts)}}
    program = [sys.executable, str(Path(__file__).with_name("past_job.py")), str(jars), broker, topic, json.dumps(middle)]
    done = subprocess.run(["timeout", "-k", "5", "900", *program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["refused"] == ["INVALID_REQUEST"] * 3
    assert found["latest"] == {topic: {str(partition): count for partition, count in enumerate(counts)}}
    assert found["offsets"] == {"0": middle}
    assert found["as_batch"]
    assert found["read"] == sum(counts) - sum(middle[topic].values())
    assert found["new"] == found["undisturbed"]
