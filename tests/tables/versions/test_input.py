"""What two jobs have read, compared, against the sets of records and files that they have read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from millpond.catalogue import read_catalogue
from millpond.errors import MillpondError
from millpond.ownership.lease import leased
from millpond.storage import open_storage
from millpond.storage.places import Places
from millpond.tables.versions.align import plan_align
from millpond.tables.versions.cut_over import plan_cut_over
from millpond.tables.versions.difference import diff_versions
from millpond.tables.versions.input import equal_batches, missing
from millpond.tables.versions.listing import find_version, list_versions
from millpond.versions import begin_name
from millpond.wire.aggregates import version_json
from tables.versions.jobs import KEYS, OF_VERSION, WrittenVersion, log_files


def random_walk(chance: random.Random, batches: int) -> list[dict[str, int]]:
    """Where two partitions of a topic end after each batch."""
    ends, found = {"0": 0, "1": 0}, []
    for _ in range(batches):
        ends = {partition: end + chance.randrange(3) for partition, end in ends.items()}
        found.append(ends)
    return found


def write_job(pond: Path, version: int, ends: list[Any]) -> WrittenVersion:
    job = WrittenVersion(pond, version, lambda batch: [ends[batch]])
    for _ in ends[1:]:
        job.run_batch()
    return job


@pytest.mark.parametrize("seed", range(8))
def test_records_that_one_job_lacks_and_batches_that_end_alike(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    walks = [random_walk(chance, 8) for _ in range(2)]
    jobs = [write_job(tmp_path / "pond", n + 1, [{"events": ends} for ends in walk]) for n, walk in enumerate(walks)]
    places = [open_storage(job.written.path) for job in jobs]
    read = [{(p, n) for p, end in walk[-1].items() for n in range(end)} for walk in walks]
    for one, other in ((0, 1), (1, 0)):
        found = missing(*((places[n], {"0": {"events": walks[n][-1]}}) for n in (one, other)))
        assert (found.records, found.files, found.unknown) == (len(read[one] - read[other]), 0, "")
    pairs = [(a, b) for a, here in enumerate(walks[0]) for b, there in enumerate(walks[1]) if here == there]
    assert equal_batches(*places) == (max(pairs) if pairs else None)


def test_what_the_source_has_and_a_version_hasnt_read_is_known_while_its_job_runs(tmp_path: Path) -> None:
    pond, chance = tmp_path / "pond", random.Random(5)
    walk = random_walk(chance, 6)
    write_job(pond, 1, [{"events": walk[2]}])
    begin_name(pond, "views", 1)
    (folder,) = read_catalogue(pond, Places()).jobs
    read = {(p, n) for p, end in walk[2].items() for n in range(end)}
    written = {(p, n) for p, end in walk[5].items() for n in range(end)}

    def left() -> int | None:
        (version,) = list_versions(pond, "views")
        assert version_json(version).behind_source == version.behind_source
        return version.behind_source

    assert left() is None
    folder.write_heartbeat("running", {"0": {"events": walk[5]}})
    assert left() == len(written - read) > 0
    folder.write_heartbeat("running", {"0": {"events": walk[1]}})  # from before the batch
    assert left() == 0
    folder.write_heartbeat("running")
    assert left() is None
    # Too many partitions for such a file: the job runs all the same.
    folder.write_heartbeat("running", {"0": {"events": {str(n): 10**9 for n in range(10_000)}}})
    assert (left(), folder.job_state()) == (None, "running")
    write_job(pond, 2, [{"events": walk[2]}])
    new = find_version(pond, "views", 2)
    assert "unknown" in plan_cut_over(pond, "views", to=2).describe()
    new.write_heartbeat("running", {"0": {"events": walk[5]}})
    assert f"{len(written - read)} records of the source" in plan_cut_over(pond, "views", to=2).describe()
    folder.write_heartbeat("stopped", {"0": {"events": walk[5]}})
    assert list_versions(pond, "views")[0].behind_source is None


def test_files_and_records_cant_be_compared(tmp_path: Path) -> None:
    """A version that reads files isn't ahead of one that reads a topic, nor behind it."""
    pond = tmp_path / "pond"
    jobs = [write_job(pond, 1, [{"events": {"0": 9}}]), write_job(pond, 2, [{"logOffset": 0}])]
    log_files(jobs[1].written, 0, ["file:///in/0.json"])
    for version in (1, 2):
        begin_name(pond, "views", version)
    ends: list[dict[str, Any]] = [{"0": {"events": {"0": 9}}}, {"0": {"logOffset": 0}}]
    sides = [(open_storage(job.written.path), end) for job, end in zip(jobs, ends, strict=True)]
    for one, other in (sides, sides[::-1]):
        assert "files in one job only" in missing(one, other).unknown
    with pytest.raises(MillpondError) as refused:
        plan_cut_over(pond, "views", to=2)
    assert refused.value.condition == "NOT_ALIGNED"
    # One that has read nothing yet lacks all of it.
    assert missing(sides[1], (sides[0][0], {"0": None})).files == 1


@pytest.mark.parametrize("seed", range(8))
def test_files_are_sets_whatever_the_order_and_the_entries(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    every = [f"file:///in/{n}.json" for n in range(12)]
    logs: list[list[list[str]]] = []
    for _ in range(2):
        order = sorted(every, key=lambda _: chance.random()) if seed % 2 else list(every)
        log = []
        while order:
            size = chance.randrange(1, 4)
            log.append(order[:size])
            order = order[size:]
        logs.append(log[: chance.randrange(2, len(log) + 1)])
    jobs = [write_job(tmp_path / "pond", n + 1, [{"logOffset": b} for b in range(len(log))]) for n, log in enumerate(logs)]
    for job, log in zip(jobs, logs, strict=True):
        for entry, paths in enumerate(log):
            log_files(job.written, entry, paths)
    places = [open_storage(job.written.path) for job in jobs]
    read = [[{path for paths in log[: n + 1] for path in paths} for n in range(len(log))] for log in logs]
    for one, other in ((0, 1), (1, 0)):
        found = missing(*((places[n], {"0": {"logOffset": len(logs[n]) - 1}}) for n in (one, other)))
        assert found.files == len(read[one][-1] - read[other][-1])
    pairs = [(a, b) for a, here in enumerate(read[0]) for b, there in enumerate(read[1]) if here == there]
    assert equal_batches(*places) == (max(pairs) if pairs else None)


def test_offsets_that_mean_something_in_one_job_only_are_refused_unless_forced(tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    for version in (1, 2):
        write_job(pond, version, [5, 6])
        begin_name(pond, "views", version)
    for options in ({}, {"max_changed": 1.0}):
        with pytest.raises(MillpondError) as error:
            plan_cut_over(pond, "views", to=2, **options)
        assert error.value.condition == "NOT_ALIGNED"
    plan = plan_cut_over(pond, "views", to=2, max_changed=1.0, force=True)
    assert len(plan.overruled) == 2
    assert plan.run().current == 2


def test_a_version_that_is_behind_waits_or_is_refused(tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    write_job(pond, 1, [{"events": {"0": 10}}, {"events": {"0": 30}}])
    begin_name(pond, "views", 1)
    ends = [{"events": {"0": 10}}, {"events": {"0": 35}}]
    job = WrittenVersion(pond, 2, lambda batch: [ends[batch]])
    with pytest.raises(MillpondError) as error:
        plan_cut_over(pond, "views", to=2, wait_seconds=0.3)
    assert (error.value.condition, error.value.context["records"]) == ("VERSION_BEHIND", 20)
    assert plan_cut_over(pond, "views", to=2, max_behind=20).behind.records == 20
    assert plan_cut_over(pond, "views", to=2, force=True).overruled
    found = diff_versions(pond, "views", 1, 2)
    assert (found.left.batch, found.right.batch, found.table.counts.changed) == (0, 0, KEYS)
    (column,) = found.columns
    assert column.p50 == column.most == pytest.approx(OF_VERSION / (2 * OF_VERSION))
    job.run_batch()
    plan_cut_over(pond, "views", to=2).run()
    with pytest.raises(MillpondError) as error:  # and so is the way back
        plan_cut_over(pond, "views", to=1)
    assert (error.value.condition, error.value.context["records"]) == ("VERSION_BEHIND", 5)


def test_a_stopped_version_gets_a_batch_that_ends_where_the_current_one_ends(tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    write_job(pond, 1, [{"events": {"0": 10}}, {"events": {"0": 30}}])
    begin_name(pond, "views", 1)
    ends = [{"events": {"0": 4}}, {"events": {"0": 30}}]
    job = WrittenVersion(pond, 2, lambda batch: [ends[batch]])
    plan, late = plan_align(pond, "views", 2), plan_align(pond, "views", 2)
    assert plan.reads.records == 26
    with leased(open_storage(pond / "jobs" / "views.v2"), "a job"), pytest.raises(MillpondError) as error:
        plan.run()
    assert error.value.condition == "CHECKPOINT_IN_USE"
    assert plan.run() == 1
    assert json.loads((job.written.path / "offsets" / "1").read_text().split("\n")[2]) == ends[1]
    with pytest.raises(MillpondError) as error:
        plan_align(pond, "views", 2)
    assert (error.value.condition, "planned already" in error.value.message) == ("NOT_ALIGNED", True)
    job.run_batch()
    assert diff_versions(pond, "views", 1, 2).right.batch == 1
    with pytest.raises(MillpondError) as error:  # it has gone on since that plan
        late.run()
    assert error.value.condition == "NOT_ALIGNED"
    assert plan_align(pond, "views", 2).run() is None
