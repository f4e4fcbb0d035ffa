"""Versions of a declared aggregate with Spark: two jobs over the same files, and a name that goes from one to the other."""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

import millpond
from inputs.event_file import write_event_file
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.tables.versions.difference import diff_versions
from suite.sizes import examples
from suite.waiting import wait_until

BEGIN = dt.datetime(2026, 3, 6, 22, 0, tzinfo=dt.UTC)
SCHEMA = "at timestamp, page string, bytes long"
FILES = 4


def declare(version: int | None, *, weight: int, **options) -> millpond.Aggregate:
    """Each of its rows tells its version: `weight` is a multiple of `hits`."""
    from pyspark.sql import functions as F

    values = {"hits": F.count("*"), "weight": F.sum(F.lit(weight)), "bytes": F.sum(F.col("bytes"))}
    usual = {"key": ["page"], "event_time": "at", "values": values, "resolutions": {"1 hour": None, "1 day": None}}
    return millpond.Aggregate("views", version=version, **{**usual, "future_skew": None, "dead_letters": None, **options})


def write_files(folder: Path, random_: random.Random) -> list[dict]:
    folder.mkdir()
    rows = []
    for number in range(FILES):
        some = [
            {
                "at": (BEGIN + dt.timedelta(seconds=random_.randrange(7200))).isoformat(),
                "page": f"/{random_.randrange(6)}",
                "bytes": random_.randrange(1, 99),
            }
            for _ in range(30)
        ]
        write_event_file(folder, number, some)
        rows += some
    return rows


def run(spark, aggregate, pond: Path, folder: Path, *, files: str = "*", at_once: int = 1, **options) -> None:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", at_once).option("pathGlobFilter", files).json(str(folder))
    with aggregate.start(source, pond=pond, trigger="available-now", partitions=2, **options) as job:
        assert job.wait_for_end(120)


def buckets(rows: list[dict]) -> Counter:
    """Page and hour -> how many events."""
    return Counter((r["page"], r["at"][:13]) for r in rows)


def weight_of(rows) -> int:
    """By which version an answer was given; fails if its rows don't agree."""
    (weight,) = {row["weight"] / row["hits"] for row in rows}
    return int(weight)


def refused(condition: str, call, *arguments, **options) -> MillpondError:
    with pytest.raises(MillpondError) as error:
        call(*arguments, **options)
    assert error.value.condition == condition, error.value
    return error.value


class Readers:
    """Threads that read all the time, over several doors; each answer must be of one version."""

    def __init__(self, reads) -> None:
        self.failed: list[str] = []
        self.seen: dict[str, list[int]] = {name: [] for name in reads}
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(name, read), daemon=True) for name, read in reads.items()]

    def _run(self, name, read) -> None:
        seen = self.seen[name]
        while not self._ended.is_set():
            try:
                seen.append(weight_of(read()))
            except BaseException as error:  # noqa: BLE001 - each failure counts
                self.failed.append(f"{name}: {error!r}")

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for(self, weight: int) -> None:
        """Return when each thread has had a new answer of this version."""
        marks = {name: len(seen) for name, seen in self.seen.items()}
        wait_until(
            lambda: all(weight in self.seen[name][mark:] for name, mark in marks.items()),
            f"an answer of version {weight} in each thread",
            unless=lambda: self.failed,
        )


def test_a_version_beside_another_takes_the_name_and_gives_it_back(spark, tmp_path, serve):
    random_ = random.Random(16)
    rows, pond = write_files(tmp_path / "in", random_), tmp_path / "pond"
    run(spark, declare(1, weight=1), pond, tmp_path / "in", at_once=2)
    run(spark, declare(2, weight=2), pond, tmp_path / "in", files="00000[01].json")
    # The same number with other values.
    for other in (
        declare(2, weight=3),
        declare(2, weight=2, resolutions={"1 hour": None}),
        declare(2, weight=2, event_time="at", values=dict(reversed(declare(2, weight=2)._declared.values.items()))),
    ):
        refused("DEFINITION_CHANGED", run, spark, other, pond, tmp_path / "in")
    refused("TABLE_EXISTS", run, spark, declare(None, weight=1), pond, tmp_path / "in")
    refused("INVALID_REQUEST", run, spark, declare(2, weight=2), pond, tmp_path / "in", job="other")
    # A version that is behind.
    found = millpond.list_versions(pond, "views")
    assert [(v.version, v.is_current, v.job, v.behind.files) for v in found] == [
        (1, True, "views.v1", 0),
        (2, False, "views.v2", 2),
    ]
    assert refused("VERSION_BEHIND", millpond.plan_cut_over, pond, "views", to=2).context["files"] == 2
    refused("UNKNOWN_VERSION", millpond.plan_cut_over, pond, "views", to=3)
    assert millpond.plan_cut_over(pond, "views", to=2, max_behind=2).behind.files == 2
    # Where both have read two files, they differ in one column, by half.
    half = diff_versions(pond, "views", 1, 2)
    assert (half.left.batch, half.right.batch) == (0, 1)
    hours = buckets(rows[:60])
    assert (half.differ["1 hour"].changed, half.table.counts.same) == (len(hours), 0)
    run(spark, declare(2, weight=2), pond, tmp_path / "in", at_once=3)
    whole = diff_versions(pond, "views", 1, 2, keys=3)
    hours = buckets(rows)
    days = Counter(page for page, _ in hours)
    assert whole.table.counts.changed == len(hours) + sum(1 for _ in {(p, h[:10]) for p, h in hours})
    assert (whole.differ["1 hour"].changed, len(days)) == (len(hours), 6)
    (column,) = whole.columns
    assert (column.column, column.p50, column.p99, column.most, column.is_exact) == ("weight", 0.5, 0.5, 0.5, True)
    assert len(whole.most) == 3
    assert whole.share == 1
    refused("VERSIONS_DIFFER", millpond.plan_cut_over, pond, "views", to=2, max_changed=0.01)
    on_the_command_line(str(pond), str(tmp_path / "home"))

    with (
        serve(pond, "--history", "views=1h") as (url, _),
        millpond.open(pond, wait_seconds=60) as here,
        millpond.connect(url) as remote,
    ):
        served, client = here["views"], httpx.Client(base_url=url, timeout=60)
        httpx.get(f"{url}/tables/views.v2/count", timeout=60)
        assert {"views", "views.v1", "views.v2"} <= set(here.tables())
        assert {t["table"]: t.get("job") for t in client.get("/tables").json()["tables"]}["views"] == "views.v1"
        key = {
            "page": "/1",
            "resolution": "1 day",
            "bucket_start": str(served.scan(page="/1", resolution="1 day")[0]["bucket_start"]),
        }
        key["expires_at"] = None
        reads = {
            "python": lambda: [served.get(key)],
            "python by name": lambda: here["views"].scan(),
            "total": lambda: [served.total(page="/2")],
            "http rows": lambda: client.get("/tables/views/rows?page=/3").raise_for_status().json()["rows"],
            "http total": lambda: [client.get("/tables/views/total?page=/1").raise_for_status().json()["row"]],
            "client": lambda: remote["views"].scan(),
        }
        with Readers(reads) as readers:
            for _ in range(examples(3)):
                for to in (2, 1):
                    done = millpond.plan_cut_over(pond, "views", to=to).run()
                    assert done.current == to
                    # On a local disk, the very next read is of the new version.
                    assert [weight_of(read()) for read in reads.values()] == [to] * len(reads)
                    readers.wait_for(to)
        assert readers.failed == []
        tokens_of_both(pond, here, client)
    both_or_one(pond)


@pytest.mark.long
def test_a_version_that_is_aligned_then_current_and_the_old_one_retired(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    rows, pond = write_files(tmp_path / "in", random.Random(17)), tmp_path / "pond"
    run(spark, declare(1, weight=1), pond, tmp_path / "in", at_once=2)
    run(spark, declare(2, weight=2), pond, tmp_path / "in", files="000000.json")
    refused("NOT_ALIGNED", diff_versions, pond, "views", 1, 2)
    # The next batch ends where the current version does, although a file has come since.
    write_event_file(tmp_path / "in", FILES, [{"at": BEGIN.isoformat(), "page": "/0", "bytes": 1}])
    assert millpond.plan_align(pond, "views", 2).run() == 1
    refused("NOT_ALIGNED", millpond.plan_align, pond, "views", 2)
    refused("INVALID_REQUEST", millpond.plan_align, pond, "views", 1)
    run(spark, declare(2, weight=2), pond, tmp_path / "in")
    aligned = diff_versions(pond, "views", 1, 2)
    assert (aligned.left.batch, aligned.right.batch) == (1, 1)
    assert aligned.differ["1 hour"].changed == len(buckets(rows))
    assert [v.batch for v in millpond.list_versions(pond, "views")] == [1, 2]
    refused("VERSION_IN_USE", millpond.plan_retire, pond, "views", 1)
    assert millpond.plan_cut_over(pond, "views", to=2).run().current == 2
    refused("VERSION_BEHIND", millpond.plan_cut_over, pond, "views", to=1)
    with millpond.open(pond) as opened:
        assert weight_of(opened["views"].scan()) == 2
        assert opened["views"].total(page="/0")["hits"] == sum(row["page"] == "/0" for row in rows) + 1
        plan = millpond.plan_retire(pond, "views", 1)
        assert plan.run() is False, "this process follows it"
        assert not (pond / "jobs" / "views.v1").exists()
        assert weight_of(opened["views"].scan()) == 2
        assert opened.tables() == ["views", "views.v2"]
    refused("UNKNOWN_VERSION", millpond.plan_cut_over, pond, "views", to=1)
    refused("UNKNOWN_VERSION", millpond.plan_retire, pond, "views", 1)
    # The number is free again.
    run(spark, declare(1, weight=5), pond, tmp_path / "in", at_once=5)
    assert millpond.plan_cut_over(pond, "views", to=1).run().current == 1
    assert millpond.plan_retire(pond, "views", 2).run()


def on_the_command_line(pond: str, home: str) -> None:
    """The commands say what Python says."""
    runner = CliRunner(env={"MILLPOND_HOME": home})
    listed = [json.loads(line) for line in runner.invoke(main, ["versions", "list", pond, "--json"]).stdout.splitlines()]
    assert [(v["version"], v["is_current"], v["behind"]["files"]) for v in listed] == [(1, True, 0), (2, False, 0)]
    assert "views.v2" in runner.invoke(main, ["versions", "list", pond, "views"]).stdout
    ran = runner.invoke(main, ["versions", "diff", pond, "views", "1", "2", "--json"])
    assert (ran.exit_code, json.loads(ran.stdout)["columns"][0]["p50"]) == (1, 0.5), ran.output
    ran = runner.invoke(main, ["versions", "diff", pond, "views", "1", "2"])
    assert (ran.exit_code, "50.000%" in ran.stdout, "100.000% differ" in ran.stderr) == (1, True, True), ran.output
    assert (
        "[VERSIONS_DIFFER]"
        in runner.invoke(main, ["versions", "cutover", pond, "views", "--to", "2", "--max-changed", "1%"]).stderr
    )
    ran = runner.invoke(main, ["versions", "cutover", pond, "views", "--to", "2"])
    assert (ran.exit_code, "Nothing is done yet" in ran.stderr) == (0, True), ran.output
    ran = runner.invoke(main, ["versions", "cutover", pond, "views", "--to", "2", "--max-changed", "100%", "--yes"])
    assert (ran.exit_code, ran.stdout) == (0, "views means version 2: the job views.v2\n"), ran.output
    assert runner.invoke(main, ["versions", "cutover", pond, "views", "--to", "1", "--yes"]).exit_code == 0
    assert "[VERSION_IN_USE]" in runner.invoke(main, ["versions", "retire", pond, "views", "1", "--yes"]).stderr
    assert "Nothing is done yet" in runner.invoke(main, ["versions", "retire", pond, "views", "2"]).stderr


def tokens_of_both(pond: Path, here: millpond.Pond, client: httpx.Client) -> None:
    """Pages and cuts stay with the version that they began with; changes don't go on."""
    served = here["views"]
    first, page = served.scan(limit=3), client.get("/tables/views/rows?_limit=3").json()
    cut, remote_cut = served.cut().token, client.get("/tables/views/cut").json()["cut"]
    since = client.get("/tables/views/changes").json()["token"]
    old = len(served.scan())
    with here.cut("views") as opened:
        millpond.plan_cut_over(pond, "views", to=2).run()
        assert weight_of(opened["views"].scan()) == 1
        assert weight_of(served.scan(limit=1)) == 2
    rest = served.scan(token=first.token)
    assert (weight_of(rest), len(first) + len(rest)) == (1, old)
    rest = client.get("/tables/views/rows", params={"_token": page["token"]}).raise_for_status().json()
    assert (weight_of(rest["rows"]), rest["job"]) == (1, "views.v1")
    assert weight_of(served.at(cut=cut).scan()) == 1
    answer = client.get("/tables/views/rows", params={"_cut": remote_cut}).raise_for_status().json()
    assert weight_of(answer["rows"]) == 1
    refusal = client.get("/tables/views/changes", params={"_since": since})
    assert (refusal.status_code, refusal.json()["error"]["condition"]) == (410, "VERSION_CHANGED"), refusal.text
    assert client.get("/tables/views.v1/changes", params={"_since": since}).status_code == 200


def both_or_one(pond: Path) -> None:
    """Of two cut-overs that were planned at once, one goes on."""
    one, other = (millpond.plan_cut_over(pond, "views", to=1) for _ in range(2))
    assert one.run().current == 1
    refused("CUTOVER_TAKEN", other.run)
    assert millpond.plan_cut_over(pond, "views", to=2).run().current == 2
