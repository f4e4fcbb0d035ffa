"""The soak's judge finds errors: it accepts a right log, and rejects the same log with one error in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from soak.checks import Counts, ReaderLog, Rules
from soak.model import JobRun, Key, Values, events_of, planned_of

SEED, BEGAN_MS = 7, 1_000
Line = dict[str, Any]
ONE_REPLICA = Rules()
COPIES = Rules(goes_back=True, loses_history=True, has_owed=False)


def a_run(number: int, batches: int, began_ms: int) -> JobRun:
    """A run whose batches read one file each, except the fourth, which reads two."""
    run = JobRun(SEED, number, began_ms)
    newest, watermark, file = 0, 0, -1
    for batch in range(batches):
        file += 2 if batch == 3 else 1
        run.planned[batch] = planned_of({"logOffset": file}, watermark, began_ms + 100 * batch)
        newest = max(newest, events_of(SEED, number, file)[0].time_ms)  # the first event of a file isn't late
        watermark = max(watermark, newest - 6_000)
    assert run.try_held(batches - 1) is not None
    return run


def row(key: Key, values: Values, **more: Any) -> Line:
    return {"page": key[0], "start": key[1], **values._asdict(), **more}


def source(run: JobRun, batch: int) -> Line:
    planned = run.held[batch].planned
    return {
        "batch": batch,
        "offsets": {"0": planned.offsets},
        "watermark_ms": run.held[batch].watermark_ms,
        "started_ms": planned.started_ms,
    }


def scan(run: JobRun, batch: int) -> Line:
    closed = {key: row(key, values, final=True) for key, (expired, values) in run.closed.items() if expired <= batch}
    live = {key: row(key, values, final=False) for key, values in run.held[batch].live.items()}
    rows = [line for _, line in sorted((closed | live).items())]
    return {"op": "scan", "page": None, "reverse": False, "rows": rows, **source(run, batch)}


def changes(run: JobRun, since: int, until: int) -> Line:
    lines: list[Line] = []
    for batch in range(since + 1, until + 1):
        before, now = run.held[batch - 1].live, run.held[batch]
        for key in sorted({*before, *now.live, *now.expired}):
            old, new, final = before.get(key), now.live.get(key), now.expired.get(key)
            if old == new and final is None:
                continue
            kind = "expire" if new is None else "insert" if old is None else "update"
            three = {name: v and row(key, v) for name, v in (("old", old), ("new", new), ("final", final))}
            lines.append({"kind": kind, "batch": batch, "first": batch, **three})
    return {"op": "changes", "changes": lines, "token": "t", "more": False, **source(run, until)}


@pytest.fixture
def runs() -> list[JobRun]:
    return [a_run(0, 30, BEGAN_MS), a_run(1, 13, BEGAN_MS + 100_000)]


def gone(batch: int, *, first: int, newest: int) -> Line:
    """A refusal of an earlier batch, as the pond gives it."""
    return {"op": "not kept", "batch": batch, "condition": "HISTORY_GONE", "context": {"first": first, "newest": newest}}


def right_log(runs: list[JobRun]) -> list[Line]:
    first, second = runs
    key = min(first.held[20].live)
    get = {
        "op": "get",
        "by_url": True,
        "keys": [list(key)],
        "rows": [row(key, first.held[20].live[key], final=False)],
        **source(first, 20),
    }
    return [
        {"op": "begin", "token": "t", **source(first, 5)},
        scan(first, 12),
        changes(first, 5, 15),
        get,
        changes(first, 15, 29),
        {"op": "gone", "message": ""},
        {"op": "begin", "token": "t", **source(second, 2)},
        changes(second, 2, 11),
        {"op": "error", "condition": "REPLICA_BUILDING", "message": ""},
        {**scan(second, 7), "op": "at"},
        gone(1, first=2, newest=11),
        {"op": "not yet", "batch": 12, "here": 11},
        {"op": "not kept", "batch": 14, "condition": "NOT_UP_TO_BOUND", "context": {"batch": 11}},
        scan(second, 12),
    ]


def judged(
    path: Path, runs: list[JobRun], log: list[Line], rules: Rules = ONE_REPLICA, kind: type[ReaderLog] = ReaderLog
) -> tuple[list[str], Counts, list[Any]]:
    path.write_text("".join(json.dumps(line) + "\n" for line in log))
    counts, owed = Counts(), list[Any]()
    reader = kind(path, runs, counts, set(), owed, rules)
    reader.judge()
    assert not reader.unjudged()
    return reader.wrong, counts, owed


def test_a_right_log_is_right_and_all_of_it_was_judged(tmp_path: Path, runs: list[JobRun]) -> None:
    log = right_log(runs)
    wrong, counts, owed = judged(tmp_path / "log", runs, log)
    assert (wrong, owed) == ([], [])
    assert dict(counts.answers) == {"begin": 2, "scan": 2, "changes": 3, "get": 1, "at": 1}
    assert (counts.not_kept, counts.not_yet, counts.by_url) == (2, 1, 1)
    assert counts.not_kept_between_runs == 0
    assert counts.changes == sum(len(line.get("changes", ())) for line in log)
    assert (counts.batches_replayed, counts.finals > 0) == (24 + 9, True)


WRONG: dict[str, Callable[[list[Line]], object]] = {
    "a value of another batch": lambda log: log[3]["rows"][0].update(hits=log[3]["rows"][0]["hits"] + 1),
    "a row that is missing": lambda log: log[1]["rows"].remove(next(r for r in log[1]["rows"] if not r["final"])),
    "a row twice": lambda log: log[1]["rows"].insert(0, log[1]["rows"][0]),
    "rows out of order": lambda log: log[1]["rows"].reverse(),
    "a final row that isn't what it was": lambda log: next(r for r in log[1]["rows"] if r["final"]).update(bytes=-1),
    "a live row as if it had expired": lambda log: log[3]["rows"][0].update(final=True),
    "rows of the batch before": lambda log: log[1].update(batch=11, started_ms=log[1]["started_ms"] - 100),
    "other offsets": lambda log: log[1].update(offsets={"0": {"logOffset": 1}}),
    "a batch that goes back": lambda log: log.insert(4, log[1]),
    "another run's rows": lambda log: log[1].update(started_ms=log[1]["started_ms"] + 100_000),
    "a change twice": lambda log: log[2]["changes"].insert(0, log[2]["changes"][0]),
    "a change that is lost": lambda log: log[2]["changes"].pop(3),
    "a batch that is left out": lambda log: log[2].update(changes=[c for c in log[2]["changes"] if c["batch"] != 9]),
    "an answer told twice": lambda log: log.insert(3, log[2]),
    "the last batch is left out": lambda log: log[2].update(changes=[c for c in log[2]["changes"] if c["batch"] != 15]),
    "old that wasn't there": lambda log: next(c for c in log[2]["changes"] if c["old"])["old"].update(hits=99),
    "another kind": lambda log: log[2]["changes"][0].update(kind="remove"),
    "collapsed without a reason to": lambda log: [c.update(first=8) for c in log[2]["changes"] if c["batch"] == 9],
    "a token that goes on in another run": lambda log: log.pop(5) and log.pop(5),
    "history that is gone in the same run": lambda log: log.insert(8, {"op": "gone", "message": ""}),
    "an error that isn't to come": lambda log: log[8].update(condition="INTERNAL_ERROR"),
    "an earlier batch's rows of another": lambda log: log[9].update(rows=log[1]["rows"]),
    "an earlier batch without one of its rows": lambda log: log[9]["rows"].remove(
        next(r for r in log[9]["rows"] if not r["final"])
    ),
    "a bound that was met, and refused": lambda log: log[11].update(here=12),
    "a batch that is kept, and refused as older": lambda log: log.insert(13, gone(8, first=9, newest=11)),
    "a batch that came alone, and refused as known with others": lambda log: log.insert(13, gone(8, first=7, newest=9)),
    "a batch refused as known with others, and coming alone": lambda log: log.insert(7, gone(8, first=7, newest=9)),
    "a batch that is there, and refused as yet to come": lambda log: log[12].update(batch=10),
    "pages of two batches": lambda log: log.append({**log[7], "op": "wrong", "what": "pages of two batches"}),
}


# What is right where several copies answer, since each of them has its own newest batch and its own history.
OF_COPIES = {"a batch that goes back", "history that is gone in the same run"}


def test_what_copies_may_do_is_no_error(tmp_path: Path, runs: list[JobRun]) -> None:
    log = right_log(runs)
    log.insert(4, log[1])
    log.insert(9, {"op": "gone", "message": ""})
    log.insert(10, {**log[7], "op": "begin"})
    assert judged(tmp_path / "log", runs, log, COPIES)[0] == []


@pytest.mark.parametrize("name", [name for name in WRONG if name not in OF_COPIES])
def test_each_other_wrong_thing_is_found_of_copies(name: str, tmp_path: Path, runs: list[JobRun]) -> None:
    log = deepcopy(right_log(runs))
    WRONG[name](log)
    assert judged(tmp_path / "log", runs, log, COPIES)[0]


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_thing_is_found(name: str, tmp_path: Path, runs: list[JobRun]) -> None:
    log = deepcopy(right_log(runs))
    WRONG[name](log)
    wrong, _, _ = judged(tmp_path / "log", runs, log)
    assert wrong


def test_a_final_row_that_is_not_shown_is_owed(tmp_path: Path, runs: list[JobRun]) -> None:
    log = right_log(runs)
    gone = next(r for r in log[1]["rows"] if r["final"])
    log[1]["rows"].remove(gone)
    wrong, _, owed = judged(tmp_path / "log", runs, log)
    assert wrong == []
    assert [(run, batch, key) for run, _, batch, key, _ in owed] == [(0, 12, (gone["page"], gone["start"]))]


def test_answers_wait_for_what_the_job_has_planned(tmp_path: Path, runs: list[JobRun]) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps(scan(runs[0], 12)) + "\n")
    fresh = JobRun(SEED, 0, BEGAN_MS, planned={b: p for b, p in runs[0].planned.items() if b < 12})
    reader = ReaderLog(path, [fresh], Counts(), set(), [])
    reader.judge()
    assert reader.unjudged()
    fresh.planned[12] = runs[0].planned[12]
    reader.judge()
    assert (reader.unjudged(), reader.wrong) == (False, [])
