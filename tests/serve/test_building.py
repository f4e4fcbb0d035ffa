"""While a replica is built for the first time every door says how far it is; when it is done, the same questions are answered.

The build is a real one, of a checkpoint that Spark wrote, by the server or by this process.  One partition's snapshot is a pipe to
which nobody writes, so that the build waits in the middle of reading it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from held_file import held_file
from millpond.catalogue import create_beside
from millpond.errors import MillpondError, ReplicaError
from millpond.schema.definition import parse_definition
from millpond.settings import ClientSettings
from ready import wait_until_ready

PARTITIONS = 2
ONCE = ClientSettings(tries=1)


@pytest.fixture
def cell(golden: Callable[[str], Any]) -> Any:
    copy = golden("counts-hdfs")
    create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    return copy


@pytest.fixture
def rows(cell: Any) -> list[dict[str, Any]]:
    """What the checkpoint holds, read without a replica."""
    found = [dict(row) for row in millpond.read_arrow(cell.checkpoint, "counts").to_pylist()]
    assert len(found) > 3
    return sorted(found, key=by_page)


@pytest.fixture
def let_go(cell: Any, rows: list[dict[str, Any]]) -> Iterator[Callable[[], None]]:
    with held_file(cell.checkpoint / "state/0/1/12.snapshot") as released:
        yield released


def by_page(row: dict[str, Any]) -> str:
    return row["page"] or ""


def key_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"page": row["page"]}


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_python_says_how_far_the_build_is_and_then_answers(
    cell: Any, rows: list[dict[str, Any]], let_go: Callable[[], None], tmp_path: Path
) -> None:
    with millpond.open(cell.checkpoint, replica_dir=tmp_path / "home", wait_seconds=0) as pond:
        try:
            (job,) = pond.jobs()
            wait_until(lambda: pond.statistics()[job]["partitions_done"] == 1)
            table = pond["counts"]
            questions: tuple[Callable[[], Any], ...] = (
                table.scan,
                table.count,
                table.to_arrow,
                lambda: table.get(key_of(rows[0])),
                lambda: table.get_all([key_of(row) for row in rows]),
                lambda: table.get(key_of(rows[0]), bounds=millpond.Bounds(min_batch=cell.last, wait_seconds=0.05)),
            )
            for ask in questions:
                with pytest.raises(ReplicaError) as refused:
                    ask()
                assert refused.value.condition == "REPLICA_BUILDING"
                said: dict[str, Any] = refused.value.context
                assert (said["partitions_done"], said["partitions"]) == (1, PARTITIONS)
                assert 0 < said["records"] < len(rows)
                assert f"1 of {PARTITIONS} partitions" in refused.value.message
            assert not pond.ready(60)[0]
        finally:
            let_go()
        pond.catch_up(30)
        assert sorted((dict(row) for row in table.scan()), key=by_page) == rows
        for ask in questions:
            ask()
        assert table.count() == len(rows)
        assert dict(table.get(key_of(rows[0]))) == rows[0]
        assert pond.ready(60)[0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["counts", "counts-hdfs.aggregate_0"], ids=["defined", "undefined"])
def test_a_server_says_how_far_the_build_is_and_then_answers(
    cell: Any, rows: list[dict[str, Any]], let_go: Callable[[], None], serve: Any, name: str, workers: int
) -> None:
    if name != "counts":
        (beside,) = cell.checkpoint.with_name(f"{cell.checkpoint.name}.millpond").glob("tables/*.json")
        beside.unlink()
    with (
        serve(cell.checkpoint, "--workers", str(workers)) as (address, _),
        httpx.Client(base_url=address, timeout=30) as client,
        millpond.connect(address, settings=ONCE) as hasty,
    ):
        try:
            table = f"/tables/{name}"

            def progress() -> dict[str, Any]:
                said: dict[str, Any] = client.get(f"{table}/rows").json()["error"]["context"]
                return said

            # Other processes than the one that builds tell what it last wrote down, some moments ago.
            known = {"partitions_done": 1} if workers == 1 else {"partitions": PARTITIONS}
            wait_until(lambda: known.items() <= progress().items())
            asked: tuple[Callable[[], httpx.Response], ...] = (
                lambda: client.get(f"{table}/rows"),
                lambda: client.get(f"{table}/rows", params={"page": "/"}),
                lambda: client.get(f"{table}/rows", headers={"accept": "application/vnd.apache.arrow.stream"}),
                lambda: client.get(f"{table}/count"),
                lambda: client.get(table),
                lambda: client.post(f"{table}/rows:get", json={"keys": [{"page": "/"}]}),
                lambda: client.post(f"{table}/rows:scan", json={"key": {"page": "/"}}),
            )
            for ask in asked:
                answer = ask()
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
                error = answer.json()["error"]
                assert error["condition"] == "REPLICA_BUILDING"
                said = error["context"]
                assert known.items() <= said.items()
                assert said["partitions"] == PARTITIONS > said["partitions_done"]
                assert len(rows) > said["records"] >= (workers == 1)
            assert client.get("/livez").status_code == 200
            assert client.get("/readyz").status_code == 503
            with pytest.raises(MillpondError) as refused:
                hasty[name].count()
            assert refused.value.condition == "REPLICA_BUILDING"
            assert refused.value.context["partitions"] == PARTITIONS
        finally:
            let_go()
        wait_until_ready(client)
        for ask in asked:
            assert ask().status_code == 200
        assert client.get(f"{table}/count").json()["count"] == len(rows)
        assert hasty[name].count() == len(rows)
        if name == "counts":
            assert sorted((dict(row) for row in hasty[name].scan()), key=by_page) == rows


def test_a_client_with_patience_gets_its_answer_when_the_build_is_done(
    cell: Any, rows: list[dict[str, Any]], let_go: Callable[[], None], serve: Any
) -> None:
    patient = ClientSettings(tries=200, first_pause_seconds=0.02, last_pause_seconds=0.05)
    with serve(cell.checkpoint) as (address, _), millpond.connect(address, settings=patient) as client:
        waiting = threading.Timer(1.0, let_go)
        waiting.start()
        try:
            assert client["counts"].count() == len(rows)
            assert waiting.finished.is_set()
        finally:
            waiting.join()
