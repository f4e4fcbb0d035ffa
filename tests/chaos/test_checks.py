"""The judges of the chaos find errors: each accepts what is right, and rejects the same with one error in it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from chaos.checks import OF_ONE, PagesLog, sent_differences
from soak.checks import Counts
from soak.model import JobRun, Key, Values, planned_of
from soak.test_checks import judged, source

SEED, BATCHES = 7, 40
Record = dict[str, Any]


@pytest.fixture(scope="module")
def run() -> JobRun:
    """Reads a topic of two partitions: of each of them a record a batch, and now and then another one of one of them."""
    run, ends, newest = JobRun(SEED, 0, 0), [0, 0], 0
    for batch in range(BATCHES):
        ends = [ends[0] + 1, ends[1] + 1 + (batch % 3 == 0)]
        run.planned[batch] = planned_of({"events": {"0": ends[0], "1": ends[1]}}, newest, 1_000 + batch)
        # The watermark of the next batch is known once this one is computed.
        held = run.try_held(batch)
        assert held is not None
        newest = held.watermark_ms
    return run


def row(key: Key, values: Values | None) -> Record | None:
    if values is None:
        return None
    start = dt.datetime.fromtimestamp(key[1] / 1000, dt.UTC).isoformat().replace("+00:00", "Z")
    return {"page": key[0], "start": start, **values._asdict()}


def whole(run: JobRun, batch: int, number: int) -> list[Record]:
    """All rows as of a batch."""
    return [
        {"batch": batch, "run": number, "old": None, "new": row(key, values), "final": None}
        for key, values in run.held[batch].live.items()
    ]


def changes(run: JobRun, first: int, last: int, number: int) -> list[Record]:
    """What each batch changes, after the first."""
    found = []
    for batch in range(first + 1, last + 1):
        before, now = run.held[batch - 1].live, run.held[batch]
        for key in {**before, **now.live}:
            if before.get(key) != now.live.get(key):
                old, new, final = row(key, before.get(key)), row(key, now.live.get(key)), row(key, now.expired.get(key))
                found.append({"batch": batch, "run": number, "old": old, "new": new, "final": final})
    return found


@pytest.fixture
def sent(run: JobRun) -> list[Record]:
    """All rows of batch 2, changes up to 10, then all rows of 14 once more, and changes up to the end."""
    return [*whole(run, 2, 0), *changes(run, 2, 10, 0), *whole(run, 14, 1), *changes(run, 14, BATCHES - 1, 1)]


def test_the_input_is_read_once_and_completely(run: JobRun) -> None:
    pieces = [piece for batch in range(BATCHES) for piece in run.planned[batch].pieces_since(run.planned.get(batch - 1))]
    assert sorted(pieces) == sorted(
        [*range(0, 2 * run.planned[BATCHES - 1].ends[0], 2), *range(1, 2 * run.planned[BATCHES - 1].ends[1], 2)]
    )
    assert run.closed


def test_what_was_sent_is_right(run: JobRun, sent: list[Record]) -> None:
    assert sent_differences(sent, run, BATCHES - 1) == []
    assert len(sent) > 100


WRONG: dict[str, Callable[[list[Record]], object]] = {
    "a change that is lost": lambda sent: sent.remove(next(c for c in sent if c["run"] == 1 and c["old"] and c["new"])),
    "a change twice": lambda sent: sent.append(sent[-1]),
    "a row that is missing in a whole read": lambda sent: sent.remove(next(c for c in sent if c["run"] == 1)),
    "a value of another batch": lambda sent: sent[-1].update(batch=sent[-1]["batch"] - 1),
    "another value": lambda sent: next(c for c in reversed(sent) if c["new"])["new"].update(hits=-1),
    "another final value": lambda sent: next(c for c in reversed(sent) if c["final"])["final"].update(bytes=-1),
    "the changes of a run before": lambda sent: next(c for c in sent if c["run"] == 0 and c["old"])["old"].update(hits=-1),
    "all of the newest run": lambda sent: [sent.remove(c) for c in [c for c in sent if c["run"] == 1]],
    "the last batch is missing": lambda sent: [sent.remove(c) for c in [c for c in sent if c["batch"] == BATCHES - 1]],
    "a batch that isn't there": lambda sent: sent[-1].update(batch=BATCHES + 5),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_thing_that_is_sent_is_found(run: JobRun, sent: list[Record], name: str) -> None:
    harmed = deepcopy(sent)
    WRONG[name](harmed)
    assert sent_differences(harmed, run, BATCHES - 1)


def pages(run: JobRun) -> list[Record]:
    facts = source(run, 5)
    rows = [
        {"page": key[0], "start": key[1], **values._asdict(), "final": False} for key, values in sorted(run.held[5].live.items())
    ]
    saved = {"op": "saved", "batch": 4, "offsets": {"0": run.held[4].planned.offsets}, "rows": len(run.held[4].live)}
    scan = {"op": "scan", "page": None, "reverse": False, "rows": rows, **facts}
    return [{"op": "page", "path": "/", "is_ours": True}, {"op": "job", "batch": 5}, saved, scan]


def judged_pages(path: Path, run: JobRun, log: list[Record]) -> list[str]:
    return judged(path, [run], log, OF_ONE, PagesLog)[0]


def test_what_a_console_says_is_right(run: JobRun, tmp_path: Path) -> None:
    assert judged_pages(tmp_path / "log", run, pages(run)) == []


WRONG_PAGES: dict[str, Callable[[list[Record]], object]] = {
    "another page": lambda log: log[0].update(is_ours=False),
    "a savepoint with other offsets": lambda log: log[2].update(offsets={"0": {"events": {"0": 1, "1": 1}}}),
    "a savepoint of another number of rows": lambda log: log[2].update(rows=log[2]["rows"] + 1),
    "a row that is missing": lambda log: log[3]["rows"].pop(),
    "an error that isn't to come": lambda log: log.append({"op": "error", "condition": "CORRUPT_FILE", "message": ""}),
}


@pytest.mark.parametrize("name", WRONG_PAGES)
def test_each_wrong_thing_that_a_console_says_is_found(run: JobRun, tmp_path: Path, name: str) -> None:
    log = pages(run)
    WRONG_PAGES[name](log)
    assert judged_pages(tmp_path / "log", run, log)


def test_a_batch_that_nobody_knows_yet_is_judged_later(run: JobRun, tmp_path: Path) -> None:
    path, counts = tmp_path / "log", Counts()
    path.write_text('{"op": "job", "batch": 99}\n')
    log = PagesLog(path, [run], counts, set(), [], OF_ONE)
    log.judge()
    assert log.unjudged()
    assert counts.answers["job"] == 0
