"""A table as a batch source: its rows at every batch, and filters, against Spark over the same rows."""

from __future__ import annotations

import random

import pytest

import millpond
from inputs.event_file import write_event_file

SCHEMA = "site string, page int, day date, ms long"
FILTERS = (
    "site = 'a'",
    "site = 'b' AND page = 3 AND day = DATE '2026-03-02'",
    "site IS NULL",
    "site IS NOT NULL AND page IN (1, 2, NULL)",
    "page > 2 AND page <= 5 AND hits >= 2",
    "site LIKE 'a%' AND page < 4",
    "day > DATE '2026-03-01' AND NOT page = 1",
    "mean > 40 OR site = 'a'",
    "most = 99.50",
    "page = 99",
    "hits + page > 5 AND site <=> NULL",
)


def feed(folder, number, random_):
    rows = [
        {"site": random_.choice(("a", "b", "ab", None)), "page": random_.randrange(6), "day": f"2026-03-0{random_.randrange(1, 4)}"}
        | {"ms": random_.randrange(100)}
        for _ in range(30)
    ]
    write_event_file(folder, number, rows)


def rows_of(frame):
    return sorted(map(repr, frame.collect()))


def test_rows_are_those_of_the_batch_whatever_is_pushed_down(spark, tmp_path):
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    random_, source, pond = random.Random(2), tmp_path / "in", str(tmp_path / "pond")
    source.mkdir()
    for number in range(3):
        feed(source, number, random_)
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    values = F.count("*").alias("hits"), F.avg("ms").alias("mean"), F.max(F.col("ms").cast("decimal(9,2)")).alias("most")
    job = millpond.start(events.groupBy("site", "page", "day").agg(*values), table="views", pond=pond, trigger="available-now")
    job.query.awaitTermination()
    job.stop()

    def table(**options):
        return spark.read.format("millpond").options(pond=pond, table="views", **options).load()

    for batch in range(3):
        files = [str(source / f"{number:06d}.json") for number in range(batch + 1)]
        recomputed = spark.read.schema(SCHEMA).json(files).groupBy("site", "page", "day").agg(*values)
        assert rows_of(table(batch=batch)) == rows_of(recomputed)
    now = table()
    plain = spark.createDataFrame(now.toArrow())
    for text in FILTERS:
        assert rows_of(now.where(text)) == rows_of(plain.where(text)), text
    assert now.where("site = 'b' AND page = 3 AND day = DATE '2026-03-02'").rdd.getNumPartitions() == 1
    assert now.rdd.getNumPartitions() > 1
    some = table(columns="hits,site", tasks=1)
    assert some.columns == ["site", "hits"]
    assert rows_of(some) == rows_of(plain.select("site", "hits"))
    for options, said in (
        ({"columns": "hits,nothing"}, "UNKNOWN_COLUMN"),
        ({"batch": 7}, "FILE_GONE"),
        ({"changes": "true"}, "readStream"),
    ):
        with pytest.raises(PySparkException, match=said):
            table(**options).collect()
    query = spark.readStream.format("millpond").options(pond=pond, table="views").load()
    started = query.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck")).start()
    with pytest.raises(PySparkException, match="changes"):
        started.awaitTermination()
