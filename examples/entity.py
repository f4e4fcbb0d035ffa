"""Accounts that take commands and answer them, as persistent actors do: commands come on Kafka, answers are read from the state.

A broker, its topic, the job, and from another terminal a client and a reader of what was accepted (pip install confluent-kafka):

    docker run -d --name kafka -p 9092:9092 apache/kafka:4.1.0
    docker exec kafka /opt/kafka/bin/kafka-topics.sh --bootstrap-server localhost:9092 --create --topic commands --partitions 3
    export PYSPARK_SUBMIT_ARGS="--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 pyspark-shell"
    python examples/entity.py serve ./pond --bootstrap localhost:9092
    python examples/entity.py follow ./pond
    python examples/entity.py send ./pond alice deposit 500 --bootstrap localhost:9092
    python examples/entity.py send ./pond alice withdraw 700 --bootstrap localhost:9092   # refused: not enough

A record's key is the account and its value {"command": "its id", "kind": "deposit", "cents": 500}.  A command whose id was answered
before is answered alike and not applied again, as long as the answer is kept: at least the account's last KEEP.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import millpond
from millpond.spark.job import Job, run_until_stopped

KEEP = 1000
MOST_CENTS = 10**15  # of a command and of a balance: what is larger is refused, and never overflows
KINDS = ("deposit", "withdraw")
NAME = "[A-Za-z0-9_.-]{1,64}"  # of accounts and commands: no client makes the state's keys long, or like a place in Kafka
STATE = "balance long, version long, commands long"
ANSWER = "kind string, cents long, accepted boolean, reason string, version long, balance long"


class Answer(NamedTuple):
    """What was asked and what became of it.

    kind, cents:       as the command had them; None where they mean nothing
    version, balance:  of the account after the command; a version is one command accepted
    """

    kind: str | None
    cents: int | None
    accepted: bool
    reason: str | None
    version: int
    balance: int


def decide(balance: int, kind: str | None, cents: int | None) -> tuple[int, str | None]:
    """The balance after a command; unchanged, with the reason, where it is refused."""
    if kind is None:
        return balance, f"kind is none of {', '.join(KINDS)}"
    if cents is None or not 0 < cents <= MOST_CENTS:
        return balance, f"cents is no whole number from 1 to {MOST_CENTS}"
    after = balance + cents if kind == "deposit" else balance - cents
    if after < 0:
        return balance, "not enough"
    if after > MOST_CENTS:
        return balance, "too much for one account"
    return after, None


class Accounts(StatefulProcessor):
    """The state of an account, its answers by command, and the log of them by number.

    It works on rows: pandas makes whole numbers beside a NULL inexact.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("state", STATE)
        self.answers = handle.getMapState("answers", "command string", ANSWER)
        self.log = handle.getMapState("log", "number long", f"command string, {ANSWER}")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        balance, version, commands = self.state.get() or (0, 0, 0)
        self.forget(commands - self.keep)
        said = []
        # All of the batch first: Spark hands on a key's rows in no order.
        for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
            is_named = key[0] is not None and row.command is not None
            command = row.command if is_named else row.place
            answer = self.answers.getValue((command,))
            if answer is None:
                reason: str | None = "the account or the command has no proper name"
                if is_named:
                    balance, reason = decide(balance, row.kind, row.cents)
                version, commands = version + (reason is None), commands + 1
                answer = Answer(row.kind, row.cents, reason is None, reason, version, balance)
                self.answers.updateValue((command,), answer)
                self.log.updateValue((commands,), (command, *answer))
            said.append(Row(account=key[0], command=command, **Answer(*answer)._asdict()))
        self.state.update((balance, version, commands))
        return iter(said)

    def forget(self, number: int) -> None:
        """Take this entry out of the log, those before it, and their answers.

        When a batch begins, never when it ends: whoever follows sees all that a batch has answered, however many.
        """
        while number > 0 and (entry := self.log.getValue((number,))) is not None:
            self.log.removeKey((number,))
            self.answers.removeKey((entry[0],))
            number -= 1

    def close(self) -> None:
        pass


def commands(records: DataFrame) -> DataFrame:
    """Kafka's records as commands; whatever a record doesn't say, or says wrongly, is NULL."""
    said = F.from_json(F.col("value").cast("string"), "command string, kind string, cents long")
    return records.select(
        named(F.col("key").cast("string")).alias("account"),
        F.concat_ws(":", "topic", "partition", "offset").alias("place"),
        "partition",
        "offset",
        named(said["command"]).alias("command"),
        F.when(said["kind"].isin(*KINDS), said["kind"]).alias("kind"),
        said["cents"].alias("cents"),
    )


def named(text: Column) -> Column:
    """The text where it is a name."""
    return F.when(text.rlike(rf"\A{NAME}\z"), text)


def answered(records: DataFrame, keep: int) -> DataFrame:
    """Tables account_state, account_answers (account, command; …) and account_log (account, number; …).  The rows are answers."""
    return (
        commands(records)
        .groupBy("account")
        .transformWithState(
            Accounts(keep), outputStructType=f"account string, command string, {ANSWER}", outputMode="update", timeMode="none"
        )
    )


def start(records: DataFrame, pond: str, keep: int = KEEP, **options: Any) -> Job:
    """Start the job; readers keep the changes of a day."""
    retention = millpond.Retention.parse(history="24h")
    return millpond.start(answered(records, keep), table="account", pond=pond, retention=retention, **options)


def serve(pond: str, bootstrap: str, topic: str, partitions: int | None) -> None:
    """The job, until Ctrl-C."""
    spark = millpond.session("accounts")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", 20_000)  # so many commands a batch: those of one account are sorted in memory
        .load()
    )
    run_until_stopped([start(records, pond, partitions=partitions)])


def send(bootstrap: str, topic: str, account: str, kind: str, cents: int, command: str) -> str:
    """Write a command, wait until the broker has it, and say where it lies: "commands:0:1234"."""
    from confluent_kafka import Producer

    if not all(re.fullmatch(NAME, name) for name in (account, command)):
        raise SystemExit(f"{account!r} or {command!r} is no name: {NAME}")
    places: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            places.append(f"{topic}:{message.partition()}:{message.offset()}")

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    value = json.dumps({"command": command, "kind": kind, "cents": cents})
    producer.produce(topic, value, key=account, on_delivery=delivered)
    producer.flush(30)
    if not places:
        raise SystemExit(f"The broker hasn't confirmed it: send the command {command} again, by the same id.")
    return places[0]


def answer_to(pond: millpond.Pond, account: str | None, command: str, place: str, wait_seconds: float = 30.0) -> millpond.Row:
    """The answer to the command at this place, as soon as the job has read it; empty where it is no longer kept.

    Raises:  NOT_UP_TO_BOUND where the job hasn't come so far in time: read again, or send the command again by the same id.
    """
    bounds = millpond.Bounds(contains_offset=place, wait_seconds=wait_seconds)
    return pond["account_answers"].get(account=account, command=command, bounds=bounds)


def events(pond: millpond.Pond, token: str, wait_seconds: float = 10.0) -> tuple[list[dict[str, Any]], str]:
    """What was accepted behind a token, each account's in the order of versions, and the token to go on with."""
    changes = pond["account_log"].changes(token, wait_seconds=wait_seconds)
    return [c.new for c in changes if c.kind == "insert" and c.new is not None and c.new["accepted"]], changes.token


def follow(pond: millpond.Pond) -> None:
    """Print what is accepted from now on, until Ctrl-C."""
    token = pond["account_log"].changes().token
    while True:
        accepted, token = events(pond, token)
        for event in accepted:
            print(event, flush=True)


def main() -> None:
    """One of serve, send, follow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="action", required=True)
    serving, sending, following = (kinds.add_parser(name) for name in ("serve", "send", "follow"))
    for one in (serving, sending, following):
        one.add_argument("pond")
    for one in (serving, sending):
        one.add_argument(
            "--bootstrap", required=True, help="a broker; if there is none: docker run -d -p 9092:9092 apache/kafka:4.1.0"
        )
        one.add_argument("--topic", default="commands")
    serving.add_argument("--partitions", type=int, help="of the state; a checkpoint keeps its number")
    sending.add_argument("account")
    sending.add_argument("kind", choices=KINDS)
    sending.add_argument("cents", type=int)
    sending.add_argument("--command", default=uuid.uuid4().hex, help="its id: the same again where the answer didn't come")
    given = parser.parse_args()
    if given.action == "serve":
        serve(given.pond, given.bootstrap, given.topic, given.partitions)
        return
    with contextlib.suppress(KeyboardInterrupt), millpond.open(given.pond, wait_seconds=30) as pond:
        if given.action == "follow":
            follow(pond)
        else:
            place = send(given.bootstrap, given.topic, given.account, given.kind, given.cents, given.command)
            print(dict(answer_to(pond, given.account, given.command, place)))


if __name__ == "__main__":
    main()
