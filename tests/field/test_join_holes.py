"""A join whose counts and rows don't agree, in files that are each whole: Spark's own next batches are the judge."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from live_jobs.broken import Written, write_job
from millpond.checkpoint.files.records import DELETE, iter_records
from millpond.checkpoint.log import committed_batches, read_batch
from millpond.checkpoint.state import unpack
from millpond.savepoint.join_counts import join_holes
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from spark_files.checkpoint import lz4_file
from spark_files.damage import copy_checkpoint
from spark_files.golden import CELLS, GOLDEN
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOINS = [cell for cell in CELLS if "join" in cell]
IN_DELTAS = [cell for cell in JOINS if cell.endswith("hdfs") and "4.3" in cell and "format4" not in cell]
_END = struct.pack(">i", -1)


def lose_row(checkpoint: Path, store: str, numbers: random.Random) -> str:
    """Let the newest file of changes of some partition of an HDFS-backed store delete a row that is there; returns the folder."""
    storage = open_storage(checkpoint)
    batch = int(committed_batches(storage)[-1])
    folders = sorted(checkpoint.glob(f"state/*/*/{store}"))
    numbers.shuffle(folders)
    for folder in folders:
        keys: dict[bytes, None] = {}
        for version in range(1, batch + 2):
            path = f"{folder.relative_to(checkpoint)}/{version}.delta"
            for kind, key, _ in iter_records(unpack(storage, path, "lz4")):
                (keys.pop(key, None) if kind == DELETE else keys.update({key: None}))
        if not keys:
            continue
        newest = folder / f"{batch + 1}.delta"
        data, key = unpack(storage, str(newest.relative_to(checkpoint)), "lz4"), numbers.choice(sorted(keys))
        assert data.endswith(_END)
        newest.write_bytes(lz4_file(data[: -len(_END)] + struct.pack(">i", len(key)) + key + _END + _END))
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        return str(folder.parent.relative_to(checkpoint))
    raise AssertionError(f"{store} has no row")


def test_every_join_that_spark_wrote_agrees_with_its_counts() -> None:
    compared = 0
    for cell in JOINS:
        storage = open_storage(GOLDEN / cell / "checkpoint")
        for number in committed_batches(storage)[-3:]:
            assert list(join_holes(storage, read_batch(storage, number))) == [], (cell, number)
            compared += 1
    assert compared > 30


@pytest.mark.parametrize("store", ["left-keyWithIndexToValue", "right-keyToNumValues"])
@pytest.mark.parametrize("cell", a_few(IN_DELTAS, 1))
def test_a_hole_is_found_in_repair_and_in_verify(golden: Callable, tmp_path: Path, cell: str, store: str) -> None:
    checkpoint = golden(cell).checkpoint
    folder = lose_row(checkpoint, store, random.Random(cell))
    (finding,) = [f for f in diagnose(open_storage(checkpoint)).findings if f.kind == "hole"]
    assert (finding.path, finding.effect) == (folder, "may fail")
    problems = verify_savepoint(millpond.plan_savepoint(checkpoint, "holed").run()).problems
    assert [problem.path for problem in problems] == [f"checkpoint/{folder}"]
    plan = millpond.plan_repair(checkpoint, to=tmp_path / "to")
    assert plan.restart is not None
    assert plan.restart.batch < plan.diagnosis.committed
    assert "hole" not in {f.kind for f in diagnose(plan.run().open_checkpoint()).findings}


@pytest.mark.spark
@pytest.mark.long
def test_a_count_without_bounds_costs_no_time(golden: Callable) -> None:
    """Rows in the place of counts: their first column is read as a number of rows."""
    checkpoint = golden("spark-4.3/join-inner-hdfs").checkpoint
    for rows in checkpoint.glob("state/0/*/left-keyWithIndexToValue/*.delta"):
        counts = rows.parent.with_name("left-keyToNumValues") / rows.name
        counts.write_bytes(rows.read_bytes())
        counts.with_name(f".{counts.name}.crc").unlink(missing_ok=True)
        (counts.parent / f"{rows.stem}.snapshot").unlink(missing_ok=True)
    storage = open_storage(checkpoint)
    assert [*join_holes(storage, read_batch(storage, committed_batches(storage)[-1]))]


@pytest.mark.long
def test_spark_doesn_t_end_as_without_the_hole(spark: SparkSession, tmp_path: Path) -> None:
    """So it is no false alarm.  Whether Spark fails, or ends with another state, depends on which rows come later."""
    job: Written = write_job(spark, tmp_path / "job", "join-full-hdfs")
    ends = set()
    for seed in range(6):
        broken = copy_checkpoint(job.checkpoint, tmp_path / f"{seed}")
        lose_row(broken, random.Random(seed).choice(["left-keyWithIndexToValue", "left-keyToNumValues"]), random.Random(seed))
        try:
            ends.add("equal" if job.run(broken) == job.end else "another state")
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            ends.add(f"fails: {str(error)[:40]}")
        shutil.rmtree(broken)
    print("With a hole, Spark", ends)
    assert ends - {"equal"}, ends
