"""Bounds: met exactly when they should be, waited for, and refused with how far the job is."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from conftest import GoldenCell
from millpond import Bounds
from millpond.catalogue import create_beside, create_job
from millpond.errors import MillpondError
from millpond.schema.definition.table import TableDefinition
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few
from suite.waiting import wait_until

TABLE = "ck.aggregate_0"
VIEWS = {"views": {"0": 11171, "1": 4610}}


@pytest.fixture(params=a_few(["disk", "memory://"], 1))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory://" else str(tmp_path / "home")


def job(path: Path, *sources: Any) -> WrittenCheckpoint:
    """A job of one committed batch, whose sources end at these offsets."""
    checkpoint = WrittenCheckpoint(path / "ck", sources=lambda _: list(sources) or [{"logOffset": 0}])
    advance(checkpoint)
    return checkpoint


def advance(checkpoint: WrittenCheckpoint) -> None:
    checkpoint.plan([("a", checkpoint.next_batch)], snapshot=False)
    checkpoint.commit()


def refusal(pond: millpond.Pond, **bounds: Any) -> MillpondError | None:
    """The error of a read with these bounds, None if they are met; all kinds of read must agree."""
    table, wanted = pond[TABLE], Bounds(**bounds)
    reads: list[Callable[[], Any]] = [
        lambda: table.get(k="a", bounds=wanted),
        lambda: table.get_all([{"k": "a"}], bounds=wanted),
        lambda: table.scan(bounds=wanted),
        lambda: table.range(start={"k": "a"}, bounds=wanted),
        lambda: table.count(bounds=wanted),
        lambda: table.to_arrow(bounds=wanted),
    ]
    errors: list[MillpondError | None] = []
    for read in reads:
        try:
            read()
            errors.append(None)
        except MillpondError as error:
            errors.append(error)
    assert len({error and (error.condition, error.message.partition("seconds")[0][:20]) for error in errors}) == 1
    return errors[0]


@pytest.mark.parametrize(
    ("bounds", "met"),
    [
        ({"min_batch": 0}, True),
        ({"min_batch": 1}, False),
        # The record at the end isn't read yet, the record before it is.
        ({"contains_offset": "views:0:11170"}, True),
        ({"contains_offset": "views:0:11171"}, False),
        ({"contains_offset": ["views:0:11170", "views:1:4609"]}, True),
        ({"contains_offset": ["views:0:11170", "views:1:4610"]}, False),
        ({"contains_offset": "views:0:0"}, True),
        # Spark's end is exclusive.
        ({"min_offsets": {"views": {"0": 11171}}}, True),
        ({"min_offsets": {"views": {"0": 11172}}}, False),
        ({"min_offsets": {"views": {0: 11171, 1: 4610}}}, True),
        ({"min_offsets": {"views": {0: 11171, 1: 4611}}}, False),
        ({"min_offsets": {"0": {"views": {"1": 4610}}}}, True),
        ({"min_offsets": {0: {"views": {"1": 4611}}}}, False),
        ({"max_age_seconds": 3600.0}, True),
        ({"max_age_seconds": 0}, False),
        ({"max_behind_seconds": 0.0}, True),
        ({"min_batch": 0, "min_offsets": VIEWS, "contains_offset": "views:1:4609"}, True),
        ({"min_batch": 1, "min_offsets": VIEWS, "contains_offset": "views:1:4609"}, False),
        ({}, True),
    ],
)
def test_a_bound_is_met_at_exactly_the_batch_that_reaches_it(bounds: dict[str, Any], met: bool, tmp_path: Path, home: str) -> None:
    checkpoint = job(tmp_path, VIEWS)
    with millpond.open(checkpoint.path, replica_dir=home) as pond:
        error = refusal(pond, **bounds)
        assert (error is None) is met
        if error is not None:
            assert error.condition == "NOT_UP_TO_BOUND"
            assert error.context["batch"] == 0


@pytest.mark.parametrize(
    ("offset", "wanted", "met"),
    [
        (7, 7, True),  # Spark's rate source
        (7, 8, False),
        ({"offset": 7}, {"offset": 7}, True),  # a Python data source
        ({"offset": 7}, {"offset": 8}, False),
        ({"offset": 7, "timestamp": 100}, {"offset": 7}, True),  # rate-micro-batch
        ({"logOffset": 3}, {"logOffset": 3}, True),  # files
        ({"logOffset": 3}, {"logOffset": 4}, False),
        (None, {"offset": 0}, False),  # a source that hasn't read yet
    ],
)
def test_min_offsets_take_the_offset_of_any_source(offset: Any, wanted: Any, met: bool, tmp_path: Path) -> None:
    checkpoint = job(tmp_path, offset)
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond:
        error = refusal(pond, min_offsets={"0": wanted})
        assert (error is None) is met
        assert error is None or error.condition == "NOT_UP_TO_BOUND"


def test_the_error_says_how_far_it_is(tmp_path: Path) -> None:
    with millpond.open(job(tmp_path, VIEWS).path, replica_dir="memory://") as pond:
        error = refusal(pond, contains_offset="views:0:11180")
        assert error is not None
        assert error.context == {
            "bound": "contains_offset",
            "wanted": 11181,
            "here": 11171,
            "missing": 10,
            "batch": 0,
            "waited_seconds": 0.0,
        }
        assert "views:0:11180" in error.message
        error = refusal(pond, min_batch=5)
        assert error is not None
        assert (error.context["here"], error.context["missing"]) == (0, 5)


@pytest.mark.parametrize(
    ("bounds", "condition", "names"),
    [
        ({"contains_offset": "clicks:0:1"}, "UNKNOWN_OFFSET", "views"),
        ({"contains_offset": "views:2:1"}, "UNKNOWN_OFFSET", "0, 1"),
        ({"min_offsets": {"views": {"2": 1}}}, "UNKNOWN_OFFSET", "0, 1"),
        ({"min_offsets": {"clicks": {"0": 1}}}, "UNKNOWN_OFFSET", "views"),
        ({"min_offsets": {"views": 5}}, "INVALID_BOUND", '{"views": {"0": 11171'),
        ({"min_offsets": {"views": {"0": {"x": 1}}}}, "INVALID_BOUND", '{"views": {"0": 11171'),
        ({"min_offsets": {"0": 5}}, "INVALID_BOUND", '{"views": {"0": 11171'),
        ({"contains_file": "/data/a.json"}, "INVALID_BOUND", '{"views": {"0": 11171'),
    ],
)
def test_offsets_that_the_job_doesnt_have_name_those_it_has(
    bounds: dict[str, Any], condition: str, names: str, tmp_path: Path
) -> None:
    with millpond.open(job(tmp_path, VIEWS).path, replica_dir="memory://") as pond:
        error = refusal(pond, **bounds)
        assert error is not None
        assert error.condition == condition
        assert names in error.message


def test_a_topic_in_a_job_without_topics_is_refused(tmp_path: Path) -> None:
    with millpond.open(job(tmp_path, {"logOffset": 4}, 7).path, replica_dir="memory://") as pond:
        error = refusal(pond, contains_offset="views:0:1")
        assert error is not None
        assert error.condition == "INVALID_BOUND"
        assert '{"logOffset": 4}' in error.message


def test_every_source_that_reads_the_topic_must_have_read_the_record(tmp_path: Path) -> None:
    with millpond.open(job(tmp_path, {"t": {"0": 9}}, 5, {"t": {"0": 8}}).path, replica_dir="memory://") as pond:
        assert refusal(pond, contains_offset="t:0:7") is None
        assert refusal(pond, contains_offset="t:0:8") is not None
        assert refusal(pond, min_offsets={"0": {"t": {"0": 9}}}) is None
        assert refusal(pond, min_offsets={"2": {"t": {"0": 9}}}) is not None


@pytest.mark.parametrize(
    "bounds",
    [
        {"min_batch": "5"},
        {"min_batch": True},
        {"min_offsets": 5},
        {"min_offsets": {}},
        {"min_offsets": {"views": {"0": "11"}}},
        {"min_offsets": {"views": {"0": True}}},
        {"min_offsets": {"views": {}}},
        {"min_offsets": {None: 1}},
        {"contains_offset": "views:0"},
        {"contains_offset": "views:0:-1"},
        {"contains_offset": "views:x:1"},
        {"contains_offset": ":0:1"},
        {"contains_offset": "a:views:0:1"},
        {"contains_offset": [5]},
        {"contains_file": ""},
        {"contains_file": 5},
        {"max_behind_seconds": -1},
        {"max_behind_seconds": float("nan")},
        {"max_age_seconds": "5"},
        {"wait_seconds": float("inf")},
        {"wait_seconds": None},
    ],
)
def test_bounds_that_cant_be_meant_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(MillpondError) as raised:
        Bounds(**bounds)
    assert raised.value.condition == "INVALID_BOUND"


# ---------------------------------------------------------------- waiting


def later(seconds: float, *steps: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        for step in steps:
            time.sleep(seconds)
            step()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_read_waits_for_its_bound_and_no_longer(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck", sources=lambda batch: [{"views": {"0": 10 * batch}}])
    advance(checkpoint)
    with millpond.open(checkpoint.path, replica_dir=home) as pond:
        began = time.monotonic()
        thread = later(0.2, lambda: advance(checkpoint), lambda: advance(checkpoint))
        row = pond[TABLE].get(k="a", bounds=Bounds(contains_offset="views:0:15", wait_seconds=600))
        assert (row.batch, row["v"]) == (2, 2)
        assert 0.3 < time.monotonic() - began < 300
        thread.join()
        began = time.monotonic()
        with pytest.raises(MillpondError) as raised:
            pond[TABLE].get(k="a", bounds=Bounds(min_batch=3, wait_seconds=0.3))
        assert raised.value.condition == "NOT_UP_TO_BOUND"
        assert raised.value.context["waited_seconds"] == 0.3
        assert 0.3 <= time.monotonic() - began < 20


def test_a_reader_beside_the_follower_waits_as_well(tmp_path: Path) -> None:
    checkpoint = job(tmp_path)
    with (
        millpond.open(checkpoint.path, replica_dir=tmp_path / "home"),
        millpond.open(checkpoint.path, replica_dir=tmp_path / "home", follow=False) as reader,
    ):
        thread = later(0.2, lambda: advance(checkpoint))
        assert reader[TABLE].get(k="a", bounds=Bounds(min_batch=1, wait_seconds=60)).batch == 1
        thread.join()


def test_a_partition_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    ends: list[Any] = [{"views": {"0": 5}}, {"views": {"0": 5, "1": 1}}]
    checkpoint = WrittenCheckpoint(tmp_path / "ck", sources=lambda batch: [ends[batch]])
    advance(checkpoint)
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond:
        thread = later(0.1, lambda: advance(checkpoint))
        assert pond[TABLE].get(k="a", bounds=Bounds(contains_offset="views:1:0", wait_seconds=60)).batch == 1
        thread.join()


def test_how_far_behind_and_how_old(tmp_path: Path) -> None:
    checkpoint = job(tmp_path)
    with millpond.open(checkpoint.path, replica_dir=tmp_path / "home") as follower:
        follower.catch_up(60)
    advance(checkpoint)
    with millpond.open(checkpoint.path, replica_dir=tmp_path / "home", follow=False, wait_seconds=0) as pond:
        # Nobody follows: batch 1 is committed, but not applied.
        for age in (600, 0):
            committed = time.time() - age
            os.utime(checkpoint.path / "commits" / "1", (committed, committed))
            time.sleep(0.01)
            error = refusal(pond, max_behind_seconds=300)
            assert (error is not None) is (age == 600)
            if error is not None:
                assert 600 <= error.context["here"] < 700
        assert refusal(pond, max_age_seconds=300) is None


# ---------------------------------------------------------------- files


def test_a_file_is_in_the_batch_that_its_sources_log_names(golden: Callable[[str], GoldenCell]) -> None:
    cell = golden("counts-hdfs")
    logged: dict[int, list[str]] = {}
    for file in sorted((cell.checkpoint / "sources" / "0").iterdir(), key=lambda p: int(p.stem)):
        for line in file.read_text().splitlines()[1:]:
            entry = json.loads(line)
            logged.setdefault(entry["batchId"], [])
            if entry["path"] not in logged[entry["batchId"]]:
                logged[entry["batchId"]].append(entry["path"])
    assert (cell.checkpoint / "sources" / "0" / "9.compact").exists()
    cell.uncommit()
    cell.commit(0)
    with millpond.open(cell.checkpoint, replica_dir="memory://") as pond:
        (name,) = pond.tables()
        seen: set[bool] = set()
        for batch in range(cell.last + 1):
            if batch:
                cell.commit(batch)
                pond.catch_up(60)
            end = pond[name].scan().position.offsets["0"]["logOffset"]
            for entry, paths in logged.items():
                for path in paths:
                    for spelling in (path, path.removeprefix("file://"), path.replace("file:///", "file:/")):
                        try:
                            pond[name].count(bounds=Bounds(contains_file=spelling))
                            met = True
                        except MillpondError as error:
                            assert error.condition == "NOT_UP_TO_BOUND"
                            met = False
                        assert met is (entry <= end), (batch, path)
                        seen.add(met)
            with pytest.raises(MillpondError):
                pond[name].count(bounds=Bounds(contains_file="/nowhere/else.json"))
        assert seen == {True, False}


def test_a_path_is_told_from_one_that_is_spelled_alike(tmp_path: Path) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    checkpoint.write("sources/0/0", b'v1\n{"path":"file:///in/a%20b.json","timestamp":1,"batchId":0}')
    advance(checkpoint)
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond:
        assert refusal(pond, contains_file="/in/a b.json") is None
        assert refusal(pond, contains_file=Path("/in/a b.json")) is None
        assert refusal(pond, contains_file="file:///in/a%20b.json") is None
        assert refusal(pond, contains_file="/in/a%20b.json") is not None


def entry(number: int, *paths: str) -> bytes:
    lines = [json.dumps({"path": f"file://{path}", "timestamp": 1, "batchId": number}) for path in paths]
    return "\n".join(["v1", *lines]).encode()


@pytest.mark.parametrize("folder", ["/in", "/in/date=2026-11-01", "/in/a/b"])
def test_a_file_that_two_sources_read_is_in_when_both_have_read_it(tmp_path: Path, folder: str) -> None:
    """One reads a file a batch, the other all that are there; a third reads another folder, a fourth has read nothing."""
    names = [f"{folder}/{name}.json" for name in "abc"]
    ends = [(0, 0), (0, 1), (1, 1), (2, 1)]
    checkpoint = WrittenCheckpoint(
        tmp_path / "ck",
        sources=lambda batch: [{"logOffset": n} for n in ends[batch]] + [{"logOffset": 0}, None],
    )
    checkpoint.write("sources/2/0", entry(0, "/inn/a.json"))
    checkpoint.write("sources/1/0", entry(0, "/in/0.json"))
    with millpond.open(checkpoint.path, replica_dir="memory://", wait_seconds=0) as pond:
        for batch in range(len(ends)):
            if batch != 1:
                checkpoint.write(f"sources/0/{ends[batch][0]}", entry(ends[batch][0], names[ends[batch][0]]))
            else:
                checkpoint.write("sources/1/1", entry(1, *names))
            advance(checkpoint)
            pond.catch_up(60)
            for n, name in enumerate(names):
                error = refusal(pond, contains_file=name)
                both = n <= ends[batch][0] and batch >= 1
                assert (error is None) is both, (batch, name)
                if error is not None and batch >= 1:
                    assert "source 1 has read" in error.message
                    assert "source 0, which reads the same folder" in error.message
                    assert error.context["sources"] == ["0"]
        assert "no file source" in str(refusal(pond, contains_file="/in/d.json"))
        assert refusal(pond, contains_file="/inn/a.json") is None


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"", "INCOMPLETE_FILE"),
        (b"v9\n{}", "UNKNOWN_FORMAT"),
        (b'v1\n{"path":"file:///a","batch', "CORRUPT_FILE"),
        (b"v1\n[1]", "CORRUPT_FILE"),
        (b'v1\n{"path":5,"batchId":0}', "CORRUPT_FILE"),
    ],
)
def test_a_damaged_log_of_a_source_is_told(data: bytes, condition: str, tmp_path: Path) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    checkpoint.write("sources/0/0", data)
    advance(checkpoint)
    with millpond.open(checkpoint.path, replica_dir="memory://") as pond:
        error = refusal(pond, contains_file="/a")
        assert error is not None
        assert error.condition == condition


@pytest.mark.long
def test_a_job_that_has_stopped_isnt_waited_for(tmp_path: Path, home: str) -> None:
    checkpoint = job(tmp_path)
    folder = create_beside(tmp_path / "ck")
    with millpond.open(tmp_path / "ck", replica_dir=home, wait_seconds=60) as pond:
        folder.write_heartbeat("stopped")
        began = time.monotonic()
        error = refusal(pond, min_batch=1, wait_seconds=3600)
        assert time.monotonic() - began < 600
        assert error is not None
        assert (error.condition, error.context["job_state"], error.context["missing"]) == ("NOT_UP_TO_BOUND", "stopped", 1)
        assert "Start the job again" in error.hint
        advance(checkpoint)  # its last batch, which isn't applied yet
        assert pond[TABLE].get(k="a", bounds=Bounds(min_batch=1, wait_seconds=60)).batch == 1
        # A killed job leaves no note: it may start again, so reads wait for it.
        heartbeat = Path(folder.storage.uri.removeprefix("file://")) / "heartbeat.json"
        heartbeat.write_text(json.dumps({"state": "running", "at": time.time() - 3600}))
        wait_until(lambda: pond[TABLE].get(k="a").job_state == "stopped", "the news that the job has stopped")
        threading.Timer(2.0, advance, [checkpoint]).start()
        assert pond[TABLE].get(k="a", bounds=Bounds(min_batch=2, wait_seconds=60)).batch == 2
        # Reads wait for a job that runs, or of which nothing is known.
        folder.write_heartbeat("running")
        wait_until(lambda: pond.statistics()[next(iter(pond.statistics()))]["job_state"] == "running", "the news that the job runs")
        threading.Timer(1.0, advance, [checkpoint]).start()
        assert pond[TABLE].get(k="a", bounds=Bounds(min_batch=3, wait_seconds=60)).batch == 3


def test_a_pond_a_table_and_a_first_batch_that_arent_there_yet_are_waited_for(tmp_path: Path, home: str) -> None:
    steps: list[str] = []

    def arrive() -> None:
        time.sleep(0.5)
        steps.append("pond")
        create_job(tmp_path / "pond", "late", tmp_path / "ck")
        time.sleep(1.0)
        steps.append("checkpoint")
        checkpoint = WrittenCheckpoint(tmp_path / "ck")
        time.sleep(0.5)
        steps.append("batch")
        advance(checkpoint)

    thread = threading.Thread(target=arrive)
    with pytest.raises(MillpondError) as missing:
        millpond.open(tmp_path / "pond", replica_dir=home)
    assert missing.value.condition == "NO_CHECKPOINT"
    thread.start()
    try:
        with millpond.open(tmp_path / "pond", replica_dir=home, wait_seconds=60) as pond:
            assert steps[:1] == ["pond"]
            with pytest.raises(MillpondError) as missing:
                pond.wait_for_table("late.nobody", 0.3)
            assert missing.value.condition == "UNKNOWN_TABLE"
            table = pond.wait_for_table("late.aggregate_0", 60)
            assert table.get(k="a", bounds=Bounds(wait_seconds=60)).batch == 0
    finally:
        thread.join()


@pytest.mark.long
def test_a_table_whose_first_batch_isnt_there_is_waited_for(tmp_path: Path, home: str) -> None:
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    folder = create_beside(tmp_path / "ck")
    folder.write_definition(defined_as(tmp_path, "named"))
    with millpond.open(tmp_path / "ck", replica_dir=home) as pond:
        with pytest.raises(MillpondError) as missing:
            pond["named"].get(k="a")
        assert missing.value.condition == "NO_COMMITTED_BATCH"
        threading.Timer(1.0, advance, [checkpoint]).start()
        row = pond["named"].get(k="a", bounds=Bounds(wait_seconds=60))
        assert row is not None
        assert row.batch == 0


@pytest.mark.long
def test_a_table_whose_checkpoint_isnt_begun_is_waited_for(tmp_path: Path, home: str) -> None:
    pond_dir = tmp_path / "pond"
    folder = create_job(pond_dir, "late", tmp_path / "ck")
    folder.write_definition(defined_as(tmp_path, "late"))
    with millpond.open(pond_dir, replica_dir=home, allow=[tmp_path]) as pond:

        def condition(bounds: Bounds) -> str:
            with pytest.raises(MillpondError) as missing:
                pond["late"].get(k="a", bounds=bounds)
            return missing.value.condition

        wait_until(lambda: condition(Bounds()) == "NO_CHECKPOINT", "the table without a checkpoint")
        assert condition(Bounds(wait_seconds=0.3)) == "NO_CHECKPOINT"
        threading.Timer(1.0, lambda: advance(WrittenCheckpoint(tmp_path / "ck"))).start()
        assert pond["late"].get(k="a", bounds=Bounds(wait_seconds=60)).batch == 0


def defined_as(path: Path, table: str) -> TableDefinition:
    """The definition of such a checkpoint's table, with another name."""
    job(path / "other")
    with millpond.open(path / "other" / "ck", replica_dir="memory://") as pond:
        return dataclasses.replace(pond[TABLE].definition, table=table)
