"""Two jobs over the same files, with other batches: a copy of one ends where the other one ended, and they are equal."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
FILES = 26


@pytest.mark.parametrize("seed", a_few([1, 2, 3], 0))
def test_both_have_read_the_same_files(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The copy's log of files goes on over a compaction, and the copy reads on afterwards, each file once."""
    from pyspark.sql import functions as sf

    some = random.Random(seed)
    (tmp_path / "in").mkdir()

    def run(name: str, files_a_batch: int, *, once: bool = False) -> None:
        df = spark.readStream.schema("n long").option("maxFilesPerTrigger", files_a_batch).json(str(tmp_path / "in"))
        counted = df.withColumn("k", sf.col("n") % 7).groupBy("k").agg(sf.count("*").alias("c"), sf.sum("n").alias("s"))
        writer = counted.writeStream.outputMode("complete").option("checkpointLocation", str(tmp_path / name))
        trigger = {"once": True} if once else {"availableNow": True}
        writer.trigger(**trigger).foreachBatch(lambda batch, _number: batch.collect()).start().awaitTermination()

    def rows(place: Path) -> dict[int, tuple[int, int]]:
        with millpond.open(place, replica_dir="memory://") as pond:
            (table,) = pond.tables()
            return {row["k"]: (row["count"], row["sum"]) for row in pond[table].scan()}

    def expected(files: int) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for n in range(files * 10):
            count, total = found.get(n % 7, (0, 0))
            found[n % 7] = count + 1, total + n
        return found

    early, late = some.randint(5, 12), some.randint(13, 20)
    for n in range(FILES):
        if n == early:
            run("b", 1)
            millpond.plan_savepoint(tmp_path / "b", "b-now").run()
        if n == late:
            run("a", some.randint(2, 5))
            millpond.plan_savepoint(tmp_path / "a", "a-now").run()
        write_event_file(tmp_path / "in", n, [{"n": 10 * n + i} for i in range(10)])
    export_savepoint(millpond.open_savepoint(tmp_path / "a", "a-now"), tmp_path / "a.tar")
    import_savepoint(tmp_path / "b", tmp_path / "a.tar")
    millpond.plan_restore(tmp_path / "b", "b-now", tmp_path / "copy", end_at="a-now").run()
    run("copy", 1, once=True)
    assert rows(tmp_path / "copy") == rows(tmp_path / "a") == expected(late)
    (table,) = millpond.read_diff(tmp_path / "a", "a-now", against=tmp_path / "copy").tables
    assert (table.counts.same, table.counts.changed, table.counts.added, table.counts.removed) == (7, 0, 0, 0)
    run("copy", 3)
    assert rows(tmp_path / "copy") == expected(FILES)
