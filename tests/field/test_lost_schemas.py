"""Schema files of state that are lost or damaged: Spark starts without those of a join, and not without a state variable's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from live_jobs.broken import check, write_job
from spark_files.damage import WAYS, copy_checkpoint, hurt
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CELLS = [f"join-full-format{n}-rocksdb-changelog" for n in (3, 4)]
CELLS += ["join-semi-format4-rocksdb-changelog", "join-full-checkpoint2-rocksdb-changelog", "transform-state-rocksdb-changelog"]


@pytest.mark.long
@pytest.mark.parametrize("name", a_few(CELLS, 1))
def test_what_is_said_of_lost_schemas_is_what_spark_does(spark: SparkSession, tmp_path: Path, name: str) -> None:
    job, numbers = write_job(spark, tmp_path / "job", name), random.Random(name)
    problems: list[str] = []
    for way in WAYS:
        broken = copy_checkpoint(job.checkpoint, tmp_path / way.replace(" ", "-"))
        for file in [*broken.glob("state/0/_stateSchema/*/[0-9]*"), *broken.glob("state/0/0/**/_metadata/schema")]:
            hurt(file, way, numbers)
            if way == "missing":
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        for problem in check(job, broken, f"{name}: {way}"):
            print(problem)
            problems.append(problem)
    assert not problems, "\n\n".join(problems)
