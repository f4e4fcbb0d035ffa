"""A fork of a live job: the first goes on, the second begins with its state, and both end as a job that read everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import millpond
from inputs.event_file import write_event_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_fork_goes_on_beside_its_job(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as sf

    def feed(batch: int) -> None:
        rows = [{"page": f"/{n % 7}", "bytes": n} for n in range(batch * 20, batch * 20 + 20)]
        write_event_file(tmp_path / "in", batch, rows)

    def views() -> DataFrame:
        stream = spark.readStream.schema("page string, bytes long").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        return stream.groupBy("page").agg(sf.count("*").alias("hits"), sf.sum("bytes").alias("bytes"))

    def rows(job: str) -> dict[str, tuple[int, int]]:
        with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as pond:
            return {row["page"]: (row["hits"], row["bytes"]) for row in pond[job].scan()}

    (tmp_path / "in").mkdir()
    pond = tmp_path / "pond"
    feed(0)
    with millpond.start(views(), table="views", job="views", pond=pond, partitions=2) as first:
        first.wait_for_batch(0, timeout_seconds=60)
        savepoint = millpond.plan_savepoint(pond, "zero").run()
        feed(1)
        first.wait_for_batch(1, timeout_seconds=60)
        millpond.plan_fork(pond, "zero", "views_b").run()
        assert rows("views_b") == {f"/{n}": (len(range(n, 20, 7)), sum(range(n, 20, 7))) for n in range(7)}
        with millpond.start(views(), table="views_b", pond=pond, partitions=2) as second:
            second.wait_for_batch(1, timeout_seconds=60)
            feed(2)
            for job in (first, second):
                job.wait_for_batch(2, timeout_seconds=60)
    assert savepoint.manifest.tables.keys() == {"views"}
    expected = {f"/{n}": (len(range(n, 60, 7)), sum(range(n, 60, 7))) for n in range(7)}
    assert rows("views") == rows("views_b") == expected
