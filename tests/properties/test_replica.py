"""Every read of a replica gives the rows of the batch that it names, in any order of batches, crashes, gaps and rewinds."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.checkpoint.log import read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import ReplicaError
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
from spark_files.checkpoint import KEY, VALUE, WrittenCheckpoint
from suite.sizes import examples

SETTINGS = ReplicaSettings(retention=Retention(history_batches=None))
KEYS = st.one_of(st.text("ab", max_size=3), st.integers(490, 520).map(lambda n: "z" * n))
CHANGES = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(-5, 5))), max_size=8)


class Run:
    """One run of a job: the rows after each batch, and all deleted rows.

    contents:  batch -> rows
    deleted:   (key, batch, the value that the batch deleted)
    """

    def __init__(self, contents: dict[int, dict[str, int]] | None = None, deleted: set[tuple[str, int, int]] | None = None) -> None:
        self.contents = contents or {}
        self.deleted = deleted or set()

    def until(self, batch: int) -> Run:
        """The first batches of this run, from which another run may go on."""
        contents = {b: rows for b, rows in self.contents.items() if b <= batch}
        return Run(contents, {d for d in self.deleted if d[1] <= batch})

    def last_values(self, key: str, batch: int) -> set[int]:
        """The values that a key had when it was deleted, up to this batch."""
        return {value for k, b, value in self.deleted if k == key and b <= batch}


class ReplicaMachine(RuleBasedStateMachine):
    """Batches are committed, logs cleaned, jobs replaced and rewound, followers killed.

    Every read is compared with the batch that it names.  The fingerprint says of which run, even if the job was replaced meanwhile.
    """

    in_memory = True

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.root = Path(self._folder.name)
        self.checkpoint = WrittenCheckpoint(self.root / "ck")
        self.storage = open_storage(self.root / "ck")
        self.run = Run()
        self.committed: dict[str, tuple[Run, int]] = {}  # by the fingerprint of the batch
        self.copy: tuple[WrittenCheckpoint, Run] | None = None
        self.reached: dict[str, set[int]] = {}  # lineage -> the batches at which its replicas have been
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
        rows, batch = self.checkpoint.content(), self.checkpoint.next_batch
        for key, value in changes:
            if value is not None:
                rows[key] = value
            elif key in rows:
                self.run.deleted.add((key, batch, rows.pop(key)))
        self.checkpoint.plan(changes, snapshot=snapshot)
        self.checkpoint.commit()
        assert self.checkpoint.content() == rows
        self.run.contents[batch] = rows
        self.committed[self.newest_fingerprint()] = self.run, batch

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
            with self.serving[-1].snapshot() as snapshot:
                self.reached.setdefault(self.serving[-1].stores().lineage, set()).add(snapshot.record().batch)

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
        self.run, self.copy = Run(), None
        self.batch([("over", 1)], snapshot=False)

    @rule()
    def checkpoint_is_copied(self) -> None:
        shutil.rmtree(self.root / "copy", ignore_errors=True)
        shutil.copytree(self.root / "ck", self.root / "copy")
        self.copy = copy.deepcopy(self.checkpoint), self.run.until(self.checkpoint.next_batch - 1)

    @precondition(lambda self: self.copy is not None)
    @rule(changes=st.one_of(st.none(), CHANGES))
    def copy_takes_its_place(self, changes: list[tuple[str, int | None]] | None) -> None:
        """Rewind the same job, and let it go on with other batches.

        The follower looks before the log is cleaned up.  Once the log of the replica's batch is gone, nothing shows the rewind.
        """
        assert self.copy is not None
        clock = self.checkpoint.clock
        shutil.rmtree(self.root / "ck")
        shutil.copytree(self.root / "copy", self.root / "ck")
        (self.checkpoint, self.run), self.copy = self.copy, None
        self.checkpoint.clock = clock
        if changes is not None:
            self.batch(changes, snapshot=False)
        self.step()

    @invariant()
    def what_is_read_is_the_dict_of_the_batch_it_names(self) -> None:
        if not self.serving:
            return
        with self.serving[-1].snapshot() as snapshot:
            run, batch = self.named(snapshot)
            assert self.rows_of(snapshot) == run.contents[batch]
            pairs = list(snapshot.iterate("0/default", b""))
            assert list(snapshot.iterate_back("0/default", None)) == pairs[::-1]
            for below in [b"", b"\x01", *(key for key, _ in pairs), *(key + b"\0" for key, _ in pairs)]:
                assert list(snapshot.iterate_back("0/default", below)) == [pair for pair in pairs if pair[0] < below][::-1]

    @invariant()
    def what_was_read_at_a_batch_is_still_known(self) -> None:
        """Also after another build.  Reads of batches that were cleaned up too early are refused, and never guessed."""
        if not self.serving:
            return
        codec, decode = KeyCodec(KEY), decoder(VALUE)
        with self.serving[-1].snapshot() as snapshot:
            record, stores = snapshot.record(), self.serving[-1].stores()
            run, newest = self.named(snapshot)
            for batch, expected in run.contents.items():
                try:
                    check_kept(record, "0/default", batch, table="t")
                except ReplicaError as error:
                    assert error.condition == ("NOT_UP_TO_BOUND" if batch > newest else "HISTORY_GONE")
                    assert batch > newest or batch not in self.reached[stores.lineage]
                    continue
                then = position_at(snapshot, batch)
                assert then is not None
                assert self.committed[then.fingerprint][0].contents[batch] == expected
                as_of = SnapshotAsOf(snapshot, stores, then)
                assert self.rows_of(as_of) == expected
                keys = [key for key, _ in as_of.iterate("0/default", b"\x00")]
                assert [key for key, _ in as_of.iterate_back("0/default", None)] == keys[::-1]
                assert as_of.count("0/default") == len(expected)
            both = SnapshotWithClosed(snapshot)
            shown = dict(iter_prefix(both, "0/default", b""))
            assert {codec.decode(o)[0] for o, s in shown.items() if not is_final(s)} == set(run.contents[newest])
            for ordered, stored in shown.items():
                if is_final(stored):
                    assert decode(without_stamp(stored))[0] in run.last_values(codec.decode(ordered)[0], newest)
            assert both.count("0/default") == len(shown)
            assert [o for o, _ in iter_range(both, "0/default", b"", None, reverse=True)] == sorted(shown, reverse=True)

    def named(self, snapshot: Any) -> tuple[Run, int]:
        """The run and the batch that a snapshot names."""
        record = snapshot.record()
        assert record.status == "live"
        run, batch = self.committed[record.fingerprint]
        assert record.batch == batch
        return run, batch

    def rows_of(self, snapshot: Any) -> dict[str, int]:
        codec, decode = KeyCodec(KEY), decoder(VALUE)
        return {codec.decode(o)[0]: decode(without_stamp(row))[0] for o, row in iter_prefix(snapshot, "0/default", b"")}

    def newest_fingerprint(self) -> str:
        return read_batch(self.storage, Batch(self.checkpoint.next_batch - 1)).fingerprint

    @precondition(lambda self: self.follower is not None)
    @rule()
    def a_follower_always_catches_up(self) -> None:
        self.step()
        with self.serving[-1].snapshot() as snapshot:
            assert snapshot.record().fingerprint == self.newest_fingerprint()
            assert self.rows_of(snapshot) == self.checkpoint.content()


class LmdbReplicaMachine(ReplicaMachine):
    in_memory = False

    @precondition(lambda self: self.follower is not None and self.serving)
    @rule(flushed=st.booleans())
    def machine_starts_again(self, flushed: bool) -> None:
        """Only flushed data counts.  It has every row that had expired, unless the follower missed a batch."""
        assert self.follower is not None
        assert self.follower.journal is not None
        is_whole = flushed and self.follower.journal.flush() and self.is_caught_up()
        before = self.expired()
        self.follower.journal.leave()
        self.follower.stop()
        self.follower = None
        self.serving.clear()
        for generation in self.root.glob("home/replicas/*/generation-*"):
            (generation / "boot").write_text("another boot")
        self.step()
        if is_whole:
            assert self.expired() == before

    def is_caught_up(self) -> bool:
        with self.serving[-1].snapshot() as snapshot:
            return bool(snapshot.record().fingerprint == self.newest_fingerprint())

    def expired(self) -> dict[bytes, bytes]:
        with self.serving[-1].snapshot() as snapshot:
            return dict(snapshot.iterate(closed_table("0/default"), b"\x00"))


def test_a_row_that_a_batch_deletes_twice_expired_with_the_value_that_it_put() -> None:
    machine = ReplicaMachine()
    machine.first([("a", 1)], snapshot=False)
    machine.step()
    machine.batch([("a", 2), ("a", None), ("a", None)], snapshot=False)
    machine.step()
    with machine.serving[-1].snapshot() as snapshot:
        ((_, stored),) = iter_prefix(SnapshotWithClosed(snapshot), "0/default", b"")
        assert decoder(VALUE)(without_stamp(stored)) == (2,)
    machine.teardown()


TestMemoryReplica = pytest.mark.filterwarnings("ignore")(ReplicaMachine.TestCase)
TestMemoryReplica.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
TestLmdbReplica = pytest.mark.filterwarnings("ignore")(LmdbReplicaMachine.TestCase)
TestLmdbReplica.settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)
