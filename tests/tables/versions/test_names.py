"""Names that mean a version: what readers see of a cut-over, of several at once, and of one that was killed."""

from __future__ import annotations

import json
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

import millpond
from millpond.catalogue import create_job
from millpond.errors import MillpondError
from millpond.schema.definition.operator_name import parse_entry
from millpond.settings import Retention, RetentionWords
from millpond.storage import open_storage
from millpond.tables.versions.cut_over import plan_cut_over
from millpond.tables.versions.retire import plan_retire
from millpond.versions import begin_name, read_name
from savepoint.killed import run_killed
from servers.serving import wait_until_ready
from suite.sizes import IS_LONG
from suite.waiting import wait_until
from tables.versions.jobs import WrittenVersion, version_of


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    """Versions 1 and 2 of `views`, of which 1 is current."""
    for version in (1, 2):
        WrittenVersion(tmp_path / "pond", version)
        begin_name(tmp_path / "pond", "views", version)
    return tmp_path / "pond"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def cut_over(pond: Path, to: int) -> None:
    plan_cut_over(pond, "views", to=to).run()


def refusal(call, *arguments, **options) -> str:
    with pytest.raises(MillpondError) as error:
        call(*arguments, **options)
    return error.value.condition


def test_the_next_read_after_a_cut_over_is_of_the_new_version_in_each_pond(pond: Path, home: Path) -> None:
    with millpond.open(pond, replica_dir=home) as one, millpond.open(pond, replica_dir=home, follow=False) as other:
        tables = [each["views"] for each in (one, other)]
        assert one.tables() == ["views", "views.v1", "views.v2"]
        for to in (2, 1, 2):
            cut_over(pond, to)
            for table in tables:
                rows = table.scan()
                assert (version_of(rows), rows.cut.job, table.name, table.job) == (to, f"views.v{to}", "views", f"views.v{to}")
            assert version_of(millpond.read_arrow(pond, "views").to_pylist()) == to
            assert version_of([millpond.read_row(pond, "views", {"k": "k01"})]) == to
            assert [version_of(one[f"views.v{n}"].scan()) for n in (1, 2)] == [1, 2]
            with one.cut("views") as cut:
                cut_over(pond, 3 - to)
                assert version_of(cut["views"].scan()) == to
                cut_over(pond, to)


def test_threads_read_one_version_at_a_time_while_others_cut_over(pond: Path, home: Path) -> None:
    ended, failed, counts = threading.Event(), [], [0, 0, 0]

    def read(table: millpond.Table) -> None:
        chance = random.Random(0)
        while not ended.is_set():
            try:
                page = table.scan(limit=15)
                rows = list(page)
                while page.more and chance.random() < 0.9:  # pages stay with their version
                    page = table.scan(limit=15, token=page.token)
                    rows += page
                counts[version_of(rows)] += 1
            except BaseException as error:  # noqa: BLE001 - each failure counts
                failed.append(repr(error))

    with millpond.open(pond, replica_dir=home) as opened:
        threads = [threading.Thread(target=read, args=(opened["views"],)) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(100 if IS_LONG else 20):
                to = 2 - number % 2
                cut_over(pond, to)
                wait_until(lambda to=to: counts[to] or failed, f"an answer of version {to}")
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    assert failed == []
    assert min(counts[1:]) > 0


def test_of_cut_overs_at_once_each_that_went_on_is_recorded_and_no_other(pond: Path) -> None:
    def attempt(number: int) -> int:
        plan = plan_cut_over(pond, "views", to=1 + number % 2)
        try:
            return 0 if plan.is_done else int(plan.run().current > 0)
        except MillpondError as error:
            assert error.condition == "CUTOVER_TAKEN"
            return 0

    with ThreadPoolExecutor(8) as threads:
        done = sum(threads.map(attempt, range(40)))
    found = read_name(open_storage(pond), "views")
    chain = [(each.from_version, each.to_version) for each in found.cut_overs[1:]]
    assert done == len(chain) > 0
    assert all(before[1] == after[0] for before, after in pairwise(chain))
    assert found.current == chain[-1][1]


def test_until_the_new_replica_is_there_a_process_goes_on_with_the_old_version(tmp_path: Path, home: Path) -> None:
    pond = tmp_path / "pond"
    WrittenVersion(pond, 1)
    begin_name(pond, "views", 1)
    millpond.open(pond, replica_dir=home).close()
    WrittenVersion(pond, 2)
    with millpond.open(pond, replica_dir=home, follow=False, wait_seconds=0) as opened:
        table = opened["views"]
        assert refusal(opened["views.v2"].scan) == "REPLICA_BUILDING"
        assert opened.ready()[0]
        assert version_of(table.scan()) == 1
        cut_over(pond, 2)
        assert version_of(table.scan()) == 1
        assert table.job == "views.v1"
        with millpond.open(pond, replica_dir=home):  # builds it
            assert version_of(table.scan()) == 2
    # Who opens the pond now has never served the old one.
    shutil.rmtree(home)
    with millpond.open(pond, replica_dir=home, follow=False, wait_seconds=0) as opened:
        assert refusal(lambda: opened["views"].scan()) == "REPLICA_BUILDING"


def test_who_catches_up_has_the_versions_that_have_begun_since(pond: Path, home: Path) -> None:
    with millpond.open(pond, replica_dir=home) as opened:
        for version in range(3, 9):
            WrittenVersion(pond, version)
            opened.catch_up(60)
            assert version_of(opened[f"views.v{version}"].scan()) == version


def test_a_token_of_changes_doesnt_go_on_in_the_other_version(pond: Path, home: Path) -> None:
    with millpond.open(pond, replica_dir=home, retention={"views": Retention(history_batches=None)}) as opened:
        table = opened["views"]
        since, own = table.changes().token, opened["views.v1"].changes().token
        cut_over(pond, 2)
        assert refusal(table.changes, since) == "VERSION_CHANGED"
        assert opened["views.v1"].changes(own) == []
        assert opened["views.v1"].changes(since) == []
        fresh = table.changes().token
        assert table.changes(fresh) == []
        cut_over(pond, 1)
        assert refusal(table.changes, fresh) == "VERSION_CHANGED"
        assert table.changes(since) == []


def test_a_stream_of_changes_ends_with_its_version(pond: Path, serve) -> None:
    with serve(pond, "--history", "views=1h") as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        with client.stream("GET", "/tables/views/changes", headers={"accept": "text/event-stream"}) as answer:
            lines = answer.iter_lines()
            assert any(line.startswith("data:") for line in lines)
            cut_over(pond, 2)
            assert "event: error" in lines
            data = next(lines).removeprefix("data: ")
            assert json.loads(data)["error"]["condition"] == "VERSION_CHANGED"
        listed = {each["table"]: each["job"] for each in client.get("/tables").json()["tables"]}
        assert listed == {"views": "views.v2", "views.v1": "views.v1", "views.v2": "views.v2"}


def test_a_retention_of_the_name_is_one_of_each_version(pond: Path, home: Path) -> None:
    words = {"views": RetentionWords(history="100")}
    with millpond.open(pond, replica_dir=home, retention=words) as opened:
        opened.wait_until_begun(60)
        for version in (1, 2):
            assert opened[f"views.v{version}"].changes() == []
    with millpond.open(pond, replica_dir=home / "none") as opened:
        assert refusal(opened["views"].changes) == "HISTORY_GONE"


def test_a_job_from_before_its_aggregate_had_versions_is_version_0(tmp_path: Path, home: Path) -> None:
    pond = tmp_path / "pond"
    for version in (0, 1):
        WrittenVersion(pond, version)
    begin_name(pond, "views", 1)
    with millpond.open(pond, replica_dir=home) as opened:
        assert opened.tables() == ["views", "views.v0", "views.v1"]
        for to in (0, 1, 0):
            cut_over(pond, to)
            assert version_of(opened["views"].scan()) == to
            assert version_of(opened["views.v0"].scan()) == 0
            with opened.cut("views") as cut:
                assert version_of(cut["views"].scan()) == to
            assert version_of(millpond.read_arrow(pond, "views").to_pylist()) == to
            assert version_of(millpond.read_arrow(pond, "views.v0").to_pylist()) == 0
    assert [(v.version, v.is_current) for v in millpond.list_versions(pond, "views")] == [(0, True), (1, False)]


def test_a_name_that_cant_be_followed_says_why_and_its_versions_stay(pond: Path, home: Path) -> None:
    file, text = pond / "versions" / "views.json", (pond / "versions" / "views.json").read_bytes()
    with millpond.open(pond, replica_dir=home) as opened:
        table = opened["views"]
        for broken in (b"{", b'{"format": 2}', text.replace(b'"current": 1', b'"current": "1"'), text.replace(b"views", b"other")):
            file.write_bytes(broken)
            assert refusal(lambda: table.scan()) == "CORRUPT_FILE"
            assert refusal(millpond.list_versions, pond) == "CORRUPT_FILE"
            assert version_of(opened["views.v1"].scan()) == 1
        file.write_bytes(text.replace(b'"current": 1', b'"current": 7'))
        assert refusal(lambda: table.scan()) == "UNKNOWN_VERSION"
        missing = [v for v in millpond.list_versions(pond) if v.error is not None]
        assert [(v.version, v.error.condition) for v in missing] == [(7, "UNKNOWN_VERSION")]
        file.write_bytes(text)
        assert version_of(table.scan()) == 1
        # A table of another job has the name, too.
        folder = create_job(pond, "views.v2")
        other = json.loads(json.dumps(folder.definitions()["views.v2"].to_json()))
        folder.write_definition(parse_entry({**other, "table": "views"}))
        opened.tables()
        assert refusal(lambda: opened["views"].scan()) == "AMBIGUOUS_TABLE"


def steps_of(steps: int) -> list[int]:
    return list(range(1, steps)) if IS_LONG else random.Random(steps).sample(range(1, steps), min(6, steps - 1))


@pytest.mark.long
def test_no_answer_of_a_server_of_several_processes_fails_or_mixes_versions(pond: Path, serve) -> None:
    ended, failed, counts = threading.Event(), [], [0, 0, 0]
    with serve(pond, "--workers", "2") as (url, _):
        with httpx.Client(base_url=url) as client:
            wait_until_ready(client)

        def read() -> None:
            with httpx.Client(base_url=url, timeout=60) as client:
                while not ended.is_set():
                    for path in ("/tables/views/rows?k=k01", "/tables/views/rows", "/tables/views/count"):
                        answer = client.get(path)
                        if answer.status_code != 200:
                            failed.append(answer.text)
                            continue
                        found = answer.json()
                        version = version_of(found["rows"]) if "rows" in found else int(found["job"][-1])
                        if found["job"] != f"views.v{version}":
                            failed.append(answer.text)
                        counts[version] += 1

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for number in range(60):
                to = 2 - number % 2
                cut_over(pond, to)
                wait_until(lambda to=to: counts[to] or failed, f"an answer of version {to}")
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    assert failed == []
    assert min(counts[1:]) > 0


@pytest.mark.faults
def test_a_cut_over_killed_at_any_step_is_done_or_not(pond: Path, home: Path) -> None:
    with millpond.open(pond, replica_dir=home) as opened:
        table = opened["views"]
        steps = run_killed(0, pond, "cutover", "views", "2")
        assert steps > 1
        for step in steps_of(steps):
            before = read_name(open_storage(pond), "views").current
            assert run_killed(step, pond, "cutover", "views", str(3 - before)) == -1
            now = read_name(open_storage(pond), "views").current
            assert now in (1, 2)
            assert version_of(table.scan()) == now
            cut_over(pond, 2)
            assert version_of(table.scan()) == 2


@pytest.mark.faults
def test_a_retirement_killed_at_any_step_is_finished_by_the_next(pond: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    cut_over(pond, 2)
    spare = tmp_path / "spare"
    shutil.copytree(pond, spare)
    steps = run_killed(0, spare, "retire", "views", "1")
    for step in steps_of(steps):
        shutil.rmtree(spare)
        shutil.copytree(pond, spare)
        with millpond.open(spare) as opened:
            assert run_killed(step, spare, "retire", "views", "1") == -1
            opened.tables()
            assert version_of(opened["views"].scan()) == 2
        if (spare / "jobs" / "views.v1").exists():
            if 1 in read_name(open_storage(spare), "views").retired:
                assert refusal(plan_cut_over, spare, "views", to=1) == "UNKNOWN_VERSION"
            plan_retire(spare, "views", 1).run()
        assert not (spare / "jobs" / "views.v1").exists()
        assert [v.version for v in millpond.list_versions(spare)] == [2]
    assert refusal(plan_retire, spare, "views", 2) == "VERSION_IN_USE"
