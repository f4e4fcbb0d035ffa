"""Accounts decide as a recomputation does: in the order of offsets, each command once, each with an answer."""

from __future__ import annotations

import json
import os
import random
from itertools import permutations

import pytest

import millpond
from oracles.accounts import ANSWER, MOST, Account, Command

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

NO_NAME = "the account or the command has no proper name"


class Teller:
    """An account without Spark, which gets commands batch by batch."""

    def __init__(self, module, keep=1000, account="a") -> None:
        from pyspark.sql.streaming.tws_tester import TwsTester

        self.tester, self.account, self.offset = TwsTester(module.Accounts(keep)), account, 0

    def ask(self, *commands, places=None):
        """The answers to a batch of (command, kind, cents) at these (partition, offset), by default one behind the other."""
        from pyspark.sql import Row

        places = places or [(0, self.offset + n) for n in range(len(commands))]
        self.offset += len(commands)
        names = Row("place", "partition", "offset", "command", "kind", "cents")
        rows = [names(f"commands:{at[0]}:{at[1]}", *at, *said) for at, said in zip(places, commands, strict=True)]
        return [tuple(row[name] for name in ("command", *ANSWER)) for row in self.tester.test(self.account, rows)]

    def state(self):
        return self.tester.peekValueState("state", self.account)


def test_a_command_is_accepted_or_refused_by_the_state(example) -> None:
    teller = Teller(example("entity"))
    assert teller.ask(("1", "deposit", 500), ("2", "withdraw", 501), ("3", "withdraw", 500), ("4", "withdraw", 1)) == [
        ("1", "deposit", 500, True, None, 1, 500),
        ("2", "withdraw", 501, False, "not enough", 1, 500),
        ("3", "withdraw", 500, True, None, 2, 0),
        ("4", "withdraw", 1, False, "not enough", 2, 0),
    ]
    assert teller.ask(("5", "deposit", MOST), ("6", "deposit", 1), ("7", "withdraw", MOST)) == [
        ("5", "deposit", MOST, True, None, 3, MOST),
        ("6", "deposit", 1, False, "too much for one account", 3, MOST),
        ("7", "withdraw", MOST, True, None, 4, 0),
    ]
    assert teller.state() == (0, 4, 7)


def test_a_repeated_id_is_answered_alike_and_applied_once(example) -> None:
    teller = Teller(example("entity"))
    (first,) = teller.ask(("1", "deposit", 5))
    (refused,) = teller.ask(("2", "withdraw", 6))
    # The first answer counts: for other words too, also within the batch, and although the balance would suffice by now.
    assert teller.ask(("1", "deposit", 5), ("1", "withdraw", 1), ("3", "deposit", 2), ("3", "deposit", 2))[:2] == [first, first]
    assert teller.ask(("2", "withdraw", 6)) == [refused]
    assert teller.state() == (7, 2, 3)


def test_a_batch_is_applied_in_the_order_of_partitions_and_offsets(example) -> None:
    module = example("entity")
    said = {(0, 9): ("1", "withdraw", 1), (0, 10): ("2", "deposit", 3), (1, 0): ("3", "withdraw", 2), (2, 0): ("4", "withdraw", 2)}
    for places in permutations(said):
        answers = Teller(module).ask(*(said[place] for place in places), places=places)
        assert [(answer[0], answer[3]) for answer in answers] == [("1", False), ("2", True), ("3", True), ("4", False)]


def test_what_says_nothing_is_refused_under_its_id_or_its_place(example) -> None:
    module = example("entity")
    teller = Teller(module)
    none, bad = "kind is none of deposit, withdraw", f"cents is no whole number from 1 to {MOST}"
    answers = teller.ask(
        *((None, "deposit", 5), ("1", None, 5), ("2", "deposit", None), ("3", "deposit", 0)),
        *(("4", "withdraw", -1), ("5", "deposit", MOST + 1), (None, "deposit", 5)),
    )
    assert [(answer[0], answer[3], answer[4]) for answer in answers] == [
        ("commands:0:0", False, NO_NAME),
        *(("1", False, none), ("2", False, bad), ("3", False, bad), ("4", False, bad), ("5", False, bad)),
        ("commands:0:6", False, NO_NAME),
    ]
    assert teller.state() == (0, 0, 7)
    # An id means nothing without its account: two clients may use the same.
    nobody = Teller(module, account=None)
    assert [answer[0] for answer in nobody.ask(("1", "deposit", 5), ("1", "deposit", 5))] == ["commands:0:0", "commands:0:1"]
    assert nobody.state() == (0, 0, 2)


def test_the_last_answers_are_kept_and_all_of_the_newest_batch(example) -> None:
    teller = Teller(example("entity"), keep=3)
    teller.ask(*((str(n), "deposit", 1) for n in range(10)))
    assert len(teller.tester.peekMapState("log", "a")) == 10
    (again, new) = teller.ask(("7", "deposit", 1), ("10", "deposit", 1))
    assert (again[-1], new[-1]) == (8, 11)
    for variable, names in (("log", (8, 9, 10, 11)), ("answers", ("7", "8", "9", "10"))):
        assert set(teller.tester.peekMapState(variable, "a")) == {(name,) for name in names}
    (forgotten,) = teller.ask(("6", "deposit", 1))
    assert forgotten[-1] == 12


def test_kafkas_records_become_commands_and_nothing_else_does(spark, example) -> None:
    module = example("entity")
    good = {"command": "c", "kind": "deposit", "cents": 9007199254740993}
    records = [
        (b"a", json.dumps(good).encode(), ("a", "c", "deposit", 9007199254740993)),
        (b"a", json.dumps({**good, "more": [1]}).encode(), ("a", "c", "deposit", 9007199254740993)),
        (None, json.dumps(good).encode(), (None, "c", "deposit", 9007199254740993)),
        (b"\xff", json.dumps(good).encode(), (None, "c", "deposit", 9007199254740993)),
        (b"a\n", json.dumps(good).encode(), (None, "c", "deposit", 9007199254740993)),
        (b"a" * 65, json.dumps(good).encode(), (None, "c", "deposit", 9007199254740993)),
        *(
            (b"a", value, ("a", None, None, None))
            for value in (None, b"", b"\x00", b"no", b"[]", b"{}", b"5", b"\xff\xfe{", b'{"command":')
        ),
        (b"a", b'{"command": "c", "kind": "\xff", "cents": 1}', ("a", "c", None, 1)),
        (b"a", json.dumps({**good, "command": "x" * 65}).encode(), ("a", None, "deposit", 9007199254740993)),
        (b"a", json.dumps({**good, "command": "commands:0:0"}).encode(), ("a", None, "deposit", 9007199254740993)),
        (b"a", json.dumps({**good, "kind": "Deposit"}).encode(), ("a", "c", None, 9007199254740993)),
        *(
            (b"a", json.dumps({**good, "cents": cents}).encode(), ("a", "c", "deposit", None))
            for cents in (None, 1.5, "5", [1], 2**63)
        ),
    ]
    rows = [("commands", 1, n, key, value) for n, (key, value, _) in enumerate(records)]
    frame = spark.createDataFrame(rows, "topic string, partition int, offset long, key binary, value binary")
    found = {row.offset: row for row in module.commands(frame).collect()}
    for n, (_, _, meant) in enumerate(records):
        assert (found[n].place, found[n].partition) == (f"commands:1:{n}", 1)
        assert (found[n].account, found[n].command, found[n].kind, found[n].cents) == meant, records[n]


@pytest.mark.long
def test_the_tables_are_those_of_a_recomputation(on_rocksdb, example, tmp_path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    keep, batches, chance = 20, 4, random.Random(7)
    module, spark = example("entity"), on_rocksdb
    folder, pond, said = tmp_path / "in", tmp_path / "pond", []
    folder.mkdir()
    for batch in range(batches):
        written = []
        for n in range(150):
            account = chance.choice("aaab")  # one account gets more commands in a batch than it keeps answers
            kind = chance.choice(("deposit", "withdraw"))
            command = chance.choice(said[-30:]).command if said and chance.random() < 0.3 else f"{batch}-{n}"
            written.append(Command(account, command, kind, chance.randrange(1, 9), offset=batch * 1000 + n))
            said.append(written[-1])
        values = [json.dumps({"command": c.command, "kind": c.kind, "cents": c.cents}).encode() for c in written]
        columns = {"topic": ["commands"] * 150, "partition": pa.array([0] * 150, pa.int32()), "offset": [c.offset for c in written]}
        table = pa.table({**columns, "key": [c.account.encode() for c in written], "value": values})
        shuffled = table.take(chance.sample(range(150), 150))
        pq.write_table(shuffled, folder / f"{batch}.parquet")
        os.utime(folder / f"{batch}.parquet", (batch, batch))
    schema = "topic string, partition int, offset long, key binary, value binary"
    records = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    collected = []

    def collect(frame, batch):
        collected.extend((batch, row.account, row.command, *(row[name] for name in ANSWER)) for row in frame.collect())

    chunk = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(chunk)
    spark.conf.set(chunk, "7")  # an account's commands come in many chunks
    try:
        with module.start(records, str(pond), keep, trigger="available-now", partitions=2, sink=collect) as job:
            assert job.wait_for_end(240)
    finally:
        spark.conf.set(chunk, before)
    accounts, expected = {"a": Account(), "b": Account()}, []
    for batch in range(batches):
        for account in accounts.values():
            account.keep_last(keep)
        for command in said[batch * 150 : (batch + 1) * 150]:
            expected.append((batch, command.account, command.command, *accounts[command.account].take(command)))
    # Each account answers in the order of its commands.
    for name in accounts:
        assert [answer for answer in collected if answer[1] == name] == [answer for answer in expected if answer[1] == name]
    assert len({answer[:3] for answer in expected}) < len(expected) - 50
    with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened, opened.cut("account") as cut:
        for name, account in accounts.items():
            state = cut["account_state"].get(account=name)
            assert (state["balance"], state["version"], state["commands"]) == (account.balance, account.version, len(account.log))
            answers = {row["command"]: tuple(row[n] for n in ANSWER) for row in cut["account_answers"].scan(account=name)}
            assert answers == account.known
            assert keep < len(answers) < len(account.log)
            log = [(row["number"], row["command"]) for row in cut["account_log"].scan(account=name)]
            assert log == [(n, entry[0]) for n, entry in enumerate(account.log, 1)][-len(log) :]
            assert len(log) == len(answers)
