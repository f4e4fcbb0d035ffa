"""A job in a bucket is measured there, its samples are kept there, and what that costs is known."""

from __future__ import annotations

from collections import Counter

import millpond
from millpond.catalogue import create_job, find_job
from millpond.operate.measure import JobMeter
from millpond.operate.sample_log import SampleLog, newest_sample, read_samples
from millpond.settings import SampleSettings
from millpond.storage import open_storage
from servers.s3 import QUICK
from spark_files.checkpoint import UploadedCheckpoint

SETTINGS = SampleSettings(sample_seconds=0, remote_sizes_seconds=0, share=1e9)


def test_a_job_in_a_bucket(place: str) -> None:
    pond = place.removesuffix("/ck") + "/pond"
    folder = create_job(pond, "views")
    job = UploadedCheckpoint(open_storage(folder.checkpoint))
    for batch in range(3):
        job.batch([(f"k{key}", batch) for key in range(4)], snapshot=batch == 1)
    found = find_job(pond, "views")
    meter, log = JobMeter(found, SETTINGS), SampleLog(found, SETTINGS)
    first = meter.look()
    assert first.problem is None
    loaded = Counter(dict.fromkeys(range(2), 0))
    for partition in loaded:
        sizes = job.storage.sizes(f"state/0/{partition}")
        loaded[partition] = sizes["2.snapshot"] + sizes["3.delta"]
    (size,) = first.operators
    assert (size.state_bytes, size.largest_bytes) == (sum(loaded.values()), max(loaded.values()))
    assert log.add(first)
    job.batch([("k1", 9)])
    second = meter.look()
    assert (second.batch, second.batches) == (3, 1)
    assert log.add(second)
    assert read_samples(pond, "views") == [first, second]
    assert newest_sample(found) == second


def test_a_sample_of_an_idle_job_makes_few_requests(place: str) -> None:
    pond = place.removesuffix("/ck") + "/pond"
    folder = create_job(pond, "views")
    job = UploadedCheckpoint(open_storage(folder.checkpoint))
    job.batch([("k", 1)])
    found = find_job(pond, "views")
    meter, log = JobMeter(found), SampleLog(found, SETTINGS)
    log.add(meter.look())
    meters, logs = meter.requests, log.requests
    log.add(meter.look())
    assert sum(meter.requests.values()) - sum(meters.values()) <= 6
    assert sum(log.requests.values()) - sum(logs.values()) <= 6


def test_a_sample_has_what_the_replica_asked_of_the_bucket(place: str) -> None:
    job = UploadedCheckpoint(open_storage(place))
    job.batch([("k", 1)])
    with millpond.open(place, replica_dir="memory://", settings=QUICK) as pond:
        meter = JobMeter(find_job(place, None), SETTINGS)
        first = meter.look(followed=pond.statistics()["ck"])
        assert first.apply_seconds is None
        for number in range(3):
            job.batch([("k", number), ("kk", number)])
        pond.catch_up(60)
        before = pond.statistics()["ck"]
        second = meter.look(followed=before)
        after = pond.statistics()["ck"]
    assert first.store_requests is not None
    assert second.store_requests is not None
    assert second.store_requests > first.store_requests > 0
    assert second.store_requests == sum(number for kind, number in before["requests"].items() if kind != "retried")
    assert second.store_bytes == before["transferred"]["read_bytes"] + before["transferred"]["written_bytes"]
    assert second.apply_seconds == before["apply_seconds"] / before["batches_applied"]
    assert after["transferred"]["read_bytes"] >= sum(job.storage.sizes("state/0/0").values())
    assert meter.look().store_requests is None
