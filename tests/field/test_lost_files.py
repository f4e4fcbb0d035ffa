"""Files and folders that were deleted, copied or swapped: Spark's next batch is the judge of what is said of the checkpoint."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from live_jobs.broken import check, write_job
from live_jobs.interrupted import NAMES
from spark_files.damage import copy_checkpoint, lose_at_random
from suite.sizes import IS_LONG, a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# 400 in all; in `make test` five of a job that starts quickly, without the copies that repair and savepoints make.
SMALL, EACH = "counts-hdfs", 10


@pytest.mark.parametrize("name", [SMALL, *a_few([name for name in NAMES if name != SMALL], 0, long=39)])
def test_what_is_said_of_lost_files_is_what_spark_does(spark: SparkSession, tmp_path: Path, name: str) -> None:
    job, numbers = write_job(spark, tmp_path / "job", name), random.Random(name)
    problems: list[str] = []
    for number in range(EACH if IS_LONG else EACH // 2):
        broken = copy_checkpoint(job.checkpoint, tmp_path / f"{number}")
        what = lose_at_random(broken, numbers)
        for problem in check(job, broken, f"{name}, {number}: {what}", copies=IS_LONG):
            print(problem)
            problems.append(problem)
    print(f"{name}, {len(problems)} differ: (what Spark did, whether it was said to start): {dict(job.ends)}")
    assert not problems, "\n\n".join(problems)
