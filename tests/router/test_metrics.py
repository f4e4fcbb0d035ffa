"""`GET /metrics` of a router: its servers, how far its jobs can be read, and what it answered."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import millpond
from millpond.errors import MillpondError
from servers.shard_jobs import KEYS, Job
from servers.shards import ShardServer, routing, shard_servers
from suite.sizes import examples
from suite.waiting import wait_until

DOCS = Path(__file__).parents[2] / "docs"
SHARDS = ["0-2", "3-4"]
Metrics = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    made = Job(tmp_path_factory.mktemp("pond") / "job", seed=4)
    for _ in range(3):
        made.commit()
    return made


@pytest.fixture(scope="module")
def servers(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ShardServer]]:
    """Two copies of each shard: the first two are of the first one."""
    with shard_servers(job.checkpoint.path, SHARDS, tmp_path_factory.mktemp("homes"), copies=2) as started:
        yield started


@pytest.fixture(scope="module")
def router(servers: list[ShardServer]) -> Iterator[str]:
    with routing(*(server.url for server in servers)) as url:
        yield url


def metrics(router: str) -> Metrics:
    answer = httpx.get(f"{router}/metrics", timeout=20)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def of_job(found: Metrics, name: str) -> float | None:
    return found.get((name, (("job", "job"),)))


def of_servers(found: Metrics, name: str, servers: list[ShardServer]) -> list[float | None]:
    return [found.get((name, (("server", server.url),))) for server in servers]


@contextmanager
def hanging(server: ShardServer) -> Iterator[None]:
    """It takes connections, and answers nothing."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_they_say_what_each_server_has_and_how_far_its_job_can_be_read(
    router: str, servers: list[ShardServer], job: Job, request: pytest.FixtureRequest
) -> None:
    def all_run() -> None:
        for server in servers:
            if server.process is None:
                server.start()

    request.addfinalizer(all_run)
    newest = job.checkpoint.next_batch - 1
    wait_until(lambda: of_job(metrics(router), "millpond_batch") == newest, "the newest batch")
    found = metrics(router)
    assert of_servers(found, "millpond_shard_up", servers) == [1, 1, 1, 1]
    batches = [found["millpond_shard_batch", (("job", "job"), ("server", server.url))] for server in servers]
    assert (batches, of_job(found, "millpond_behind_seconds"), of_job(found, "millpond_readable")) == ([newest] * 4, 0, 1)

    with millpond.connect(router) as pond:
        pond[job.table].count()
        servers[0].kill()
        for key in KEYS:
            pond[job.table].get(k=key)
    found = metrics(router)
    assert of_servers(found, "millpond_shard_up", servers) == [0, 1, 1, 1]
    assert (of_job(found, "millpond_batch"), of_job(found, "millpond_readable")) == (newest, 1)
    answers = of_servers(found, "millpond_shard_answers_total", servers)
    assert sum(number or 0 for number in answers) > len(KEYS)
    failures = of_servers(found, "millpond_shard_failures_total", servers)
    assert (bool(failures[0]), failures[1:]) == (True, [0, 0, 0])

    servers[1].kill()  # nobody has these partitions any more
    found = metrics(router)
    assert of_servers(found, "millpond_shard_up", servers) == [0, 0, 1, 1]
    assert of_job(found, "millpond_readable") == 0
    assert of_job(found, "millpond_batch") is of_job(found, "millpond_behind_seconds") is None
    assert httpx.get(f"{router}/readyz", timeout=20).status_code == 503

    for server in servers[2:]:
        server.kill()
    found = metrics(router)
    assert of_servers(found, "millpond_shard_up", servers) == [0, 0, 0, 0]
    assert of_job(found, "millpond_readable") == 0


def test_a_router_whose_servers_never_answered_has_metrics() -> None:
    with routing("http://127.0.0.1:1") as url:
        found = metrics(url)
        assert found["millpond_shard_up", (("server", "http://127.0.0.1:1"),)] == 0
        assert not any(name in ("millpond_batch", "millpond_readable") for name, _ in found)


def test_a_server_that_hangs_holds_up_neither_them_nor_readiness(router: str, servers: list[ShardServer], job: Job) -> None:
    """Each of these would take the 30 seconds that a client waits for a server."""
    with hanging(servers[0]), ThreadPoolExecutor(24) as pool:
        is_ready, shards = [pool.submit(httpx.get, f"{router}/{path}", timeout=20) for path in ("readyz", "shards")]
        for found in pool.map(metrics, [router] * 22):
            assert of_servers(found, "millpond_shard_up", servers) == [0, 1, 1, 1]
            assert of_job(found, "millpond_readable") == 1
        assert is_ready.result().json()["ready"] is True
        assert "no answer within 5 seconds" in shards.result().json()["servers"][0]["error"]
        with millpond.connect(router) as pond:
            assert len(pond[job.table].scan()) == sum(bool(pond[job.table].get(k=key)) for key in [*KEYS, "each"])
    wait_until(lambda: of_servers(metrics(router), "millpond_shard_up", servers) == [1, 1, 1, 1], "the server again")


def test_requests_are_counted_whichever_way_they_took(router: str, job: Job) -> None:
    rows = f"{router}/tables/{job.table}/rows"

    def count(status: int) -> float:
        labels = (("door", "http"), ("route", "rows"), ("status", str(status)))
        return metrics(router).get(("millpond_requests_total", labels), 0)

    httpx.get(rows, timeout=20)
    before = count(200), count(400)
    for _ in range(5):
        httpx.get(rows, params={"k": KEYS[0]}, timeout=20)  # passed on as it is
    httpx.get(rows, headers={"accept": "text/csv"}, timeout=20)
    httpx.get(rows, params={"_limit": 0}, timeout=20)
    assert (count(200) - before[0], count(400) - before[1]) == (6, 1)


def test_only_a_token_for_metrics_opens_them(servers: list[ShardServer], tmp_path: Path) -> None:
    file = str(tmp_path / "readers.json")

    def token(name: str, *words: str) -> dict[str, str]:
        command = [sys.executable, "-m", "millpond.cli", "token", file, name, "--tables", "*", *words]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
        return {"authorization": f"Bearer {text}"}

    reader, prometheus = token("reader"), token("prometheus", "--metrics")
    with routing(*(server.url for server in servers), "--tokens", file) as url:
        assert [httpx.get(f"{url}/metrics", headers=h, timeout=20).status_code for h in ({}, reader, prometheus)] == [401, 403, 200]


def test_every_metric_stands_in_the_manual_and_no_other(router: str) -> None:
    text = httpx.get(f"{router}/metrics", timeout=20).text
    types = dict(re.findall(r"# TYPE ((?:millpond|process)_\w+) (\w+)", text))
    pages = [
        set(re.findall(r"`((?:millpond|process)_[a-z_]+)`", (DOCS / page).read_text())) for page in ("shards.md", "serving.md")
    ]
    assert {name for name in types if name.startswith("millpond_shard")} == {n for n in pages[0] if n.startswith("millpond_shard")}
    assert set(types) <= pages[0] | pages[1]
    assert pages[0] <= set(types)
    units = ("seconds", "bytes", "batch", "readable", "total", "connections", "streams", "waits", "fds", "info", "failing", "up")
    assert all(name.endswith(units) for name in types)
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in types.items())


def test_many_who_look_at_once_share_looks(job: Job, servers: list[ShardServer]) -> None:
    """Each gets the answer to a look that began after it asked, and none waits for all of the others."""
    with millpond.connect_shards([server.url for server in servers]) as pond, ThreadPoolExecutor(64) as pool:
        for state in pool.map(lambda _: pond.look(), range(examples(400))):
            assert [server.answers for server in state.servers] == [True] * 4
            assert [table.batch for table in state.tables] == [job.checkpoint.next_batch - 1]
    with pytest.raises(MillpondError) as closed:
        pond.tables()
    assert closed.value.condition == "REPLICA_CLOSED"
