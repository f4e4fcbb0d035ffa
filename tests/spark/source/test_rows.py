"""A table as a batch source: its rows at every batch, and conditions, against Spark over the same rows."""

from __future__ import annotations

import random

import pytest

import millpond
from inputs.event_file import write_event_file
from suite.sizes import IS_LONG, examples

SCHEMA = "site string, page int, day date, ms long"
CONDITIONS = (
    ("site = a", "site = 'a'"),
    ('["site = b", "page = 3", "day = 2026-03-02"]', "site = 'b' AND page = 3 AND day = DATE '2026-03-02'"),
    ("site is null", "site IS NULL"),
    ('["site is not null", "page<=1"]', "site IS NOT NULL AND page <= 1"),
    ('["page > 2", "page != 5", "hits >= 2"]', "page > 2 AND page != 5 AND hits >= 2"),
    ("day>2026-03-01", "day > DATE '2026-03-01'"),
    ("most = 99.00", "most = 99.00"),
    ("page = 99", "page = 99"),
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


def test_rows_are_those_of_the_batch_whatever_is_chosen(spark, tmp_path):
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

    for batch in range(3) if IS_LONG else (1,):
        files = [str(source / f"{number:06d}.json") for number in range(batch + 1)]
        recomputed = spark.read.schema(SCHEMA).json(files).groupBy("site", "page", "day").agg(*values)
        assert rows_of(table(batch=batch)) == rows_of(recomputed)
    now = table()
    plain = spark.createDataFrame(now.toArrow())
    for text in ("site = 'a'", "mean > 40 OR site = 'a'", "true"):
        assert rows_of(now.where(text)) == rows_of(plain.where(text)), text
    for condition, text in random_.sample(CONDITIONS, examples(len(CONDITIONS), fewest=2)):
        assert rows_of(table(where=condition)) == rows_of(plain.where(text)), text
    one = table(where=CONDITIONS[1][0])
    assert one.rdd.getNumPartitions() == 1
    assert now.rdd.getNumPartitions() > 1
    some = table(columns="hits,site", tasks=1)
    assert some.columns == ["site", "hits"]
    assert rows_of(some) == rows_of(plain.select("site", "hits"))
    for options, said in (
        ({"columns": "hits,nothing"}, "UNKNOWN_COLUMN"),
        ({"batch": 7}, "FILE_GONE"),
        ({"changes": "true"}, "readStream"),
        ({"where": "mean > 1"}, "WRONG_TYPE"),
        ({"where": "nothing > 1"}, "INVALID_REQUEST"),
        ({"where": "page > x"}, "WRONG_TYPE"),
    ):
        with pytest.raises(PySparkException, match=said):
            table(**options).collect()
    query = spark.readStream.format("millpond").options(pond=pond, table="views").load()
    started = query.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck")).start()
    with pytest.raises(PySparkException, match="changes"):
        started.awaitTermination()
