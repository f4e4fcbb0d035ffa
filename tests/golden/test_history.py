"""What a replica keeps of earlier batches is what a read at that batch saw, of every operator and provider."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from golden_rows import CELLS, replica_content
from millpond.replica.follower import Follower
from millpond.replica.history import SnapshotAsOf, check_kept, iter_changes, kept_of, position_at
from millpond.replica.memory_backend import MemoryBackend
from millpond.replica.place import ReplicaPlace
from millpond.replica.record import StoresRecord
from millpond.settings import ReplicaSettings, Retention
from millpond.storage import open_storage

SETTINGS = ReplicaSettings(retention=Retention(history_batches=None))
Rows = dict[bytes, bytes]
PUT = {"insert", "update"}
_TRANSFORM = ("transformWithStateInPandasExec", "transformWithStateInPySparkExec")
# (operator, whether its rows have a TTL) -> what may happen to them
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


@pytest.mark.parametrize("kept_in", ["memory", "lmdb"])
@pytest.mark.parametrize("cell", [c for c in CELLS if "/" not in c or c.startswith("spark-4.3")])
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
        then[batch] = {s.id: replica_content(serving[-1], s) for s in stores.schemas()}
        with serving[-1].snapshot() as snapshot:
            raw[batch] = {s.id: stored_rows(snapshot, s.id) for s in stores.schemas()}

    with serving[-1].snapshot() as snapshot:
        record = snapshot.record()
        firsts = {s.id: kept_of(record, s.id).history_from for s in stores.schemas()}
        compared = 0
        for number, store in enumerate(stores.schemas()):
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
            # And so does reading as of a batch.
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
    assert compared or copy.last == 0 or not any(firsts.values())
