"""Compiled lookups give Python's answers, of the transaction that they may read, and leave all else to Python."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_from_bytes

import pytest

from millpond.checkpoint.rows.unsaferow import encoder
from millpond.errors import CheckpointError
from millpond.native import library
from millpond.native.lookup import Reader, TableLookup
from millpond.replica.backends.lmdb import LmdbBackend, open_backend
from millpond.replica.keys.codec import MAX_KEY_BYTES, store_key
from millpond.replica.row_stamp import changed_batch, is_final, stamp, stamp_at_most, stamp_final, without_stamp
from millpond.schema.definition.expression import buffer_column
from millpond.schema.definition.table import ValueColumn
from millpond.schema.types import Field, atomic
from millpond.serve.hot.row_json import RowWriter
from millpond.settings import ReplicaSettings
from millpond.tables.answer import Row
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.compiled import table_facts
from spark_files.random_rows import TEXTS, WHOLE, bound, value_of
from suite.waiting import wait_until

pytestmark = pytest.mark.skipif(library.library() is None, reason="the compiled library isn't built: python hatch_build.py")
FOREVER = float("inf")
NO_ROW = b"$-1\r\n"


class Frame:
    """What answers of a batch have in common."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def at(self, now: float) -> SimpleNamespace:
        return SimpleNamespace(batch=self.batch, now=now)


class Replica:
    """One table in LMDB, and its reader."""

    def __init__(self, folder: Path, binding: Binding, *, lasts: bool = True) -> None:
        folder.mkdir()
        self.folder, self.binding = folder, binding
        self.backend: LmdbBackend = open_backend(folder, ReplicaSettings(map_size_bytes=1 << 26))
        self.backend.create([binding.table])
        with self.backend.snapshot() as snapshot:
            reader = self.backend.reader(snapshot)
        assert reader is not None
        self.reader: Reader = reader
        facts = table_facts(binding)
        assert facts is not None
        lookup = reader.table(replace(facts, lasts=lasts))
        assert lookup is not None
        self.lookup: TableLookup = lookup

    def put(self, rows: dict[bytes, bytes]) -> None:
        with self.backend.write() as batch:
            batch.put(self.binding.table, rows.items())

    @property
    def transaction(self) -> int:
        with self.backend.snapshot() as snapshot:
            return int(snapshot.transaction.id())

    def allow(self, batch: int = 0) -> None:
        self.reader.allow(self.transaction, FOREVER, Frame(batch))


def plain(*kinds: str, key: str = "string") -> Binding:
    """A table with columns of these types."""
    fields = tuple(Field(f"c{i}", atomic(kind)) for i, kind in enumerate(kinds))
    columns = tuple(ValueColumn(f.name, f.type, buffer_column(i, f.type)) for i, f in enumerate(fields))
    return bound((Field("k", atomic(key)),), fields, columns)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Replica]:
    """A row `a` of one number."""
    replica = Replica(tmp_path / "small", plain("long"))
    replica.put({replica.binding.codec.encode(("a",)): one(5)})
    replica.allow(7)
    yield replica
    replica.reader.end()


def one(value: int, batch: int = 3) -> bytes:
    return encoder((Field("c0", atomic("long")),))((value,)) + stamp(batch)


def written(replica: Replica, key: Any, stored: bytes) -> bytes | None:
    """The JSON of a row by Python; None if it refuses the row."""
    try:
        with library.switched_off():
            return RowWriter(replica.binding).write((key,), stored)
    except CheckpointError:
        return None


def compare(replica: Replica, key: Any, stored: bytes) -> int:
    """Ask for a row in all ways; how many gave it.  Each gives Python's answer or none."""
    binding, lookup = replica.binding, replica.lookup
    ordered = binding.codec.encode((key,))
    replica.put({store_key(ordered): stored})
    replica.allow(9)
    if len(ordered) >= MAX_KEY_BYTES:  # Python compares the whole key, which lies beside the value
        assert lookup.row(key, {}) is None
        return 0
    json = written(replica, key, stored)
    text = str(key).encode("utf-8", "surrogateescape")
    by_http = lookup.http(replica.transaction, quote_from_bytes(text, safe="").encode(), b"", b"<", b">", 1 << 30)
    if by_http is not None:
        assert json is not None
        assert by_http == b"%d\r\n\r\n<%b>" % (len(json) + 2, json)
    name = b"t:" + text.replace(b"%", b"%25")
    command = b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name)
    replies = lookup.redis(bytearray(b"??" + 2 * command), 2, b"t:", NO_ROW)
    assert replies is not None
    assert replies[1:] in ((2, 0), (2 + 2 * len(command), 2))
    if replies[2]:
        assert json is not None
        body = json[: json.rindex(b'],"changed":[')]
        assert replies[0] == 2 * (b"$%d\r\n%b\r\n" % (len(body), body))
    row = lookup.row(key, {})
    if row is not None:
        values = binding.finish((key,), binding.decode_value(without_stamp(stored)))
        assert repr(dict(row)) == repr(values)
        assert [type(v) for v in row.values()] == [type(v) for v in (values or {}).values()]
        assert (type(row), row.evicted, row.final, row.changed_batch) == (Row, False, is_final(stored), changed_batch(stored))
        assert row.cut.batch == 9
        assert abs(row.cut.now - time.time()) < 60
        assert repr(dict(lookup.row(None, {"k": key}))) == repr(values)
    return (by_http is not None) + bool(replies[2]) + (row is not None)


def random_key(random_: random.Random, kind: str) -> Any:
    if kind == "string":
        return random_.choice([*TEXTS, "a%b+c d%", "x" * random_.randrange(490, 520), "\x00" * random_.randrange(240, 260)])
    edge = 1 << WHOLE[kind]
    return random_.choice([0, 1, -1, edge - 1, -edge, random_.randrange(-edge, edge)])


def test_rows_of_all_keys_and_values(tmp_path: Path) -> None:
    random_ = random.Random("compiled lookups")
    given = asked = 0
    for number in range(60):
        kinds = [random_.choice([*WHOLE, "float", "double", "boolean", "string"]) for _ in range(random_.randint(0, 9))]
        kind = random_.choice([*WHOLE, "string", "string"])
        replica = Replica(tmp_path / str(number), plain(*kinds, key=kind))
        encode = encoder(replica.binding.definition.value_schema)
        for _ in range(12):
            values = tuple(value_of(atomic(k), random_) for k in kinds)
            marked = random_.choice([stamp, stamp_at_most, stamp_final])(random_.randrange(1 << random_.randrange(1, 60)))
            given += compare(replica, random_key(random_, kind), encode(values) + marked)
            asked += 3
        replica.reader.end()
    assert given > asked / 3


def test_damaged_rows_are_left_to_python(tmp_path: Path) -> None:
    random_ = random.Random("damaged rows, looked up")
    replica = Replica(tmp_path / "damaged", plain("string", "long", "boolean"))
    encode = encoder(replica.binding.definition.value_schema)
    given = 0
    for _ in range(700):
        row = bytearray(encode((random_.choice(TEXTS), random_.randrange(1000), True)))
        for _ in range(random_.randint(1, 4)):
            row[random_.randrange(len(row))] = random_.choice([0, 1, 0x7F, 0xFF, random_.randrange(256)])
        given += compare(replica, "k", bytes(row[: random_.choice([len(row), random_.randint(0, len(row))])]) + stamp(9))
    assert 200 < given < 3 * 700 - 200
    replica.reader.end()


def test_damaged_commands_end_where_they_end(small: Replica) -> None:
    """The library answers whole plain commands, in order, and no other bytes."""
    random_ = random.Random("damaged commands")
    command, reply = b"*2\r\n$3\r\nGET\r\n$3\r\nt:a\r\n", b'$14\r\n{"k":"a","c0":5}\r\n'.replace(b"$14", b"$16")
    missing = b"*2\r\n$3\r\nget\r\n$5\r\nt:%41\r\n"
    assert small.lookup.redis(bytearray(command + missing + command), 0, b"t:", NO_ROW) == (
        reply + NO_ROW + reply,
        2 * len(command) + len(missing),
        3,
    )
    whole = 4 * command
    for _ in range(4000):
        data = bytearray(whole)
        for _ in range(random_.randint(0, 2)):
            data[random_.randrange(len(data))] = random_.choice([*b"\r\n$*019:%t", random_.randrange(256)])
        del data[random_.choice([len(data), random_.randrange(len(data))]) :]
        found = small.lookup.redis(data, 0, b"t:", NO_ROW)
        assert found is not None
        same = 0
        while data[same * len(command) :].startswith(command):
            same += 1
        assert found[2] >= same
        assert found[0].startswith(same * reply)
        assert found[1] <= len(data)
        if found[2] > same:  # another key, or other digits of the same number
            assert data[found[1] - 2 : found[1]] == b"\r\n"
    for start in (-1, len(whole) + 1):
        assert small.lookup.redis(bytearray(whole), start, b"t:", NO_ROW) is None
    assert small.lookup.redis(bytearray(whole), 0, b"u:", NO_ROW) == (b"", 0, 0)
    # More replies than have room: the rest is left for the next call.
    found = small.lookup.redis(bytearray(3000 * command), 0, b"t:", NO_ROW)
    assert found is not None
    assert 1000 < found[2] < 3000
    assert found[0] == found[2] * reply


def test_no_row_and_other_keys_are_left_to_python(small: Replica) -> None:
    lookup, transaction = small.lookup, small.transaction
    for key in ("b", None, 5, b"a", 1.0, True, ["a"], "x" * 600, "\ud800", type("Text", (str,), {})("a")):
        assert lookup.row(key, {}) is None
        assert lookup.row(None, {"k": key}) is None
    assert lookup.row("a", {"k": "a"}) is None
    assert lookup.row(None, {"other": "a"}) is None
    assert lookup.row(None, {}) is None
    assert lookup.row("a", {}) == {"k": "a", "c0": 5}
    assert lookup.http(transaction, b"b", b"", b"", b"", 1000) is None
    assert lookup.http(transaction, b"a", b"", b"", b"", 20) is None  # more bytes than may be
    assert lookup.http(transaction, b"a", b"", b"", b"", 1000) is not None


def test_rows_that_may_have_expired_are_left_to_python(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "expiring", plain("long"), lasts=False)
    lookup = replica.lookup
    replica.put({replica.binding.codec.encode(("a",)): one(5)})
    replica.allow()
    found = lookup.redis(bytearray(b"*2\r\n$3\r\nGET\r\n$3\r\nt:a\r\n*2\r\n$3\r\nGET\r\n$3\r\nt:b\r\n"), 0, b"t:", NO_ROW)
    assert found is not None
    assert found[2] == 1
    replica.reader.end()


def test_nothing_is_read_after_a_newer_transaction_or_its_time(small: Replica) -> None:
    lookup, before = small.lookup, small.transaction
    small.put({small.binding.codec.encode(("a",)): one(6)})
    assert lookup.row("a", {}) is None
    assert lookup.redis(bytearray(b"*2\r\n"), 0, b"t:", NO_ROW) is None
    assert lookup.http(before, b"a", b"", b"", b"", 1000) is None
    small.reader.allow(small.transaction, time.monotonic() - 1, Frame(8))
    assert lookup.row("a", {}) is None
    small.reader.allow(small.transaction, time.monotonic() + 600, Frame(8))
    row = lookup.row("a", {})
    assert row == {"k": "a", "c0": 6}
    assert row.cut.batch == 8


def test_after_its_end_nothing_is_read_and_the_environment_can_be_opened_again(small: Replica) -> None:
    lookup = small.lookup
    row = lookup.row("a", {})
    small.reader.end()
    small.reader.end()
    small.allow()
    assert lookup.row("a", {}) is None
    assert lookup.redis(bytearray(b"*2\r\n"), 0, b"t:", NO_ROW) is None
    assert lookup.http(small.transaction, b"a", b"", b"", b"", 1000) is None
    facts = table_facts(small.binding)
    assert facts is not None
    assert small.reader.table(facts) is None
    first = small.backend
    del small.backend
    del first
    gc.collect()
    again = open_backend(small.folder, ReplicaSettings(map_size_bytes=1 << 26))
    with again.snapshot() as snapshot:
        assert again.reader(snapshot) is not None
    assert row == {"k": "a", "c0": 5}  # a row is of no memory of LMDB's
    assert row.cut.batch == 7
    small.backend = again


def test_garbage_that_reads_while_a_row_is_made(small: Replica) -> None:
    """Python may run any code where the library makes objects: a call within a call, and the end of the reader."""
    inner: list[Any] = []
    seen = 0

    def collected(phase: str, _: dict[str, int]) -> None:
        nonlocal seen
        if phase == "start" and seen < 40:
            seen += 1
            inner.append(small.lookup.row("a", {}))
            small.reader.allow(small.transaction, FOREVER, Frame(100))
            if seen == 40:
                small.reader.end()

    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        rows = [small.lookup.row("a", {}) for _ in range(500)]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)
    assert seen == 40
    for row in [*rows, *inner]:
        assert row is None or (dict(row) == {"k": "a", "c0": 5} and row.cut.batch in (7, 100))
    assert rows[-1] is None
    assert any(row is not None for row in rows)


@pytest.mark.long
def test_many_threads_each_see_one_batch(small: Replica) -> None:
    """The value of each row is the number of its batch, while batches come."""
    key = small.binding.codec.encode(("a",))
    small.put({key: one(0)})
    small.allow(0)
    wrong: list[Any] = []
    newest = dict.fromkeys(range(3), -1)
    is_over = threading.Event()

    def read(reader: int) -> None:
        while not is_over.is_set():
            row = small.lookup.row(None, {"k": "a"})
            if row is not None:
                newest[reader] = row["c0"]
                if row.cut.batch != row["c0"]:
                    wrong.append(row)

    threads = [threading.Thread(target=read, args=(reader,)) for reader in newest]
    for thread in threads:
        thread.start()
    try:
        for batch in range(1, 300):
            small.put({key: one(batch)})
            small.allow(batch)
            if batch % 50 == 0:
                wait_until(
                    lambda batch=batch: set(newest.values()) == {batch},
                    f"batch {batch} at every reader",
                    unless=lambda: wrong or not all(thread.is_alive() for thread in threads),
                )
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_reads_nothing_and_ends_nothing(small: Replica) -> None:
    child = os.fork()
    if not child:
        bad = small.lookup.row("a", {}) is not None or small.lookup.redis(bytearray(), 0, b"t:", NO_ROW) is not None
        small.reader.end()
        os._exit(int(bad))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert small.lookup.row("a", {}) == {"k": "a", "c0": 5}
