"""A watermark that is moved past rows that wait: Spark removes them in its next batches, in every form of state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from live_jobs.broken import write_job
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CELLS = (
    "join-inner-format4-rocksdb-changelog",
    "windows-rocksdb-changelog",
    "join-inner-format4-hdfs",
    "join-windows-hdfs",
    "dedupe-within-watermark-rocksdb-changelog",
    "sessions-hdfs",
)


@pytest.mark.parametrize("name", a_few(CELLS, 0))
def test_rows_before_a_moved_watermark_go(spark: SparkSession, tmp_path: Path, name: str) -> None:
    job = write_job(spark, tmp_path / "job", name)
    assert any(job.end.values())
    millpond.plan_savepoint(job.checkpoint, "before").run()
    millpond.plan_edit_savepoint(job.checkpoint, "before", "moved", watermark="2026-01-02T00:00:00Z").run()  # a day later
    restored = millpond.plan_restore(job.checkpoint, "moved", tmp_path / "restored").run()
    end = job.run(Path(str(restored.checkpoint).removeprefix("file://")))
    assert not any(end.values()), "all of it is older than the watermark"
