"""A declared aggregate whose source is a topic of a real broker.  The broker is killed as well, while a producer goes on.

A producer that has had no answer sends its records once more, so the topic may have some of them twice: their ids count once.
"""

from __future__ import annotations

import atexit
import json
import random
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import millpond
from faults.fed import Row, Rows
from faults.job import PARTITIONS
from faults.kind import Kind
from faults.kinds.buckets import SCHEMA, ZONES, Buckets, Drawn, declare, set_form
from servers.kafka import KafkaBroker, connector_jars, create_topic
from suite.waiting import wait_until

TOPIC, SHARDS, AT_ONCE, FORM = "views", 3, 60, "hdfs"
_WAIT_SECONDS = 120


class Topic:
    """A topic as an input: each record is a piece, by its partition and offset."""

    def __init__(self, address: str, chance: random.Random) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        self.rows: dict[str, Rows] = {}
        self._producer = Producer({"bootstrap.servers": address, "acks": "all", "retry.backoff.ms": 50, "linger.ms": 1})
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "judge", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(SHARDS)])
        self._ends, self._chance = [0] * SHARDS, chance
        self._sent = self._lost = 0

    def send(self, rows: Rows) -> None:
        """Begin to send; records of one id stay in order, as they have one partition."""
        for row in rows:
            event = row["event"]
            partition = self._chance.randrange(SHARDS) if event is None else zlib.crc32(event.encode()) % SHARDS
            self._producer.produce(TOPIC, json.dumps(row).encode(), partition=partition, on_delivery=self._delivered)
            self._sent += 1

    def _delivered(self, error: Any, _: Any) -> None:
        self._lost += error is not None

    def arrive(self) -> None:
        """Wait until all are sent, and read them from the topic."""
        assert self._producer.flush(_WAIT_SECONDS) == 0
        assert not self._lost, "the broker took too long for the producer"
        self._take_until(lambda: len(self.rows) >= self._sent)

    def read(self, checkpoint: Path, ends: list[Any]) -> Iterator[str]:
        for partition, end in (ends[0] or {}).get(TOPIC, {}).items():
            self._take_until(lambda number=int(partition), end=end: self._ends[number] >= end)  # type: ignore[misc]
            yield from (_name(int(partition), offset) for offset in range(end))

    def _take_until(self, done: Callable[[], bool]) -> None:
        def has_come() -> bool:
            if not done():
                self._take()
            return done()

        wait_until(has_come, "the records of the topic", seconds=_WAIT_SECONDS)

    def _take(self) -> None:
        for message in self._consumer.consume(500, timeout=0.2):
            if message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert offset == self._ends[partition], "an offset without a record"
                self._ends[partition] = offset + 1
                row: Row = json.loads(message.value())
                self.rows[_name(partition, offset)] = [row]


class Kafka(Kind):
    """One job; the broker and the job are killed, alone and together."""

    kills = ("broker", "both", "commit", "job")

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self._broker = KafkaBroker()
        atexit.register(self._broker.remove)
        self._broker.start()
        create_topic(self._broker.address, TOPIC, SHARDS)
        (folder / "broker").write_text(self._broker.address)
        self.topic, self._drawn = Topic(self._broker.address, chance), Drawn(chance)
        self.inputs = [self.topic]
        self.jobs = {"views": Buckets("views", ZONES[FORM])}

    def feed(self) -> None:
        self.topic.send(self._drawn.next())
        self.topic.arrive()

    def without_broker(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Kill the broker while records are on their way, and start it again.

        meanwhile:  what else happens before it is started
        """
        self.topic.send(self._drawn.next())
        time.sleep(self.chance.choice((0, 0.002, 0.02)))
        self._broker.kill()
        self.topic.send(self._drawn.next())
        if meanwhile is not None:
            meanwhile()
        time.sleep(self.chance.uniform(0, 2))
        self._broker.start()
        self.topic.arrive()

    @classmethod
    def settings(cls) -> dict[str, str]:
        return {"spark.jars": ",".join(str(path) for path in sorted(connector_jars().glob("*.jar")))}

    @classmethod
    def start(cls, spark: Any, folder: Path) -> Iterator[Any]:
        from pyspark.sql import functions as sf

        set_form(spark, FORM, ZONES[FORM])
        options = {
            "kafka.bootstrap.servers": (folder / "broker").read_text(),
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(AT_ONCE),
        }
        records = spark.readStream.format("kafka").options(**options).load()
        events = records.select(sf.from_json(sf.col("value").cast("string"), SCHEMA).alias("e")).select("e.*")
        yield millpond.start(declare("views"), events, pond=folder / "pond", partitions=PARTITIONS)


def _name(partition: int, offset: int) -> str:
    return f"{partition}:{offset:012d}"
