"""A replica is a dict, whatever is applied to it, in whatever order of batches, crashes and gaps."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import MillpondError
from millpond.replica.backends.memory import MemoryBackend
from millpond.replica.folder import ReplicaPlace
from millpond.replica.follower import Follower
from millpond.replica.history.as_of import SnapshotAsOf, check_kept, position_at
from millpond.replica.history.keeper import closed_table
from millpond.replica.history.with_expired import SnapshotWithClosed
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.row_stamp import is_final, without_stamp
from millpond.replica.scan import iter_prefix, iter_range
from millpond.settings import ReplicaSettings, Retention
from millpond.storage import open_storage
from written_checkpoint import KEY, VALUE, WrittenCheckpoint

SETTINGS = ReplicaSettings(retention=Retention(history_batches=None))
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
        # Of this run of the job: what was there at each batch, and with which values a key was ever deleted.
        self.run: dict[int, dict[str, int]] = {}
        self.deleted: dict[str, set[int]] = {}
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
        rows = self.checkpoint.content()
        for key, value in changes:
            if value is not None:
                rows[key] = value
            elif key in rows:
                self.deleted.setdefault(key, set()).add(rows.pop(key))
        self.checkpoint.plan(changes, snapshot=snapshot)
        self.checkpoint.commit()
        self.history[self.checkpoint.next_batch - 1] = self.checkpoint.content()
        self.run[self.checkpoint.next_batch - 1] = self.checkpoint.content()

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
            self.follower = Follower(self.storage, place, SETTINGS, new_backend=MemoryBackend, on_backend=self.serving.append)
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
        shutil.rmtree(self.root / "ck")
        clock = self.checkpoint.clock
        self.checkpoint = WrittenCheckpoint(self.root / "ck", job_id=f"job-{clock}")
        self.checkpoint.clock = clock
        self.run, self.deleted = {}, {}
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
            pairs = list(snapshot.iterate("0/default", b""))
            assert list(snapshot.iterate_back("0/default", None)) == pairs[::-1]
            for below in [b"", b"\x01", *(key for key, _ in pairs), *(key + b"\0" for key, _ in pairs)]:
                assert list(snapshot.iterate_back("0/default", below)) == [pair for pair in pairs if pair[0] < below][::-1]
            if self.follower is not None and record.batch == self.checkpoint.next_batch - 1:
                assert rows == self.history[record.batch]
            self.caught_up = rows

    @invariant()
    def what_was_read_at_a_batch_is_still_told(self) -> None:
        """Through builds in between: batches that were cleaned up before they could be read are refused, and never guessed."""
        if not self.serving:
            return
        codec, decode = KeyCodec(KEY), decoder(VALUE)
        with contextlib.suppress(MillpondError), self.serving[-1].snapshot() as snapshot:
            record, stores = snapshot.record(), self.serving[-1].stores()
            if record.status != "live" or self.run.get(record.batch) != self.rows_of(snapshot):
                return  # of the job before; the follower hasn't seen yet that there is another one
            for batch, expected in self.run.items():
                try:
                    check_kept(record, "0/default", batch, table="t")
                except MillpondError:
                    continue
                then = position_at(snapshot, batch)
                assert then is not None
                as_of = SnapshotAsOf(snapshot, stores, then)
                assert self.rows_of(as_of) == expected
                keys = [key for key, _ in as_of.iterate("0/default", b"\x00")]
                assert [key for key, _ in as_of.iterate_back("0/default", None)] == keys[::-1]
                assert as_of.count("0/default") == len(expected)
            both = SnapshotWithClosed(snapshot)
            shown = dict(iter_prefix(both, "0/default", b""))
            assert {codec.decode(o)[0] for o, s in shown.items() if not is_final(s)} == set(self.run[record.batch])
            for ordered, stored in shown.items():
                key = codec.decode(ordered)[0]
                assert not is_final(stored) or decode(without_stamp(stored))[0] in self.deleted[key]
            assert both.count("0/default") == len(shown)
            assert [o for o, _ in iter_range(both, "0/default", b"", None, reverse=True)] == sorted(shown, reverse=True)

    def rows_of(self, snapshot: Any) -> dict[str, int]:
        codec, decode = KeyCodec(KEY), decoder(VALUE)
        return {codec.decode(o)[0]: decode(without_stamp(row))[0] for o, row in iter_prefix(snapshot, "0/default", b"")}

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

    @precondition(lambda self: self.follower is not None and self.serving)
    @rule(flushed=st.booleans())
    def machine_starts_again(self, flushed: bool) -> None:
        """Nothing is trusted but what was flushed; that has every row that had expired, where no batch was missed."""
        assert self.follower is not None
        assert self.follower.journal is not None
        caught_up = flushed and self.follower.journal.flush() and self.reached() == self.checkpoint.next_batch - 1
        before = self.closed()
        self.follower.journal.leave()
        self.follower.stop()
        self.follower = None
        self.serving.clear()
        for generation in self.root.glob("home/replicas/*/generation-*"):
            (generation / "boot").write_text("another boot")
        self.step()
        if caught_up:
            assert self.closed() == before

    def reached(self) -> int | None:
        with contextlib.suppress(MillpondError), self.serving[-1].snapshot() as snapshot:
            if snapshot.record().status == "live" and self.run.get(snapshot.record().batch) == self.rows_of(snapshot):
                return snapshot.record().batch
        return None

    def closed(self) -> dict[bytes, bytes]:
        with self.serving[-1].snapshot() as snapshot:
            return dict(snapshot.iterate(closed_table("0/default"), b"\x00"))


TestMemoryReplica = pytest.mark.filterwarnings("ignore")(ReplicaMachine.TestCase)
TestMemoryReplica.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestLmdbReplica = pytest.mark.filterwarnings("ignore")(LmdbReplicaMachine.TestCase)
TestLmdbReplica.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
