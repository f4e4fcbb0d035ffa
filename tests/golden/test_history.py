"""Reading an earlier batch from a replica gives what a read saw at that batch, for every operator and provider."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.replica.backends.memory import MemoryBackend
from millpond.replica.folder import ReplicaPlace
from millpond.replica.follower import Follower
from millpond.replica.history.as_of import SnapshotAsOf, check_kept, iter_changes, kept_of, position_at
from millpond.replica.history.delete_cause import may_expire, may_return
from millpond.replica.history.keeper import closed_table
from millpond.replica.history.with_expired import is_known
from millpond.replica.record import StoresRecord
from millpond.settings import ReplicaSettings, Retention
from millpond.storage import open_storage
from spark_files.golden import CELLS, replica_content
from suite.sizes import a_few
from suite.waiting import wait_until

SETTINGS = ReplicaSettings(retention=Retention(history_batches=None))
Rows = dict[bytes, bytes]
PUT = {"insert", "update"}
CELLS_OF_NOW = [cell for cell in CELLS if "/" not in cell or cell.startswith("spark-4.3")]
# Small: each cell in one of the two, by turns.
_PLACES = (("memory", "lmdb"), ("lmdb", "memory"))
KEPT = a_few([(cell, kept_in) for n, cell in enumerate(CELLS_OF_NOW) for kept_in in _PLACES[n % 2]], len(CELLS_OF_NOW) // 2)
_TRANSFORM = ("transformWithStateInPandasExec", "transformWithStateInPySparkExec")
# (operator, whether its rows have a TTL) -> the kinds of change of its rows
KINDS = {
    ("stateStoreSave", False): {*PUT, "expire"},
    ("sessionWindowStateStoreSaveExec", False): {*PUT, "expire", "delete"},
    ("dedupe", False): {*PUT, "expire"},
    ("dedupeWithinWatermark", False): {*PUT, "expire"},
    ("globalLimit", False): PUT,
    ("symmetricHashJoin", False): {*PUT, "remove"},
    ("applyInPandasWithState", False): {*PUT, "delete"},
    **{(operator, True): {*PUT, "expire", "delete"} for operator in _TRANSFORM},
    **{(operator, False): {*PUT, "delete", "remove"} for operator in _TRANSFORM},
}


def stored_rows(snapshot: Any, store: str) -> Rows:
    return {key: value[:-8] for key, value in snapshot.iterate(store, b"\x00")}


class _AsOf:
    """A backend whose snapshots are of an earlier batch."""

    def __init__(self, backend: Any, stores: StoresRecord, batch: int) -> None:
        self._backend, self._stores, self._batch = backend, stores, batch

    def snapshot(self) -> SnapshotAsOf:
        rows = self._backend.snapshot()
        record = position_at(rows, self._batch)
        assert record is not None
        return SnapshotAsOf(rows, self._stores, record)


@pytest.mark.parametrize(("cell", "kept_in"), KEPT)
def test_every_batch_reads_later_as_it_read_then(golden: Callable[[str], Any], tmp_path: Path, cell: str, kept_in: str) -> None:
    copy = golden(cell)
    copy.uncommit()
    storage = open_storage(copy.checkpoint)
    serving: list[Any] = []
    place = ReplicaPlace(tmp_path / "home", storage.uri) if kept_in == "lmdb" else None
    follower = Follower(storage, place, SETTINGS, new_backend=MemoryBackend, on_backend=serving.append)
    then: dict[int, dict[str, Any]] = {}
    raw: dict[int, dict[str, Rows]] = {}
    for batch in range(copy.last + 1):
        copy.commit(batch)
        while follower.step():
            pass
        stores = serving[-1].stores()
        then[batch] = {s.id: replica_content(serving[-1], s) for s in stores.stores}
        with serving[-1].snapshot() as snapshot:
            raw[batch] = {s.id: stored_rows(snapshot, s.id) for s in stores.stores}

    with serving[-1].snapshot() as snapshot:
        record = snapshot.record()
        firsts = {s.id: kept_of(record, s.id).history_from for s in stores.stores}
        compared = 0
        for number, store in enumerate(stores.stores):
            first = firsts[store.id]
            if first is None:
                continue
            # Replaying the changes gives each batch's rows.
            rows = dict(raw[first - 1][store.id])
            changes = list(iter_changes(snapshot, number, first))
            assert [(b, n) for b, n, _ in changes] == sorted((b, n) for b, n, _ in changes)
            for batch in range(first, copy.last + 1):
                for _, _, change in (c for c in changes if c[0] == batch):
                    before = rows.get(change.key)
                    assert before == (None if change.old is None else change.old[:-8])
                    assert before is not None or change.kind in ("insert", "expire")
                    assert change.kind in KINDS[store.operator_name, store.ttl and not store.many]
                    if change.kind in ("insert", "update"):
                        assert (before is None) == (change.kind == "insert")
                        assert change.new is not None
                        rows[change.key] = change.new[:-8]
                    else:
                        rows.pop(change.key, None)
                if store.id in raw[batch]:
                    assert rows == raw[batch][store.id]
            # Reading as of a batch gives them, too.
            for batch in range(first - 1, copy.last + 1):
                check_kept(record, store.id, batch, table="t")
                as_of = _AsOf(serving[-1], stores, batch)
                assert replica_content(as_of, store) == then[batch][store.id]
                with as_of.snapshot() as earlier:
                    assert earlier.count(store.id) == len(then[batch][store.id])
                    for key in {k for rows_then in raw.values() for k in rows_then.get(store.id, {})}:
                        found = earlier.get(store.id, key)
                        assert (None if found is None else found[:-8]) == raw[batch][store.id].get(key)
                compared += 1
    follower.stop()
    assert compared


def closed_rows(backend: Any) -> dict[str, Rows]:
    with backend.snapshot() as snapshot:
        return {s.id: dict(snapshot.iterate(closed_table(s.id), b"\x00")) for s in backend.stores().stores}


def reached(serving: list[Any]) -> int:
    with serving[-1].snapshot() as snapshot:
        return int(snapshot.record().batch)


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "kind"),
    a_few(
        [
            ("spark-4.3/windows-hdfs", "expire"),
            ("spark-4.3/dedupe-hdfs", "expire"),
            ("spark-4.3/sessions-hdfs", "remove"),
            ("spark-4.3/transform-ttl-rocksdb-changelog", "remove"),
        ],
        2,
    ),
)
def test_why_rows_went_in_batches_that_are_known_as_one_is_said_where_it_is_certain(
    golden: Callable[[str], Any], cell: str, kind: str
) -> None:
    copy = golden(cell)
    copy.uncommit()
    serving: list[Any] = []
    follower = Follower(open_storage(copy.checkpoint), None, SETTINGS, new_backend=MemoryBackend, on_backend=serving.append)
    gone = 0
    for batch in range(0, copy.last + 1, 2):  # Spark cleaned up every other batch
        copy.commit(batch)
        # The follower looks for skipped batches only now and then.
        wait_until(lambda batch=batch: not follower.step() and reached(serving) >= batch, f"batch {batch}")
    with serving[-1].snapshot() as snapshot:
        record = snapshot.record()
        assert record.batch == copy.last - copy.last % 2
        for number, store in enumerate(serving[-1].stores().stores):
            kept = kept_of(record, store.id)
            assert (kept.closed_forgotten is not None) == may_expire(store)
            kinds = [change.kind for _, _, change in iter_changes(snapshot, number, 1)]
            assert set(kinds) <= {"insert", "update", kind}
            gone += kinds.count(kind)
    assert gone
    follower.stop()


@pytest.mark.parametrize(("log", "is_certain"), [("changelog", True), ("snapshots", False)])
def test_where_only_snapshots_tell_rows_may_have_expired_unseen(golden: Callable[[str], Any], log: str, is_certain: bool) -> None:
    """Snapshots don't show a row that one batch puts and removes."""
    copy = golden(f"spark-4.3/windows-rocksdb-{log}")
    copy.uncommit()
    serving: list[Any] = []
    follower = Follower(open_storage(copy.checkpoint), None, SETTINGS, new_backend=MemoryBackend, on_backend=serving.append)
    for batch in range(copy.last + 1):
        copy.commit(batch)
        while follower.step():
            pass
    with serving[-1].snapshot() as snapshot:
        (store,) = serving[-1].stores().stores
        assert (kept_of(snapshot.record(), store.id).closed_forgotten is None) == is_certain
    follower.stop()


EXPIRING = re.compile(r"(spark-4.3/)?(windows|sessions|dedupe|transform-ttl)-.*")


@pytest.mark.parametrize("cell", [c for c in CELLS if EXPIRING.fullmatch(c) and "transform" not in c])
def test_the_last_value_of_each_row_that_expired_is_known_unless_its_batch_may_have_changed_it_unseen(
    golden: Callable[[str], Any], cell: str
) -> None:
    """Snapshots don't show what a batch put before it removed a row; a batch without new input puts nothing."""
    copy = golden(cell)
    copy.uncommit()
    serving: list[Any] = []
    follower = Follower(open_storage(copy.checkpoint), None, SETTINGS, new_backend=MemoryBackend, on_backend=serving.append)
    rows: Rows = {}
    offsets: Any = None
    last: dict[
        bytes, tuple[bytes, bool]
    ] = {}  # key -> its value before the batch in which it expired, and whether that batch had no input
    for batch in range(copy.last + 1):
        copy.commit(batch)
        while follower.step():
            pass
        (store,) = serving[-1].stores().stores
        with serving[-1].snapshot() as snapshot:
            now, reached = stored_rows(snapshot, store.id), snapshot.record().offsets
        last |= {key: (value, reached == offsets) for key, value in rows.items() if key not in now}
        rows, offsets = now, reached
    expired = {key: value[:-8] for key, value in closed_rows(serving[-1])[store.id].items()}
    known = {key: value for key, value in expired.items() if is_known(key, value + bytes(8))}
    if "complete" in cell:
        assert not last
    elif "snapshots" in cell:
        assert set(expired) == set(last)
        assert known == {key: value for key, (value, is_idle) in last.items() if is_idle}
        assert 0 < len(known) < len(expired)
    else:
        assert set(known) == set(expired) >= set(last)
        assert {k: v for k, v in known.items() if k in last and last[k][1]} == {k: v for k, (v, is_idle) in last.items() if is_idle}
        assert known
    follower.stop()


@pytest.mark.parametrize("missed", [0, 1])
@pytest.mark.parametrize("cell", a_few([c for c in CELLS if EXPIRING.fullmatch(c)], 5))
def test_rows_that_expired_are_there_after_the_machine_started_again(
    golden: Callable[[str], Any], tmp_path: Path, cell: str, missed: int
) -> None:
    """Rows that expired in a batch that nobody followed are unknown."""
    copy = golden(cell)
    copy.uncommit()
    storage = open_storage(copy.checkpoint)
    serving: list[Any] = []

    def follow() -> Follower:
        follower = Follower(storage, ReplicaPlace(tmp_path / "home", storage.uri), SETTINGS, on_backend=serving.append)
        while follower.step():
            pass
        return follower

    copy.commit(0)
    follower = follow()
    for batch in range(1, copy.last + 1 - missed):
        copy.commit(batch)
        while follower.step():
            pass
    before = closed_rows(serving[-1])
    follower.stop()
    serving.clear()
    for batch in range(max(1, copy.last + 1 - missed), copy.last + 1):
        copy.commit(batch)
    for generation in (tmp_path / "home").glob("replicas/*/generation-*"):
        (generation / "boot").write_text("another boot")
    follower = follow()
    after = closed_rows(serving[-1])
    assert follower.counts.bootstraps == 1
    assert any(before.values()) or "complete" in cell
    for store in serving[-1].stores().stores:
        if not missed or not may_return(store):
            assert after[store.id] == before[store.id]
        else:
            assert {k: v[-8:] for k, v in after[store.id].items()} == {k: v[-8:] for k, v in before[store.id].items()}
            assert not any(is_known(key, value) for key, value in after[store.id].items())
    follower.stop()
