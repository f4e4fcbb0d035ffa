"""A subscription to a statement: applied one after the other, its changes give what a recomputation of each batch gives."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.settings import Retention
from millpond.tables.sql.subscribe import SqlChanges
from servers.serving import serving
from spark_files.checkpoint import WrittenCheckpoint
from suite.programs import started
from suite.sizes import examples
from suite.waiting import wait_until

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")
TABLE = "job.aggregate_0"
State = dict[str, int]
Rows = list[dict[str, Any]]


def large(state: State) -> Rows:
    return [{"k": k, "w": v * 2} for k, v in state.items() if v > 40]


def grouped(state: State) -> Rows:
    found: dict[str, list[int]] = {}
    for k, v in state.items():
        found.setdefault(k[0], []).append(v)
    return [{"g": g, "n": len(vs), "s": sum(vs)} for g, vs in found.items()]


def total(state: State) -> Rows:
    return [{"n": len(state), "most": max(state.values(), default=None)}]


def firsts(state: State) -> Rows:
    return [{"g": k[0]} for k in state]


CASES: list[tuple[str, list[str] | None, Callable[[State], Rows]]] = [
    (f'SELECT k, v * 2 AS w FROM "{TABLE}" WHERE v > 40', ["k"], large),
    (f'SELECT k[1] AS g, count(*) AS n, sum(v)::BIGINT AS s FROM "{TABLE}" GROUP BY g', ["g"], grouped),
    (f'SELECT count(*) AS n, max(v) AS most FROM "{TABLE}"', [], total),
    (f'SELECT k[1] AS g FROM "{TABLE}"', None, firsts),
]


class Job:
    """A job that commits random batches, and the state after each of them."""

    def __init__(self, path: Path, seed: int) -> None:
        self.written, self.states, self._draw = WrittenCheckpoint(path), list[State](), random.Random(seed)
        self.commit()

    def commit(self) -> None:
        """One more batch."""
        state = dict(self.states[-1]) if self.states else {}
        changes: dict[str, int | None] = {}
        for _ in range(self._draw.randrange(5)):
            key = self._draw.choice("abc") + str(self._draw.randrange(4))
            changes[key] = None if key in state and self._draw.random() < 0.4 else self._draw.randrange(100)
        self.written.plan(list(changes.items()), snapshot=False)
        self.written.commit()
        for key, value in changes.items():
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        self.states.append(state)

    def commit_until_changed(self, compute: Callable[[State], Rows]) -> None:
        """Batches, the last of which changes an answer."""
        self.commit()
        while counted(compute(self.states[-1])) == counted(compute(self.states[-2])):
            self.commit()


def counted(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def check(found: list[SqlChanges], job: Job, compute: Callable[[State], Rows], *, every: bool) -> None:
    """Replay changes beside the recomputation of their batches."""
    answer: Counter[str] = Counter()
    shown: int | None = None
    for changes in found:
        batch = int(changes.cut.position.batch)
        for change in changes:
            is_there = (change.old is not None, change.new is not None)
            assert {"insert": (False, True), "update": (True, True), "delete": (True, False)}[change.kind] == is_there
            assert change.old != change.new
            if change.old is not None:
                answer[json.dumps(change.old, sort_keys=True)] -= 1
            if change.new is not None:
                answer[json.dumps(change.new, sort_keys=True)] += 1
        assert min(answer.values(), default=0) >= 0
        answer = +answer
        assert answer == counted(compute(job.states[batch])), batch
        if every and shown is not None:  # none was passed over that changed something
            steps = [counted(compute(state)) for state in job.states[shown:batch]]
            assert all(step == steps[0] for step in steps)
        shown = batch


@pytest.mark.parametrize(("statement", "key", "compute"), CASES)
@pytest.mark.parametrize("history", [50, 0])
def test_changes_give_the_recomputation_of_each_batch(
    tmp_path: Path, statement: str, key: list[str] | None, compute: Callable[[State], Rows], history: int
) -> None:
    job = Job(tmp_path / "job", seed=len(statement) + history)
    draw = random.Random(history)
    kept = Retention(history_batches=history) if history else None
    with millpond.open(job.written.path, replica_dir=tmp_path / "home", retention=kept) as pond:
        subscription = pond.subscribe(statement, key=key)
        found = [next(subscription)]
        for _ in range(examples(12, 3)):
            for _ in range(draw.randrange(1, 4)):  # several at once: without history, some are passed over
                job.commit_until_changed(compute)
            pond.catch_up(20)
            while int(found[-1].cut.position.batch) < len(job.states) - 1:
                if not history and counted(compute(job.states[-1])) == counted(found[-1].answer.rows()):
                    break  # they have undone each other
                found.append(next(subscription))
        check(found, job, compute, every=bool(history))
    assert len(found) > 2


@pytest.mark.long
def test_both_clients_and_the_command_see_the_same(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", seed=1)
    statement, key, compute = CASES[1]
    with serving(job.written.path, "--history", f"{TABLE}=100", home=tmp_path / "home") as (url, _):
        words = [sys.executable, "-m", "millpond.cli", "sql", url, statement, "--watch", "--by", "g", "--json"]
        with millpond.connect(url) as server:
            server.wait_for_table(TABLE)
            with started(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as watching:
                assert watching.stdout is not None
                lines = [json.loads(watching.stdout.readline())] if compute(job.states[0]) else []
                reading = threading.Thread(target=lambda: lines.extend(map(json.loads, watching.stdout or ())))
                reading.start()
                subscription = server.subscribe(statement, key=key)
                found = [next(subscription)]
                for _ in range(4):
                    job.commit_until_changed(compute)
                while int(found[-1].cut.position.batch) < len(job.states) - 1:
                    found.append(next(subscription))
                check(found, job, compute, every=True)
                last = counted(compute(job.states[-1]))
                wait_until(lambda: counted(replayed(lines)) == last, "the newest rows of the command", unless=watching.poll)
                watching.terminate()
                reading.join()

        async def ask() -> list[SqlChanges]:
            async with millpond.connect_async(url) as other:
                subscription = other.subscribe(statement, key=key)
                first = await anext(subscription)
                await asyncio.to_thread(job.commit_until_changed, compute)
                return [first, await anext(subscription)]

        check(asyncio.run(ask()), job, compute, every=True)


def replayed(lines: list[dict[str, Any]]) -> Rows:
    """The rows after these changes."""
    rows: dict[str, Any] = {}
    for line in list(lines):
        assert (line["old"] is None) == (line["kind"] == "insert")
        rows[(line["new"] or line["old"])["g"]] = line["new"]
    return [row for row in rows.values() if row]


@pytest.mark.parametrize(
    ("statement", "key"),
    [
        (f'SELECT k[1] AS g FROM "{TABLE}"', ["g"]),
        (f'SELECT k FROM "{TABLE}"', ["nope"]),
        ("SELECT 1 AS a", None),
        (f'EXPLAIN SELECT k FROM "{TABLE}"', None),
        (f'DELETE FROM "{TABLE}"', None),
    ],
)
def test_what_cant_be_subscribed_to_is_a_typed_error(tmp_path: Path, statement: str, key: list[str] | None) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("a1", 1), ("a2", 2)], snapshot=False)
    job.commit()
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        with pytest.raises(MillpondError) as refused:
            next(pond.subscribe(statement, key=key))
        assert refused.value.condition == "INVALID_STATEMENT", refused.value
