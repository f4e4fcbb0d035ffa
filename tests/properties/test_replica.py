"""A replica is a dict, whatever is applied to it, in whatever order of batches, crashes and gaps."""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import lz4.block
import pytest
import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.checkpoint.unsaferow import decoder, encoder
from millpond.errors import MillpondError
from millpond.replica.follower import Follower
from millpond.replica.memory_backend import MemoryBackend
from millpond.replica.ordered import KeyCodec
from millpond.replica.place import ReplicaPlace
from millpond.replica.scan import iter_prefix
from millpond.schema.types import Field, atomic, struct_of
from millpond.settings import ReplicaSettings
from millpond.storage import open_storage

KEY = (Field("k", atomic("string")),)
VALUE = (Field("v", atomic("long")),)
PARTITIONS = 2
encode_key, encode_value = encoder(KEY), encoder(VALUE)


def lz4_file(data: bytes) -> bytes:
    """The stream that Spark writes: one block, one end mark."""
    packed = lz4.block.compress(data, store_size=False)
    checksum = xxhash.xxh32_intdigest(data, 0x9747B28C) & 0x0FFFFFFF
    return (
        b"LZ4Block"
        + struct.pack("<Biii", 0x25, len(packed), len(data), checksum)
        + packed
        + b"LZ4Block"
        + struct.pack("<Biii", 0x15, 0, 0, 0)
    )


def delta_file(changes: list[tuple[str, int | None]]) -> bytes:
    out = b""
    for key, value in changes:
        row = encode_key((key,))
        out += struct.pack(">i", len(row)) + row
        if value is None:
            out += struct.pack(">i", -1)
        else:
            row = encode_value((value,))
            out += struct.pack(">i", len(row)) + row
    return lz4_file(out + struct.pack(">i", -1))


class WrittenCheckpoint:
    """A checkpoint of the HDFS-backed provider, written file by file as Spark does."""

    def __init__(self, path: Path, job_id: str = "job-1") -> None:
        self.path = path
        self.next_batch = 0
        self.state: list[dict[str, int]] = [{} for _ in range(PARTITIONS)]
        self.clock = 1_000
        schema = json.dumps(struct_of(KEY).to_json()), json.dumps(struct_of(VALUE).to_json())
        body = b"".join(struct.pack(">iH", 1, len(s)) + s.encode() for s in schema)
        metadata = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": PARTITIONS}],
        }
        self.write("metadata", json.dumps({"id": job_id}).encode())
        self.write("state/0/_metadata/metadata", b"v1\n" + json.dumps(metadata).encode())
        self.write("state/0/0/_metadata/schema", struct.pack(">H", 2) + b"v2" + body)

    def write(self, name: str, data: bytes) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_bytes(data)
        temporary.rename(target)

    def plan(self, changes: list[tuple[str, int | None]], *, snapshot: bool) -> None:
        """Everything of a batch but its commit."""
        batch = self.next_batch
        self.clock += 1
        conf = {"spark.sql.shuffle.partitions": str(PARTITIONS), "spark.sql.streaming.stateStore.compression.codec": "lz4"}
        planned = {"batchWatermarkMs": 0, "batchTimestampMs": self.clock, "conf": conf}
        self.write(f"offsets/{batch}", f'v1\n{json.dumps(planned)}\n{{"logOffset":{batch}}}'.encode())
        for partition in range(PARTITIONS):
            mine = [(k, v) for k, v in changes if len(k) % PARTITIONS == partition]
            for key, value in mine:
                if value is None:
                    self.state[partition].pop(key, None)
                else:
                    self.state[partition][key] = value
            self.write(f"state/0/{partition}/{batch + 1}.delta", delta_file(mine))
            if snapshot:
                rows: list[tuple[str, int | None]] = [*self.state[partition].items()]
                self.write(f"state/0/{partition}/{batch + 1}.snapshot", delta_file(rows))

    def commit(self) -> None:
        self.write(f"commits/{self.next_batch}", b'v1\n{"nextBatchWatermarkMs":0}')
        self.next_batch += 1

    def clean(self, keep: int) -> None:
        """As Spark's clean-up, if there is a snapshot to go on from."""
        oldest = self.next_batch - keep
        for folder in ("offsets", "commits"):
            for file in (self.path / folder).iterdir():
                if int(file.name) < oldest:
                    file.unlink()
        for partition in range(PARTITIONS):
            folder = self.path / f"state/0/{partition}"
            bases = [int(p.stem) for p in folder.glob("*.snapshot") if int(p.stem) <= oldest + 1]
            for file in [*folder.glob("*.delta"), *folder.glob("*.snapshot")]:
                if bases and int(file.stem) < max(bases):
                    file.unlink()

    def content(self) -> dict[str, int]:
        return {k: v for rows in self.state for k, v in rows.items()}


KEYS = st.one_of(st.text("ab", max_size=3), st.integers(490, 520).map(lambda n: "z" * n))
CHANGES = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(-5, 5))), max_size=8)


class ReplicaMachine(RuleBasedStateMachine):
    """Batches are committed, logs cleaned, followers killed; what is read is always the dict of the batch it names."""

    in_memory = True

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.root = Path(self._folder.name)
        self.checkpoint = WrittenCheckpoint(self.root / "ck")
        self.storage = open_storage(self.root / "ck")
        self.history: dict[int, dict[str, int]] = {}
        self.serving: list[Any] = []
        self.follower: Follower | None = None

    def teardown(self) -> None:
        if self.follower is not None:
            self.follower.stop()
        self.serving.clear()
        self._folder.cleanup()

    @initialize(snapshot=st.booleans(), changes=CHANGES)
    def first(self, changes: list[tuple[str, int | None]], snapshot: bool) -> None:
        self.batch(changes, snapshot)

    @rule(changes=CHANGES, snapshot=st.booleans())
    def batch(self, changes: list[tuple[str, int | None]], snapshot: bool) -> None:
        self.checkpoint.plan(changes, snapshot=snapshot)
        self.checkpoint.commit()
        self.history[self.checkpoint.next_batch - 1] = self.checkpoint.content()

    @rule(changes=CHANGES)
    def batch_that_is_only_planned_and_tried_again(self, changes: list[tuple[str, int | None]]) -> None:
        before = [dict(rows) for rows in self.checkpoint.state]
        self.checkpoint.plan([*changes, ("lost", 1)], snapshot=False)
        self.step()
        self.checkpoint.state = before
        self.batch(changes, snapshot=False)

    @rule()
    def step(self) -> None:
        if self.follower is None:
            place = None if self.in_memory else ReplicaPlace(self.root / "home", self.storage.uri)
            self.follower = Follower(
                self.storage, place, ReplicaSettings(), new_backend=MemoryBackend, on_backend=self.serving.append
            )
        while self.follower.step():
            pass

    @precondition(lambda self: self.follower is not None)
    @rule()
    def follower_is_killed(self) -> None:
        assert self.follower is not None
        self.follower.stop()
        self.follower = None
        if self.in_memory:
            self.serving.clear()

    @rule(keep=st.integers(1, 3))
    def log_is_cleaned(self, keep: int) -> None:
        self.checkpoint.clean(keep)

    @rule()
    def job_starts_over_with_a_new_id(self) -> None:
        import shutil

        shutil.rmtree(self.root / "ck")
        clock = self.checkpoint.clock
        self.checkpoint = WrittenCheckpoint(self.root / "ck", job_id=f"job-{clock}")
        self.checkpoint.clock = clock
        self.batch([("over", 1)], snapshot=False)
        self.step()

    @invariant()
    def what_is_read_is_the_dict_of_the_batch_it_names(self) -> None:
        if not self.serving:
            return
        codec, decode = KeyCodec(KEY), decoder(VALUE)
        with contextlib.suppress(MillpondError), self.serving[-1].snapshot() as snapshot:
            record = snapshot.record()
            if record.status != "live" or record.batch not in self.history:
                return
            rows = {codec.decode(o)[0]: decode(row)[0] for o, row in iter_prefix(snapshot, "0/default", b"")}
            if self.follower is not None and record.batch == self.checkpoint.next_batch - 1:
                assert rows == self.history[record.batch]
            self.caught_up = rows

    @precondition(lambda self: self.follower is not None)
    @rule()
    def a_follower_always_catches_up(self) -> None:
        self.step()
        with self.serving[-1].snapshot() as snapshot:
            assert snapshot.record().batch == self.checkpoint.next_batch - 1
        self.what_is_read_is_the_dict_of_the_batch_it_names()
        assert self.caught_up == self.checkpoint.content()


class LmdbReplicaMachine(ReplicaMachine):
    in_memory = False


TestMemoryReplica = pytest.mark.filterwarnings("ignore")(ReplicaMachine.TestCase)
TestMemoryReplica.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestLmdbReplica = pytest.mark.filterwarnings("ignore")(LmdbReplicaMachine.TestCase)
TestLmdbReplica.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
