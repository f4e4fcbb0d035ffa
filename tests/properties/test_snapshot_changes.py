"""The changes between two snapshots turn the old state into the new one, whatever RocksDB did in between."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.checkpoint.files import partial as file_parts
from millpond.checkpoint.rocksdb import sst
from millpond.checkpoint.rocksdb.changes import iter_snapshot_changes
from millpond.checkpoint.rocksdb.snapshot import iter_snapshot, read_snapshot
from millpond.errors import CheckpointError
from millpond.native.memory import Memory
from millpond.storage import Storage, open_storage
from spark_files.snapshot import SnapshotWriter, turn_into_merges
from suite.sizes import examples

pytestmark = pytest.mark.usefixtures("either_way")

KEYS = st.integers(0, 60).map(lambda i: b"key %03d" % i)
ROUND = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=4)),
        st.tuples(st.just("delete"), KEYS, st.just(b"")),
        st.tuples(st.just("flush"), st.just(b""), st.just(b"")),
        # Compact only a part of the keys, so that others stay on several levels.
        st.tuples(st.just("compact"), KEYS, KEYS),
    ),
    max_size=25,
)


def changed(storage: Storage, old: str | None, new: str, delimiter: bytes = b"") -> dict[bytes, bytes | None]:
    found = list(iter_snapshot_changes(storage, "0", old, new, delimiter))
    assert len(dict(found)) == len(found)
    return dict(found)


def applied(state: dict[bytes, bytes], changes: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in (state | changes).items() if value is not None}


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ROUND, min_size=1, max_size=6))
def test_the_changes_of_each_version_make_it_of_the_one_before(rounds: list[list[tuple[str, bytes, bytes]]]) -> None:
    with TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sst, "WINDOW_BYTES", 200)
        writer = SnapshotWriter(Path(scratch, "0"), block_bytes=128)
        model: dict[bytes, bytes] = {}
        storage = open_storage(scratch)
        replica: dict[bytes, bytes] = {}
        models = [{}]
        for version, changes in enumerate(rounds, 1):
            for kind, key, value in changes:
                if kind == "put":
                    writer.database[key] = model[key] = value
                elif kind == "delete":
                    writer.database.delete(key)
                    model.pop(key, None)
                elif kind == "flush":
                    writer.database.flush()
                else:
                    writer.database.flush()
                    writer.database.compact_range(min(key, value), max(key, value))
            writer.publish(str(version))
            replica = applied(replica, changed(storage, str(version - 1) if version > 1 else None, str(version)))
            assert replica == model == dict(iter_snapshot(storage, "0", str(version)))
            models.append(dict(model))
        writer.close()
        # Changes over several versions, and backwards.
        last = len(rounds)
        for version in range(1, last):
            assert applied(models[version], changed(storage, str(version), str(last))) == models[last]
            assert applied(models[last], changed(storage, str(last), str(version))) == models[version]


def test_a_batch_of_few_keys_reads_few_bytes_of_a_large_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SnapshotWriter(tmp_path / "0")
    for i in range(50_000):
        writer.database[b"key %07d" % i] = b"value %d" % (i * i)
    writer.publish("1")
    for i in range(0, 50_000, 5000):
        writer.database[b"key %07d" % i] = b"new"
    writer.database.delete(b"key 0000001")
    writer.publish("2")
    writer.close()
    storage = open_storage(tmp_path)
    read: list[int] = []
    whole = file_parts._LocalParts.read

    def counted(self: file_parts._LocalParts, offset: int, size: int, memory: Memory | None = None) -> bytes | memoryview:
        read.append(size)
        return whole(self, offset, size, memory)

    monkeypatch.setattr(file_parts._LocalParts, "read", counted)
    found = changed(storage, "1", "2")
    assert found == {b"key %07d" % i: b"new" for i in range(0, 50_000, 5000)} | {b"key 0000001": None}
    assert sum(read) < 5000


def test_what_was_appended_to_a_list_comes_with_the_whole_list(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path / "0", compression="none")
    for key in (b"a", b"b", b"c"):
        writer.database[key] = b"1" + key
    writer.publish("1")
    for key in (b"b", b"c", b"d"):
        writer.database[key] = b"2" + key
    writer.publish("2")
    writer.close()
    storage = open_storage(tmp_path)
    path, _ = max(read_snapshot(storage, "0", "2").files, key=lambda file: file[1].number)
    turn_into_merges(tmp_path / path, 2)  # b and d
    assert changed(storage, "1", "2", b",") == {b"b": b"1b,2b", b"c": b"2c", b"d": b"2d"}


@pytest.mark.parametrize("lost", ["sst", "damaged sst", "zip", "damaged zip"])
def test_where_the_old_snapshot_is_gone_the_state_must_be_read_anew(tmp_path: Path, lost: str) -> None:
    writer = SnapshotWriter(tmp_path / "0")
    writer.database[b"a"] = writer.database[b"c"] = b"1"
    writer.publish("1")
    writer.database[b"b"] = b"2"
    writer.database.flush()
    writer.database.compact_range(None, None)
    writer.publish("2")
    writer.close()
    storage = open_storage(tmp_path)
    ((old, _),) = read_snapshot(storage, "0", "1").files
    path = tmp_path / old if lost.endswith("sst") else tmp_path / "0" / "1.zip"
    if lost.startswith("damaged"):
        path.write_bytes(bytes(path.stat().st_size))
    else:
        path.unlink()
    with pytest.raises(CheckpointError) as raised:
        changed(storage, "1", "2")
    assert raised.value.condition == "FILE_GONE"
