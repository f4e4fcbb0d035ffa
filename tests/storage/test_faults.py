"""Faults of object stores: throttling, silence, dropped connections, listings that lag.  All over real sockets.

A proxy stands between Millpond and an S3 server; the job writes past it.  The oracle is the job's own output.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import millpond
from millpond.errors import MillpondError, StorageError
from millpond.storage import open_storage
from servers.proxy import Faults, proxy
from servers.s3 import QUICK, delete, environment, moto_server, use
from spark_files.checkpoint import UploadedCheckpoint
from suite.programs import started
from suite.sizes import a_few
from suite.waiting import stays, wait_until

TABLE = "ck.aggregate_0"


@pytest.fixture
def faults(job: UploadedCheckpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Let this process use a faulty proxy from now on.  Requests are given up after a minute, not sooner on a busy machine."""
    with proxy(moto_server()) as (url, made):
        use(monkeypatch, url)
        monkeypatch.setenv("MILLPOND_REQUEST_SECONDS", "60")
        yield made


@pytest.fixture
def pond(job: UploadedCheckpoint, place: str, faults: Faults) -> Iterator[millpond.Pond]:
    with millpond.open(place, replica_dir="memory://", settings=QUICK) as opened:
        yield opened


def statistics(pond: millpond.Pond) -> dict[str, object]:
    return pond.statistics()["ck"]


# ---------------------------------------------------------------- one request


# Possible faults of each kind of request; answers to `stamp` and `write` have no body that could be cut.
PASSING = {kind: [503, 500, 429, "drop", "hang"] for kind in ("read", "stamp", "names", "write")}
PASSING["read"].append("cut")
PASSING["names"].append("cut")


@pytest.mark.parametrize(("kind", "fault"), a_few([(kind, fault) for kind, faults in PASSING.items() for fault in faults], 8))
def test_a_request_that_fails_twice_is_answered_all_the_same(
    job: UploadedCheckpoint, place: str, faults: Faults, monkeypatch: pytest.MonkeyPatch, kind: str, fault: int | str
) -> None:
    if fault == "hang":
        monkeypatch.setenv("MILLPOND_REQUEST_SECONDS", "1")
    storage = open_storage(place)
    faults.hang_seconds = 1.2
    left = [2 if fault != "hang" else 1]

    def fail(method: str, path: str) -> int | str | None:
        left[0] -= 1
        return fault if left[0] >= 0 else None

    faults.before = fail
    calls = {
        "read": lambda: storage.read("commits/0", 1 << 20) == job.storage.read("commits/0", 1 << 20),
        "stamp": lambda: storage.stamp("commits/0") == job.storage.stamp("commits/0"),
        "names": lambda: storage.names("commits") == ["0"],
        "write": lambda: storage.write("new", b"1") is None and job.storage.read("new", 1 << 20) == b"1",
    }
    assert calls[kind]()
    if fault == "hang":
        assert storage.requests["retried"] >= 1  # on a busy machine the next request may take a second as well
    else:
        assert storage.requests["retried"] == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "condition", "requests"),
    a_few(
        [
            (503, "STORAGE_UNAVAILABLE", 5),
            ("drop", "STORAGE_UNAVAILABLE", 5),
            (403, "ACCESS_DENIED", 1),
            (401, "ACCESS_DENIED", 1),
            (400, "STORAGE_UNAVAILABLE", 1),
        ],
        2,
    ),
)
def test_what_doesnt_pass_is_told_after_a_bounded_number_of_requests(
    job: UploadedCheckpoint, place: str, faults: Faults, fault: int | str, condition: str, requests: int
) -> None:
    storage = open_storage(place)
    faults.before = lambda method, path: fault
    for call in (lambda: storage.read("commits/0", 1 << 20), lambda: storage.stamp("commits/0"), lambda: storage.names("commits")):
        before = faults.count()
        with pytest.raises(StorageError) as caught:
            call()
        assert caught.value.condition == condition
        assert place in caught.value.message
        assert caught.value.hint
        assert faults.count() - before == requests


def test_an_address_where_nobody_listens(job: UploadedCheckpoint, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(StorageError) as caught:
        millpond.open(place, replica_dir="memory://")
    assert caught.value.condition == "STORAGE_UNAVAILABLE"
    assert "AWS_ENDPOINT_URL" in caught.value.hint


@pytest.mark.long
def test_requests_and_bytes_are_those_that_the_network_saw(job: UploadedCheckpoint, place: str, faults: Faults) -> None:
    chance, storage = random.Random(5), open_storage(place)
    read = written = 0
    left = [0]

    def fail(method: str, path: str) -> int | None:
        left[0] -= 1
        return 503 if left[0] >= 0 else None

    faults.before = fail
    for number in range(12):
        left[0] = chance.randrange(3)
        data = bytes(chance.randrange(5000))
        storage.write(f"file {number}", data)
        assert storage.read(f"file {number}", 1 << 20) == data
        storage.stamp(f"file {number}")
        storage.names()
        read, written = read + len(data), written + len(data)
    assert storage.create("file 0", b"other") is False
    assert storage.replace("file 1", storage.read("file 1", 1 << 20), b"new") is True
    size = storage.stamp("file 1")
    assert size is not None
    requests = storage.requests
    assert requests["retried"] > 0
    assert sum(number for kind, number in requests.items() if kind != "retried") == faults.count()
    assert storage.transferred["written_bytes"] == written + len(b"new")
    assert storage.transferred["read_bytes"] > read


# ---------------------------------------------------------------- a follower


@pytest.mark.long
@pytest.mark.parametrize("seed", [2])
def test_under_all_of_it_every_answer_is_right_for_the_batch_it_names(
    job: UploadedCheckpoint, place: str, faults: Faults, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("MILLPOND_REQUEST_SECONDS", "1")
    with millpond.open(place, replica_dir="memory://", settings=QUICK) as pond:
        check_answers_under_faults(job, pond, faults, random.Random(seed))


def check_answers_under_faults(job: UploadedCheckpoint, pond: millpond.Pond, faults: Faults, chance: random.Random) -> None:
    faults.hang_seconds = 1.1

    def fail(method: str, path: str) -> int | str | None:
        faults.stale = chance.random() < 0.5
        if chance.random() < 0.7:
            return None
        return chance.choice([503, 503, 500, "drop", "drop", "cut", "hang" if chance.random() < 0.1 else 503])

    faults.before = fail
    states = [job.content()]
    for n in range(1, 16):
        changes = [(key, chance.choice([n, n, None])) for key in ("a", "bb", "ccc", "dddd", f"new {n}") if chance.random() < 0.6]
        job.batch(changes, snapshot=n % 10 == 0)
        states.append(job.content())
        for _ in range(10):
            rows = pond[TABLE].scan()
            assert {r["k"]: r["v"] for r in rows} == states[rows.cut.position.batch]
            time.sleep(0.01)
    pond.catch_up(60)
    faults.before = lambda method, path: None
    rows = pond[TABLE].scan()
    assert rows.cut.position.batch == 15
    assert {r["k"]: r["v"] for r in rows} == states[15]
    assert statistics(pond)["bootstraps"] == 1
    assert statistics(pond)["requests"]["retried"] > 10


@pytest.mark.long
def test_a_store_that_is_away_keeps_nobody_from_reading(job: UploadedCheckpoint, pond: millpond.Pond, faults: Faults) -> None:
    faults.before = lambda method, path: "drop"
    wait_until(lambda: statistics(pond)["error"] is not None, "the follower's error")
    assert statistics(pond)["error"]["condition"] == "STORAGE_UNAVAILABLE"
    job.batch([("a", 1)])
    for _ in range(200):
        row = pond[TABLE].get(k="a")
        assert (row["v"], row.batch) == (0, 0)
    # Nobody knows the commits since then, so that time counts as behind.
    wait_until(lambda: pond[TABLE].get(k="a").behind_seconds > QUICK.remote_silence_seconds, "a row that is behind")
    assert pond.ready(max_behind_seconds=0.5)[0] is False
    faults.before = lambda method, path: None
    pond.catch_up(60)
    row = pond[TABLE].get(k="a")
    assert (row["v"], row.batch) == (1, 1)
    assert (statistics(pond)["error"], statistics(pond)["bootstraps"]) == (None, 1)


def test_credentials_that_expire_are_not_taken_for_a_job_that_is_gone(
    job: UploadedCheckpoint, pond: millpond.Pond, faults: Faults
) -> None:
    faults.before = lambda method, path: 403
    wait_until(lambda: statistics(pond)["error"] is not None, "the follower's error")
    assert statistics(pond)["error"]["condition"] == "ACCESS_DENIED"
    assert pond[TABLE].get(k="a")["v"] == 0
    faults.before = lambda method, path: None
    wait_until(lambda: statistics(pond)["error"] is None, "the end of the follower's error")
    assert statistics(pond)["bootstraps"] == 1


def test_a_state_file_that_appears_late_is_waited_for(job: UploadedCheckpoint, place: str, faults: Faults) -> None:
    has_appeared = threading.Event()
    faults.before = lambda method, path: 404 if "/2.delta" in path and not has_appeared.is_set() else None
    settings = replace(QUICK, remote_lag_seconds=600.0)
    with millpond.open(place, replica_dir="memory://", settings=settings) as pond:
        job.batch([("a", 1)])
        wait_until(lambda: statistics(pond)["error"] is not None, "the follower's error")
        assert statistics(pond)["error"]["condition"] == "FILE_GONE"
        assert pond[TABLE].get(k="a").batch == 0
        has_appeared.set()
        pond.catch_up(60)
        assert pond[TABLE].get(k="a")["v"] == 1
        assert statistics(pond)["bootstraps"] == 1


@pytest.mark.long
def test_a_state_file_that_never_appears_ends_in_one_build_from_a_snapshot(
    job: UploadedCheckpoint, pond: millpond.Pond, faults: Faults
) -> None:
    job.plan([("a", 1)], snapshot=True)
    for partition in range(2):
        delete(job.storage, f"state/0/{partition}/2.delta")
    job.commit()
    wait_until(lambda: pond[TABLE].get(k="a").batch == 1, "batch 1")
    assert pond[TABLE].get(k="a")["v"] == 1
    assert statistics(pond)["bootstraps"] == 2


def test_a_commit_that_listings_dont_show_yet_is_found_by_its_name(
    job: UploadedCheckpoint, pond: millpond.Pond, faults: Faults
) -> None:
    storage = open_storage(job.storage.uri)
    assert storage.names("commits") == ["0"]
    faults.stale = True
    for n in range(1, 4):
        job.batch([("a", n)])
        assert storage.names("commits") == ["0"]
        wait_until(lambda n=n: pond[TABLE].get(k="a").batch == n, f"batch {n}")
        assert pond[TABLE].get(k="a")["v"] == n
    assert statistics(pond)["bootstraps"] == 1


@pytest.mark.long
def test_a_replica_that_is_built_from_listings_that_lag_goes_on_to_what_they_dont_show(
    job: UploadedCheckpoint, place: str, faults: Faults
) -> None:
    with millpond.open(place, replica_dir="memory://", settings=QUICK):
        pass  # the proxy has seen the listings of batch 0
    faults.stale = True
    for n in range(1, 4):
        job.batch([("a", n)], snapshot=n == 2)
    with millpond.open(place, replica_dir="memory://", settings=QUICK) as pond:
        wait_until(lambda: pond[TABLE].get(k="a").batch == 3, "batch 3")
        assert {r["k"]: r["v"] for r in pond[TABLE].scan()} == job.content()


@pytest.mark.long
def test_closing_doesnt_wait_for_a_store_that_hangs(
    job: UploadedCheckpoint, place: str, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, may_end, ended = threading.Event(), threading.Event(), []

    def hang(method: str, path: str) -> str:
        hangs.set()
        may_end.wait(120)
        ended.append(path)
        return "drop"

    monkeypatch.setenv("MILLPOND_REQUEST_SECONDS", "600")
    try:
        with millpond.open(place, replica_dir=tmp_path, settings=QUICK):
            faults.before = hang
            assert hangs.wait(60)
        assert not ended
    finally:
        may_end.set()


@pytest.mark.long
def test_the_server_goes_on_through_an_outage(job: UploadedCheckpoint, place: str, tmp_path: Path) -> None:
    with proxy(moto_server()) as (url, faults):
        command = [sys.executable, "-m", "millpond.cli", "serve", place, "--port", "0", "--json"]
        with started(
            command, stdout=subprocess.PIPE, env={**os.environ, **environment(url), "MILLPOND_HOME": str(tmp_path)}
        ) as server:
            try:
                assert server.stdout is not None
                address = json.loads(server.stdout.readline())["url"]

                def value() -> int | None:
                    try:
                        with urllib.request.urlopen(f"{address}/tables/{TABLE}/rows?k=a", timeout=60) as answer:
                            return json.load(answer)["rows"][0]["v"]
                    except urllib.error.HTTPError as not_yet:
                        assert not_yet.code in (404, 503)
                        return None

                wait_until(lambda: value() == 0, "the first batch at the server", unless=server.poll)
                faults.before = lambda method, path: 503
                job.batch([("a", 1)])
                stays(lambda: value() == 0, "the server answers from the first batch", seconds=2)
                faults.before = lambda method, path: None
                wait_until(lambda: value() == 1, "the second batch at the server", unless=server.poll)
            finally:
                server.terminate()
                assert server.wait(60) == 0


def test_a_checkpoint_alone_may_be_all_that_the_credentials_are_for(job: UploadedCheckpoint, place: str, faults: Faults) -> None:
    faults.before = lambda method, path: 403 if ".millpond" in path else None
    with millpond.open(place, replica_dir="memory://", settings=QUICK) as pond:
        assert pond[TABLE].get(k="a")["v"] == 0


def test_a_faulty_answer_is_never_taken_for_a_missing_file() -> None:
    assert not issubclass(StorageError, millpond.CheckpointError)
    assert issubclass(StorageError, MillpondError)
