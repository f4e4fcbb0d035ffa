"""Samples of several watchers are all kept, for as long as they should be, and damage loses nothing else."""

from __future__ import annotations

import datetime as dt
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import millpond
from millpond.catalogue import JobFolder, create_job, find_job
from millpond.errors import RequestError
from millpond.operate.sample import OperatorSize, Sample
from millpond.operate.sample_log import SampleLog, newest_sample, read_samples, samples_of
from millpond.settings import SampleSettings
from spark_files.checkpoint import WrittenCheckpoint

HOUR = 3_600_000
BEGIN = 1_790_000_000_000
EACH = SampleSettings(sample_seconds=0)


def sample(at_ms: int, batch: int = 0) -> Sample:
    size = OperatorSize(
        operator=0, name="stateStoreSave", partitions=3, state_bytes=9, changed_bytes=1, largest_partition=2, largest_bytes=5,
        median_bytes=2,
    )  # fmt: skip
    return Sample(at_ms=at_ms, job_state="running", batch=batch, operators=(size,), sized_ms=at_ms)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return create_job(tmp_path / "pond", "job")


def test_ranges_over_hours(folder: JobFolder) -> None:
    draw, log = random.Random(4), SampleLog(folder, EACH)
    times = sorted(draw.sample(range(BEGIN, BEGIN + 6 * HOUR), 80))
    for number, at in enumerate(times):
        assert log.add(sample(at, number))
    assert samples_of(folder) == [sample(at, number) for number, at in enumerate(times)]
    assert newest_sample(folder) == sample(times[-1], 79)
    assert len(folder.storage.names("samples")) in (6, 7)
    for _ in range(60):
        start, end = sorted(draw.randrange(BEGIN - HOUR, BEGIN + 7 * HOUR) for _ in range(2))
        expected = [sample(at, number) for number, at in enumerate(times) if start <= at < end]
        assert samples_of(folder, start, end) == expected
        moments = [dt.datetime.fromtimestamp(ms / 1000, dt.UTC) for ms in (start, end)]
        pond = folder.storage.uri.removesuffix("/jobs/job")
        assert read_samples(pond, "job", start=moments[0], end=moments[1]) == expected


def test_several_watchers_at_once_lose_nothing(folder: JobFolder) -> None:
    logs, added = [SampleLog(folder, EACH) for _ in range(4)], list[int]()
    lock = threading.Lock()

    def write(number: int) -> None:
        for step in range(25):
            at = BEGIN + step * 1000 + number
            if logs[number].add(sample(at)):
                with lock:
                    added.append(at)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.at_ms for found in samples_of(folder)] == sorted(added)
    assert len(added) >= 25


def test_two_watchers_share_the_work(folder: JobFolder) -> None:
    """The second one's sample comes too soon after the first one's."""
    one, other = (SampleLog(folder, SampleSettings(sample_seconds=60)) for _ in range(2))
    assert one.add(sample(BEGIN))
    assert not other.add(sample(BEGIN + 20_000))
    assert other.add(sample(BEGIN + 60_000))
    assert not one.add(sample(BEGIN + 61_000))
    assert [found.at_ms for found in samples_of(folder)] == [BEGIN, BEGIN + 60_000]


def test_old_samples_go(folder: JobFolder) -> None:
    log = SampleLog(folder, replace(EACH, days=1 / 6))
    for hour in range(12):
        log.add(sample(BEGIN + hour * HOUR))
    newest = BEGIN + 11 * HOUR
    assert [found.at_ms for found in samples_of(folder)] == [newest - hour * HOUR for hour in range(4, -1, -1)]


def test_damage_loses_only_what_it_hits(folder: JobFolder) -> None:
    log = SampleLog(folder, EACH)
    for second in range(5):
        log.add(sample(BEGIN + second * 1000))
    path = folder.storage.local_path(f"samples/{folder.storage.names('samples')[0]}")
    assert path is not None
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"at_ms": "soon"}\n\xff\xfe\n' + lines[2] + lines[3][:20])
    log.add(sample(BEGIN + 9000))
    assert [found.at_ms for found in samples_of(folder)] == [BEGIN, BEGIN + 2000, BEGIN + 9000]
    (path.parent / "notes.txt").write_text("of somebody else")
    (path.parent / "2026-99-99T99.jsonl").write_text("no time")
    assert len(samples_of(folder)) == 3


def test_a_checkpoint_without_a_pond_has_them_in_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    job = WrittenCheckpoint(tmp_path / "checkpoint")
    job.plan([("k", 1)], snapshot=False)
    job.commit()
    before = {file for file in tmp_path.rglob("*") if "home" not in file.parts}
    SampleLog(find_job(job.path, None), EACH).add(sample(BEGIN))
    assert millpond.read_samples(job.path) == [sample(BEGIN)]
    assert {file for file in tmp_path.rglob("*") if "home" not in file.parts} == before


def test_a_moment_without_a_time_zone_is_refused(folder: JobFolder) -> None:
    pond = folder.storage.uri.removesuffix("/jobs/job")
    with pytest.raises(RequestError, match="time zone"):
        read_samples(pond, start=dt.datetime(2026, 1, 1))
