"""Operator and broadcast state under another number of shards: nothing is lost, nothing comes twice, every shard knows all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from inputs.small_models import linear
from live_jobs.buffer import buffer
from live_jobs.rocksdb_state import rocksdb
from millpond.errors import MillpondError
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from spark.broadcast.test_broadcast import BroadcastJob, events_of, expected, found
from spark.models.test_models import ModelJob, records
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def redistributed(pond: Path, name: str, shards: int, partitions: int) -> None:
    """Put a stopped job of a pond on a savepoint of itself in other shards."""
    millpond.plan_savepoint(pond, f"{name}-before").run()
    plan = millpond.plan_redistribute(pond, f"{name}-before", name, shards=shards, partitions=partitions)
    assert f"start with  shards={shards}, partitions={partitions}" in plan.describe()
    assert verify_savepoint(plan.run()).problems == ()
    millpond.plan_rollback(pond, savepoint=name).run()


@pytest.mark.long
def test_control_state_is_in_every_new_shard(spark: SparkSession, tmp_path: Path) -> None:
    job = BroadcastJob(spark, tmp_path)
    rules: dict[str, tuple[Any, ...]] = {"a": (20, 1e300, None), "b": (2**53 + 9, 0.1, "é")}
    changes = [
        {"rule": "b", "least": 2**53 + 9, "ratio": 0.1, "label": "é", "seq": 2},
        {"rule": "a", "least": 20, "ratio": 1e300, "seq": 1},
        {"rule": "c", "action": "explode", "seq": 3},
    ]
    assert found(job.batch(events_of(0), changes)) == expected(events_of(0), rules, 2)
    for batch, (shards, partitions) in enumerate([(5, 6), (1, 3)], start=1):
        redistributed(tmp_path / "pond", f"in-{shards}", shards, partitions)
        job.shards, job.partitions = shards, partitions
        # Only events: a shard that knew nothing would show it.
        assert found(job.batch(events_of(batch), [])) == expected(events_of(batch), rules, 2)
        with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as pond:
            assert {row["rule"]: row["version"] for row in pond["rules_control"].scan()} == {"a": 1, "b": 2}
            assert pond["rules_errors"].count() == 1
    rules["a"] = (3, None, "new")
    assert found(job.batch(events_of(9), [{"rule": "a", "least": 3, "label": "new", "seq": 9}])) == expected(events_of(9), rules, 3)


@pytest.mark.long
def test_statistics_of_models_keep_their_sums(spark: SparkSession, tmp_path: Path) -> None:
    job = ModelJob(spark, tmp_path)
    for kind in "rw":
        millpond.publish_model(job.models, linear([2.0, 1.0], 0.5), name=f"m-{kind}", type=kind)
    job.batch(records(0))
    job.batch(records(100))

    def statistics() -> Counter[tuple[str, str]]:
        with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as pond:
            (table,) = [name for name in pond.tables() if name.endswith("statistics")]
            return Counter({(row["type"], row["name"]): row["usage"] for row in pond[table].scan()})

    before = statistics()
    assert sum(before.values()) == 40
    redistributed(tmp_path / "pond", "in-one", 1, 2)
    assert statistics() == before
    job.options["shards"] = 1
    job.batch(records(200))
    assert sum(statistics().values()) == 60


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [((2, 2), (5, 5)), ((4, 5), (1, 2))])
def test_rows_that_wait_are_divided_evenly_and_come_out_once(
    spark: SparkSession, tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """They are due when they were due; a timer in each new shard lets go of them."""
    (tmp_path / "in").mkdir()
    write_event_file(tmp_path / "in", 0, [{"n": n} for n in range(41)])
    out: list[tuple[int, int, int]] = []

    def collect(batch: DataFrame, _: int) -> None:
        out.extend((row["n"], row["shard"], row["release"]) for row in batch.collect())

    pond, options = tmp_path / "pond", {"trigger": "500 milliseconds", "output_mode": "append", "sink": collect}
    with rocksdb(spark):
        frame = buffer(spark, tmp_path / "in", *before, 20, 1000)
        with millpond.start(frame, table="rows", pond=pond, partitions=before[1], **options) as job:
            job.wait_for_batch(0, 120)
        redistributed(pond, "other", *after)
        with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
            fill = [row["rows"] for row in opened["rows_fill"].scan()]
            assert out == []
            assert sorted(n for n in fill if n) == sorted(41 * (i + 1) // after[0] - 41 * i // after[0] for i in range(after[0]))
            assert sorted(row["n"] for row in opened["rows_waiting"].scan()) == list(range(41))
        frame = buffer(spark, tmp_path / "in", *after, 20, 1000)
        with millpond.start(frame, table="rows", pond=pond, partitions=after[1], **options) as job:
            write_event_file(tmp_path / "in", 1, [{"n": 41}])  # after a restart, Spark's first batch waits for data
            wait_until(lambda: len(out) >= 42, "the release of all rows", seconds=120)
    assert sorted(n for n, _, _ in out) == list(range(42))
    assert len({shard for _, shard, _ in out}) == after[0]


def test_what_has_no_shards_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_event_file(tmp_path / "in", 0, [{"n": 1}])
    counted = spark.readStream.schema("n long").json(str(tmp_path / "in")).groupBy("n").count()
    with millpond.start(counted, table="counts", pond=tmp_path / "pond", trigger="available-now") as job:
        job.wait_for_end(60)
    millpond.plan_savepoint(tmp_path / "pond", "first").run()
    with pytest.raises(MillpondError, match="No state of the job"):
        millpond.plan_redistribute(tmp_path / "pond", "first", "x", shards=2)
    with pytest.raises(MillpondError, match="can't each have one"):
        millpond.plan_redistribute(tmp_path / "pond", "first", "x", shards=200)
    plan_restore(tmp_path / "pond", "first", tmp_path / "restored").run()
