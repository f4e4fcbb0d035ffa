"""Accounts of examples/entity.py answer commands on a real broker; some commands are sent twice."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.fed import Rows
from faults.kind import Kind
from faults.undisturbed import Model, Planned, Tables, by
from live_jobs.quick_java import QUICK_JAVA_ENVIRONMENT
from oracles.accounts import ANSWER, Account, Command, serving, submit_arguments, write_all
from servers.kafka import connector_jars, create_topic, kafka_broker

PARTITIONS = 3


class Commands:
    """A topic of commands; each is a piece of input."""

    def __init__(self) -> None:
        self.broker, self.topic = kafka_broker(), f"commands-{uuid.uuid4().hex[:8]}"
        create_topic(self.broker, self.topic, PARTITIONS)
        self.written: list[Command] = []
        self.rows: dict[str, Rows] = {}

    def add(self, commands: list[Command]) -> None:
        """Write them."""
        for said in write_all(self.broker, self.topic, commands):
            self.written.append(said)
            self.rows[f"{said.partition}:{said.offset}"] = [said._asdict()]

    def read(self, checkpoint: Path, ends: list[Any]) -> Iterator[str]:
        end = ends[0][self.topic] if ends[0] else {}
        return (f"{c.partition}:{c.offset}" for c in self.written if c.offset < end.get(str(c.partition), 0))


class Accounts(Model):
    """account -> balance, answers and log."""

    order = ("partition", "offset")

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._taken = 0

    def take(self, planned: Planned, rows: Rows) -> Rows:
        self._taken += len(rows)
        for account, commands in by("account", rows).items():
            for command in commands:
                self._accounts.setdefault(account, Account()).take(Command(**command))
        return []

    def tables(self) -> Tables:
        state, answers, log = [], [], []
        for name, account in sorted(self._accounts.items()):
            assert len(account.log) < 1000, "answers are forgotten"
            state.append({"account": name, "balance": account.balance, "version": account.version, "commands": len(account.log)})
            for command, answer in sorted(account.known.items()):
                answers.append({"account": name, "command": command, **dict(zip(ANSWER, answer, strict=True))})
            for number, (command, *answer) in enumerate(account.log, 1):
                log.append({"account": name, "number": number, "command": command, **dict(zip(ANSWER, answer, strict=True))})
        return {"account_state": state, "account_answers": answers, "account_log": log}

    def tried(self) -> bool:
        """Some commands were refused, and some had been answered before."""
        log = [entry for account in self._accounts.values() for entry in account.log]
        return len(log) < self._taken and not all(accepted for *_, accepted, _, _, _ in log)


def some_commands(chance: random.Random, written: list[Command], count: int) -> list[Command]:
    """The next commands; one in five is a command sent again."""
    found: list[Command] = []
    for n in range(count):
        before = [*written, *found][-60:]
        kind, cents = chance.choice(("deposit", "withdraw")), chance.randrange(1, 100)
        fresh = Command(f"a{chance.randrange(16)}", f"{len(written)}-{n}", kind, cents)
        found.append(chance.choice(before) if before and chance.random() < 0.2 else fresh)
    return found


class Entity(Kind):
    """Commands on a topic, and answers in the state."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self.commands = Commands()
        self.inputs, self.jobs = [self.commands], {"account": Accounts()}

    def feed(self) -> None:
        self.commands.add(some_commands(self.chance, self.commands.written, 10))

    def command(self) -> list[str]:
        program = serving(self.pond, self.commands.broker, self.commands.topic)
        environment = {"PYSPARK_SUBMIT_ARGS": submit_arguments(connector_jars()), **QUICK_JAVA_ENVIRONMENT}
        return ["env", *(f"{name}={value}" for name, value in environment.items()), *program]
