"""Sending to Kafka, beside a plain loop over a producer, in one run.

    python benchmarks/send.py [--keys 100000] [--batches 20] [--rounds 5] [--write]

A checkpoint is written by hand (benchmarks/written.py), and followed with history: each batch changes a tenth of the keys.  By
turns, the same changes go to new topics of one broker of this machine:

    plain       a loop over dicts in memory: `json.dumps` of key and change, and `produce`; no transaction, no position
    changelog   `millpond.send` with old and new rows: reads the replica, and commits in transactions
    compacted   the same with the newest rows

All use librdkafka with the same settings, and the broker acknowledges all of it.  Rates are changes by the time from the first read
to the last acknowledgement.  Each topic must then have a record for each change.  Ratios are medians of the rounds' own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from results import write_result
from written import write_checkpoint

import millpond
from millpond.sending.sender import Sender
from sending.places import committed_records
from servers.kafka import create_topic, kafka_broker

SIDES = ("plain", "changelog", "compacted")
SETTINGS = {"linger.ms": "5", "compression.type": "lz4"}  # and idempotence, which transactions need
PARTITIONS = 4


def plain(broker: str, topic: str, changes: list[dict[str, Any]]) -> float:
    """Changes a second."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker, **SETTINGS, "enable.idempotence": "true"})
    begun = time.perf_counter()
    for change in changes:
        key = json.dumps({"k": change["new"]["k"]}, separators=(",", ":"))
        value = json.dumps(change, separators=(",", ":"))
        while True:
            try:
                producer.produce(topic, key=key, value=value)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        producer.poll(0)
    assert producer.flush(60) == 0
    return len(changes) / (time.perf_counter() - begun)


def send(sender: Sender, count: int) -> float:
    """Changes a second, of a sender that is connected."""
    begun = time.perf_counter()
    sender.run(once=True)
    seconds = time.perf_counter() - begun
    assert sender.status().changes == count, sender.status()
    return count / seconds


def round_of(broker: str, table: Any, name: str, commit: Callable[[], None]) -> dict[str, float]:
    """The same new batches to three new topics."""
    topics = {side: f"{name}-{side}" for side in SIDES}
    senders = {}
    for side in SIDES:
        create_topic(broker, topics[side], PARTITIONS)
        if side != "plain":
            to = f"kafka://{broker}/{topics[side]}?form={side}"
            senders[side] = Sender(table, to, begin="now", options=SETTINGS)
            senders[side].step()  # connects, and stores the position from which it will go on
    since = table.changes().batch
    commit()
    changes = [
        {"kind": c.kind, "batch": c.batch, "first_batch": c.first_batch, "old": c.old, "new": c.new, "final": None}
        for c in table.changes(since)
    ]
    # So that the JSON has as many bytes as the sender's.
    changes = [{**change, "run": 0, "whole": False} for change in changes]
    rates = {}
    for side in random.sample(SIDES, len(SIDES)):
        if side == "plain":
            rates[side] = plain(broker, topics[side], changes)
        else:
            rates[side] = send(senders[side], len(changes))
    for side in SIDES:
        there = len(committed_records(broker, topics[side]))
        assert there == len(changes), (side, there)
    return {side: round(rates[side]) for side in SIDES} | {"changes": len(changes)}


def main() -> None:
    """All rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/send.json")
    options = parser.parse_args()
    import numpy as np

    broker, draw, rounds = kafka_broker(), np.random.default_rng(7), []
    with tempfile.TemporaryDirectory() as scratch:
        written, batch = write_checkpoint(Path(scratch, "checkpoint"), options.keys), 2
        kept = millpond.Retention(history_batches=None)
        with millpond.open(written.path, replica_dir=Path(scratch, "home"), retention=kept) as pond:
            (name,) = pond

            def commit() -> None:
                nonlocal batch
                for _ in range(options.batches):
                    written.commit(batch, draw.choice(np.arange(options.keys), options.keys // 10, replace=False))
                    batch += 1
                pond.catch_up(600)

            for number in range(options.rounds + 1):
                measured = round_of(broker, pond[name], f"round-{number}", commit)
                if number:  # the first warms the broker
                    rounds.append(measured)
    ratios = {side: round(statistics.median(r[side] / r["plain"] for r in rounds), 3) for side in SIDES if side != "plain"}
    result = {
        "keys": options.keys,
        "batches": options.batches,
        "changes_a_round": rounds[0]["changes"],
        **{f"{side}_changes_per_second": round(statistics.median(r[side] for r in rounds)) for side in SIDES},
        **{f"{side}_to_plain": ratio for side, ratio in ratios.items()},
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("send", result, rounds)


if __name__ == "__main__":
    main()
