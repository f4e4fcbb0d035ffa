"""During the first build of a replica every door says how far it is; after the build the same questions get answers.

The server or this process builds a replica of a checkpoint that Spark wrote.  The checkpoint lies on an S3 server, which delays
the snapshot of one partition until the test lets it go, so the build waits in the middle.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.schema.definition.table import parse_definition
from millpond.serve.access.tokens import add_token
from millpond.settings import ClientSettings, RouterSettings
from servers.proxy import proxy
from servers.s3 import BUCKET, moto_server, upload, use
from servers.serving import wait_until_ready
from suite.waiting import stays, wait_until

pytestmark = pytest.mark.long

PARTITIONS = 2
ONCE = ClientSettings(tries=1)


@dataclass(frozen=True)
class Held:
    """A checkpoint with one file that nobody gets yet.

    place:   its URI
    last:    its newest batch
    let_go:  lets everybody have the file
    """

    place: str
    last: int
    let_go: Callable[[], None]


@pytest.fixture
def copy(golden: Callable[[str], Any]) -> Any:
    """The checkpoint on this disk."""
    return golden("counts-hdfs")


@pytest.fixture
def rows(copy: Any) -> list[dict[str, Any]]:
    """The checkpoint's rows, read without a replica."""
    create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    found = [dict(row) for row in millpond.read_arrow(copy.checkpoint, "counts").to_pylist()]
    assert len(found) > 3
    return sorted(found, key=by_page)


@pytest.fixture
def cell(copy: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    released = threading.Event()
    server = moto_server()
    use(monkeypatch, server)
    place = f"s3://{BUCKET}/{uuid.uuid4().hex}/counts-hdfs"
    upload(copy.checkpoint, place)
    create_beside(place).write_definition(parse_definition(copy.read("definition")))

    def before(method: str, path: str) -> None:
        if method == "GET" and path.partition("?")[0].endswith("/state/0/1/12.snapshot"):
            released.wait(600)

    with proxy(server) as (url, faults):
        faults.before = before
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("MILLPOND_REQUEST_SECONDS", "600")
        yield Held(place, copy.last, released.set)
        released.set()


def by_page(row: dict[str, Any]) -> str:
    return row["page"] or ""


def key_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"page": row["page"]}


def test_python_says_how_far_the_build_is_and_then_answers(cell: Held, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    with millpond.open(cell.place, replica_dir=tmp_path / "home", wait_seconds=0) as pond:
        try:
            (job,) = pond.jobs()
            wait_until(lambda: pond.statistics()[job]["partitions_done"] == 1, "the partition that everybody gets")
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
            cell.let_go()
        pond.catch_up(60)
        assert sorted((dict(row) for row in table.scan()), key=by_page) == rows
        for ask in questions:
            ask()
        assert table.count() == len(rows)
        assert dict(table.get(key_of(rows[0]))) == rows[0]
        assert pond.ready(60)[0]


@pytest.mark.parametrize(
    ("name", "workers"),
    [("counts", 1), ("counts", 2), ("counts-hdfs.aggregate_0", 2), ("counts-hdfs.aggregate_0", 1)],
    ids=["defined-1", "defined-2", "undefined-2", "undefined-1"],
)
def test_a_server_says_how_far_the_build_is_and_then_answers(
    cell: Held, rows: list[dict[str, Any]], serve: Any, name: str, workers: int
) -> None:
    if name != "counts":
        create_beside(cell.place).storage.write("tables/counts.json", b"")
    with (
        serve(cell.place, "--workers", str(workers)) as (address, _),
        httpx.Client(base_url=address, timeout=30) as client,
        millpond.connect(address, settings=ONCE) as hasty,
    ):
        try:
            table = f"/tables/{name}"

            def progress() -> dict[str, Any]:
                said: dict[str, Any] = client.get(f"{table}/rows").json()["error"]["context"]
                return said

            # Other processes give the progress that the builder last wrote, some moments ago.
            known = {"partitions_done": 1} if workers == 1 else {"partitions": PARTITIONS}
            wait_until(lambda: known.items() <= progress().items(), "the progress of the build")
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
            cell.let_go()
        wait_until_ready(client)
        for ask in asked:
            assert ask().status_code == 200
        assert client.get(f"{table}/count").json()["count"] == len(rows)
        assert hasty[name].count() == len(rows)
        if name == "counts":
            assert sorted((dict(row) for row in hasty[name].scan()), key=by_page) == rows


def test_keys_of_a_job_stay_shut_until_its_tables_are_known(cell: Held, serve: Any, tmp_path: Path) -> None:
    create_beside(cell.place).storage.write("tables/counts.json", b"")
    tokens = tmp_path / "readers.json"
    whole = add_token(tokens, "whole", tables=["*"], metrics=True)
    some = add_token(tokens, "some", tables=["counts-hdfs.*"], metrics=True)
    none = add_token(tokens, "none", tables=["other"], metrics=True)
    with (
        serve(cell.place, "--tokens", str(tokens), "--no-samples") as (address, _),
        httpx.Client(base_url=address, timeout=60) as client,
    ):

        def asked(token: str) -> tuple[int, str]:
            answer = client.get("/jobs/counts-hdfs/hot-keys", headers={"authorization": f"Bearer {token}"})
            return answer.status_code, answer.json().get("error", {}).get("condition", "")

        try:
            wait_until(lambda: asked(some) == (503, "REPLICA_BUILDING"), "a build that has begun")
            assert asked(none) == (503, "REPLICA_BUILDING")
            assert asked(whole) == (200, "")
        finally:
            cell.let_go()
        wait_until_ready(client)
        assert (asked(some)[0], asked(none)) == (200, (403, "NOT_ALLOWED"))


def test_who_waits_for_the_same_look_takes_no_turn_of_others(cell: Held, serve: Any) -> None:
    with (
        serve(cell.place, "--max-large-answers", "2", "--no-samples", "--max-seconds", "300") as (address, _),
        httpx.Client(base_url=address, timeout=60) as client,
        ThreadPoolExecutor(6) as readers,
    ):
        try:
            # The doctor waits for the file that nobody gets.
            asked = [readers.submit(httpx.get, f"{address}/jobs/counts-hdfs/advice", timeout=300) for _ in range(6)]
            wait_until(lambda: client.get("/jobs/counts-hdfs/hot-keys").status_code == 200, "the hot keys")
            stays(lambda: client.get("/jobs/counts-hdfs/hot-keys").status_code == 200, "others get their turn", seconds=1)
            assert not any(each.done() for each in asked)
        finally:
            cell.let_go()
        found = [each.result() for each in asked]
        assert [each.status_code for each in found] == [200] * 6
        assert len({each.text for each in found}) == 1


def test_a_client_with_patience_gets_its_answer_when_the_build_is_done(cell: Held, rows: list[dict[str, Any]], serve: Any) -> None:
    patient = ClientSettings(tries=100_000, first_pause_seconds=0.02, last_pause_seconds=0.05)
    with serve(cell.place) as (address, _), millpond.connect(address, settings=patient) as client:
        waiting = threading.Timer(1.0, cell.let_go)
        waiting.start()
        try:
            assert client["counts"].count() == len(rows)
            assert waiting.finished.is_set()
        finally:
            waiting.join()


@pytest.mark.parametrize("name", ["counts", "counts-hdfs.aggregate_0"], ids=["defined", "undefined"])
def test_a_router_says_that_its_servers_still_build(cell: Held, rows: list[dict[str, Any]], serve: Any, name: str) -> None:
    if name != "counts":
        create_beside(cell.place).storage.write("tables/counts.json", b"")
    with (
        serve(cell.place) as (address, _),
        httpx.Client(base_url=address, timeout=30) as client,
        millpond.connect_shards([address], settings=RouterSettings(client=ONCE)) as pond,
    ):
        try:
            rows_of_it = f"/tables/{name}/rows"
            wait_until(lambda: client.get(rows_of_it).json()["error"]["condition"] == "REPLICA_BUILDING", "a build that has begun")
            for _ in range(2):
                with pytest.raises(ReplicaError) as refused:
                    pond[name].count()
                assert refused.value.condition == "REPLICA_BUILDING"
        finally:
            cell.let_go()
        wait_until_ready(client)
        assert pond[name].count() == len(rows)
        with pytest.raises(RequestError) as unknown:
            pond["nothing"]
        assert unknown.value.condition == "UNKNOWN_TABLE"
