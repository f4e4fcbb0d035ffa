"""What a server says of its jobs: samples, sizes by partition, hot keys, alerts; and to whom."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import millpond
from millpond.catalogue import create_job
from millpond.errors import CONDITIONS, MillpondError, RequestError
from millpond.operate.alerts.evaluate import firing
from millpond.operate.answers import ListSamples, thinned
from millpond.operate.sample import Sample
from millpond.operate.sample_log import SampleLog, read_samples
from millpond.schema.definition.hot_keys import HotKey
from millpond.schema.types import atomic
from millpond.serve.access.tokens import digest
from millpond.serve.ponds import open_ponds
from millpond.serve.watched import Watched, _Kept
from millpond.tables.pond import Pond
from servers.serving import Serve, serving, wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.seen_pond import ODD, PARTITIONS, Seen, make_pond, write_samples
from suite.waiting import wait_until

ROUTES = (
    "/jobs",
    "/jobs/page_views/samples",
    "/jobs/page_views/partitions",
    "/jobs/page_views/hot-keys",
    "/jobs/page_views/advice",
    "/alerts",
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return make_pond(tmp_path_factory.mktemp("watched") / "pond", samples=90)


@pytest.fixture(scope="module")
def watched(seen: Seen, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        serving(seen.place, "--no-samples", home=tmp_path_factory.mktemp("home")) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        wait_until_ready(client)
        yield client


@contextlib.contextmanager
def watching(home: Path, config: Path | None = None, **places: Path) -> Iterator[Watched]:
    """What a server of these ponds says, without its door."""

    def opened(name: str) -> Pond:
        return millpond.open(places[name], replica_dir=home, wait_seconds=60)

    with open_ponds(places, opened) as ponds:
        yield Watched(ponds, config)


def everything(_table: str) -> bool:
    return True


def error_of(answer: httpx.Response) -> str:
    condition: str = answer.json()["error"]["condition"]
    assert answer.status_code == CONDITIONS[condition].http_status
    return condition


def test_a_job_comes_with_its_tables_and_its_newest_sample(seen: Seen, watched: httpx.Client) -> None:
    (job,) = watched.get("/jobs").json()["jobs"]
    newest = watched.get("/jobs/page_views/samples").json()["samples"][-1]
    assert (job["job"], job["batch"], job["behind_batches"]) == ("page_views", seen.checkpoint.next_batch - 1, 0)
    assert (job["tables"], job["error"], job["sample"]) == (["page_views"], None, newest)


def test_samples_are_those_that_are_kept(seen: Seen, watched: httpx.Client) -> None:
    found = watched.get("/jobs/page_views/samples").json()
    assert (found["found"], len(found["samples"])) == (90, 90)
    times = [sample["at_ms"] for sample in found["samples"]]
    assert times == sorted(times)
    half = watched.get("/jobs/page_views/samples", params={"_since": _iso(times[45])}).json()
    assert half["samples"] == found["samples"][45:]
    before = watched.get("/jobs/page_views/samples", params={"_until": _iso(times[45])}).json()
    assert before["samples"] == found["samples"][:45]


@pytest.mark.parametrize("most", [1, 7, 44, 89, 90, 91, 1000])
def test_fewer_samples_stand_for_all(most: int, watched: httpx.Client) -> None:
    whole = watched.get("/jobs/page_views/samples").json()["samples"]
    few = watched.get("/jobs/page_views/samples", params={"_limit": most}).json()["samples"]
    assert len(few) == min(most, 90)
    assert sum(sample["batches"] for sample in few) == sum(sample["batches"] for sample in whole)
    assert max(sample["longest_batch_seconds"] for sample in few) == max(sample["longest_batch_seconds"] for sample in whole)
    assert few[-1]["at_ms"] == whole[-1]["at_ms"]


def test_what_is_not_known_stays_so_where_samples_are_merged() -> None:
    samples = [Sample(at_ms=number, job_state="unknown", waiting_seconds=3.0 if number == 1 else None) for number in range(4)]
    first, second = thinned(samples, 2)
    assert (first.at_ms, first.waiting_seconds, first.longest_batch_seconds) == (1, 3.0, None)
    assert (second.at_ms, second.waiting_seconds) == (3, None)


def test_sizes_are_those_of_the_files_that_spark_would_load(seen: Seen, watched: httpx.Client) -> None:
    found = watched.get("/jobs/page_views/partitions").json()
    (operator,) = found["operators"]
    version = seen.checkpoint.next_batch
    state = seen.checkpoint.path / "state/0"
    assert found["batch"] == version - 1
    assert operator["partitions"] == list(range(PARTITIONS))
    assert operator["state_bytes"] == [(state / f"{number}/{version}.snapshot").stat().st_size for number in range(PARTITIONS)]


def test_sizes_are_looked_at_once_for_many_questions(tmp_path: Path) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    with watching(tmp_path / "home", pond=seen.place) as watched:
        first = watched.partitions("page_views")
        seen.batch("/new")
        assert watched.partitions("page_views") == first


def test_an_error_costs_one_look_too() -> None:
    looks = []

    def fails() -> int:
        looks.append(1)
        raise RequestError("INVALID_REQUEST", "no", hint="none")

    kept = _Kept[int](0.05)
    for _ in range(20):
        with pytest.raises(RequestError) as refused:
            kept.get(60, fails)
        assert len(refused.traceback) < 5, "each answer adds to what is kept"
    assert len(looks) == 1
    short = _Kept[int](1e9)
    with pytest.raises(RequestError):
        short.get(0.0, fails)
    time.sleep(0.01)
    assert short.get(0.0, lambda: 7) == 7


def test_hot_keys_are_in_the_form_in_which_rows_are_asked_for(watched: httpx.Client) -> None:
    found = watched.get("/jobs/page_views/hot-keys").json()["hot_keys"]
    assert found == [
        {"key": {"page": "/"}, "share": 0.48, "found_in_batch": 3},
        {"key": {"page": ODD[0]}, "share": 0.11, "found_in_batch": 4},
    ]
    rows = watched.post("/tables/page_views/rows:get", json={"keys": [hot["key"] for hot in found]}).json()["rows"]
    assert [row["page"] for row in rows] == ["/", ODD[0]]


@pytest.mark.long
def test_advice_is_the_doctors(tmp_path: Path) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    seen.batch("heavy" * 300_000)
    with watching(tmp_path / "home", web=seen.place, shop=make_pond(tmp_path / "other", samples=1).place) as watched:
        found = watched.advice("web/page_views")
        assert [(advice.job, advice.rule) for advice in found.advice] == [("web/page_views", "hot-key")]
        (own,) = millpond.diagnose(seen.place).advice
        assert found.advice == (msgspec.structs.replace(own, job="web/page_views"),)
        assert watched.advice("shop/page_views").advice == ()
        seen.batch("/")
        assert watched.advice("web/page_views") == found  # it isn't asked again so soon


@pytest.mark.parametrize(
    ("path", "condition"),
    [
        ("/jobs/none/samples", "INVALID_REQUEST"),
        ("/jobs/none/partitions", "INVALID_REQUEST"),
        ("/jobs/none/hot-keys", "INVALID_REQUEST"),
        ("/jobs/..%2F..%2Fetc/partitions", "INVALID_REQUEST"),
        ("/jobs/page_views/samples?_since=yesterday", "WRONG_TYPE"),
        ("/jobs/page_views/samples?_limit=0", "INVALID_LIMIT"),
        ("/jobs/page_views/samples?_limit=100001", "INVALID_LIMIT"),
        ("/jobs/page_views/samples?page=1", "INVALID_REQUEST"),
    ],
)
def test_a_wrong_question_is_refused(path: str, condition: str, watched: httpx.Client) -> None:
    assert error_of(watched.get(path)) == condition


def test_alerts_are_those_of_the_samples_with_what_to_do(tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    made: dict[str, list[Sample]] = {}
    for name, facts in (("slow", {"longest_batch_seconds": 75.0}), ("quiet", {}), ("down", {"job_state": "stopped"})):
        job = create_job(pond, name)
        checkpoint = WrittenCheckpoint(pond / f"jobs/{name}/checkpoint")
        checkpoint.plan([("a", 1)], snapshot=True)
        checkpoint.commit()
        made[name] = write_samples(job, 20, **facts)
    config = tmp_path / "alerts.toml"
    config.write_text('[[silences]]\nrule = "job-down"\nreason = "it runs once a month"\n')
    with watching(tmp_path / "home", config, pond=pond) as watched:
        answer = watched.alerts()
        assert answer.unknown == []
        found = {(alert.job, alert.rule): alert for alert in answer.alerts}
        wanted = {(name, alert.rule): alert for name, samples in made.items() for alert in firing(name, samples)}
        assert found.keys() == wanted.keys() >= {("slow", "batch-slow"), ("down", "job-down")}
        slow = found["slow", "batch-slow"]
        assert (slow.value, slow.threshold, slow.since_ms) == (75.0, 60.0, made["slow"][0].at_ms)
        assert "over a minute" in slow.runbook
        assert {alert.silenced for alert in answer.alerts if alert.rule == "job-down"} == {"it runs once a month"}
        config.write_text("[thresholds]\nbatch-slow = 80\n")
        again = watched.alerts().alerts
        assert {(alert.job, alert.rule) for alert in again} == wanted.keys() - {("slow", "batch-slow")}
        assert all(alert.silenced is None for alert in again)
        config.write_text("[thresholds]\nnothing = 80\n")
        with pytest.raises(MillpondError) as wrong:
            watched.alerts()
        assert wrong.value.condition == "INVALID_CONFIG"


def test_alerts_are_computed_again_when_there_is_a_new_sample(tmp_path: Path) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    with watching(tmp_path / "home", pond=seen.place) as watched:
        before = watched.alerts()
        sample = read_samples(seen.place)[-1]
        for minute in range(1, 4):
            SampleLog(seen.job).add(
                msgspec.structs.replace(sample, at_ms=sample.at_ms + minute * 60_000, longest_batch_seconds=90.0, batches=1)
            )
        after = watched.alerts()
    assert [alert.rule for alert in after.alerts if alert not in before.alerts] == ["batch-slow"]


def test_a_job_that_cannot_be_read_is_named_beside_the_others(tmp_path: Path) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    broken = tmp_path / "pond/jobs/broken"
    broken.mkdir()
    (broken / "job.json").write_text("{")
    with watching(tmp_path / "home", pond=seen.place) as watched:
        assert [each.job for each in watched.alerts().unknown] == ["broken"]
        jobs = {job.job: job for job in watched.jobs(everything).jobs}
        assert jobs["broken"].error is not None
        assert jobs["broken"].error.condition == "CORRUPT_FILE"
        assert jobs["page_views"].error is None


def test_only_a_token_for_metrics_opens_them(serve: Serve, seen: Seen, tmp_path: Path) -> None:
    readers: list[dict[str, Any]] = [
        {"name": "all", "sha256": digest("all"), "tables": ["*"], "metrics": True},
        {"name": "rows", "sha256": digest("rows"), "tables": ["*"], "metrics": False},
        {"name": "numbers", "sha256": digest("numbers"), "tables": [], "metrics": True},
    ]
    tokens = tmp_path / "readers.json"
    tokens.write_text(json.dumps({"format": 1, "readers": readers}))
    with serve(seen.place, "--no-samples", "--tokens", str(tokens)) as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        wait_until_ready(client)
        for path in ROUTES:
            assert error_of(client.get(path)) == "TOKEN_NEEDED"
            assert error_of(client.get(path, headers=_bearer("rows"))) == "NOT_ALLOWED"
            assert client.get(path, headers=_bearer("all")).status_code == 200
        # Names of tables and their keys are for those that may read them.
        assert [job["tables"] for job in client.get("/jobs", headers=_bearer("numbers")).json()["jobs"]] == [[]]
        for path in ("hot-keys", "advice"):
            assert error_of(client.get(f"/jobs/page_views/{path}", headers=_bearer("numbers"))) == "NOT_ALLOWED"


@pytest.mark.long
def test_a_token_opens_keys_only_of_jobs_all_of_whose_tables_it_opens(serve: Serve, seen: Seen, tmp_path: Path) -> None:
    tokens = _readers(tmp_path, all=["*"], none=[], views=["page_*"], others=["other*"])
    with (
        _unknown_jobs(seen.place),
        serve(seen.place, "--no-samples", "--tokens", tokens) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        wait_for_batch(client, seen)
        for path in ("hot-keys", "advice"):
            # A job may be named with its pond: that is the same job, and the same right.
            for job in ("page_views", f"{seen.place.name}%2Fpage_views"):
                assert client.get(f"/jobs/{job}/{path}", headers=_bearer("all")).json() != {}
                assert client.get(f"/jobs/{job}/{path}", headers=_bearer("views")).status_code == 200
                for reader in ("none", "others"):
                    assert error_of(client.get(f"/jobs/{job}/{path}", headers=_bearer(reader))) == "NOT_ALLOWED"
            # Nobody knows which tables these have.
            for job, condition in (("broken", "CORRUPT_FILE"), ("begun", "NO_COMMITTED_BATCH"), ("absent", "NOT_ALLOWED")):
                for reader in ("none", "others", "views"):
                    assert error_of(client.get(f"/jobs/{job}/{path}", headers=_bearer(reader))) == condition
        assert client.get("/jobs/begun/hot-keys", headers=_bearer("all")).json()["hot_keys"][0]["key"] == {"page": "/"}


@pytest.mark.long
def test_of_several_ponds_too(serve: Serve, seen: Seen, tmp_path: Path) -> None:
    other = make_pond(tmp_path / "other", samples=1)
    tokens = _readers(tmp_path, all=["*"], shop=["shop/*"], short=["page_views"])
    with (
        serve(f"web={seen.place}", f"shop={other.place}", "--no-samples", "--tokens", tokens) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        wait_for_batch(client, seen, "web%2Fpage_views")
        wait_for_batch(client, other, "shop%2Fpage_views")
        for path in ("hot-keys", "advice"):
            assert client.get(f"/jobs/web%2Fpage_views/{path}", headers=_bearer("all")).status_code == 200
            assert client.get(f"/jobs/shop%2Fpage_views/{path}", headers=_bearer("shop")).status_code == 200
            for reader in ("shop", "short"):
                assert error_of(client.get(f"/jobs/web%2Fpage_views/{path}", headers=_bearer(reader))) == "NOT_ALLOWED"
            assert error_of(client.get(f"/jobs/page_views/{path}", headers=_bearer("short"))) == "INVALID_REQUEST"


@pytest.mark.parametrize("cell", ["counts-hdfs", "chained-rocksdb-changelog"])
def test_a_jobs_tables_are_those_of_its_whole_state(cell: str, golden: Any, tmp_path: Path) -> None:
    copy = golden(cell)
    with millpond.open(copy.checkpoint, replica_dir=tmp_path / "home", wait_seconds=30) as pond:
        (job,) = pond.jobs()
        assert pond.tables_of(job) == pond.tables() != []
        assert pond.tables_of("none") == []


@pytest.mark.long
def test_several_ponds_name_their_jobs(seen: Seen, tmp_path: Path) -> None:
    other = make_pond(tmp_path / "other", samples=2)
    with watching(tmp_path / "home", web=seen.place, shop=other.place) as watched:
        assert {job.job: job.tables for job in watched.jobs(everything).jobs} == {
            "shop/page_views": ["shop/page_views"],
            "web/page_views": ["web/page_views"],
        }
        assert watched.samples("shop/page_views", ListSamples()).found == 2
        assert watched.samples("web/page_views", ListSamples()).found == 90
        with pytest.raises(MillpondError) as wrong:
            watched.samples("page_views", ListSamples())
        assert wrong.value.condition == "INVALID_REQUEST"


def _readers(folder: Path, **tables: list[str]) -> str:
    """A file of tokens, each named as its reader, that open these tables and what is measured."""
    readers = [{"name": name, "sha256": digest(name), "tables": opened, "metrics": True} for name, opened in tables.items()]
    path = folder / "readers.json"
    path.write_text(json.dumps({"format": 1, "readers": readers}))
    return str(path)


@contextlib.contextmanager
def _unknown_jobs(place: Path) -> Iterator[None]:
    """Two more jobs in a pond whose tables nobody knows: one that can't be read, and one without a commit."""
    broken = place / "jobs/broken"
    broken.mkdir()
    (broken / "job.json").write_text("{")
    job = create_job(place, "begun")
    WrittenCheckpoint(place / "jobs/begun/checkpoint")
    job.write_hot_keys([HotKey(1, {"page": "/"}, 0.48, 3)], {"page": atomic("string")})
    try:
        yield
    finally:
        for name in ("broken", "begun"):
            shutil.rmtree(place / "jobs" / name)


def wait_for_batch(client: httpx.Client, seen: Seen, table: str = "page_views") -> None:
    """Return when the server has the newest batch of that pond."""
    newest = seen.checkpoint.next_batch - 1

    def is_there() -> bool:
        answer = client.get(f"/tables/{table}", headers=_bearer("all"))
        return answer.status_code == 200 and answer.json()["batch"] == newest

    wait_until(is_there, f"batch {newest} of {table}")


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _iso(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
