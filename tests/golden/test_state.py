"""Millpond reads from a checkpoint what Spark's own state reader reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.files.records import MERGE, PUT
from millpond.checkpoint.log import committed_batches, read_batch
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.replica.backends.memory import MemoryBackend
from millpond.replica.folder import ReplicaPlace
from millpond.replica.follower import Follower
from millpond.schema.store import StoreSchema
from millpond.settings import ReplicaSettings
from millpond.storage import Storage, open_storage
from spark_files.golden import CELLS, State, replica_content
from suite.sizes import a_few

pytestmark = pytest.mark.usefixtures("either_way")

HERE = Path(__file__).parent


def as_json(value: Any) -> Any:
    """Stored form as make_golden.py writes it."""
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes):
        return {"binary": value.hex()}
    if isinstance(value, tuple | list):
        return [as_json(v) for v in value]
    return value


def known_store(storage: Storage, batch: int, name: str) -> StoreSchema:
    """The store that state.json names: `operator`, or operator/store/family."""
    stores, unread = read_stores(storage, Batch(batch))
    assert not unread
    return {s.id: s for s in stores}[name if "/" in name else f"{name}/default"]


def read_state(storage: Storage, batch: int, store: StoreSchema) -> dict[int, State]:
    """partition -> key -> value (of a store of lists, a list), from the newest snapshot and the changes after it."""
    committed = read_batch(storage, Batch(batch))
    decode_key, decode_value = decoder(store.key), decoder(store.value)
    reader = StateReader(storage)
    state: dict[int, State] = {}
    for partition in partitions_of(committed, store):
        rows: dict[bytes, bytes] = {}
        for kind, key, value in reader.iter_state(committed, store, partition):
            if kind == PUT:
                rows[key] = value
            elif kind == MERGE:
                rows[key] = rows.get(key, b"") + value
            else:
                rows.pop(key, None)
        if store.many:
            state[partition] = {decode_key(k): tuple(map(decode_value, iter_elements(v))) for k, v in rows.items()}
        else:
            state[partition] = {decode_key(k): decode_value(v) for k, v in rows.items()}
    return state


@pytest.mark.parametrize("cell", a_few(CELLS, 24))
def test_the_state_of_every_batch_is_what_spark_reads(golden: Callable[[str], Any], cell: str) -> None:
    copy = golden(cell)
    storage = open_storage(copy.checkpoint)
    compared = 0
    for name, batches in copy.read("state").items():
        for batch, expected in batches.items():
            found = rows_of(storage, int(batch), name)
            assert found == sorted(json.dumps(row) for row in expected)
            compared += len(found)
    assert compared > 0


def rows_of(storage: Storage, batch: int, name: str) -> list[str]:
    """The rows of a store as state.json has them, sorted."""
    store = known_store(storage, batch, name)
    return sorted(
        json.dumps([as_json(_as_spark_shows(store, key)), as_json(value), partition])
        for partition, rows in read_state(storage, batch, store).items()
        for key, value in rows.items()
    )


def _as_spark_shows(store: StoreSchema, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as Spark shows it: timers in milliseconds."""
    return (*key[:-1], key[-1] // 1000) if store.variable == "timer" else key


def changes_of_shape(storage: Storage, last: int) -> int:
    """How often the partitions or the state variables of the job changed: each time the replica is built anew."""
    shapes = []
    for number in map(Batch, range(last + 1)):
        shapes.append((read_batch(storage, number).settings.partitions, read_stores(storage, number)[0]))
    return sum(before != after for before, after in pairwise(shapes))


# LMDB treats the rows of all operators alike, so only one version's cells are tested in it.
KEPT = [(cell, "memory") for cell in CELLS] + [(cell, "lmdb") for cell in CELLS if "/" not in cell or "transform-state" in cell]


@pytest.mark.parametrize(("cell", "kept_in"), a_few(KEPT, 12))
def test_the_tailed_replica_equals_a_fresh_read_at_every_batch(
    golden: Callable[[str], Any], tmp_path: Path, cell: str, kept_in: str
) -> None:
    copy = golden(cell)
    copy.uncommit()
    storage = open_storage(copy.checkpoint)
    serving: list[Any] = []
    place = ReplicaPlace(tmp_path / "home", storage.uri) if kept_in == "lmdb" else None
    follower = Follower(storage, place, ReplicaSettings(), new_backend=MemoryBackend, on_backend=serving.append)
    for batch in range(copy.last + 1):
        copy.commit(batch)
        while follower.step():
            pass
        for store in read_stores(storage, Batch(batch))[0]:
            fresh = {k: v for rows in read_state(storage, batch, store).values() for k, v in rows.items()}
            assert replica_content(serving[-1], store) == fresh
        with serving[-1].snapshot() as snapshot:
            assert snapshot.record().batch == batch
    assert follower.counts.bootstraps == 1 + changes_of_shape(storage, copy.last)
    assert committed_batches(storage)[-1] == copy.last
    follower.stop()


def follow(copy: Any, then: dict[int, Callable[[], None]] | None = None) -> Follower:
    """Commit batch by batch, with something that happens after some of them; the replica equals a fresh read at each."""
    copy.uncommit()
    storage = open_storage(copy.checkpoint)
    serving: list[Any] = []
    follower = Follower(storage, None, ReplicaSettings(), new_backend=MemoryBackend, on_backend=serving.append)
    for batch in range(copy.last + 1):
        copy.commit(batch)
        while follower.step():
            pass
        for store in read_stores(storage, Batch(batch))[0]:
            fresh = {k: v for rows in read_state(storage, batch, store).values() for k, v in rows.items()}
            assert replica_content(serving[-1], store) == fresh
        if then and batch in then:
            then[batch]()
    return follower


def test_snapshots_whose_names_carry_ids_are_followed_too(golden: Callable[[str], Any]) -> None:
    """In checkpoint format 2, each commit names its snapshot."""
    copy = golden("counts-rocksdb-snapshots")
    ids = {}
    for zipped in sorted(copy.checkpoint.glob("state/0/*/*.zip")):
        partition, version = int(zipped.parent.name), int(zipped.stem)
        ids[version, partition] = f"id-{partition}-{version}"
        zipped.rename(zipped.with_name(f"{version}_{ids[version, partition]}.zip"))
    for commit in (copy.checkpoint / "commits").iterdir():
        version = int(commit.name) + 1
        state_ids = {"0": [[ids[version, partition]] for partition in (0, 1)]}
        commit.write_text("v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": state_ids}))
    assert follow(copy).counts.bootstraps == 1


def test_where_the_snapshot_before_is_gone_the_replica_is_built_anew(golden: Callable[[str], Any]) -> None:
    copy = golden("counts-rocksdb-snapshots")
    follower = follow(copy, then={5: (copy.checkpoint / "state" / "0" / "1" / "6.zip").unlink})
    assert follower.counts.bootstraps == 2
