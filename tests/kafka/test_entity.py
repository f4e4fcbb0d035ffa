"""Accounts on a real broker: a client reads the answer to its command, whatever else is on the topic, and follows accepted ones."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import millpond
from millpond.errors import ReplicaError
from oracles.accounts import ANSWER, PROGRAM, Command, batches, client, recomputed, serving, submit_arguments, write_all
from servers.kafka import connector_jars, create_topic, kafka_broker
from suite.waiting import wait_until

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.long]

PARTITIONS = 3
# A loaded machine takes seconds for a batch.
WAIT = 120


class Accounts:
    """A running job, the pond that follows it, and all written commands in the broker's order."""

    def __init__(self, module: ModuleType, broker: str, topic: str, folder: Path) -> None:
        self.module, self.broker, self.topic, self.folder = module, broker, topic, folder
        self.pond: millpond.Pond
        self.written: list[Command] = []

    def send(self, account: str, kind: str, cents: int, command: str | None = None) -> tuple[str, str]:
        """Send as the example's client does; returns the id and its place on the topic."""
        command = command or uuid.uuid4().hex
        place = self.module.send(self.broker, self.topic, account, kind, cents, command)
        _, partition, offset = place.split(":")
        self.written.append(Command(account, command, kind, cents, int(partition), int(offset)))
        return command, place

    def ask(self, account: str, kind: str, cents: int, command: str | None = None) -> tuple[Any, ...]:
        """Send, and read the answer."""
        command, place = self.send(account, kind, cents, command)
        row = self.module.answer_to(self.pond, account, command, place, WAIT)
        _, partition, offset = place.split(":")
        assert row.position.offsets["0"][self.topic][partition] > int(offset)
        return tuple(row[name] for name in ANSWER)

    def write_all(self, *commands: tuple[str, str, str, int]) -> list[Command]:
        written = write_all(self.broker, self.topic, [Command(*c) for c in commands])
        self.written += written
        return written

    def wait_for(self, written: list[Command]) -> None:
        bounds = millpond.Bounds(contains_offset=[f"{self.topic}:{c.partition}:{c.offset}" for c in written], wait_seconds=WAIT)
        self.pond["account_state"].count(bounds=bounds)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    broker, jars, folder = kafka_broker(), connector_jars(), tmp_path_factory.mktemp("entity")
    topic = f"commands-{uuid.uuid4().hex[:8]}"
    create_topic(broker, topic, PARTITIONS)
    running = Accounts(client(), broker, topic, folder)
    running.send("first", "deposit", 1)
    log, environment = folder / "job.log", {**os.environ, "PYSPARK_SUBMIT_ARGS": submit_arguments(jars)}
    with (
        log.open("w") as out,
        subprocess.Popen(serving(folder / "pond", broker, topic), stdout=out, stderr=out, env=environment) as job,
    ):
        try:
            wait_until(
                lambda: batches(folder / "pond"),
                "the job's first batch",
                seconds=2 * WAIT,  # Spark has to start
                unless=lambda: job.poll() is not None and (log.read_text()[-3000:] or "nothing said"),
            )
            with millpond.open(folder / "pond", replica_dir=folder / "home") as pond:
                running.pond = pond
                yield running
        finally:
            job.terminate()


def test_a_client_reads_the_answer_to_its_own_command(accounts: Accounts) -> None:
    assert accounts.ask("own", "deposit", 500) == ("deposit", 500, True, None, 1, 500)
    assert accounts.ask("own", "withdraw", 501) == ("withdraw", 501, False, "not enough", 1, 500)
    assert accounts.ask("own", "withdraw", 500) == ("withdraw", 500, True, None, 2, 0)
    assert dict(accounts.pond["account_state"].get(account="own")) == {"account": "own", "balance": 0, "version": 2, "commands": 3}


def test_a_repeated_command_is_answered_alike_and_applied_once(accounts: Accounts) -> None:
    again, refused = uuid.uuid4().hex, uuid.uuid4().hex
    first = accounts.ask("repeated", "deposit", 5, again)
    no = accounts.ask("repeated", "withdraw", 6, refused)
    # The same answer in another batch, in the same batch, to other words, and although the balance would suffice now.
    assert accounts.ask("repeated", "deposit", 5, again) == first
    accounts.wait_for(accounts.write_all(*[("repeated", again, "withdraw", 1), ("repeated", "x", "deposit", 9)] * 5))
    assert accounts.ask("repeated", "withdraw", 6, refused) == no
    assert dict(accounts.pond["account_state"].get(account="repeated")) == {
        "account": "repeated",
        "balance": 14,
        "version": 2,
        "commands": 3,
    }


def test_commands_of_a_batch_are_applied_in_the_order_of_the_broker(accounts: Accounts) -> None:
    wanted = [(f"order{n % 3}", f"{n}", ("withdraw", "deposit", "withdraw")[n // 3 % 3], 1 + n % 2) for n in range(600)]
    written = accounts.write_all(*wanted)
    accounts.wait_for(written)
    for name, account in recomputed(written).items():
        log = accounts.pond["account_log"].scan(account=name)
        assert [(row["command"], *(row[n] for n in ANSWER)) for row in log] == account.log
        # Many commands were in one batch, and another order would have refused others.
        assert max(Counter(row.changed_batch for row in log).values()) > 20
        assert 20 < sum(not row["accepted"] for row in log) < 150


def test_what_was_accepted_is_followed_in_the_order_of_versions(accounts: Accounts) -> None:
    began = accounts.pond["account_log"].changes().token
    wanted = [(f"events{n % 2}", f"{n}", ("deposit", "withdraw")[n % 5 > 2], n % 7 + 1) for n in range(140)]
    written = accounts.write_all(*wanted[:80])
    accounts.wait_for(written)
    seen, token = accounts.module.events(accounts.pond, began, wait_seconds=0)
    written += accounts.write_all(*wanted[60:])  # some are sent again
    accounts.wait_for(written)
    more, token = accounts.module.events(accounts.pond, token, wait_seconds=0)
    seen += more
    assert accounts.module.events(accounts.pond, token, wait_seconds=0)[0] == []
    for name, account in recomputed(written).items():
        events = [event for event in seen if event["account"] == name]
        assert [event["version"] for event in events] == list(range(1, account.version + 1))
        assert [(e["command"], *(e[n] for n in ANSWER)) for e in events] == [entry for entry in account.log if entry[3]]
        # The events alone give the balance.
        assert sum(e["cents"] if e["kind"] == "deposit" else -e["cents"] for e in events) == account.balance
        versions = accounts.pond["account_state"].history(account=name)
        assert versions[-1].row["version"] == account.version
        assert [v.row["version"] for v in versions] == sorted({v.row["version"] for v in versions})
    assert len(seen) < len({(c.account, c.command) for c in written})


def test_records_that_are_no_commands_are_answered_and_hold_up_nobody(accounts: Accounts) -> None:
    from confluent_kafka import Producer

    good = json.dumps({"command": "1", "kind": "deposit", "cents": 1}).encode()
    records = [
        (None, good),
        (b"\xff\xfe", good),
        (b"odd", None),
        (b"odd", b"\xff{"),
        (b"odd", b"[1"),
        (b"odd", b'{"command": "a b"}'),
    ]
    records += [(b"odd", b'{"command": "2"}'), (b"odd", b'{"command": "3", "kind": "deposit", "cents": 1.5}')]
    meant = [(None, None)] * 2 + [("odd", None)] * 4 + [("odd", "2"), ("odd", "3")]
    producer, places = Producer({"bootstrap.servers": accounts.broker}), {}

    def delivered(number: int) -> Any:
        return lambda error, message: places.update({number: f"{accounts.topic}:{message.partition()}:{message.offset()}"})

    for number, (key, value) in enumerate(records):
        producer.produce(accounts.topic, value, key=key, on_delivery=delivered(number))
    assert producer.flush(60) == 0
    assert len(places) == len(records)
    reasons = []
    for number, (account, command) in enumerate(meant):
        row = accounts.module.answer_to(accounts.pond, account, command or places[number], places[number], WAIT)
        assert (row["accepted"], row["version"], row["balance"]) == (False, 0, 0)
        reasons.append(row["reason"].split()[0])
    assert reasons == ["the"] * 6 + ["kind", "cents"]
    assert accounts.ask("odd", "deposit", 3) == ("deposit", 3, True, None, 1, 3)
    # The account counts these commands, too.
    assert accounts.pond["account_state"].get(account="odd")["commands"] == 7


def test_commands_of_a_transaction_that_was_given_up_are_no_commands(accounts: Accounts) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": accounts.broker, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(60)
    for end, command in ((producer.abort_transaction, "no"), (producer.commit_transaction, "yes")):
        producer.begin_transaction()
        producer.produce(accounts.topic, json.dumps({"command": command, "kind": "deposit", "cents": 7}), key="transacted")
        assert producer.flush(60) == 0
        end(60)
    assert accounts.ask("transacted", "deposit", 1) == ("deposit", 1, True, None, 2, 8)
    assert next(iter(accounts.pond["account_log"].scan(account="transacted")))["command"] == "yes"


def test_client_and_follower_as_programs(accounts: Accounts, tmp_path: Path) -> None:
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path)}
    printed, pond = tmp_path / "printed", str(accounts.folder / "pond")
    broker = ["--bootstrap", accounts.broker, "--topic", accounts.topic]

    def send(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, str(PROGRAM), "send", pond, "shown", *arguments, *broker]
        sent = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT)
        assert sent.returncode == 0, sent.stderr
        answer: dict[str, Any] = ast.literal_eval(sent.stdout)
        return answer

    following = [sys.executable, str(PROGRAM), "follow", pond]
    with printed.open("w") as out, subprocess.Popen(["timeout", "900", *following], stdout=out, env=environment) as follower:
        try:
            assert send("withdraw", "5", "--command", "1")["reason"] == "not enough"
            accepted = []

            def lines_printed() -> list[str]:  # only what comes after its start
                accepted.append(send("deposit", "5"))
                assert accepted[-1]["version"] == len(accepted)
                return printed.read_text().split("\n")[:-1]

            lines = wait_until(
                lines_printed, "an event that was followed", seconds=WAIT, unless=lambda: follower.poll() is not None
            )
            events = [ast.literal_eval(line) for line in lines]
            assert all(event["command"] == accepted[event["version"] - 1]["command"] for event in events)
        finally:
            follower.terminate()


def test_a_client_that_asks_too_early_is_told_so(accounts: Accounts) -> None:
    _, place = accounts.send("early", "deposit", 1)
    topic, partition, offset = place.split(":")
    with pytest.raises(ReplicaError) as caught:
        accounts.module.answer_to(accounts.pond, "early", "?", f"{topic}:{partition}:{int(offset) + 1}", 0.1)
    assert caught.value.condition == "NOT_UP_TO_BOUND"
