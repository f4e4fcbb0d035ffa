"""What a side can be, and that each is one consistent cut."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_job
from millpond.tables.diff.read import Diff
from oracles.ends import condition_of
from spark_files.checkpoint import PARTITIONS, WrittenCheckpoint


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    """A job `counts` of four batches in a pond, and a savepoint of its third."""
    made = WrittenCheckpoint(Path(create_job(tmp_path / "pond", "counts").checkpoint.removeprefix("file://")))
    for batch in range(4):
        made.plan([("a", batch), ("b" * (batch + 1), batch)], snapshot=False)
        made.commit()
    millpond.plan_savepoint(tmp_path / "pond", "third", batch=2).run()
    return made


@pytest.fixture
def pond(job: WrittenCheckpoint, tmp_path: Path) -> Path:
    return tmp_path / "pond"


def said(diff: Diff) -> list[tuple[Any, ...]]:
    (table,) = diff.tables
    values = [None if side is None else side["v"] for row in table.rows for side in (row.old, row.new)]
    return [(row.kind, row.key["k"], *values[2 * n : 2 * n + 2]) for n, row in enumerate(table.rows)]


def test_a_savepoint_is_compared_with_its_job_as_it_is_now(pond: Path, job: WrittenCheckpoint) -> None:
    diff = millpond.read_diff(pond, "third")
    assert said(diff) == [("changed", "a", 2, 3), ("added", "bbbb", None, 3)]
    assert (diff.left.savepoint, diff.left.batch, diff.left.behind_batches, diff.left.job_state) == ("third", 2, None, None)
    assert (diff.right.savepoint, diff.right.batch, diff.right.behind_batches, diff.right.job_state) == (None, 3, 0, "unknown")
    assert (diff.left.job, diff.left.checkpoint) == (diff.right.job, diff.right.checkpoint)
    assert (diff.left.offsets, diff.offsets) == ({"0": {"logOffset": 2}}, "differ")
    assert not diff.is_same
    job.plan([("a", 9)], snapshot=False)
    job.commit()
    assert said(millpond.read_diff(pond, "third"))[0] == ("changed", "a", 2, 9)
    assert said(millpond.read_diff(pond, "counts@3", "third")) == [("changed", "a", 3, 2), ("removed", "bbbb", 3, None)]
    assert millpond.read_diff(pond, "@2", "third").is_same
    assert millpond.read_diff(pond, "@2", "third").offsets == "same"
    assert millpond.read_diff(pond, "third", "job:counts@2").is_same


def test_tables_of_a_fork_are_matched_by_their_store(pond: Path) -> None:
    millpond.plan_fork(pond, "third", "counts_b").run()
    diff = millpond.read_diff(pond, "counts", "counts_b")
    (table,) = diff.tables
    assert (table.table, table.right_table) == ("counts.aggregate_0", "counts_b.aggregate_0")
    assert said(diff) == [("changed", "a", 3, 2), ("removed", "bbbb", 3, None)]
    same = millpond.read_diff(pond, "third", "counts_b", tables=["counts_b.aggregate_0"])
    # Each job's file source counts its own files.
    assert (same.is_same, same.offsets) == (True, "unknown")


def test_a_restored_checkpoint_is_another_place(pond: Path, tmp_path: Path) -> None:
    millpond.plan_restore(pond, "third", tmp_path / "restored").run()
    assert millpond.read_diff(pond, "third", against=tmp_path / "restored").is_same
    assert millpond.read_diff(pond, "third", "@2", against=tmp_path / "restored").is_same
    (pond / "jobs").rename(tmp_path / "moved")
    assert condition_of(lambda: millpond.read_diff(pond, "third")) == "INVALID_REQUEST"
    assert millpond.read_diff(pond, "third", "savepoint:third").is_same


def test_a_table_of_one_side_is_named(pond: Path, golden: Callable[[str], Any]) -> None:
    other = golden("chained-rocksdb-changelog").checkpoint
    diff = millpond.read_diff(pond, "third", against=other)
    assert diff.tables == ()
    assert diff.only_left == ("counts.aggregate_0",)
    assert [name.partition(".")[2] for name in diff.only_right] == ["aggregate_0", "dedupe_1"]
    assert not diff.is_same
    one = millpond.read_diff(pond, "third", against=other, tables=["counts.aggregate_0"])
    assert (one.only_left, one.only_right) == (("counts.aggregate_0",), ())


def test_a_wrong_side_is_an_error_with_its_condition(
    pond: Path, job: WrittenCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    millpond.plan_savepoint(pond, "counts").run()
    for sides, condition in (
        (("nothing",), "UNKNOWN_SAVEPOINT"),
        (("third", "nothing"), "UNKNOWN_SAVEPOINT"),
        (("counts",), "INVALID_REQUEST"),  # a savepoint and a job
        (("job:counts",), "INVALID_REQUEST"),  # compared with what?
        (("third", "job:other"), "INVALID_REQUEST"),
        (("third", "counts@x"), "INVALID_REQUEST"),
        (("third", "counts@-1"), "INVALID_REQUEST"),
        (("third", "other@1"), "INVALID_REQUEST"),
        (("third", "counts@4"), "BATCH_GONE"),
        (("third", "counts@99999999999999999999"), "INVALID_REQUEST"),
        (("a/b",), "INVALID_NAME"),
        (("savepoint:",), "INVALID_NAME"),
    ):
        assert condition_of(lambda sides=sides: millpond.read_diff(pond, *sides)) == condition, sides
    assert condition_of(lambda: millpond.read_diff(tmp_path, "third")) == "UNKNOWN_SAVEPOINT"
    assert condition_of(lambda: millpond.read_diff(pond, "third", against=tmp_path)) == "NO_CHECKPOINT"
    assert condition_of(lambda: millpond.read_diff(pond, "third", tables=["x"])) == "UNKNOWN_TABLE"
    WrittenCheckpoint(tmp_path / "empty").write("offsets/0", b"")
    assert condition_of(lambda: millpond.read_diff(pond, "third", against=tmp_path / "empty")) == "NO_COMMITTED_BATCH"
    monkeypatch.setenv("MILLPOND_HOME", str(job.path / "metadata"))
    assert condition_of(lambda: millpond.read_diff(pond, "third")) == "NOT_WRITABLE"


def test_damage_on_either_side_is_an_error_and_no_answer(pond: Path, job: WrittenCheckpoint) -> None:
    path = pond / "savepoints/third/checkpoint/state/0/1/2.delta"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30] + b"x" + whole[-29:])
    assert condition_of(lambda: millpond.read_diff(pond, "third")) in ("CORRUPT_FILE", "INCOMPLETE_FILE")
    path.unlink()
    assert condition_of(lambda: millpond.read_diff(pond, "third")) == "FILE_GONE"


def test_a_side_that_moves_on_while_it_is_read_is_read_again_as_one_batch(pond: Path, job: WrittenCheckpoint) -> None:
    """Spark commits and cleans up between the partitions of a read: the answer is of one later batch."""
    seen = []

    def overtake(rows: int) -> None:
        if len(seen) < 3:
            seen.append(rows)
            batch = job.next_batch
            job.plan([("a", batch), ("n" * batch, batch)], snapshot=True)
            job.commit()
            job.clean(1)

    diff = millpond.read_diff(pond, "third", progress=overtake)
    assert len(seen) == 3
    assert (diff.right.batch, diff.right.behind_batches) == (job.next_batch - 1, 0)
    now = {key: value for state in job.state for key, value in state.items()}
    then = {"a": 2, "b": 0, "bb": 1, "bbb": 2}
    found = {row.key["k"]: None if row.new is None else row.new["v"] for row in diff.tables[0].rows}
    assert found == {key: value for key, value in now.items() if then.get(key) != value}
    assert diff.tables[0].counts.same == sum(now[key] == value for key, value in then.items())


def test_a_batch_that_was_named_isnt_replaced_by_a_newer_one(pond: Path, job: WrittenCheckpoint) -> None:
    def overtake(_rows: int) -> None:
        job.plan([("a", 7)], snapshot=True)
        job.commit()
        job.clean(1)

    assert condition_of(lambda: millpond.read_diff(pond, "@3", "third", progress=overtake)) == "FILE_GONE"


def test_rows_whose_ttl_has_passed_are_judged_at_each_sides_own_time(
    golden: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = golden("spark-4.3/transform-ttl-rocksdb-changelog")
    millpond.plan_savepoint(copy.checkpoint, "last").run()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    early = millpond.read_diff(copy.checkpoint, "last")
    assert early.is_same
    assert early.left.judged_ms == early.right.judged_ms == early.right.batch_started_ms
    monkeypatch.setattr(time, "time_ns", lambda: 10**6 * (early.right.batch_started_ms + 100 * 86_400_000))
    late = millpond.read_diff(copy.checkpoint, "last")
    assert (late.left.batch, late.left.judged_ms) == (late.right.batch, early.left.judged_ms)
    assert late.right.judged_ms == early.right.batch_started_ms + 100 * 86_400_000
    removed = 0
    for table in late.tables:
        rows = millpond.read_arrow(copy.checkpoint, table.table, batch=early.left.batch).to_pylist()
        ending = sum(row.get("expires_at") is not None for row in rows)
        counts = table.counts
        assert (counts.added, counts.removed, counts.changed, counts.same) == (0, ending, 0, len(rows) - ending)
        removed += ending
    assert removed


def test_partitions_and_codec_make_no_difference(golden: Callable[[str], Any], tmp_path: Path) -> None:
    assert PARTITIONS == 2
    checkpoint = golden("counts-hdfs").checkpoint
    millpond.plan_savepoint(checkpoint, "one").run()
    millpond.plan_restore(checkpoint, "one", tmp_path / "other", partitions=5, codec="zstd").run()
    diff = millpond.read_diff(checkpoint, "one", against=tmp_path / "other")
    assert diff.is_same
    assert diff.tables[0].counts.same > 10
