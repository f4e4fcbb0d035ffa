"""The jobs of test_versions.py: a version that serves a topic, and another one that reads its past at a limited rate.

python versions_job.py JARS BROKER TOPIC FOLDER RECORDS

They need jars, so a process of their own.  Version 3 has read the first RECORDS records from a
table of Spark, and the topic from there on.  The last line of output is what was found, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond
from millpond.errors import MillpondError
from millpond.spark.java import require_java

AT_ONCE = 60
RECORD = "page string, at timestamp"


def declare(version: int) -> millpond.Aggregate:
    values = {"hits": F.count("*"), "weight": F.sum(F.lit(version))}
    resolutions: dict[str, str | None] = {"1 hour": None, "1 day": None}
    return millpond.Aggregate(
        "views",
        version=version,
        key=["page"],
        event_time="at",
        values=values,
        resolutions=resolutions,
        future_skew=None,
        dead_letters=None,
    )


class Writer(threading.Thread):
    """Writes records until it is ended."""

    def __init__(self, broker: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer, self._topic, self._draw = Producer({"bootstrap.servers": broker}), topic, random.Random(4)
        self._ended = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._ended.wait(0.02):
            self.write(1)

    def write(self, count: int) -> None:
        for _ in range(count):
            at = f"2026-03-0{self._draw.randrange(1, 7)}T{self._draw.randrange(24):02d}:00:00Z"
            record = json.dumps({"page": f"/{self._draw.randrange(4)}", "at": at})
            self._producer.produce(self._topic, record.encode(), partition=self._draw.randrange(2))
            self.count += 1
        assert self._producer.flush(60) == 0

    def end(self) -> None:
        self._ended.set()
        self.join()


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    try:
        call(*arguments, **options)
    except MillpondError as error:
        return error.condition
    return ""


def read_records(offsets: dict[str, Any]) -> int:
    """How many records offsets of one source stand for."""
    return sum(end for topic in offsets["0"].values() for end in topic.values())


def main(jars: str, broker: str, topic: str, folder: str, records: int) -> None:
    require_java()
    builder = SparkSession.builder.appName("versions of a topic").config("spark.master", "local[2]")
    builder = builder.config("spark.jars", ",".join(str(p) for p in sorted(Path(jars).glob("*.jar"))))
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    pond = f"{folder}/pond"

    def source(**options: Any) -> DataFrame:
        stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
        read = stream.options(startingOffsets="earliest", **options).load()
        return read.select(F.from_json(F.col("value").cast("string"), RECORD).alias("r")).select("r.*")

    def settled(*jobs: millpond.Job) -> None:
        for job in jobs:
            job.query.processAllAvailable()

    found: dict[str, Any] = {"behind": [], "totals": []}
    writer = Writer(broker, topic)
    writer.write(records)
    with millpond.start(declare(1), source(), pond=pond, partitions=2) as old:
        settled(old)
        writer.start()
        past = source(maxOffsetsPerTrigger=AT_ONCE, minPartitions=1)
        with millpond.start(declare(2), past, pond=pond, partitions=2) as new, millpond.open(pond, wait_seconds=60) as opened:
            table = opened["views"]
            token = opened["views"].job
            while new.query.lastProgress is None or new.query.lastProgress["batchId"] < 2:
                time.sleep(0.02)
            found["early"] = refusal(millpond.plan_cut_over, pond, "views", to=2)
            one, other = millpond.list_versions(pond, "views")
            found["behind"] = [one.behind.records, other.behind.records, read_records(one.offsets) - read_records(other.offsets)]
            while (two := millpond.list_versions(pond, "views")[1]).behind_source is None:  # until the next heartbeat
                time.sleep(0.2)
            found["not_read"] = [two.behind_source, writer.count - read_records(two.offsets)]
            found["served_by"] = [token, table.scan().cut.job]
            writer.end()
            settled(old, new)
            while any(version.behind_source != 0 for version in millpond.list_versions(pond, "views")):
                time.sleep(0.2)  # the test has a timeout
            found["sizes"] = max(p["numInputRows"] for p in new.query.recentProgress)
            diff = millpond.diff_versions(pond, "views", 1, 2)
            counts = diff.table.counts
            found["diff"] = [counts.added, counts.removed, counts.same, sorted(c.column for c in diff.columns if c.most)]
            millpond.plan_cut_over(pond, "views", to=2, wait_seconds=60).run()
            seconds, took = [], []
            for to in (1, 2):
                began = time.monotonic()
                millpond.plan_cut_over(pond, "views", to=to).run()
                took.append(table.scan().cut.job)
                seconds.append(time.monotonic() - began)
            found["took"], found["seconds"] = took, seconds
            opened.catch_up()
            totals = [table.total(page=f"/{n}") for n in range(4)]
            found["totals"] = [sum(t["hits"] for t in totals), sum(t["weight"] for t in totals)]
    found["records"] = writer.count

    # A version whose past is in a table: that of Spark's catalogue, a file at a time.
    batch = spark.read.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic).load()
    events = batch.select(F.from_json(F.col("value").cast("string"), RECORD).alias("r")).select("r.*")
    events.repartition(5).write.format("parquet").saveAsTable("events")
    of_table = spark.readStream.option("maxFilesPerTrigger", 2).table("events")
    with millpond.start(declare(3), of_table, pond=pond, partitions=2, trigger="available-now") as job:
        assert job.wait_for_end(240)
        found["table_batches"] = len([p for p in job.query.recentProgress if p["numInputRows"]])
    found["unlike"] = refusal(millpond.plan_cut_over, pond, "views", to=3)
    millpond.plan_cut_over(pond, "views", to=3, force=True).run()
    with millpond.open(pond, wait_seconds=60) as opened:
        found["of_table"] = sum(opened["views"].total(page=f"/{n}")["hits"] for n in range(4))
    millpond.plan_retire(pond, "views", 1).run()
    found["left"] = sorted(path.name for path in (Path(pond) / "jobs").iterdir())
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]))
