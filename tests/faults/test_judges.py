"""The comparison of each kind finds a batch that was applied twice or not at all, in the state and in the sink."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from faults.fed import Rows
from faults.kinds import KINDS
from faults.kinds.buckets import ZONES, Buckets, Drawn
from faults.kinds.entity import Accounts, some_commands
from faults.kinds.topic import FORM
from faults.undisturbed import Look, Model, Planned, Seen, Undisturbed, differences

BEGIN_MS, BATCHES = 1_772_366_400_000, 12


def fed(kind: str, folder: Path) -> tuple[dict[str, Model], list[Rows]]:
    """The models of the jobs before the first batch, and the rows of each batch."""
    chance = random.Random(7)
    if kind == "entity":  # without a broker
        written = [said._replace(offset=n)._asdict() for n, said in enumerate(some_commands(chance, [], BATCHES * 10))]
        return {"account": Accounts()}, [written[n : n + 10] for n in range(0, len(written), 10)]
    if kind == "kafka":  # the same
        drawn = Drawn(chance)
        return {"views": Buckets("views", ZONES[FORM])}, [drawn.next() for _ in range(BATCHES)]
    made, batches = KINDS[kind](folder, chance), list[Rows]()
    for _ in range(BATCHES):
        before = [set(source.rows) for source in made.inputs]
        made.feed()
        new = [rows for old, source in zip(before, made.inputs, strict=True) for n, rows in source.rows.items() if n not in old]
        batches.append([row for rows in new for row in rows])
    return made.jobs, batches


def seen_of(model: Model, planned: list[Planned], batches: list[list[Rows]]) -> Seen:
    """What a reader would see if each batch took all of these rows, one list after the other."""
    seen = Seen(committed=len(planned) - 1)
    for plan, taken in zip(planned, batches, strict=True):
        emissions = [model.take(plan, sorted(rows, key=lambda row: [row[name] for name in model.order])) for rows in taken]
        seen.attempts[plan.batch] = emissions[-1:]
        seen.looks += [Look(plan.batch, table, found) for table, found in model.tables().items()]
    at_ms = planned[-1].started_ms if "expires_at" in str(model.with_expired()) else None
    live = [row for rows in model.tables().values() for row in rows if at_ms is None or row["expires_at"] > at_ms]
    for table, rows in model.with_expired().items():
        final = [{**row, "final": row not in live} for row in rows]
        seen.looks.append(Look(planned[-1].batch, table, final, at_ms=at_ms, expired=True))
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_judge_finds_a_batch_that_is_doubled_or_lost(kind: str, tmp_path: Path) -> None:
    (jobs, batches), copies = fed(kind, tmp_path / "0"), [fed(kind, tmp_path / f"{n}")[0] for n in range(1, 4)]
    largest = max(range(1, BATCHES - 1), key=lambda n: len(batches[n]))
    own = batches[largest]
    # An account doesn't apply an answered command again, nor an aggregate an event, so the doubled ones get other ids, as if those
    # that are known had been lost.
    again = [{name: f"{v} again" if name in ("command", "event") else v for name, v in row.items()} for row in own]
    taken = [[[own, again] if doubled and n == largest else [rows] for n, rows in enumerate(batches)] for doubled in (False, True)]
    without = [[[] if n == largest else rows] for n, rows in enumerate(batches)]
    for job, model in jobs.items():
        run = Undisturbed(Path(), [], model)
        for number, rows in enumerate(batches):
            run.take(Planned(number, BEGIN_MS + number * 3000, max(run.watermarks[-1]) if run.watermarks else 0), rows)
        right, doubled, lost = (seen_of(c[job], run.planned, some) for c, some in zip(copies, [*taken, without], strict=True))
        assert differences(run, right) == []
        assert differences(run, doubled), f"the state of {job} has a batch twice"
        assert differences(run, lost), f"the state of {job} lacks a batch"
        if model.sink is not None:
            loudest = max(range(BATCHES), key=lambda n: len(run.emitted[n]))
            emissions = right.attempts.pop(loudest)
            assert differences(run, right), f"the sink of {job} lacks a batch"
            for wrong in ([emissions[0] * 2], [*emissions, []], [emissions[0][1:]]):
                right.attempts[loudest] = wrong
                assert differences(run, right), f"the sink of {job} has a batch otherwise"
