"""A read that takes too long ends with an error, in Python and over HTTP; short reads of the same table go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

import millpond
from millpond.errors import ReplicaError
from millpond.schema.types import Field, atomic
from millpond.settings import ReplicaSettings
from servers.serving import wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few
from suite.waiting import wait_until

Found = TypeVar("Found")
TABLE = "job.aggregate_0"
ALL = millpond.Retention(history_batches=None)
ROWS = 60_000
GROUPS = 600
# Far too short for so many rows on any machine, and far longer than a hundred rows take.
SECONDS = 0.03
# Not the beginning of the key, so a read goes through every row.
LAST_COLUMN = {"n": ROWS - 1}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> WrittenCheckpoint:
    """A job with ROWS rows.  The key is `g`, with a hundred rows each, and `n`."""
    job = WrittenCheckpoint(tmp_path_factory.mktemp("long") / "job", key=(Field("g", atomic("long")), Field("n", atomic("long"))))
    job.plan([((n % GROUPS, n), -n - 1) for n in range(ROWS)], snapshot=False)
    job.commit()
    return job


@pytest.fixture(scope="module")
def checkpoint(job: WrittenCheckpoint) -> Path:
    return job.path


@pytest.fixture(scope="module")
def home(job: WrittenCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The replica's folder.  The replica is built before time counts, and knows what the second batch did to all rows."""
    place = tmp_path_factory.mktemp("long-home")
    with millpond.open(job.path, replica_dir=place, retention=ALL) as pond:
        assert pond[TABLE].count() == ROWS
        job.plan([((n % GROUPS, n), n) for n in range(ROWS)], snapshot=False)
        job.commit()
        pond.catch_up(60)
    return place


@pytest.fixture(scope="module")
def in_no_time(checkpoint: Path, home: Path) -> Iterator[Any]:
    """The table of a pond whose reads may take hardly any time."""
    settings = ReplicaSettings(read_deadline_seconds=SECONDS)
    with millpond.open(checkpoint, replica_dir=home, retention=ALL, settings=settings) as pond:
        yield pond[TABLE]


LONG: dict[str, Callable[[Any], Any]] = {
    "scan": lambda table: table.scan(),
    "scan, from the end": lambda table: table.scan(reverse=True),
    "scan for the last column": lambda table: table.scan(LAST_COLUMN, limit=1),
    "range": lambda table: table.range(start={"g": 1}),
    "count": lambda table: table.count(LAST_COLUMN),
    "arrow, of some": lambda table: table.to_arrow(LAST_COLUMN),
    "changes": lambda table: table.changes(0),
    "versions": lambda table: table.history(),
    "versions of what holds now": lambda table: table.history(since=1, limit=1),
}


@pytest.mark.parametrize("question", LONG)
def test_a_long_read_is_ended(in_no_time: Any, question: str) -> None:
    with pytest.raises(ReplicaError) as refused:
        LONG[question](in_no_time)
    assert refused.value.condition == "READ_TOO_LONG"
    assert refused.value.context == {"table": TABLE}
    assert f"ended after {SECONDS:g} seconds" in refused.value.message


def undisturbed(read: Callable[[], Found]) -> Found:
    """What a short read finds: if the machine stops it meanwhile, it takes too long, and is made again."""

    def found() -> list[Found]:
        try:
            return [read()]
        except ReplicaError as error:
            if error.condition != "READ_TOO_LONG":
                raise
            return []

    return wait_until(found, f"a short read within {SECONDS:g} seconds")[0]


def test_what_the_hint_says_helps(in_no_time: Any) -> None:
    assert undisturbed(lambda: in_no_time.count()) == ROWS  # the replica knows this number
    assert undisturbed(lambda: in_no_time.get(g=7, n=7))["v"] == 7
    assert [row["n"] for row in undisturbed(lambda: in_no_time.scan(limit=3))] == [0, GROUPS, 2 * GROUPS]
    assert len(undisturbed(lambda: in_no_time.scan(g=GROUPS - 1))) == ROWS // GROUPS
    assert len(undisturbed(lambda: in_no_time.changes(0, limit=3))) == 3
    assert [version.row["v"] for version in undisturbed(lambda: in_no_time.history(g=7, n=7))] == [-8, 7]
    whole = {**LAST_COLUMN, "g": (ROWS - 1) % GROUPS}
    assert undisturbed(lambda: in_no_time.scan(whole)) == [{"g": GROUPS - 1, "n": ROWS - 1, "v": ROWS - 1}]


@pytest.mark.long
def test_with_time_enough_the_same_questions_are_answered(checkpoint: Path, home: Path) -> None:
    with millpond.open(checkpoint, replica_dir=home, retention=ALL) as pond:
        table = pond[TABLE]
        assert len(table.changes(0)) == ROWS
        assert len(table.history()) == 2 * ROWS
        assert len(table.scan()) == ROWS
        assert [row["v"] for row in table.scan(LAST_COLUMN, limit=1)] == [ROWS - 1]
        assert table.count(LAST_COLUMN) == table.to_arrow(LAST_COLUMN).num_rows == 1


@pytest.mark.long
@pytest.mark.parametrize("workers", a_few([1, 2], 1))
def test_a_server_ends_long_reads_and_answers_short_ones(checkpoint: Path, home: Path, serve: Any, workers: int) -> None:
    options = ["--max-seconds", str(SECONDS), "--workers", str(workers)]
    options += ["--replica-dir", str(home), "--history", f"{TABLE}=forever"]
    with serve(checkpoint, *options) as (address, _), httpx.Client(base_url=f"{address}/tables/{TABLE}", timeout=30) as client:
        with httpx.Client(base_url=address, timeout=60) as server:
            wait_until_ready(server)
        for answer in (
            client.get("/rows", params={"_limit": ROWS}),
            client.get("/rows", params={"_limit": ROWS, "_reverse": 1}),
            client.get("/rows", params=LAST_COLUMN),
            client.get("/rows", params=LAST_COLUMN, headers={"accept": "application/x-ndjson"}),
            client.get("/rows", params=LAST_COLUMN, headers={"accept": "application/vnd.apache.arrow.stream"}),
            client.get("/count", params=LAST_COLUMN),
            client.post("/rows:scan", json={"key": LAST_COLUMN, "limit": 1}),
            client.post("/rows:count", json={"key": LAST_COLUMN}),
            client.get("/changes", params={"_since": 0, "_limit": ROWS}),
            client.get("/versions", params={"_limit": ROWS}),
        ):
            assert answer.status_code == 503, answer.text[:200]
            error = answer.json()["error"]
            assert (error["condition"], error["context"]) == ("READ_TOO_LONG", {"table": TABLE})
            assert f"ended after {SECONDS:g} seconds" in error["message"]
            assert "limit" in error["hint"]
        with millpond.connect(address) as remote, pytest.raises(ReplicaError) as refused:
            remote[TABLE].count(LAST_COLUMN)
        assert refused.value.condition == "READ_TOO_LONG"

        def short(path: str, **params: int) -> Any:
            answer = client.get(path, params=params)
            if answer.status_code == 503:
                raise ReplicaError(answer.json()["error"]["condition"], answer.text, hint="")
            return answer.json()

        assert undisturbed(lambda: short("/count"))["count"] == ROWS
        assert undisturbed(lambda: short("/rows", g=7, n=7))["rows"] == [{"g": 7, "n": 7, "v": 7}]
        assert len(undisturbed(lambda: short("/rows", g=7))["rows"]) == ROWS // GROUPS
        # Waiting for a batch is part of a read: a longer wait is refused.
        refused_wait = client.get("/rows", params={"g": 7, "_min_batch": 5, "_wait_seconds": 1})
        assert (refused_wait.status_code, refused_wait.json()["error"]["condition"]) == (400, "INVALID_BOUND")
