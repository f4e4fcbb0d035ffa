"""Audits of declared aggregates against a recount in Python; then events are lost and doubled, and the audit finds them."""

from __future__ import annotations

import datetime as dt
import importlib
import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import millpond
from inputs.event_file import write_event_file
from millpond.cli import main
from millpond.errors import MillpondError
from spark.aggregate.events import KEEPS, SCHEMA, SECONDS, declare_views, draw_events, recount
from suite.sizes import a_few, examples

DEDUPE = ("id", "2 days")


def _draw(seed: str, files: int) -> list[list[dict]]:
    """Events as `draw_events`; of one id in one file there is one event, so that nothing is left to chance."""
    begin = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
    drawn = draw_events(random.Random(seed), begin, files)
    return [list({row["id"] or json.dumps(row): row for row in reversed(rows)}.values())[::-1] for rows in drawn]


def _source(spark, folder: Path):
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def _run(spark, written: list[list[dict]], tmp_path: Path, **options) -> tuple[Path, Path]:
    folder, pond = tmp_path / "a b", tmp_path / "pond"
    folder.mkdir()
    for number, rows in enumerate(written):
        write_event_file(folder, number, rows)
        written_s = dt.datetime.now(dt.UTC).timestamp() - len(written) + number
        os.utime(folder / f"{number:06d}.json", (written_s, written_s))
    with millpond.start(declare_views(**options), _source(spark, folder), pond=pond, trigger="available-now") as job:
        assert job.wait_for_end(300)
    return folder, pond


def _check_counts(found: millpond.Audit, written: list[list[dict]], *, dedupe: bool) -> None:
    """The counts of a sound audit are those of the recount in Python."""
    buckets, letters = recount([*written, None], dedupe=dedupe)
    expected: Counter = Counter()
    for (_, name, _), ids in buckets.items():
        expected[name] += ids.total()
    for (reason, _), n in letters.items():
        expected[reason] += n
    assert found.is_balanced
    assert (found.unsure, found.findings, found.differences) == (0, (), ())
    assert {r.name: r.held for r in found.rows if r.held} == dict(expected)
    assert all(r.least == r.most == r.held and r.counted == r.least + r.expired for r in found.rows)
    assert [p.events for p in found.parts] == [p.records for p in found.parts] == [len(rows) for rows in written]
    # Every event is a duplicate, in a bucket of a day, or in none.
    apart = sum(n for (reason, _), n in letters.items() if not reason.startswith("late"))
    days = sum(ids.total() for (_, name, _), ids in buckets.items() if name == "1 day")
    assert sum(map(len, written)) == sum(p.duplicates for p in found.parts) + apart + days


@pytest.mark.long
def test_an_audit_finds_the_file_whose_events_are_missing(spark, tmp_path: Path) -> None:
    files = examples(12, fewest=2)
    written = _draw("gap", files)
    lost = files // 2
    folder, pond = _run(spark, [[] if n == lost else rows for n, rows in enumerate(written)], tmp_path)
    aggregate, source = declare_views(), _source(spark, folder)
    # As if the job had read the file, and lost its events.
    newest = max(row["at"] for row in written[lost - 1] if row["at"] and not row["at"].startswith("2999"))
    rows = [{**row, "at": newest} for row in written[lost]]
    write_event_file(folder, lost, rows)
    found = millpond.audit(aggregate, source, pond=pond)
    assert not found.is_balanced
    (finding,) = found.findings
    assert (finding.kind, finding.batches, finding.events) == ("gap", f"batch {lost}", len(rows))
    assert finding.parts[0].name.endswith(f"{lost:06d}.json")
    missing = {(d.key["page"], d.key["resolution"]): d.least - d.held for d in found.differences}
    assert {(p, "1 day"): n for p, n in Counter(row["page"] for row in rows).items()}.items() <= missing.items()
    assert "GAP" in found.describe(parts=True)
    json.dumps(found.to_json())


@pytest.mark.long
def test_counts_are_those_of_a_recount_and_later_batches_can_be_audited_alone(spark, tmp_path: Path) -> None:
    written = _draw("sound", files := examples(16, fewest=6))
    folder, pond = _run(spark, written, tmp_path, dedupe=DEDUPE)
    aggregate, source = declare_views(dedupe=DEDUPE), _source(spark, folder)
    found = millpond.audit(aggregate, source, pond=pond)
    _check_counts(found, written, dedupe=True)
    later = millpond.audit(aggregate, source, pond=pond, since=files // 2)
    assert later.is_balanced
    assert later.unsure == 0
    assert later.parts == found.parts[files // 2 :]
    with pytest.raises(MillpondError) as refused:
        millpond.audit(declare_views(dedupe=DEDUPE, key=[]), source, pond=pond)
    assert refused.value.condition == "DEFINITION_CHANGED"
    (folder / "000001.json").unlink()
    with pytest.raises(MillpondError) as gone:
        millpond.audit(aggregate, source, pond=pond)
    assert gone.value.condition == "INPUT_GONE"
    assert millpond.audit(aggregate, source, pond=pond, since=2).is_balanced


@pytest.mark.long
def test_each_event_is_where_the_recount_has_it(spark, tmp_path: Path) -> None:
    written = _draw("each", 3)
    folder, pond = _run(spark, written, tmp_path, dedupe=DEDUPE)
    aggregate, source = declare_views(dedupe=DEDUPE), _source(spark, folder)
    found = [e for page in ("/", "/a") for e in millpond.audit_event(aggregate, source, {"page": page}, pond=pond).events]
    answers = Counter(
        (
            e.batches,
            _normal({**e.event, "at": None if e.event["at"] is None else e.event["at"].astimezone(dt.UTC).isoformat()}),
            p.fate,
            p.resolution,
        )
        for e in found
        for p in e.places
    )
    assert answers == _fates(written)
    one = next(e for e in found if any(p.fate == "late" for p in e.places))
    place = next(p for p in one.places if p.fate == "late")
    assert place.late_by_seconds == (one.watermark - place.expires_at).total_seconds() >= 0
    again = next(e for e in found if e.places[0].fate == "duplicate" and e.event["id"])
    first = next(n for n, rows in enumerate(written) if any(row["id"] == again.event["id"] for row in rows))
    assert again.duplicate_of.startswith(f"batch {first}, ")
    assert "duplicate of the one of batch" in again.describe()
    json.dumps([e.to_json() for e in found])
    nothing = millpond.audit_event(aggregate, source, {"id": "nobody"}, pond=pond)
    assert (nothing.events, nothing.batch) == ((), 3)
    assert "isn't read yet" in nothing.reason


def _fates(written: list[list[dict]]) -> Counter:
    """(batch, event, fate, resolution), by Spark's rules: see `recount`."""
    newest, seen, found = 0.0, set(), []
    for number, rows in enumerate(written):
        most = newest
        for row in rows:
            event, identity = _normal(row), row["id"] or _normal(row)
            if identity in seen:
                found.append((number, event, "duplicate", None, None))
                continue
            seen.add(identity)
            is_future = row["at"] is not None and row["at"].startswith("2999")
            why = "no id" if row["id"] is None else "no time" if row["at"] is None else "future" if is_future else None
            if row["at"] is not None and not is_future:
                most = max(most, dt.datetime.fromisoformat(row["at"]).timestamp())
            if why:
                found.append((number, event, "dead letter", why, None))
                continue
            at = dt.datetime.fromisoformat(row["at"]).timestamp()
            for name, keep in KEEPS.items():
                ends = None if keep is None else at // SECONDS[name] * SECONDS[name] + SECONDS[name] + keep
                found.append((number, event, "late" if ends is not None and ends <= newest else "in", name, ends))
        newest = int(most * 1000) / 1000
    return Counter(
        (f"batch {number}", event, "expired" if fate == "in" and ends is not None and ends <= newest else fate, name)
        for number, event, fate, name, ends in found
    )


@pytest.mark.long
@pytest.mark.parametrize("times", a_few([0, 2], 1, long=0))
def test_an_audit_finds_the_file_in_an_edited_state(spark, tmp_path: Path, times: int) -> None:
    """The events of one file are removed from the rows of a savepoint, or are there twice."""
    written = _draw(f"edited {times}", files := 6)
    folder, pond = _run(spark, written, tmp_path, dedupe=DEDUPE)
    chosen = files - 2
    buckets, _ = recount([*written, None], dedupe=True)
    events = {_normal(row) for row in written[chosen]} - {_normal(row) for rows in written[:chosen] for row in rows}

    def edit(row: millpond.StateRow) -> millpond.StateRow | None:
        key, (name,) = row.key, [n for n in row.value if n.startswith("count")][:1]
        if key["dead_letter"] is not None:
            mine = row.value[name] if _normal(json.loads(key["dead_letter"])) in events else 0
        else:
            ids = buckets.get((key["page"], key["resolution"], key["bucket_start"].timestamp()), Counter())
            mine = sum(n for i, n in ids.items() if i and i.startswith(f"{chosen}-"))
        row.value[name] += (times - 1) * mine
        return row if row.value[name] else None

    millpond.plan_savepoint(pond, "sound").run()
    made = millpond.plan_edit_savepoint(pond, "sound", "edited", edit=edit, tables=["views"]).run()
    checkpoint = pond / "jobs" / "views" / "checkpoint"
    shutil.rmtree(checkpoint)
    millpond.plan_restore(pond, made.manifest.name, to=checkpoint).run()
    found = millpond.audit(declare_views(dedupe=DEDUPE), _source(spark, folder), pond=pond)
    assert [(f.kind, f.batches) for f in found.findings] == [("gap" if times == 0 else "double", f"batches 0 to {files - 1}")]
    assert [p.name.endswith(f"{chosen:06d}.json") for p in found.findings[0].parts] == [True]
    assert found.differ == len(found.differences) > 0


@pytest.mark.long
def test_the_command_has_a_verdict_and_an_exit_code(spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A command ends its session, and here it would be that of all tests of the process.
    monkeypatch.setattr(importlib.import_module("millpond.spark.session"), "session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    written = _draw("command", 2)
    folder, pond = _run(spark, written, tmp_path)
    sql = tmp_path / "views.sql"
    sql.write_text(
        "CREATE AGGREGATE views KEY (page) TIME at "
        "RESOLUTIONS ('1 minute' FOR '21600 seconds', '1 hour' FOR '259200 seconds', '1 day') "
        f"AS SELECT count(*) AS hits, collect_set(id) AS ids FROM json.`{folder}` SCHEMA '{SCHEMA}'"
    )
    ran = CliRunner().invoke(main, ["audit", str(pond), "views", str(sql), "--parts"])
    assert ran.exit_code == 0, ran.output
    assert "balanced" in ran.output
    write_event_file(folder, 1, written[1][:-5])
    ran = CliRunner().invoke(main, ["audit", str(pond), "views", str(sql), "--json"])
    assert ran.exit_code == 1, ran.output
    answer = json.loads(ran.output.splitlines()[-1])
    assert [f["batches"] for f in answer["findings"]] == ["batch 1"]
    assert answer["balanced"] is False


def _normal(event: dict) -> str:
    at = event.get("at")
    known = {n: v for n, v in event.items() if v is not None and n != "at"}
    return json.dumps({**known, "at": None if at is None else dt.datetime.fromisoformat(at).isoformat()}, sort_keys=True)
