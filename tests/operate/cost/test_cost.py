"""What a job costs is what its samples, its log and its files say, times the prices; what nobody measured isn't in it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import millpond
from millpond.catalogue import create_job, find_job
from millpond.checkpoint.log import newest_committed, read_batch
from millpond.errors import RequestError
from millpond.operate.cost.cost import cost_of
from millpond.operate.cost.files import count_files
from millpond.operate.cost.prices import read_prices, shipped_text, write_prices
from millpond.operate.cost.usage import Measured
from millpond.operate.sample import Sample
from millpond.operate.sample_log import SampleLog
from millpond.replica.folder import FollowerStatus, ReplicaPlace
from millpond.settings import SampleSettings
from millpond.storage import open_storage
from oracles.ends import ends_of
from spark_files.checkpoint import UploadedCheckpoint, WrittenCheckpoint
from spark_files.golden import CELLS, GOLDEN

MONTH = 730 * 3600
GIB = 1 << 30
EVERY = SampleSettings(sample_seconds=0)


@pytest.mark.parametrize("cell", CELLS)
def test_the_files_of_a_golden_checkpoint(cell: str) -> None:
    """Bytes and files are those on disk; a batch writes as many as there are for each version, in the mean."""
    place = GOLDEN / cell / "checkpoint"
    storage = open_storage(place)
    batch = read_batch(storage, newest_committed(storage))
    found = count_files(storage, batch)
    there = [f for f in (place / "state").rglob("*") if f.is_file() and not any(p[0] in "._" for p in f.relative_to(place).parts)]
    assert (found.files, found.bytes) == (len(there), sum(file.stat().st_size for file in there))
    assert found.is_format_2 == bool(batch.state_ids)
    assert found.partitions == len({file.parent for file in there if file.parent.name != "SSTs"})
    is_changed = batch.settings.provider == "hdfs" or any(file.suffix == ".changelog" for file in there)
    assert found.change_files <= found.partitions
    # Spark writes a change file in each partition in each batch, but for one in which partitions begin anew.
    assert (found.change_files > found.partitions * 0.9) == is_changed
    assert found.a_batch >= found.partitions


def test_files_a_batch_of_random_jobs(tmp_path: Path) -> None:
    """As many as were written, also after Spark has cleaned up; of any number of partitions."""
    draw = random.Random(4)
    for number in range(12):
        partitions, batches = draw.randrange(1, 5), draw.randrange(2, 40)
        job = WrittenCheckpoint(tmp_path / str(number), partitions=partitions)
        snapshots = []
        for batch in range(batches):
            snapshots.append(batch > 0 and draw.random() < 0.2)
            job.plan([(f"k{draw.randrange(50)}", batch)], snapshot=snapshots[-1])
            job.commit()
        storage = open_storage(job.path)
        found = count_files(storage, read_batch(storage, newest_committed(storage)))
        assert found.versions == batches - 1
        assert found.change_files == partitions
        assert found.snapshots == pytest.approx(partitions * sum(snapshots) / (batches - 1))
        assert (found.ssts, found.partitions, found.single) == (0, partitions, 0)
        if sum(snapshots[:-1]):
            job.clean(keep=2)
            assert count_files(storage, read_batch(storage, newest_committed(storage))).change_files == partitions


def test_a_cost_is_what_was_measured_times_the_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random samples of a job, and random prices."""
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    draw = random.Random(7)
    job = WrittenCheckpoint(tmp_path / "pond/jobs/views/checkpoint", "views")
    create_job(tmp_path / "pond", "views")
    for batch in range(3):
        job.plan([("k", batch), ("ll", 1)], snapshot=False)
        job.commit()
    folder = find_job(tmp_path / "pond", "views")
    log, begin = SampleLog(folder, EVERY), time.time() - 5 * 3600
    batch = first = 100
    sizes = []
    for number in range(100):
        # A server that was down has missed batches, and counts none.
        batch += draw.randrange(5) if number else 0
        sizes.append(draw.randrange(GIB))
        sample = Sample(at_ms=int((begin + number * 120) * 1000), job_state="running", batch=batch, checkpoint_bytes=sizes[-1])
        log.add(sample)
    text = (
        shipped_text()
        .replace("gib_month = 0.023", "gib_month = 0.5\ncopies = 2")
        .replace("0.005", "0.25")
        .replace("0.0004", "0.125")
    )
    (tmp_path / "prices.toml").write_text(text)
    found = millpond.read_cost(tmp_path / "pond", "views", prices=tmp_path / "prices.toml", storage="s3-standard")
    a_month = (batch - first) / (99 * 120) * MONTH
    files, puts, gets = found.lines
    assert (files.known, puts.known, gets.known) == ("measured", "estimate", "estimate")
    assert files.quantity == pytest.approx(sum(sizes) / len(sizes) * 2 / GIB)
    assert files.cost == pytest.approx(files.quantity * 0.5)
    assert f"{batch - first} batches in" in Measured(folder, None).batches.source  # type: ignore[union-attr]
    # Two deltas a batch, and two entries of logs; two partitions are looked at each minute.
    assert puts.quantity * 1000 == pytest.approx(a_month * (2 * 11 + 2 * 12) + 2 * 2 * MONTH / 60)
    assert gets.quantity * 1000 == pytest.approx(a_month * (2 * 12 + 2 * 13))
    assert (puts.price, gets.price) == (0.25, 0.125)
    assert found.a_month == pytest.approx(sum(line.quantity * line.price for line in found.lines))
    assert [sentence.split(":")[0] for sentence in found.unknown] == ["Disks of replicas"]


def test_what_nobody_measured_is_missing_and_named(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of one batch, in a bucket, without samples, followers and replicas; then with a follower that counts its requests."""
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    job = UploadedCheckpoint(open_storage(place), "job-1")
    job.batch([("a", 0), ("bb", 0)])
    found = millpond.read_cost(place)
    assert (found.storage, [line.what for line in found.lines]) == ("s3-standard", ["state files"])
    assert [sentence.split(":")[0] for sentence in found.unknown] == [
        "Batches a month", "Requests of followers", "Disks of replicas",
    ]  # fmt: skip
    replica = ReplicaPlace(tmp_path / "home", find_job(place, None).checkpoint)
    replica.prepare()
    now = time.time()
    status = FollowerStatus(requests={"list": 30, "head": 600, "get": 90, "retried": 4}, started_at=now - 599, looked_at=now)
    replica.write_status(status)
    assert not any("followers" in line.what for line in millpond.read_cost(place).lines)
    status.started_at = now - 900
    replica.write_status(status)
    lines = {line.what: line for line in millpond.read_cost(place).lines}
    assert lines["followers: PUT, COPY, LIST"].quantity == pytest.approx(30 / 900 * MONTH / 1000)
    assert lines["followers: GET, HEAD"].quantity == pytest.approx(690 / 900 * MONTH / 1000)
    assert lines["followers: GET, HEAD"].known == "measured"
    assert lines["replicas"].known == "measured"


def test_a_follower_says_what_it_asked(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its status, for whoever asks from another process; the replica's disk is that of its files."""
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    job = UploadedCheckpoint(open_storage(place), "job-1")
    for number in range(3):
        job.batch([("a", number)])
    before = time.time()
    with millpond.open(place) as pond:
        pond.catch_up(60)
        (replica,) = ReplicaPlace.all_of(tmp_path / "home", find_job(place, None).checkpoint)
        status = replica.read_status()
        (asked,) = pond.statistics().values()
        assert status is not None
        assert 0 < sum(status.requests.values()) <= sum(asked["requests"].values())
        assert before <= status.started_at <= time.time()
    disk = sum(file.stat().st_blocks * 512 for file in replica.path.rglob("*") if file.is_file())
    (line,) = (line for line in millpond.read_cost(place).lines if line.what == "replicas")
    assert line.quantity == pytest.approx(disk / GIB)


BAD = {
    "": "as_of",
    "as_of = yesterday": "",
    shipped_text().replace("gib_month = 0.045", "gib_month = -1"): "gib_month of storage.hdfs is -1",
    shipped_text().replace("put_per_1000 = 0.005", "put_per_1000 = nan"): "put_per_1000 of storage.s3-standard is nan",
    shipped_text().replace("copies = 3", "copies = 0"): "copies of storage.hdfs is 0",
    shipped_text().replace('file = "local-ssd"', 'file = "tape"'): "places.file names the storage 'tape'",
    shipped_text().replace("[replica]\nstorage", "[replica]\ndisk"): "`disk`",
    shipped_text() + '\n[storage.x]\ngib_month = "much"': "gib_month",
    shipped_text() + "\n[storage.x]\ngib_month = 1\nget_per_100 = 1": "get_per_100",
}


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(RequestError) as caught:
        read_prices(path)
    assert caught.value.condition == "INVALID_CONFIG"
    assert BAD[text] in caught.value.message


LIMITED = """
import resource, sys
from millpond.errors import MillpondError
from millpond.operate.cost.prices import write_prices

resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for path in sys.argv[1:]:
    try:
        write_prices(path)
    except MillpondError as refused:
        print(refused.condition)
"""


def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """The system takes no more than 100 bytes; a file that is there stays as it is."""
    there, new = tmp_path / "there.toml", tmp_path / "new.toml"
    there.write_text("mine")
    command = [sys.executable, "-c", LIMITED, str(new), str(there)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["NOT_WRITABLE", "NOT_WRITABLE"], done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there.toml"]
    with pytest.raises(RequestError, match="is there already"):
        write_prices(there)
    assert there.read_text() == "mine"
    assert sorted(map(str, ends_of([lambda: write_prices(new)] * 8))) == ["INVALID_REQUEST"] * 7 + ["None"]
    assert new.read_text() == shipped_text()


def test_a_storage_that_the_table_doesnt_have(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("k", 1)], snapshot=False)
    job.commit()
    with pytest.raises(RequestError, match="no storage 'tape'"):
        cost_of(find_job(job.path, None), read_prices(), storage="tape")
    prices = msgspec.structs.replace(read_prices(), places={})
    with pytest.raises(RequestError, match="what storage file: is"):
        cost_of(find_job(job.path, None), prices)


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    """In words, in JSON, and with an edited table."""
    for name in ("hits", "views"):
        create_job(tmp_path / "pond", name)
        job = WrittenCheckpoint(tmp_path / f"pond/jobs/{name}/checkpoint", name)
        for batch in range(5):
            job.clock += 60_000
            job.plan([("k", batch)], snapshot=False)
            job.commit()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "millpond.cli", "cost", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)

    done = run("pond")
    assert (done.returncode, done.stdout.count("a month on local-ssd, by prices of AWS us-east-1")) == (0, 2)
    assert done.stderr.count("Not in it: Disks of replicas") == 2
    wrote = run("--write-prices", "mine.toml")
    assert (wrote.returncode, read_prices(tmp_path / "mine.toml")) == (0, read_prices())
    again = run("--write-prices", "mine.toml")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    (tmp_path / "mine.toml").write_text(shipped_text().replace('"USD"', '"EUR"'))
    done = run("pond", "views", "--prices", "mine.toml", "--storage", "hdfs", "--json")
    found = json.loads(done.stdout)
    assert (found["job"], found["currency"], found["storage"]) == ("views", "EUR", "hdfs")
    assert [line["what"] for line in found["lines"]] == ["state files, 3 copies"]
    for words, condition in (
        ((), "INVALID_REQUEST"),
        (("pond", "--prices", "no.toml"), "FILE_MISSING"),
        (("pond", "--storage", "tape"), "INVALID_REQUEST"),
        (("pond", "--last", "soon"), "INVALID_REQUEST"),
        (("pond", "nobody"), "INVALID_REQUEST"),
    ):
        wrong = run(*words)
        assert (wrong.returncode != 0, f"[{condition}]" in wrong.stderr) == (True, True), wrong.stderr
