"""The audits of test_audit.py, against a broker.  They need jars, so a process of their own.

python audit_job.py JARS BROKER SEED FOLDER

The last line of output is what was found, as JSON.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import shutil
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond
from millpond.errors import MillpondError
from millpond.spark.java import require_java
from spark.aggregate.events import SCHEMA, declare_views, draw_events, recount
from suite.waiting import wait_until

PARTITIONS, ROUNDS = 3, 3
DEDUPE = ("id", "2 days")
Rows = list[dict[str, Any]]


class Topic:
    """A topic, its job, and what the job has read, batch by batch."""

    def __init__(self, spark: SparkSession, broker: str, name: str, folder: Path, **config: str) -> None:
        self.spark, self.broker, self.name, self.pond = spark, broker, name, folder / name
        self.config, self.written = config, list[Rows]()
        self.admin = AdminClient({"bootstrap.servers": broker})
        self.create()

    def create(self) -> None:
        (made,) = self.admin.create_topics([NewTopic(self.name, PARTITIONS, 1, config=self.config)]).values()
        made.result(60)

    def delete(self) -> None:
        (gone,) = self.admin.delete_topics([self.name]).values()
        gone.result(60)
        wait_until(lambda: self.name not in self.admin.list_topics(timeout=60).topics, "the end of the topic")

    def source(self) -> DataFrame:
        stream = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.broker)
        read = stream.options(**{"subscribe": self.name, "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"})
        return read.load().select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")

    def run(self) -> None:
        with millpond.start(
            declare_views(dedupe=DEDUPE), self.source(), pond=self.pond, trigger="available-now", partitions=2
        ) as job:
            assert job.wait_for_end(240)

    def audit(self, **options: Any) -> millpond.Audit:
        return millpond.audit(declare_views(dedupe=DEDUPE), self.source(), pond=self.pond, **options)

    def event(self, event: dict[str, Any] | None = None, **options: Any) -> Any:
        return millpond.audit_event(declare_views(dedupe=DEDUPE), self.source(), event, pond=self.pond, **options)


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except MillpondError as error:
        return f"{error.condition}: {error.message}"
    return ""


class Writer:
    """Writes rows; returns where each of them is."""

    def __init__(self, topic: Topic, draw: random.Random, **config: Any) -> None:
        self.topic, self.draw = topic, draw
        self.producer = Producer({"bootstrap.servers": topic.broker, **config})

    def write(self, rows: Rows, partition: int | None = None) -> dict[str, int]:
        """Id -> offset, with the partition."""
        places: dict[str, Any] = {}
        for row in rows:
            to = self.draw.randrange(PARTITIONS) if partition is None else partition
            placed = lambda _, message, row=row: places.__setitem__(row["id"] or "", [message.partition(), message.offset()])  # noqa: E731
            self.producer.produce(self.topic.name, json.dumps(row).encode(), partition=to, on_delivery=placed)
        assert self.producer.flush(60) == 0
        return places


def unique(rows: Rows) -> Rows:
    """Of one id in one batch there is one event, so that nothing is left to chance."""
    return list({row["id"] or json.dumps(row): row for row in reversed(rows)}.values())[::-1]


def sound(topic: Topic, draw: random.Random) -> dict[str, Any]:
    """Events of committed and of aborted transactions."""
    begin = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
    writer = Writer(topic, draw, **{"transactional.id": topic.name})
    writer.producer.init_transactions(60)
    topic.written = [unique(rows) for rows in draw_events(draw, begin, ROUNDS)]
    aborted: dict[str, Any] = {}
    for number, rows in enumerate(topic.written):
        writer.producer.begin_transaction()
        aborted |= writer.write([{**row, "id": f"aborted-{n}"} for n, row in enumerate(rows[:7])])
        writer.producer.abort_transaction(60)
        # A transaction of its own for each half.
        middle = draw.randrange(len(rows))
        for half in (rows[:middle], rows[middle:]):
            writer.producer.begin_transaction()
            places = writer.write(half, 0 if number == 0 else None)
            writer.producer.commit_transaction(60)
        topic.run()
    found = topic.audit()
    buckets, letters = recount([*topic.written, None], dedupe=True)
    expected: Counter[str] = Counter()
    for (_, name, _), ids in buckets.items():
        expected[name] += ids.total()
    for (reason, _), n in letters.items():
        expected[reason] += n
    last = next(row for row in half if row["id"] in places)
    partition, offset = places[last["id"]]
    by_offset = topic.event(offset=f"{topic.name}:{partition}:{offset}")
    by_id = topic.event({"id": last["id"]})
    hole = next(iter(aborted.values()))
    return {
        "balanced": found.is_balanced,
        "unsure": found.unsure,
        "counts": {r.name: r.held for r in found.rows if r.held} == dict(expected),
        "events": [sum(p.events for p in found.parts), sum(map(len, topic.written))],
        "lost_offsets": sum(p.lost_offsets for p in found.parts),
        "aborted": len(topic.written) * 7,
        "by_offset": [[e.event["id"], e.offset] for e in by_offset.events] == [[last["id"], offset]],
        "by_id": [by_offset.events[0].places] == [e.places for e in by_id.events if e.offset == offset],
        "batches": by_offset.events[0].batches,
        "hole": topic.event(offset=f"{topic.name}:{hole[0]}:{hole[1]}").reason,
        "later": topic.event(offset=f"{topic.name}:{partition}:{offset + 1000}").reason,
        "parts": found.describe(parts=True),
    }


def doctored(topic: Topic) -> dict[str, Any]:
    """One event more in one row of the newest state, and one less in another: its batch has read nothing."""
    row = {"id": "rare", "at": dt.datetime.now(dt.UTC).isoformat()}
    writer, changes = Writer(topic, random.Random(1)), {"/more": 1, "/less": -1}
    for partition, page in enumerate(changes):
        writer.write([{**row, "id": f"{page} {n}", "page": page} for n in range(3)], partition)
    topic.run()

    def edit(state: millpond.StateRow) -> millpond.StateRow:
        if state.key["page"] in changes and state.key["resolution"] == "1 day":
            name = next(n for n in state.value if n.startswith("count"))
            state.value[name] += changes[state.key["page"]]
        return state

    millpond.plan_savepoint(topic.pond, "sound").run()
    made = millpond.plan_edit_savepoint(topic.pond, "sound", "edited", edit=edit, tables=["views"]).run()
    edited, checkpoint = topic.pond / "edited", topic.pond / "jobs" / "views" / "checkpoint"
    millpond.plan_restore(topic.pond, made.manifest.name, to=edited).run()
    # The edited state in place of the newest one: all that the checkpoint says of its batches stays.
    for file in (edited / "state").glob("*/*/*.snapshot"):
        there = checkpoint / file.relative_to(edited)
        for old in there.parent.glob(f"*{there.stem}.*"):
            old.unlink()
        shutil.copy(file, there)
    found = topic.audit(since=2)  # what was before is gone
    return {
        "balanced": found.is_balanced,
        "rows": {d.key["page"]: [d.key["resolution"], d.least, d.held] for d in found.differences},
        "kinds": sorted(f.kind for f in found.findings),
        "batches": [len({d.batches for d in found.differences}), found.differences[0].batches != f"batches 2 to {found.batch}"],
        "said": found.describe(),
    }


def retained(topic: Topic) -> dict[str, Any]:
    """The oldest records are removed, as retention does."""
    place = TopicPartition(topic.name, 0, 2)  # the first batch begins there
    for done in topic.admin.delete_records([place]).values():
        done.result(60)
    later = topic.audit(since=2)
    return {
        "audit": refusal(topic.audit),
        "event": refusal(lambda: topic.event({"id": "aborted-1"})),
        "later": later.is_balanced,
    }


def made_anew(topic: Topic) -> dict[str, Any]:
    """Another topic of the same name, first with fewer records, then with more."""
    topic.delete()
    gone = refusal(topic.audit)
    topic.create()
    empty = refusal(topic.audit)
    writer = Writer(topic, random.Random(2))
    now = dt.datetime.now(dt.UTC).isoformat()
    for partition in range(PARTITIONS):
        writer.write([{"id": f"new {n}", "at": now, "page": "/"} for n in range(200)], partition)
    return {"gone": gone, "empty": empty, "longer": refusal(topic.audit), "event": refusal(lambda: topic.event({"id": "new 1"}))}


def main(jars: str, broker: str, seed: str, folder: str) -> None:
    require_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("audits of topics").config("spark.master", "local[2]")
    builder = builder.config("spark.jars", ",".join(str(p) for p in sorted(Path(jars).glob("*.jar"))))
    builder = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
    )
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.streaming.minBatchesToRetain", "100").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    found: dict[str, Any] = {}
    began = time.monotonic()

    def done(name: str, facts: dict[str, Any]) -> None:
        found[name] = facts
        print(f"{time.monotonic() - began:.0f} s {name}: {json.dumps(facts)}", flush=True)

    topic = Topic(spark, broker, f"audit-{uuid.uuid4().hex[:8]}", Path(folder))
    done("sound", sound(topic, random.Random(seed)))
    done("retained", retained(topic))
    done("doctored", doctored(topic))
    done("made_anew", made_anew(topic))
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
