"""Accounts whose job, its JVM and its workers are killed while commands arrive: each is applied once, and has its answer."""

from __future__ import annotations

import os
import random
import time
import uuid
from pathlib import Path

import pytest

import millpond
from accounts import ANSWER, Command, batches, check_tables, recomputed, serving, submit_arguments, write_all
from faults.fed import SEED, kill_workers
from kafka_broker import connector_jars, create_topic, kafka_broker
from soak.processes import Process

pytest.importorskip("pyspark")
pytestmark = pytest.mark.faults
KILLS = int(os.environ.get("MILLPOND_KILLS", "2"))
WAIT = 240


def test_each_command_is_applied_once_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, broker, topic, pond = random.Random(SEED), kafka_broker(), f"commands-{uuid.uuid4().hex[:8]}", tmp_path / "pond"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments(connector_jars()))
    create_topic(broker, topic, 3)
    written: list[Command] = []

    def feed() -> int:
        """Some commands, one in five of them once more; how many batches the job has done."""
        new = []
        for n in range(10):
            again = written and chance.random() < 0.2
            kind = chance.choice(("deposit", "withdraw"))
            fresh = Command(f"a{chance.randrange(16)}", f"{len(written)}-{n}", kind, chance.randrange(1, 100))
            new.append(chance.choice(written[-60:]) if again else fresh)
        written.extend(write_all(broker, topic, new))
        return batches(pond)

    feed()
    log = tmp_path / "log"
    job = Process("job", lambda: serving(pond, broker, topic), log)
    job.start()

    def wait_for_batches(more: int) -> None:
        before, deadline = feed(), time.monotonic() + WAIT
        while feed() < before + more:
            assert job.alive(), log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)

    def within_batch() -> bool:
        feed()
        return batches(pond, "offsets") > batches(pond)

    answers: dict[tuple[str, str], tuple[object, ...]] = {}
    torn = 0
    try:
        for kill in range(KILLS):
            wait_for_batches(2)
            # A worker alone, whose task is tried again; then all together.
            kill_workers(job, log, within_batch, pause_seconds=chance.uniform(0.2, 0.6))
            wait_for_batches(1)
            until, deadline = time.monotonic() + chance.uniform(0.2, 2), time.monotonic() + WAIT
            while time.monotonic() < until or batches(pond, "offsets") == batches(pond):
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                feed()
                time.sleep(0.1)
            time.sleep(chance.uniform(0, 0.5) if kill else 0)  # the first one surely in the midst of a batch
            job.kill()
            torn += batches(pond, "offsets") > batches(pond)
            # What clients have been told by now must hold for ever.
            with millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60) as opened:
                opened.catch_up(60)
                for row in opened["account_answers"].scan():
                    answer = tuple(row[name] for name in ANSWER)
                    assert answers.setdefault((row["account"], row["command"]), answer) == answer, f"seed {SEED}"
            feed()
            job.start()
        ends: dict[int, Command] = {}
        for said in written:
            ends[said.partition] = max(said, ends.get(said.partition, said), key=lambda c: c.offset)
        bounds = millpond.Bounds(contains_offset=[f"{topic}:{c.partition}:{c.offset}" for c in ends.values()], wait_seconds=WAIT)
        with millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60) as opened:
            opened["account_state"].count(bounds=bounds)
            accounts = recomputed(written)
            check_tables(opened, accounts)
    finally:
        job.kill()
    assert job.unwanted == []
    assert torn >= 1
    assert all(accounts[account].known[command] == answer for (account, command), answer in answers.items()), f"seed {SEED}"
    applied = sum(len(account.log) for account in accounts.values())
    assert len(answers) < applied < len(written)
    assert any(not entry[3] for account in accounts.values() for entry in account.log)
    assert max(len(account.log) for account in accounts.values()) < 1000  # no answer was forgotten
