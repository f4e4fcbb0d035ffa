"""Joins over the changes of two tables: each batch equals Spark's own join of both tables' rows as of the batches read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.errors import RequestError
from millpond.storage.names import path_of
from suite.sizes import a_few

SCHEMA = "id long, ref long, v int, at timestamp"
JOINS = {  # name -> (left, right, on, how): foreign keys, whole keys, many to many
    "foreign": ("orders", "customers", {"ref": "id"}, "left"),
    "whole": ("customers", "notes", ["id"], "left"),
    "foreign_inner": ("orders", "customers", {"ref": "id"}, "inner"),
    "foreign_right": ("orders", "customers", {"ref": "id"}, "right"),
    "whole_inner": ("customers", "notes", ["id"], "inner"),
    "whole_right": ("notes", "customers", ["id"], "right"),
    "many": ("orders", "orders", ["ref"], "left"),
}


def upstream(table, events):
    """Rows come, change, go and come again; so do their references, which may be NULL."""
    from pyspark.sql import functions as F

    total = F.sum("v").alias("total")
    if table == "orders":
        reference = F.when(F.sum("ref") % 5 != 4, F.sum("ref") % 5).alias("ref")
        price = F.sum(F.col("v").cast("decimal(9,2)") / 7).alias("price")
        found = events.groupBy("id").agg(reference, total, F.max("at").alias("at"), price)
    elif table == "customers":
        mean, day = F.avg("v").alias("mean"), F.max(F.to_date("at")).alias("day")
        found = events.groupBy("id").agg(total, mean, day, F.max(F.concat(F.lit("n"), "v")).alias("name"))
    else:
        found = events.groupBy("id").agg(total, F.max(F.col("v") > 3).alias("high"))
    return found.where(F.col("total") % 3 != 0)


def feed(folder, number, random_):
    rows = [
        {
            "id": random_.choice((None, *range(5))),
            "ref": random_.randrange(3),
            "v": random_.randrange(-3, 9),
            "at": f"2026-10-25T0{random_.randrange(3)}:{random_.randrange(60)}:00.123Z",
        }
        for _ in range(random_.randrange(1, 9))
    ]
    write_event_file(folder, number, rows)  # on the clocks of Berlin an hour of these comes twice


def rows_of(frame):
    """Rows in a form that compares: a local time may come twice."""
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    columns = [F.unix_micros(name).alias(name) if kinds[name] == "timestamp" else F.col(name) for name in sorted(frame.columns)]
    return sorted(map(repr, frame.select(*columns).collect()))


def read_positions(checkpoint: Path) -> dict[int, tuple[int, int]]:
    """The batches of the left and the right table that each batch of a join has read."""
    found = {}
    for commit in (checkpoint / "commits").glob("[0-9]*"):
        _, _, *lines = (checkpoint / "offsets" / commit.name).read_text().splitlines()
        left, right = (json.loads(line)["batch"] for line in lines)
        found[int(commit.name)] = (left, right)
    return found


def expected(table_at, join, left, right):
    """Spark's own join of the rows of two batches; the columns are called as in the result."""
    from pyspark.sql import functions as F

    names, on, how = join[:2], join[2], join[3]
    pairs = on if isinstance(on, dict) else {name: name for name in on}
    sides = []
    for name, batch, joined, suffix in zip(names, (left, right), (list(pairs), list(pairs.values())), ("_l", "_r"), strict=True):
        rows = table_at(name, batch)
        sides.append((rows, joined, suffix))
    own = [{column for column in rows.columns if column not in joined} for rows, joined, _ in sides]
    both = own[0] & own[1]
    frames = []
    for rows, joined, suffix in sides:
        columns = [F.col(column).alias(result) for column, result in zip(joined, pairs, strict=True)]
        columns += [F.col(c).alias(c + suffix if c in both else c) for c in rows.columns if c not in joined]
        frames.append(rows.select(*columns))
    return frames[0].join(frames[1], list(pairs), how)


@pytest.mark.long
@pytest.mark.parametrize("name", a_few(JOINS, 1, long=2))
def test_each_batch_of_a_join_is_that_of_the_rows(spark, tmp_path, name):
    from pyspark.sql import functions as F

    random_, pond = random.Random(9), str(tmp_path / "pond")
    left, right, on, how = JOINS[name]
    tables = sorted({left, right})
    for table in tables:
        (tmp_path / table).mkdir()
        feed(tmp_path / table, 0, random_)
    kept = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    # PySpark hands a group over in pieces of so many rows.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "3")

    def run(frame, table):
        job = millpond.start(frame, table=table, pond=pond, trigger="available-now", partitions=2)
        try:
            job.query.awaitTermination()
        finally:
            job.stop()
        return Path(path_of(job.checkpoint))

    def step():
        for table in tables:
            events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / table))
            run(upstream(table, events), table)
        changes = [millpond.read_changes(spark, pond, table, maxBatchesPerTrigger=most) for table, most in ((left, 1), (right, 3))]
        return run(millpond.join_changes(*changes, on, how, suffixes=("_l", "_r")), name)

    def table_at(table, batch=None):
        reader = spark.read.format("millpond").options(pond=pond, table=table)
        return reader.load() if batch is None else reader.option("batch", batch).load()

    try:
        step()
        for number in range(1, 4):
            for table in tables:
                feed(tmp_path / table, number, random_)
        positions = read_positions(step())
        assert len(positions) > 2
        assert left == right or any(one != other for one, other in positions.values())
        sizes = set()
        for batch, at in positions.items():
            rows = rows_of(table_at(f"{name}_result", batch))
            assert rows == rows_of(expected(table_at, JOINS[name], *at)), batch
            sizes.add(len(rows))
        assert len(sizes) > 1
        with pytest.raises(RequestError, match="lack columns"):
            millpond.join_changes(*[millpond.read_changes(spark, pond, left, columns="total")] * 2, ["total"])
        # A join is a table: an aggregate over its changes is that over its rows.
        by, rows = [*on][:1], F.count("*")
        run(millpond.aggregate_changes(millpond.read_changes(spark, pond, f"{name}_result"), by, {"rows": rows}), "counted")
        assert rows_of(table_at("counted")) == rows_of(table_at(f"{name}_result").groupBy(*by).agg(rows.alias("rows")))
    finally:
        spark.conf.set("spark.sql.session.timeZone", kept)
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_what_cannot_be_joined_is_refused(spark):
    own = "_kind string, _batch bigint"

    def changes(key, values):
        return spark.createDataFrame([], f"{key}, {own}, _old struct<{values}>, _new struct<{values}>")

    left, right = changes("page string, n int", "hits bigint, mean double"), changes("page string", "hits bigint, n bigint")
    lists = changes("page string", "all array<int>")
    for given, condition, said in (
        ((left, right, ["nothing"]), "UNKNOWN_COLUMN", "left rows"),
        ((left, right, {"page": "nothing"}), "UNKNOWN_COLUMN", "right rows"),
        ((left, right, {"n": "n"}), "WRONG_TYPE", "of type int"),
        ((left, left, ["mean"]), "WRONG_TYPE", "double"),
        ((changes("x double, page string", "y int"), right, ["page"]), "WRONG_TYPE", "double"),
        ((lists, right, ["page"]), "WRONG_TYPE", "array<int>"),
        ((left, right, ["page"]), "INVALID_REQUEST", "two columns"),
        ((left, right, []), "INVALID_REQUEST", "empty"),
        ((left, right, {"page": "page", "n": "page"}), "INVALID_REQUEST", "twice"),
        ((left, right, ["page"], "full"), "INVALID_REQUEST", "how"),
        ((left.drop("_kind"), right, ["page"]), "INVALID_REQUEST", "aren't changes"),
    ):
        with pytest.raises(RequestError, match=said) as refused:
            millpond.join_changes(*given)
        assert refused.value.condition == condition, given
