"""/metrics has what is measured of each job, whichever process answers."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import millpond
from millpond.catalogue import create_job, find_job
from millpond.operate.durations import Durations
from millpond.operate.measure import JobMeter
from millpond.serve.metrics.counts import Meter
from servers.ports import free_port
from servers.serving import wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(client: httpx.Client) -> Found:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    for name, batches in (("a", 1), ("b", 4)):
        create_job(tmp_path / "pond", name)
        job = WrittenCheckpoint(tmp_path / "pond/jobs" / name / "checkpoint", name, partitions=3)
        for batch in range(batches):
            job.clock = int(time.time() * 1000) - 1500
            job.plan([(f"k{'x' * key}", batch) for key in range(5)], snapshot=batch == 2)
            job.commit()
    return tmp_path / "pond"


OPTIONS = [
    pytest.param((), id="one process", marks=pytest.mark.long),
    pytest.param(("--workers", "2"), id="workers"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_measured(serve: Any, pond: Path, options: tuple[str, ...]) -> None:
    with serve(pond, *options) as (url, _), httpx.Client(base_url=url, timeout=30) as client:
        wait_until_ready(client)

        def measured() -> Found | None:
            found = scraped(client)
            return found if ("millpond_job_batch", frozenset({("job", "b")})) in found else None

        found = wait_until(measured, "the first measurement")
        for _ in range(4):  # connections of several processes
            with httpx.Client(base_url=url, timeout=30) as other:
                found |= scraped(other)
        (kept,) = millpond.read_samples(pond, "b")
    job = frozenset({("job", "b")})
    assert found["millpond_job_batch", job] == kept.batch == 3
    assert found["millpond_job_batch_seconds", job] == kept.batch_seconds
    assert found["millpond_job_batch_seconds", job] >= 1.4
    assert found["millpond_job_waiting_seconds", job] == 0
    assert found["millpond_job_checkpoint_bytes", job] == kept.checkpoint_bytes
    operator = job | {("operator", "0"), ("kind", "stateStoreSave")}
    state = pond / "jobs/b/checkpoint/state/0"
    loaded = {p: sum((state / f"{p}/{name}").stat().st_size for name in ("3.snapshot", "4.delta")) for p in range(3)}
    assert found["millpond_state_bytes", operator] == sum(loaded.values())
    assert found["millpond_state_largest_partition_bytes", operator] == max(loaded.values())
    assert found["millpond_state_median_partition_bytes", operator] == sorted(loaded.values())[1]
    assert found["millpond_state_partitions", operator] == 3


@pytest.mark.long
@pytest.mark.parametrize("options", OPTIONS)
def test_reads_are_counted_by_job(serve: Any, pond: Path, options: tuple[str, ...]) -> None:
    """By every route that reads rows; those that wait, find nothing of that name, or are refused don't count."""
    draw, asked = random.Random(7), {"a": 0, "b": 0}
    with serve(pond, *options) as (url, _), httpx.Client(base_url=url, timeout=30) as client:
        wait_until_ready(client)
        for _ in range(60):
            job = draw.choice("ab")
            table = f"/tables/{job}.aggregate_0"
            method, path, body, status = draw.choice(
                [
                    ("GET", f"{table}/rows?k=kx", None, 200),  # the quick route
                    ("GET", f"{table.replace('.', '%2E')}/rows?k=kx", None, 200),
                    ("GET", f"{table}/rows?_limit=2", None, 200),
                    ("GET", f"{table}/count", None, 200),
                    ("POST", f"{table}/rows:get", {"keys": [{"k": "kx"}]}, 200),
                    ("GET", f"{table}/rows?nothing=1", None, 400),
                    ("GET", f"/tables/{job}.nothing/rows", None, 404),
                    ("GET", table, None, 200),
                ]
            )
            assert client.request(method, path, json=body).status_code == status, path
            asked[job] += status == 200 and path != table
        # Other processes write their counts once a second.
        wait_until(lambda: _reads(client) == asked, f"{asked} as the numbers of reads")
        assert scraped(client)["millpond_read_seconds_sum", frozenset({("job", "a")})] > 0


@pytest.mark.long
def test_reads_by_every_door_are_counted_by_job(serve: Any, pond: Path) -> None:
    """One for each table of a command or statement; errors, plans, catalogues and descriptions read no rows."""
    redis, psycopg = pytest.importorskip("redis"), pytest.importorskip("psycopg")
    flight_sql = pytest.importorskip("adbc_driver_flightsql.dbapi")
    pytest.importorskip("duckdb")
    draw, asked = random.Random(11), {"a": 0, "b": 0}
    ports = [free_port() for _ in range(3)]
    options = [
        word for name, port in zip(("redis", "postgres", "flight"), ports, strict=True) for word in (f"--{name}-port", str(port))
    ]
    with (
        serve(pond, *options) as (url, _),
        httpx.Client(base_url=url, timeout=30) as client,
        redis.Redis(port=ports[0], protocol=3) as commands,
        psycopg.connect(f"postgresql://127.0.0.1:{ports[1]}/x", autocommit=True) as postgres,
        flight_sql.connect(f"grpc://127.0.0.1:{ports[2]}", autocommit=True) as arrow,
    ):
        wait_until_ready(client)

        def ask_http(statement: str, parameters: list[Any]) -> None:
            client.post("/sql", json={"statement": statement, "parameters": parameters}).raise_for_status()

        def ask_postgres(statement: str, parameters: list[Any]) -> None:
            postgres.execute(statement.replace("?", "%s"), parameters, prepare=draw.random() < 0.5).fetchall()

        def ask_flight(statement: str, parameters: list[Any]) -> None:
            with arrow.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                cursor.fetchall()

        def in_pipeline(table: str, key: str, times: int) -> None:
            with commands.pipeline(transaction=False) as pipe:
                for _ in range(times):
                    pipe.get(f"{table}:{key}")
                pipe.execute()

        def fails(ask: Any) -> None:
            with pytest.raises(Exception, match=r"\S"):
                ask()

        def ask_something() -> str:
            job, other = draw.choice(["ab", "ba"])
            table, key = f"{job}.aggregate_0", draw.choice(["k", "kx", "kxx", "nobody"])
            ask = draw.choice([ask_http, ask_postgres, ask_flight])
            one, all_ = f'SELECT k FROM "{table}" WHERE k = ?', f'SELECT * FROM "{table}"'
            name, run, counts = draw.choice(
                [
                    ("GET", lambda: commands.get(f"{table}:{key}"), {job: 1}),
                    ("GETs", lambda: in_pipeline(table, key, 7), {job: 7}),
                    ("HGETALL", lambda: commands.hgetall(f"{table}:{key}"), {job: 1}),
                    ("MGET", lambda: commands.mget(f"{table}:k", f"{other}.aggregate_0:k", f"{table}:kx"), {"a": 1, "b": 1}),
                    ("SCAN", lambda: commands.scan(match=f"{table}:*", count=50), {job: 1}),
                    ("DBSIZE", commands.dbsize, {"a": 1, "b": 1}),
                    ("no table", lambda: fails(lambda: commands.get("nothing:k")), {}),
                    ("PING", commands.ping, {}),
                    *[("one key", lambda: [ask(one, [key]) for _ in range(3)], {job: 3})] * 4,  # the first one by a process
                    ("all", lambda: ask(all_, []), {job: 1}),
                    ("twice", lambda: ask(f'SELECT count(*) FROM "{table}" x JOIN "{table}" y ON x.k = y.k', []), {job: 1}),
                    ("no rows", lambda: ask("SELECT 1", []), {}),
                    ("plan", lambda: ask(f"EXPLAIN {all_}", []), {}),
                    ("a mistake", lambda: fails(lambda: ask(f'SELECT nothing FROM "{table}"', [])), {}),
                    ("catalogue", arrow.adbc_get_table_types, {}),
                    ("described", lambda: client.get("/tables"), {}),
                ]
            )
            run()
            for which, times in counts.items():
                asked[which] += times
            return f"{name}, {ask.__name__}"

        for _ in range(80):
            name = ask_something()
            # The end of a call comes after its answer.
            wait_until(lambda: _reads(client) == asked, f"{asked} as the numbers of reads, after {name}")


def _reads(client: httpx.Client) -> dict[str, float]:
    found = scraped(client)
    return {job: found.get(("millpond_read_seconds_count", frozenset({("job", job)})), 0.0) for job in "ab"}


def test_a_sample_has_the_reads_since_the_one_before(pond: Path) -> None:
    meter = JobMeter(find_job(pond, "b"))
    assert meter.look().reads is None
    counts = Meter()
    counts.count("rows", 404, 0.1)
    assert meter.look(followed={"reads": Durations()}).reads == 0
    for taken in ([0.0003] * 99 + [0.7], [0.004]):
        for each in taken:
            counts.count("rows", 200, each, tables=["b.aggregate_0"])
        answered = Durations()
        answered.join(counts.reads()["b.aggregate_0"])
        sample = meter.look(followed={"reads": answered})
        assert (sample.reads, sample.read_seconds) == (len(taken), pytest.approx(sum(taken) / len(taken)))
        assert sample.read_p99_seconds is not None
        assert 0.00025 < sample.read_p99_seconds <= 0.005
    assert meter.look(followed={"reads": answered}).read_seconds is None
    assert meter.look(followed={"reads": Durations()}).reads is None  # a table is gone


@pytest.mark.long
def test_without_samples_nothing_is_measured_or_written(serve: Any, pond: Path) -> None:
    with serve(pond, "--no-samples") as (url, _), httpx.Client(base_url=url, timeout=30) as client:
        wait_until_ready(client)
        assert not any(name.startswith("millpond_job_batch") for name, _ in scraped(client))
    assert millpond.read_samples(pond, "a") == []


@pytest.mark.long
def test_old_samples_say_nothing_of_now(serve: Any, pond: Path) -> None:
    """Those that a server kept an hour ago, of a job that nobody measures now."""
    from millpond.operate.sample import Sample
    from millpond.operate.sample_log import SampleLog

    SampleLog(find_job(pond, "a")).add(Sample(at_ms=int((time.time() - 3600) * 1000), job_state="running", batch=0))
    with serve(pond, "--no-samples") as (url, _), httpx.Client(base_url=url, timeout=30) as client:
        wait_until_ready(client)
        assert ("millpond_job_batch", frozenset({("job", "a")})) not in scraped(client)
