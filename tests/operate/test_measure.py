"""What is measured of a job is what its files say: of every golden checkpoint, and of batches whose times are given."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from millpond.catalogue import find_job
from millpond.checkpoint.log import newest_committed, planned_batches, read_batch
from millpond.checkpoint.restart_files import restart_files
from millpond.operate.measure import JobMeter
from millpond.settings import SampleSettings
from millpond.storage import open_storage
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import CELLS, GOLDEN

ALWAYS = SampleSettings(sizes_seconds=0, share=1e9)


def meter_of(place: Path) -> JobMeter:
    return JobMeter(find_job(place, None), ALWAYS)


@pytest.mark.parametrize("cell", CELLS)
def test_a_golden_checkpoint(cell: str) -> None:
    """The state's bytes are those of the files that a restart needs, which Spark itself has shown elsewhere."""
    place = GOLDEN / cell / "checkpoint"
    storage = open_storage(place)
    batch = read_batch(storage, newest_committed(storage))
    sample = meter_of(place).look()
    assert (sample.batch, sample.watermark_ms, sample.problem) == (batch.batch, batch.watermark_ms, None)
    assert (sample.waiting_seconds is None) == (planned_batches(storage)[-1] == batch.batch)

    state: Counter[tuple[int, int]] = Counter()
    for file in restart_files(storage, batch):
        if file.partition is not None:
            operator, _, partition = file.partition
            state[operator, partition] += (place / file.path).stat().st_size
    for size in sample.operators:
        mine = {partition: found for (operator, partition), found in state.items() if operator == size.operator}
        assert size.state_bytes == sum(mine.values()) > 0
        assert size.largest_bytes == max(mine.values()) == mine[size.largest_partition]
        assert size.partitions == len(mine)
        assert 0 < size.median_bytes <= size.largest_bytes
        changes = [
            file for file in (place / f"state/{size.operator}").rglob("*")
            if file.suffix in (".delta", ".changelog") and file.name.split(".")[0].split("_")[0] == str(batch.batch + 1)
        ]  # fmt: skip
        assert size.changed_bytes == sum(file.stat().st_size for file in changes)
    assert {size.operator for size in sample.operators} == {operator for operator, _ in state}
    kept = [file for file in (place / "state").rglob("*") if file.is_file() and not file.name.startswith((".", "_"))]
    assert sample.checkpoint_bytes == sum(file.stat().st_size for file in kept if not any(p.startswith("_") for p in file.parts))


def test_how_long_batches_took(tmp_path: Path) -> None:
    """Of all batches between two looks the longest counts; a batch that is planned only, waits."""
    draw, job = random.Random(3), WrittenCheckpoint(tmp_path / "job")
    meter, took = None, list[float]()
    for look in range(12):
        count = draw.randrange(4) if look else 1
        new = []
        for _ in range(count):
            job.clock = int(time.time() * 1000) - 20_000
            job.plan([(f"k{draw.randrange(9)}", draw.randrange(99))], snapshot=draw.random() < 0.2)
            os.utime(job.path / f"offsets/{job.next_batch}", (job.clock / 1000, job.clock / 1000))
            new.append(draw.randrange(1, 15_000) / 1000)
            job.commit(at=job.clock / 1000 + new[-1])
        took += new
        meter = meter or meter_of(job.path)
        sample = meter.look()
        assert sample.batch == job.next_batch - 1
        assert sample.batch_seconds == pytest.approx(took[-1], abs=2e-3)
        assert sample.batches == (count if look else 0)
        assert sample.longest_batch_seconds == (pytest.approx(max(new), abs=2e-3) if new else None)
        assert sample.waiting_seconds is None
        assert sample.age_seconds == pytest.approx((sample.at_ms - job.clock) / 1000 - took[-1], abs=2e-3)

    job.clock = int(time.time() * 1000) - 5_000
    job.plan([("k", 1)], snapshot=False)
    assert meter is not None
    waiting = meter.look().waiting_seconds
    assert waiting is not None
    assert waiting >= 5 - 0.01


def test_a_job_that_hasnt_committed_yet(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    meter = meter_of(job.path)
    sample = meter.look()
    assert (sample.batch, sample.operators, sample.state_bytes, sample.problem) == (None, (), None, None)
    job.plan([("k", 1)], snapshot=False)
    assert meter.look().waiting_seconds is not None
    job.commit()
    sample = meter.look()
    assert (sample.batch, sample.waiting_seconds, len(sample.operators)) == (0, None, 1)


def test_a_job_that_began_anew_in_the_same_folder(tmp_path: Path) -> None:
    def begun(name: str, batches: int) -> None:
        job = WrittenCheckpoint(tmp_path / "job", name)
        for batch in range(batches):
            job.plan([(f"k{batch}", batch)], snapshot=False)
            job.commit()

    begun("job-1", 5)
    meter = meter_of(tmp_path / "job")
    meter.look()
    shutil.rmtree(tmp_path / "job")
    begun("job-2", 2)
    sample = meter.look()
    assert (sample.batch, sample.batches, sample.problem) == (1, 0, None)
    size = sum(os.stat(file).st_size for file in (tmp_path / "job/state").rglob("*.delta"))
    assert sample.state_bytes == size


def test_damage_is_named_and_what_was_known_stays(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    for batch in range(2):
        job.plan([("k", batch)], snapshot=True)
        job.commit()
    meter = meter_of(job.path)
    before = meter.look()
    job.plan([("k", 9)], snapshot=False)
    job.commit()
    (job.path / "commits/2").write_bytes(b"v1\n{")
    sample = meter.look()
    assert sample.problem in ("CORRUPT_FILE", "INCOMPLETE_FILE")
    assert (sample.batch, sample.operators) == (1, before.operators)
    job.write("commits/2", b'v1\n{"nextBatchWatermarkMs":0}')
    sample = meter.look()
    assert (sample.batch, sample.problem, sample.batches) == (2, None, 1)


def test_sizes_are_looked_at_less_often_than_the_log(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("k", 1)], snapshot=False)
    job.commit()
    meter = JobMeter(find_job(job.path, None), SampleSettings(sizes_seconds=1000))
    first = meter.look()
    job.plan([("l", 1)], snapshot=False)
    job.commit()
    second = meter.look()
    assert (first.batch, second.batch) == (0, 1)
    assert second.sized_ms == first.sized_ms
    assert second.operators == first.operators
