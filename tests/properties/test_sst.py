"""We read RocksDB's files as RocksDB does: any keys, any levels, any block size, any compression."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import AccessType, Options, Rdict

from millpond.checkpoint.rocksdb import sst
from millpond.checkpoint.rocksdb.snapshot import find, iter_snapshot, read_snapshot, read_snapshot_metadata
from millpond.errors import CheckpointError
from millpond.storage import open_storage
from spark_files.snapshot import COMPRESSIONS, SnapshotWriter, turn_into_merges
from suite.sizes import a_few, examples

pytestmark = pytest.mark.usefixtures("either_way")

# Keys that share much, and some that are prefixes of others.
KEYS = st.one_of(
    st.binary(max_size=3),
    st.integers(0, 400).map(lambda i: b"/page/%05d" % i),
    st.integers(0, 50).map(lambda i: b"long" * 40 + bytes([i])),
)
VALUES = st.one_of(st.binary(max_size=40), st.integers(0, 300).map(bytes), st.just(b"same value"))
CHANGES = st.one_of(
    st.tuples(st.just("put"), KEYS, VALUES),
    st.tuples(st.just("delete"), KEYS, st.just(b"")),
    st.tuples(st.sampled_from(["flush", "compact"]), st.just(b""), st.just(b"")),
)
FORMATS = st.tuples(st.sampled_from(sorted(COMPRESSIONS)), st.sampled_from([128, 4096]), st.booleans())
FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


def apply(database: Rdict, model: dict[bytes, bytes], change: tuple[str, bytes, bytes]) -> None:
    """Make a change in a database and in the expected content."""
    kind, key, value = change
    if kind == "put":
        database[key] = value
        model[key] = value
    elif kind == "delete":
        database.delete(key)
        model.pop(key, None)
    elif kind == "flush":
        database.flush()
    else:
        database.flush()
        database.compact_range(None, None)


@FEW
@given(st.lists(CHANGES, max_size=150), FORMATS)
def test_a_snapshot_holds_what_was_put_and_not_deleted(changes: list[Any], written: tuple[str, int, bool]) -> None:
    compression, block_bytes, xxh3 = written
    with TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sst, "WINDOW_BYTES", 1000)
        writer = SnapshotWriter(Path(scratch, "0"), compression=compression, block_bytes=block_bytes, xxh3=xxh3)
        model: dict[bytes, bytes] = {}
        for change in changes:
            apply(writer.database, model, change)
        writer.publish("1", {"default": 1})
        writer.close()
        storage = open_storage(scratch)
        assert list(iter_snapshot(storage, "0", "1")) == sorted(model.items())
        snapshot = read_snapshot(storage, "0", "1")
        for key in {key for _, key, _ in changes} | {b"", b"/page/", b"zzz"}:
            assert find(storage, snapshot, key, b"") == model.get(key)
        assert read_snapshot_metadata(storage, "0", "1").column_families == {"default": 1}


@pytest.mark.parametrize("compression", a_few(sorted(COMPRESSIONS), 2))
def test_fifty_thousand_keys_on_three_levels_are_read_as_rocksdb_reads_them(tmp_path: Path, compression: str) -> None:
    writer = SnapshotWriter(tmp_path / "0", compression=compression)
    for i in range(50_000):
        writer.database[b"key %07d" % (i * 7919 % 1_000_000)] = b"first" * (i % 5)
    writer.database.flush()
    writer.database.compact_range(None, None)
    for i in range(0, 50_000, 3):
        writer.database[b"key %07d" % (i * 7919 % 1_000_000)] = b"second" * (i % 50)
    writer.database.flush()
    for i in range(0, 50_000, 11):
        writer.database.delete(b"key %07d" % (i * 7919 % 1_000_000))
    expected = [(bytes(k), bytes(v)) for k, v in writer.database.items()]
    writer.publish("7")
    writer.close()
    storage = open_storage(tmp_path)
    assert len(read_snapshot(storage, "0", "7").files) == 3
    assert list(iter_snapshot(storage, "0", "7")) == expected
    snapshot = read_snapshot(storage, "0", "7")
    for key, value in expected[::997]:
        assert find(storage, snapshot, key, b"") == value
        assert find(storage, snapshot, key + b"!", b"") is None


@pytest.mark.parametrize("delimiter", [b"", b","])
def test_merges_are_joined_in_the_order_they_were_written(tmp_path: Path, delimiter: bytes) -> None:
    writer = SnapshotWriter(tmp_path / "0", compression="none")
    # Round -> which keys are appended to: every key, every second or none.  The other keys get a new value.
    rounds = {1: 2, 2: 1, 3: 0, 4: 1}
    expected: dict[bytes, bytes] = {}
    for number, every in rounds.items():
        for i, key in enumerate(b"list %05d" % i for i in range(0, 3000, number)):
            element = b"<%d/%d>" % (number, i)
            writer.database[key] = element
            appended = every and i % every == 0 and key in expected
            expected[key] = expected[key] + delimiter + element if appended else element
            if number == 3 and i % 7 == 0:
                writer.database.delete(key)
                del expected[key]
        writer.database.flush()
    writer.publish("1")
    writer.close()
    storage = open_storage(tmp_path)
    files = sorted(read_snapshot(storage, "0", "1").files, key=lambda file: file[1].number)
    for (path, _), every in zip(files, rounds.values(), strict=True):
        if every:
            turn_into_merges(tmp_path / path, every)
    assert list(iter_snapshot(storage, "0", "1", delimiter)) == sorted(expected.items())
    snapshot = read_snapshot(storage, "0", "1")
    for key in [b"list %05d" % i for i in range(0, 3000, 41)]:
        assert find(storage, snapshot, key, delimiter) == expected.get(key)


def test_versions_of_a_key_may_lie_in_two_files_of_one_level(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path / "0")
    for change in ({b"a": b"1", b"c": b"1"}, {b"a": b"2"}, {b"a": b"3"}):
        for key, value in change.items():
            writer.database[key] = value
        writer.database.flush()
    writer.database.compact_range(None, None)
    writer.publish("1")
    writer.close()
    storage = open_storage(tmp_path)
    assert [(live.level, live.smallest) for _, live in read_snapshot(storage, "0", "1").files] == [(6, b"a")] * 3
    assert list(iter_snapshot(storage, "0", "1")) == [(b"a", b"3"), (b"c", b"1")]
    assert find(storage, read_snapshot(storage, "0", "1"), b"a", b"") == b"3"


def test_a_range_delete_is_refused_by_name(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path / "0")
    writer.database[b"a"] = b"1"
    writer.database.flush()
    writer.database.delete_range(b"a", b"b")
    writer.publish("1")
    writer.close()
    with pytest.raises(CheckpointError) as refused:
        list(iter_snapshot(open_storage(tmp_path), "0", "1"))
    assert refused.value.condition == "UNKNOWN_FORMAT"
    assert "range deletions" in refused.value.message


def test_rocksdb_itself_reads_the_same_list_where_it_can(tmp_path: Path) -> None:
    """With a comma, the delimiter of RocksDB's own operator."""
    writer = SnapshotWriter(tmp_path / "0", compression="none")
    for number in range(3):
        for i in range(200):
            writer.database[b"list %05d" % i] = b"<%d/%d>" % (number, i)
        writer.database.flush()
    writer.publish("1")
    writer.close()
    storage = open_storage(tmp_path)
    files = sorted(read_snapshot(storage, "0", "1").files, key=lambda file: file[1].number)
    for path, _ in files[1:]:
        turn_into_merges(tmp_path / path, 2)
    opened = tmp_path / "opened"
    shutil.unpack_archive(tmp_path / "0" / "1.zip", opened)
    for local, dfs in read_snapshot_metadata(storage, "0", "1").sst_names.items():
        shutil.copy(tmp_path / "0" / "SSTs" / dfs, opened / local)
    options = next(opened.glob("OPTIONS-*"))
    options.write_text(options.read_text().replace("merge_operator=nullptr", "merge_operator=StringAppendOperator"))
    database = Rdict(str(opened), options=Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        expected = [(bytes(k), bytes(v)) for k, v in database.items()]
    finally:
        database.close()
    assert expected[0] == (b"list 00000", b"<0/0>,<1/0>,<2/0>")
    assert list(iter_snapshot(storage, "0", "1", b",")) == expected
