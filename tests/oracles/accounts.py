"""The accounts of examples/entity.py, recomputed in plain Python, and the client side of that example."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import millpond

PROGRAM = Path(__file__).parents[2] / "examples" / "entity.py"
MOST = 1_000_000_000_000_000
ANSWER = ("kind", "cents", "accepted", "reason", "version", "balance")


class Command(NamedTuple):
    """A command as a client wrote it, and where the broker put it."""

    account: str
    command: str
    kind: str
    cents: int
    partition: int = 0
    offset: int = 0


class Account:
    """The answers that one account must have given so far."""

    def __init__(self) -> None:
        self.balance = self.version = 0
        self.log: list[tuple[Any, ...]] = []  # (command, *answer) of all answered commands
        self.known: dict[str, tuple[Any, ...]] = {}

    def take(self, said: Command) -> tuple[Any, ...]:
        """The answer to a command that is well-formed."""
        if said.command in self.known:
            return self.known[said.command]
        after = self.balance + {"deposit": 1, "withdraw": -1}[said.kind] * said.cents
        reason = "not enough" if after < 0 else "too much for one account" if after > MOST else None
        if reason is None:
            self.balance, self.version = after, self.version + 1
        answer = (said.kind, said.cents, reason is None, reason, self.version, self.balance)
        self.known[said.command] = answer
        self.log.append((said.command, *answer))
        return answer

    def keep_last(self, keep: int) -> None:
        """Forget all answers but the last ones."""
        self.known = {command: tuple(answer) for command, *answer in self.log[max(0, len(self.log) - keep) :]}


def recomputed(written: Iterable[Command]) -> dict[str, Account]:
    """All accounts after these commands; each account takes its commands in the broker's order."""
    accounts: dict[str, Account] = defaultdict(Account)
    for said in sorted(written, key=lambda c: (c.partition, c.offset)):
        accounts[said.account].take(said)
    return dict(accounts)


def check_tables(pond: millpond.Pond, accounts: dict[str, Account]) -> None:
    """Check at one batch that the tables have exactly these accounts, with all of their answers."""
    with pond.cut("account") as cut:
        state = {r["account"]: (r["balance"], r["version"], r["commands"]) for r in cut["account_state"].scan()}
        answers = {(r["account"], r["command"]): tuple(r[name] for name in ANSWER) for r in cut["account_answers"].scan()}
        log = {(r["account"], r["number"]): tuple(r[name] for name in ("command", *ANSWER)) for r in cut["account_log"].scan()}
    assert state == {name: (a.balance, a.version, len(a.log)) for name, a in accounts.items()}
    assert answers == {(name, command): answer for name, a in accounts.items() for command, answer in a.known.items()}
    assert log == {(name, n): entry for name, a in accounts.items() for n, entry in enumerate(a.log, 1)}


def write_all(broker: str, topic: str, commands: Iterable[Command]) -> list[Command]:
    """Write commands without waiting in between; returns them with the places that the broker gave them."""
    from confluent_kafka import Producer

    written: list[Command] = []

    def delivered(said: Command, error: Any, message: Any) -> None:
        assert error is None, error
        written.append(said._replace(partition=message.partition(), offset=message.offset()))

    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for said in commands:
        value = json.dumps({"command": said.command, "kind": said.kind, "cents": said.cents})
        producer.produce(topic, value, key=said.account, on_delivery=partial(delivered, said))
    assert producer.flush(60) == 0
    return written


def serving(pond: Path, broker: str, topic: str) -> list[str]:
    """The command that runs the job, with a time limit; it also needs `submit_arguments`."""
    program = [sys.executable, str(PROGRAM), "serve", str(pond), "--bootstrap", broker, "--topic", topic, "--partitions", "2"]
    return ["timeout", "-k", "5", "600", *program]


def submit_arguments(jars: Path) -> str:
    """The value of PYSPARK_SUBMIT_ARGS.  By its settings, commands come in many small chunks, and a task may fail."""
    conf = {
        "spark.master": "local[2,4]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "7",
    }
    given = " ".join(f"--conf {name}={value}" for name, value in conf.items())
    return f"--jars {','.join(str(jar) for jar in sorted(jars.glob('*.jar')))} {given} pyspark-shell"


def batches(pond: Path, log: str = "commits") -> int:
    """The number of batches that the job has committed, or planned if `log` is `offsets`."""
    entries = pond / "jobs" / "account" / "checkpoint" / log
    return max((int(path.name) for path in entries.glob("[0-9]*")), default=-1) + 1


def client() -> ModuleType:
    """The example as a module, which has the functions of its client."""
    spec = spec_from_file_location("entity_client", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module
