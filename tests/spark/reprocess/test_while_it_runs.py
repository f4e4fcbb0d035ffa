"""A repair that is planned while the job runs; what readers of changes see; kills; and what is refused."""

from __future__ import annotations

import datetime as dt
import importlib
import json
import pickle
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import millpond
from inputs.event_file import write_event_file
from millpond.cli import main
from millpond.errors import MillpondError
from spark.reprocess.corrected import SCHEMA, correct, count, declare, draw_file, newest, shown, source, write
from spark.reprocess.running import Running
from suite.sizes import a_few

BEGIN = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
# Commits a repair, and is killed at a step with files; prints how many steps it took.
KILLED = """
import os, pickle, signal, sys
from millpond.checkpoint.log import read_batch
from millpond.savepoint.in_place.patch import write_patch
from millpond.storage import open_storage
place, last, steps = sys.argv[1], int(sys.argv[2]), 0
storage, (number, changes) = open_storage(place), pickle.load(sys.stdin.buffer)
batch = read_batch(storage, number)
def step(event, _):
    global steps
    if event in ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.scandir"):
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(step)
write_patch(storage, batch, changes, "reprocess")
print(steps)
"""


def _files(draw: random.Random, first: int, number: int, sent: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    return {n: draw_file(draw, BEGIN, n, sent) for n in range(first, first + number)}


@pytest.mark.long
@pytest.mark.parametrize("form", a_few(["hdfs", "changelog", "fenced"], 0, 2))
def test_a_plan_that_was_made_while_the_job_ran_includes_what_came_since(spark, tmp_path: Path, form: str) -> None:
    draw, sent = random.Random(form), []
    files, later = _files(draw, 0, 5, sent), _files(draw, 5, 3, sent)
    corrected = {**files, 2: correct(draw, files[2]), 4: correct(draw, files[4])}
    job = Running(spark, tmp_path, form)
    write(job.folder, files)
    with job.started() as running:
        running.query.processAllAvailable()
        write(job.folder, corrected)
        plan = job.plan()
        assert plan.changes
        with pytest.raises(MillpondError) as raised:
            plan.run()
        assert raised.value.condition == "CHECKPOINT_IN_USE"
        write(job.folder, later)
        running.query.processAllAvailable()
    before, letters = shown(job.pond)
    with millpond.open(job.pond, wait_seconds=60, retention=millpond.Retention(history_batches=1000)) as opened:
        table = opened["views"]
        token = table.changes().token
        done = plan.run()
        assert not list(job.checkpoint.parent.glob("reprocess-*"))
        expected = count(corrected | later, newest(files | later))
        changes = table.changes(token, wait_seconds=60)
        assert {(change.repaired, change.batch) for change in changes} == {(True, done.batch)}
        each = Counter((c.row["page"], c.row["resolution"], c.row["bucket_start"]) for c in changes)
        assert set(each.values()) == {1}
        kinds = Counter(change.kind for change in changes)
        differ = {b for b in before.keys() & expected.keys() if before[b][:3] != expected[b][:3] or before[b][4] != expected[b][4]}
        assert kinds["insert"] == len(expected.keys() - before.keys())
        assert kinds["delete"] == len(before.keys() - expected.keys())
        assert differ <= {(*key[:2], key[2].timestamp()) for key in each}
        assert "expire" not in kinds
        answer = CliRunner().invoke(main, ["changes", str(job.pond), "views", "--since", str(done.batch - 1), "--json"])
        assert answer.exit_code == 0 or "HISTORY_GONE" in answer.output
    assert shown(job.pond) == (expected, letters)
    more = _files(draw, 8, 1, sent)
    write(job.folder, more)
    job.run()
    assert shown(job.pond)[0] == count(corrected | later | more, newest(files | later | more))


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("form", a_few(["hdfs", "snapshots", "changelog", "fenced"], 0, 1))
def test_a_killed_repair_leaves_the_old_state_or_the_new_one(spark, tmp_path: Path, form: str) -> None:
    draw, sent = random.Random(form), []
    files = _files(draw, 0, 4, sent)
    job = Running(spark, tmp_path, form)
    write(job.folder, files)
    job.run()
    steps, number = 40, 4
    for _ in range(3):
        hurt = draw.randrange(number)
        write(job.folder, corrected := {**files, hurt: correct(draw, files[hurt])})
        before, watermark = shown(job.pond)[0], newest(corrected if hurt < number else files)
        watermark = max(watermark, newest(files))
        with job.plan() as plan:
            batch = int(plan.batch)
            changes = {plan.part.definition.store_id[:2]: plan.found.changes}
            step = draw.randrange(1, steps + 1)
            ran = subprocess.run(
                [sys.executable, "-c", KILLED, str(job.checkpoint), str(step)],
                input=pickle.dumps((batch, changes)),
                capture_output=True,
                check=False,
            )
            assert ran.returncode in (0, -9), ran.stderr.decode()
            steps = int(ran.stdout) if ran.returncode == 0 else steps
            anew = count(corrected, watermark)
            committed = (job.checkpoint / f"commits/{batch + 1}").exists()
            assert shown(job.pond)[0] == (anew if committed else before)
        if draw.random() < 0.5 and not committed:  # it is repeated, or the job goes on first
            with job.plan() as plan:
                plan.run()
            committed = True
        files = dict(corrected)
        more = _files(draw, number, 1, sent)
        write(job.folder, more)
        job.run()
        number += 1
        files |= more
        with job.plan() as plan:
            assert committed is not bool(plan.found.differs)
            if not committed:
                plan.run()
        assert shown(job.pond)[0] == count(files, newest(files))


@pytest.mark.long
def test_what_cant_be_computed_anew_is_refused(spark, tmp_path: Path) -> None:
    job = Running(spark, tmp_path, "hdfs", dedupe=("id", "60 days"))
    rows = [{"id": str(n), "at": (BEGIN + dt.timedelta(hours=n)).isoformat(), "page": "/", "size": n, "ms": 0.5} for n in range(9)]
    write(job.folder, {0: rows, 1: [rows[3]]})
    job.run()

    def refused(what: Any) -> str:
        with pytest.raises(MillpondError) as raised:
            what()
        return raised.value.condition

    assert refused(lambda: job.plan(since="2026-01-02T00:00Z", until="2026-01-01T00:00Z")) == "INVALID_REQUEST"
    assert refused(lambda: job.plan(key={"resolution": "1 day"})) == "INVALID_REQUEST"
    assert refused(lambda: job.plan(key={"size": 1})) in ("NOT_A_KEY_COLUMN", "UNKNOWN_COLUMN")
    other = declare(resolutions={"1 hour": None}, dedupe=("id", "60 days"))
    assert refused(lambda: millpond.plan_reprocess(other, source(spark, job.folder), pond=job.pond)) == "DEFINITION_CHANGED"
    no_ids = declare()
    assert refused(lambda: millpond.plan_reprocess(no_ids, source(spark, job.folder), pond=job.pond)) == "DEFINITION_CHANGED"
    rate = (
        spark.readStream.format("rate")
        .load()
        .selectExpr("timestamp AS at", "'' AS id", "'' AS page", "value AS size", "0.5D AS ms")
    )
    both = source(spark, job.folder).union(rate.select("id", "at", "page", "size", "ms"))
    assert refused(lambda: millpond.plan_reprocess(job_declared(job), both, pond=job.pond)) == "UNSUPPORTED"
    lenient = spark.readStream.schema(SCHEMA).option("ignoreMissingFiles", "true").json(str(job.folder))
    assert refused(lambda: millpond.plan_reprocess(job_declared(job), lenient, pond=job.pond)) == "UNSUPPORTED"
    write(job.folder, {1: [{**rows[3], "size": 100}]})  # a copy that differs
    assert refused(job.plan) == "INVALID_REQUEST"
    with job.plan(since=BEGIN + dt.timedelta(days=9)) as plan:
        assert not plan.changes
        assert refused(plan.run) == "INVALID_REQUEST"
    (job.folder / "000001.json").unlink()
    assert refused(job.plan) == "JOB_FAILED"
    write(job.folder, {1: [rows[3]], 0: rows[1:]})
    with job.plan() as plan:
        (job.checkpoint / "offsets/9").write_bytes((job.checkpoint / "offsets/1").read_bytes())
        assert refused(plan.run) == "INVALID_REQUEST"
        (job.checkpoint / "offsets/9").unlink()
    (job.checkpoint.parent / "erasures").mkdir()
    (job.checkpoint.parent / "erasures/1.json").write_text("{}")
    assert refused(job.plan) == "UNSUPPORTED"
    with job.plan(key={"page": "/"}) as plan:
        assert plan.changes
    assert not list(job.checkpoint.parent.glob("reprocess-*"))


def job_declared(job: Running) -> millpond.Aggregate:
    return declare(**job.options)


@pytest.mark.long
def test_the_command_shows_and_repairs(spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: what a longer retention lacks is computed anew, and dead letters that count now go."""
    folder, pond = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    rows = [{"id": str(n), "at": (BEGIN + dt.timedelta(hours=n)).isoformat(), "page": "/"} for n in (0, 30, 60, 1)]
    write_event_file(folder, 0, rows[:3])
    write_event_file(folder, 1, rows[3:])  # late for hours

    def statement(keep: str) -> str:
        return (
            f"CREATE AGGREGATE views KEY (page) TIME at RESOLUTIONS ('1 hour' FOR '{keep}', '1 day')\n"
            f"AS SELECT count(*) AS hits FROM json.`{folder}` SCHEMA 'id string, at timestamp, page string' "
            "OPTIONS (maxFilesPerTrigger 1)"
        )

    def hours() -> list[float]:
        with millpond.open(pond, wait_seconds=60) as opened:
            return sorted(r["bucket_start"].timestamp() for r in opened["views"].scan() if r["resolution"] == "1 hour")

    def apply(text: str) -> None:
        for job in millpond.plan_apply(text, pond, spark=spark).run(trigger="available-now", partitions=2):
            with job:
                assert job.wait_for_end(120)

    file = tmp_path / "views.sql"
    apply(statement("1 day"))
    file.write_text(statement("9 days"))
    apply(statement("9 days"))
    kept = hours()
    assert len(kept) < len(rows)
    monkeypatch.setattr(importlib.import_module("millpond.spark.session"), "session", lambda *_, **__: spark.newSession())
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    ran = CliRunner().invoke(main, ["reprocess", str(pond), "views", str(file), "--key", "page=/"])
    assert ran.exit_code == 0, ran.output
    assert f"{len(rows) - len(kept)} are new" in ran.output, ran.output
    assert "Nothing is done yet" in ran.output
    assert hours() == kept
    ran = CliRunner().invoke(main, ["reprocess", str(pond), "views", str(file), "--yes"])
    assert ran.exit_code == 0, ran.output
    assert "1 of late: 1 hour go" in ran.output
    assert len(hours()) == len(rows)
    with millpond.open(pond, wait_seconds=60) as opened:
        assert not [r for r in opened["views"].scan() if r["dead_letter"]]
        assert opened["views"].total(page="/", since=BEGIN, until=BEGIN + dt.timedelta(hours=2))["hits"] == 2
    tables = json.loads((pond / "jobs/views/tables/views.json").read_text())
    assert all(len(each) == 2 for each in tables["resolutions"]["each"])
    ran = CliRunner().invoke(main, ["reprocess", str(pond), "views", str(file), "--yes"])
    assert ran.exit_code == 0, ran.output
    assert "nothing is to be repaired" in ran.output
