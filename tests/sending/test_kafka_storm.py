"""Senders to Kafka and the broker are killed at random moments while changes flow: each change is there once, in order."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.sending.sender import Sender
from sending.outage import TABLE, Written
from sending.places import Kafka, committed_records, parse
from servers.kafka import KafkaBroker
from suite.sizes import IS_EVERY, a_few
from suite.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long]
KILLS = int(os.environ.get("MILLPOND_KILLS", "25" if IS_EVERY else "4"))
ROOT = Path(__file__).parents[1]
CASES = [(form, seed) for form in ("changelog", "compacted") for seed in range(4)]


class Killed:
    """A sender and its broker, each a process of its own."""

    def __init__(self, folder: Path, written: Written, form: str, chance: random.Random) -> None:
        self.broker = KafkaBroker()
        self.broker.start()
        self.place, self.kills = Kafka(form, self.broker.address), Counter[str]()
        self._chance, self._log = chance, folder / "log"
        self._command = [sys.executable, "-m", "sending.killed", str(written.checkpoint.path), str(folder / "home")]
        self._command += [self.place.to, json.dumps(self.place.options)]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the sender."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=ROOT, env=environment)

    def kill(self) -> None:
        """Kill one of them or both, at a random moment, and start them again a little later."""
        how = self._chance.choice(("sender", "broker", "both"))
        time.sleep(self._chance.choice((0.2, 3)) * self._chance.random())
        if how != "sender":
            self.broker.kill()
            time.sleep(self._chance.choice((0, 2)) * self._chance.random())
        if how != "broker":
            self.end()
            self.start()
        if how != "sender":
            time.sleep(self._chance.choice((0, 1)) * self._chance.random())
            self.broker.start()
        self.kills[how] += 1

    def end(self) -> None:
        """Kill the sender, which never ends by itself."""
        if self._process is not None:
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.mark.parametrize(("form", "seed"), a_few(CASES, 0, long=2))
def test_killed_senders_and_brokers_lose_nothing_and_send_nothing_twice(tmp_path: Path, form: str, seed: int) -> None:
    written, chance = Written(tmp_path, seed, 0.01), random.Random(f"{form}/{seed}")
    retention = millpond.Retention(history_batches=None)
    with millpond.open(written.checkpoint.path, replica_dir=tmp_path / "home", retention=retention) as pond:
        pond.catch_up(60)
        storm = Killed(tmp_path, written, form, chance)
        try:
            first = _send_whole(pond, storm.place)
            written.start()
            for _ in range(KILLS):
                storm.kill()
            time.sleep(2)
            written.end()
            storm.end()
            pond.catch_up(60)
            Sender(pond[TABLE], storm.place.to, options=storm.place.options).run(once=True)
            _check(storm.place, written, first)
        finally:
            written.end()
            if storm._process is not None:
                storm._process.kill()
                storm._process.wait()
            storm.broker.remove()
    print(f"{form}, seed {seed}: {dict(storm.kills)}, {sum(map(len, written.changes.values()))} changes, {written.newest} batches")


def _send_whole(pond: millpond.Pond, place: Kafka) -> int:
    """Wait until the sender has sent the whole table; returns its batch."""
    # It is one transaction.  The topic isn't there at first.
    wait_until(
        lambda: committed_records(place.broker, place.topic), "the whole table in the topic", ignoring=(KeyError, AssertionError)
    )
    return pond[TABLE].scan().batch


def _check(place: Kafka, written: Written, first: int) -> None:
    """Each change once, those of a key in the order of their batches."""
    assert place.rows() == written.checkpoint.content()
    came: dict[str, list[Any]] = defaultdict(list)
    for key, value in committed_records(place.broker, place.topic):
        if place.is_log:
            kind, batch, _, old, new = parse(value)
            if batch > first:
                came[key["k"]].append((batch, kind, old, new))
        else:
            came[key["k"]].append(value and value["v"])
    if place.is_log:
        expected = {key: [change for change in changes if change[0] > first] for key, changes in written.changes.items()}
    else:
        expected = {}
        for key, changes in written.changes.items():
            before = [new for batch, _, _, new in changes if batch <= first][-1:]
            expected[key] = [*(new for new in before if new is not None), *(new for batch, _, _, new in changes if batch > first)]
    assert {key for key, changes in expected.items() if changes} == came.keys()
    for key, changes in came.items():
        assert changes == expected[key], f"{key}: {len(changes)} changes for {len(expected[key])}"
