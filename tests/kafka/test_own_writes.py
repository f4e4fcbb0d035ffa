"""A producer writes to a real Kafka broker, asks with the offset that the broker gave it, and sees its own write."""

from __future__ import annotations

import itertools
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import millpond
from millpond import Bounds
from millpond.errors import MillpondError
from servers.kafka import connector_jars, create_topic, kafka_broker
from suite.waiting import wait_until

pytestmark = pytest.mark.spark

PARTITIONS = 3
# A loaded machine takes seconds for a batch.
WAIT = 120


class Written(NamedTuple):
    """A record, and where the broker put it."""

    page: str
    partition: int
    offset: int


class Producer:
    """Writes records, and remembers them."""

    def __init__(self, broker: str, topic: str) -> None:
        from confluent_kafka import Producer as Confluent

        self.topic = topic
        self.written: list[Written] = []
        self._producer = Confluent({"bootstrap.servers": broker, "linger.ms": 0})

    def write(self, *pages: str, partition: int | None = None) -> list[Written]:
        before = len(self.written)
        for number, page in enumerate(pages):
            self._producer.produce(
                self.topic,
                page.encode(),
                partition=number % PARTITIONS if partition is None else partition,
                on_delivery=self._delivered,
            )
        assert self._producer.flush(60) == 0
        assert len(self.written) == before + len(pages)
        return self.written[before:]

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.written.append(Written(message.value().decode(), message.partition(), message.offset()))


class Stream(NamedTuple):
    """A running job on a topic, and the pond that follows it."""

    producer: Producer
    table: millpond.Table


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    broker = kafka_broker()
    jars = connector_jars()
    topic = f"views-{uuid.uuid4().hex[:8]}"
    create_topic(broker, topic, PARTITIONS)
    producer = Producer(broker, topic)
    producer.write(*(f"/start/{n % 7}" for n in range(100)))
    folder = tmp_path_factory.mktemp("kafka")
    program = [sys.executable, str(Path(__file__).with_name("kafka_job.py")), str(jars), broker, topic, str(folder / "pond")]
    log = folder / "job.log"
    with log.open("w") as out, subprocess.Popen(["timeout", "-k", "5", "900", *program], stdout=out, stderr=out) as job:
        try:
            wait_until(
                lambda: "started" in log.read_text(),
                "the job's word that it has started",
                seconds=2 * WAIT,
                unless=lambda: job.poll() is not None and (log.read_text()[-3000:] or "nothing said"),
            )
            with millpond.open(folder / "pond", replica_dir=folder / "home") as pond:
                yield Stream(producer, pond["page_views"])
        finally:
            job.terminate()


def is_met(table: millpond.Table, **bounds: Any) -> bool:
    try:
        table.count(bounds=Bounds(**bounds))
    except MillpondError as error:
        assert error.condition == "NOT_UP_TO_BOUND"
        return False
    return True


@pytest.mark.long
def test_a_producer_sees_its_own_writes(stream: Stream) -> None:
    producer, table = stream
    for number in range(6):
        (mine,) = producer.write(f"/own/{number}", partition=number % PARTITIONS)
        bound = f"{producer.topic}:{mine.partition}:{mine.offset}"
        row = table.get(page=mine.page, bounds=Bounds(contains_offset=bound, wait_seconds=WAIT))
        assert row["hits"] == 1, (bound, row.position)
    several = producer.write(*(f"/own/all/{n}" for n in range(9)))
    bounds = Bounds(contains_offset=[f"{producer.topic}:{w.partition}:{w.offset}" for w in several], wait_seconds=WAIT)
    assert [row["hits"] for row in table.get_all([{"page": w.page} for w in several], bounds=bounds)] == [1] * 9
    ends = {p: max(w.offset for w in producer.written if w.partition == p) + 1 for p in range(PARTITIONS)}
    rows = table.scan(bounds=Bounds(min_offsets={producer.topic: ends}, wait_seconds=WAIT))
    assert {row["page"]: row["hits"] for row in rows} == Counter(w.page for w in producer.written)


@pytest.mark.long
def test_an_answer_has_exactly_the_records_before_its_end(stream: Stream) -> None:
    """Both bounds rest on this: Spark's end is exclusive.  Compared for every batch seen while records arrive."""
    producer, table = stream
    producer.write(*(f"/many/{n}" for n in range(100)))
    batches: set[int] = set()

    def look() -> bool:
        rows = table.scan()
        ends = rows.position.offsets["0"][producer.topic]
        read = Counter(w.page for w in producer.written if w.offset < ends[str(w.partition)])
        assert {row["page"]: row["hits"] for row in rows} == read
        if rows.batch not in batches:
            batches.add(rows.batch)
            producer.write(*(f"/more/{rows.batch}/{n}" for n in range(5)))
        return len(batches) >= 4

    wait_until(look, "four batches", seconds=WAIT)


@pytest.mark.long
def test_both_bounds_are_met_at_exactly_their_offset(stream: Stream) -> None:
    producer, table = stream
    last = producer.write("/last", "/last", "/last")
    table.scan(bounds=Bounds(contains_offset=[f"{producer.topic}:{w.partition}:{w.offset}" for w in last], wait_seconds=WAIT))
    # Nobody writes any more: the replica stays at its batch.
    offsets = table.count().cut.position.offsets["0"][producer.topic]
    ends = {w.partition: w.offset + 1 for w in last}
    assert offsets == {str(partition): end for partition, end in ends.items()}
    for partition, end in ends.items():
        assert is_met(table, contains_offset=f"{producer.topic}:{partition}:{end - 1}")
        assert not is_met(table, contains_offset=f"{producer.topic}:{partition}:{end}")
        for shape in ({producer.topic: {partition: end}}, {0: {producer.topic: {str(partition): end}}}):
            assert is_met(table, min_offsets=shape)
        for shape in ({producer.topic: {partition: end + 1}}, {0: {producer.topic: {str(partition): end + 1}}}):
            assert not is_met(table, min_offsets=shape)
    for beyond in itertools.product((0, 1), repeat=PARTITIONS):
        wanted = {partition: end + more for (partition, end), more in zip(sorted(ends.items()), beyond, strict=True)}
        assert is_met(table, min_offsets={producer.topic: wanted}) is not any(beyond)
