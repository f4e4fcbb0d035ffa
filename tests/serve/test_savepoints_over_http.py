"""Savepoints over HTTP: who may, what an operation tells, how many run, and what a server that ends leaves behind."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.catalogue import create_job
from millpond.errors import MillpondError
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.serve.access.tokens import add_token
from millpond.serve.operations import Operations
from millpond.serve.ponds import Ponds
from millpond.settings import ClientSettings, ServeSettings
from millpond.wire.questions import CreateSavepoint
from servers.serving import Serve, wait_until_ready
from suite.waiting import wait_until


@pytest.fixture
def pond(golden: Callable[[str], Any], tmp_path: Path) -> Path:
    """A pond with two jobs."""
    for job, cell in (("counts", "counts-hdfs"), ("windows", "windows-rocksdb-changelog")):
        create_job(tmp_path / "pond", job)
        shutil.copytree(golden(cell).checkpoint, tmp_path / f"pond/jobs/{job}/checkpoint", dirs_exist_ok=True)
    return tmp_path / "pond"


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Right -> a token that has it; the file of all."""
    file = tmp_path / "readers.json"
    return {
        "tables": add_token(file, "tables", tables=["*"], metrics=True),
        "read": add_token(file, "reads", tables=[], savepoints="read"),
        "create": add_token(file, "creates", tables=["*"], savepoints="create"),
        "file": str(file),
    }


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def condition(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["condition"]


def ended(client: httpx.Client, operation: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    """What an operation has come to."""
    path = f"/operations/{operation['operation']}"

    def answer() -> dict[str, Any] | None:
        found: dict[str, Any] = client.get(path, headers=headers).raise_for_status().json()
        return found if found["state"] != "running" else None

    return wait_until(answer, "the end of the operation")


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("--workers", "2"), marks=pytest.mark.long)], ids=["one process", "two doors"]
)
def test_a_savepoint_is_made_and_verified(serve: Serve, pond: Path, tokens: dict[str, str], workers: tuple[str, ...]) -> None:
    with serve(pond, "--tokens", tokens["file"], *workers) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        may, reads = bearer(tokens["create"]), bearer(tokens["read"])
        begun = client.post("/savepoints", json={"name": "one", "job": "counts", "note": "by HTTP"}, headers=may)
        assert begun.status_code == 200, begun.text
        made = ended(client, begun.json(), reads)  # with several doors, any of them answers
        manifest = open_savepoint(pond, "one").manifest
        assert (made["state"], made["error"], made["files_done"]) == ("done", None, len(manifest.files))
        assert (made["made"]["batch"], made["made"]["rows"], made["made"]["note"]) == (manifest.batch, manifest.rows, "by HTTP")
        assert client.get("/savepoints/one", headers=reads).json() == made["made"]
        listed = client.get("/savepoints", headers=reads).json()
        assert [s["name"] for s in listed["savepoints"]] == ["one"]
        assert listed["savepoints"][0].items() <= made["made"].items()
        verified = ended(client, client.post("/savepoints/one/verify", json={}, headers=reads).json(), reads)
        assert verified["verified"] == {
            "name": "one",
            "files": len(manifest.files),
            "size_bytes": manifest.size_bytes,
            "rows": manifest.rows,
            "problems": [],
        }
        commit = next((pond / "savepoints/one/checkpoint/commits").iterdir())
        commit.write_text(commit.read_text() + " ")
        damaged = ended(client, client.post("/savepoints/one/verify", json={}, headers=reads).json(), reads)
        assert damaged["state"] == "done"
        assert [p["path"] for p in damaged["verified"]["problems"]] == [f"checkpoint/commits/{commit.name}"]


@pytest.mark.long
def test_each_right_must_be_given(serve: Serve, pond: Path, tokens: dict[str, str]) -> None:
    millpond.plan_savepoint(pond, "there", job="counts").run()
    create = {"name": "new", "job": "counts"}
    with serve(pond, "--tokens", tokens["file"]) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        for right, status in (("tables", 403), ("read", 200)):
            headers = bearer(tokens[right])
            for path in ("/savepoints", "/savepoints/there"):
                assert client.get(path, headers=headers).status_code == status
            assert client.post("/savepoints/there/verify", json={}, headers=headers).status_code == status
            assert condition(client.post("/savepoints", json=create, headers=headers)) == (403, "NOT_ALLOWED")
            assert client.get("/operations/0-0", headers=headers).status_code == {403: 403, 200: 404}[status]
        assert client.get("/savepoints").status_code == 401
    with serve(pond) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        assert client.get("/savepoints/there").status_code == 200
        assert condition(client.post("/savepoints", json=create)) == (403, "NOT_ALLOWED")
    assert [s.manifest.name for s in list_savepoints(pond).found] == ["there"]


def test_each_mistake_is_named(serve: Serve, pond: Path, tokens: dict[str, str]) -> None:
    millpond.plan_savepoint(pond, "there", job="counts").run()
    with serve(pond, "--tokens", tokens["file"]) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        client.headers.update(bearer(tokens["create"]))
        for body, expected in (
            ({"name": "there", "job": "counts"}, (409, "SAVEPOINT_EXISTS")),
            ({"name": "../x", "job": "counts"}, (400, "INVALID_NAME")),
            ({"name": "x"}, (400, "INVALID_REQUEST")),
            ({"name": "x", "job": "no"}, (400, "INVALID_REQUEST")),
            ({"name": "x", "job": "counts", "batch": 999}, (410, "BATCH_GONE")),
            ({"name": "x", "job": "counts", "batch": "1"}, (400, "INVALID_REQUEST")),
            ({"name": "x", "job": "counts", "to": "/tmp"}, (400, "INVALID_REQUEST")),
            ({}, (400, "INVALID_REQUEST")),
        ):
            assert condition(client.post("/savepoints", json=body)) == expected, body
        assert condition(client.get("/savepoints/no")) == (404, "UNKNOWN_SAVEPOINT")
        assert condition(client.post("/savepoints/no/verify", json={})) == (404, "UNKNOWN_SAVEPOINT")
        assert condition(client.get("/savepoints/..%2Fthere")) == (400, "INVALID_NAME")
        assert condition(client.get("/operations/x")) == (404, "UNKNOWN_OPERATION")
        assert condition(client.delete("/savepoints/there")) == (405, "METHOD_NOT_ALLOWED")
        (pond / "savepoints/there/savepoint.json").write_text("{}")
        assert condition(client.get("/savepoints/there")) == (500, "SAVEPOINT_DAMAGED")
        assert [u["savepoint"] for u in client.get("/savepoints").json()["unread"]] == ["there"]


@pytest.mark.long
def test_of_several_ponds_a_name_says_which(serve: Serve, pond: Path, tmp_path: Path, tokens: dict[str, str]) -> None:
    shutil.copytree(pond, tmp_path / "other")
    words = (f"other={tmp_path / 'other'}", "--tokens", tokens["file"])
    with serve(f"web={pond}", *words) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        client.headers.update(bearer(tokens["create"]))
        assert condition(client.post("/savepoints", json={"name": "one", "job": "counts"})) == (400, "INVALID_REQUEST")
        done = ended(client, client.post("/savepoints", json={"name": "other/one", "job": "counts"}).json(), {})
        assert (done["made"]["name"], done["savepoint"]) == ("other/one", "other/one")
        assert [s["name"] for s in client.get("/savepoints").json()["savepoints"]] == ["other/one"]
        assert client.get("/savepoints/other%2Fone").json() == done["made"]
        assert condition(client.get("/savepoints/web%2Fone")) == (404, "UNKNOWN_SAVEPOINT")
    assert not (pond / "savepoints").exists()
    assert open_savepoint(tmp_path / "other", "one").manifest.job == "counts"


def test_the_clients_do_the_same(serve: Serve, pond: Path, tokens: dict[str, str]) -> None:
    quick = ClientSettings(tries=3, first_pause_seconds=0.01, last_pause_seconds=0.05)
    with serve(pond, "--tokens", tokens["file"]) as (address, _):
        with millpond.connect(address, token=tokens["create"], settings=quick) as server:
            begun = server.create_savepoint("one", job="counts", count=False)
            made = server.wait_for_operation(begun.operation)
            assert (made.state, made.made) == ("done", server.savepoint("one"))
            assert made.made is not None
            assert made.made.rows is None
            verified = server.wait_for_operation(server.verify_savepoint("one").operation)
            assert verified.verified is not None
            assert verified.verified.problems == []
            with pytest.raises(MillpondError) as refused:
                server.create_savepoint("one", job="counts")
            assert refused.value.condition == "SAVEPOINT_EXISTS"

        async def ask() -> list[str]:
            async with millpond.connect_async(address, token=tokens["create"], settings=quick) as server:
                begun = await server.create_savepoint("two", job="windows")
                await server.wait_for_operation(begun.operation)
                return [savepoint.name for savepoint in (await server.savepoints()).savepoints]

        assert asyncio.run(ask()) == ["one", "two"]


# ---------------------------------------------------------------- bounds, and the end


@pytest.fixture
def slow(pond: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Operations, threading.Event]]:
    """Operations whose files are copied only when the event is set."""
    import millpond.savepoint.create as create

    go = threading.Event()
    copy = create.copy_file

    def wait_and_copy(*args: Any, **options: Any) -> Any:
        assert go.wait(600)
        return copy(*args, **options)

    monkeypatch.setattr(create, "copy_file", wait_and_copy)
    with millpond.open(pond, replica_dir="memory://", wait_seconds=0) as opened:
        operations = Operations(Ponds({"pond": opened}), ServeSettings(max_operations=2, kept_operations=3), None)
        yield operations, go
        go.set()
        operations.close(60)


def wait(operations: Operations, identity: str) -> str:
    wait_until(lambda: operations.operation(identity).state != "running", "the end of the operation")
    return operations.operation(identity).state


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(MillpondError) as error:
        call()
    return error.value.condition


def test_operations_are_bounded_and_forgotten(slow: tuple[Operations, threading.Event], pond: Path) -> None:
    operations, go = slow

    def create(name: str, job: str) -> str:
        return operations.create(CreateSavepoint(name=name, job=job)).operation

    first = create("one", "counts")
    assert refused(lambda: create("two", "counts")) == "TOO_MANY_OPERATIONS"  # of the same job
    second = create("three", "windows")
    assert refused(lambda: create("four", "windows")) == "TOO_MANY_OPERATIONS"  # and of all
    wait_until(lambda: operations.savepoints().incomplete == ["one", "three"], "both savepoints to begin")
    go.set()
    assert [wait(operations, identity) for identity in (first, second)] == ["done", "done"]
    later = [create(name, "counts") for name in ("a",)]
    wait(operations, later[0])
    for name in ("b", "c", "d"):
        later.append(create(name, "counts"))
        wait(operations, later[-1])
    assert refused(lambda: operations.operation(first)) == "UNKNOWN_OPERATION"
    assert operations.operation(later[-1]).state == "done"
    assert {s.manifest.name for s in list_savepoints(pond).found} == {"one", "three", "a", "b", "c", "d"}


def test_doors_of_one_server_count_together(slow: tuple[Operations, threading.Event], pond: Path, tmp_path: Path) -> None:
    _, go = slow
    shared = tmp_path / "shared"
    shared.mkdir()
    with millpond.open(pond, replica_dir="memory://", wait_seconds=0) as opened:
        doors = [Operations(Ponds({"pond": opened}), ServeSettings(max_operations=2), shared) for _ in range(2)]
        begun = doors[0].create(CreateSavepoint(name="one", job="counts")).operation
        assert refused(lambda: doors[1].create(CreateSavepoint(name="two", job="counts"))) == "TOO_MANY_OPERATIONS"
        other = doors[1].create(CreateSavepoint(name="two", job="windows")).operation
        wait_until((pond / "savepoints/one/claim.json").exists, "the savepoint to begin")
        assert refused(lambda: doors[1].verify("one")) == "SAVEPOINT_INCOMPLETE"
        go.set()
        assert [wait(doors[0], begun), wait(doors[1], other)] == ["done", "done"]
        assert wait(doors[0], doors[0].verify("two").operation) == "done"


def test_a_server_that_ends_leaves_nothing_half_done(slow: tuple[Operations, threading.Event], pond: Path) -> None:
    operations, go = slow
    begun = operations.create(CreateSavepoint(name="one", job="counts")).operation
    wait_until((pond / "savepoints/one/claim.json").exists, "the savepoint to begin")
    closing = threading.Thread(target=operations.close, args=(60,))
    closing.start()
    wait_until(operations._ending.is_set, "the end to begin")
    go.set()
    closing.join()
    answer = operations.operation(begun)
    assert answer.error is not None
    assert (answer.state, answer.error.condition) == ("failed", "OPERATION_CANCELLED")
    assert not (pond / "savepoints/one").exists()
    assert refused(lambda: operations.create(CreateSavepoint(name="two", job="counts"))) == "TOO_MANY_OPERATIONS"


def test_a_failed_operation_says_why(slow: tuple[Operations, threading.Event], pond: Path) -> None:
    operations, go = slow
    go.set()
    for file in (pond / "jobs/counts/checkpoint/state/0").rglob("*.*"):
        file.write_bytes(file.read_bytes()[:20])
    begun = operations.create(CreateSavepoint(name="one", job="counts")).operation
    assert wait(operations, begun) == "failed"
    error = operations.operation(begun).error
    assert error is not None
    assert error.condition in ("CORRUPT_FILE", "INCOMPLETE_FILE")
    assert json.dumps(error.context)
    assert not (pond / "savepoints/one").exists()
