"""Rows by value of a running job: every answer is the state of the batch in it, sorted by the values that Spark would emit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.errors import MillpondError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 8
SCHEMA = "page string, bytes long"


def write_batch(folder: Path, batch: int) -> None:
    rows = [{"page": f"/p{(batch * 31 + i * i) % 40}", "bytes": (batch * 7919 + i * 31) % 1000} for i in range(200)]
    write_event_file(folder, batch, rows)


def recompute(folder: Path, batch: int) -> dict[str, dict[str, Any]]:
    bytes_of: dict[str, list[int]] = {}
    for number in range(batch + 1):
        for line in (folder / f"{number:06d}.json").read_text().splitlines():
            row = json.loads(line)
            bytes_of.setdefault(row["page"], []).append(row["bytes"])
    return {
        page: {"page": page, "hits": len(found), "mean": sum(found) / len(found), "kinds": len(set(found))}
        for page, found in bytes_of.items()
    }


def test_the_greatest_rows_are_those_of_the_batch_in_the_answer(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    incoming = tmp_path / "in"
    incoming.mkdir()
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(incoming))
    values = F.count("*").alias("hits"), F.avg("bytes").alias("mean"), F.size(F.collect_set("bytes")).alias("kinds")
    df = events.groupBy("page").agg(*values)
    pond_path, home = tmp_path / "pond", tmp_path / "home"

    def run(indexes: list[Any], first: int, last: int) -> set[int]:
        seen = set()
        job = millpond.start(df, table="views", pond=pond_path, partitions=2, indexes=indexes)
        with job, millpond.open(pond_path, replica_dir=home, wait_seconds=60) as pond:
            for batch in range(first, last):
                write_batch(incoming, batch)
                while True:
                    answer = pond["views"].top("mean", 5, bounds=millpond.Bounds(wait_seconds=60))
                    here = answer.cut.position.batch
                    rows = sorted(recompute(incoming, here).values(), key=lambda row: (row["mean"], row["page"]))
                    assert [dict(row) for row in answer] == rows[:-6:-1]
                    seen.add(here)
                    if here == batch:
                        break
        return seen

    with pytest.raises(MillpondError) as refused:
        millpond.start(df, table="views", pond=pond_path, indexes=["nothing"])
    assert refused.value.condition == "UNKNOWN_COLUMN"
    write_batch(incoming, 0)
    assert run(["mean"], 1, BATCHES) >= set(range(2, BATCHES))
    # With another index, a start changes the definition; the replica is built again.
    assert run(["mean", ("kinds", "hits")], BATCHES, BATCHES + 2)
    with millpond.open(pond_path, replica_dir=home) as pond:
        rows = sorted(recompute(incoming, BATCHES + 1).values(), key=lambda row: (row["kinds"], row["hits"], row["page"]))
        found = pond["views"].range(by=["kinds", "hits"])
        assert [dict(row) for row in found] == rows
        least = rows[len(rows) // 2]["kinds"]
        found = pond["views"].range(by=("kinds", "hits"), start={"kinds": least})
        assert [dict(row) for row in found] == [row for row in rows if row["kinds"] >= least]
        assert pond["views"].definition.indexes == (("mean",), ("kinds", "hits"))
