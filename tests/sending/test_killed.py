"""Senders and brokers are killed at random moments while batches go on: nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from millpond.sending.sender import Sender
from sending.places import KINDS, Kafka, Place, Postgres, place
from sending.test_contract import Job, expected_changes, ordered, send
from servers.kafka import KafkaBroker
from servers.postgres import PostgresServer
from suite.sizes import IS_EVERY, a_few
from suite.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long]
KILLS, OUTAGES = (8, 3) if IS_EVERY else (3, 1)
ROOT = Path(__file__).parents[1]


def check(job: Job, target: Place, first: int) -> None:
    """Rows equal the table's; a log has each change once."""
    assert target.rows() == job.checkpoint.content()
    if target.is_log:
        logged = [ordered(change) for change in target.logged() if change[1] > first]
        assert sorted(logged) == sorted(map(ordered, expected_changes(job, first)))


CASES = [(kind, seed) for seed in range(5) for kind in KINDS]


@pytest.mark.parametrize(("kind", "seed"), a_few(CASES, 0, long=3))
def test_a_killed_sender_loses_nothing(tmp_path: Path, kind: str, seed: int) -> None:
    job = Job(tmp_path, seed)
    with place(kind, tmp_path) as target, job.pond:
        first = job.newest
        send(job, target)
        command = [sys.executable, "-m", "sending.killed", str(job.checkpoint.path), str(tmp_path / "home"), target.to]
        for _ in range(KILLS):
            process = subprocess.Popen(
                [*command, json.dumps(target.options)],
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            assert process.stdout is not None
            process.stdout.readline()
            until = time.monotonic() + random.Random(seed).uniform(0.1, 1.5)
            while time.monotonic() < until:
                job.batch(100)
                time.sleep(0.01)
            process.kill()
            process.wait()
            process.stdout.close()
        send(job, target)
        check(job, target, first)


def _outage(job: Job, target: Place, stop: Any, start: Any) -> None:
    """The target goes away and comes back, several times, under a sender that goes on by itself."""
    first = job.newest
    send(job, target)
    with Sender(job.table, target.to, options=target.options).start() as sender:
        for _ in range(OUTAGES):
            for _ in range(job.random.randrange(1, 30)):
                job.batch(100)
            time.sleep(job.random.random())
            stop()
            for _ in range(10):
                job.batch(100)
            wait_until(lambda: sender.status().state == "waiting", "the sender's wait for its target", seconds=120)
            error = wait_until(lambda: sender.status().last_error, "the sender's error")
            assert error.condition == "TARGET_UNAVAILABLE"
            status = wait_until(lambda: (found := sender.status()).behind_batches and found, "a sender that is behind")
            assert status.behind_seconds >= 0
            start()
            sender.wait_for_batch(job.newest, 120)
        wait_until(lambda: sender.status().state == "following", "a sender that follows")
    check(job, target, first)


def test_a_postgres_that_is_killed_is_waited_for(tmp_path: Path) -> None:
    server = PostgresServer()
    job = Job(tmp_path, 3)
    with job.pond:
        try:
            server.start()
            _outage(job, Postgres(tmp_path, server.address), server.stop, server.start)
        finally:
            server.remove()


@pytest.mark.parametrize("form", a_few(["changelog", "compacted"], 0, long=1))
def test_a_broker_that_is_killed_is_waited_for(tmp_path: Path, form: str) -> None:
    broker = KafkaBroker()
    job = Job(tmp_path, 3)
    with job.pond:
        try:
            broker.start()
            _outage(job, Kafka(form, broker.address), broker.kill, broker.start)
        finally:
            broker.remove()
