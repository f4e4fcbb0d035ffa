"""RocksDB reads the snapshots that we write, goes on from them, and finds every key."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import AccessType, Options, Rdict

from millpond.checkpoint.files.records import encode_record
from millpond.checkpoint.rocksdb import write_snapshot as writing
from millpond.checkpoint.rocksdb.manifest import NewFile, encode_manifest, parse_manifest
from millpond.checkpoint.rocksdb.snapshot import SnapshotMetadata, find, iter_snapshot, read_snapshot, read_snapshot_metadata
from millpond.checkpoint.rocksdb.write_sst import PUT_TAIL, build_ssts, build_ssts_of_records
from millpond.native.library import library
from millpond.savepoint.rewrite import spills
from millpond.savepoint.rewrite.spills import Spills
from millpond.storage import open_storage
from suite.sizes import examples

KEYS = st.one_of(st.binary(max_size=3), st.integers(0, 9_999).map(lambda i: b"/page/%05d" % i), st.binary(max_size=300))
VALUES = st.one_of(st.binary(max_size=40), st.integers(0, 9_000).map(bytes), st.just(b"same value"))
ROWS = st.dictionaries(KEYS, VALUES, max_size=400)
NO_FAMILIES = SnapshotMetadata(sst_names={}, column_families={})


def unpack_to(folder: Path, database: Path) -> None:
    """A snapshot as Spark makes a database of it."""
    database.mkdir()
    with ZipFile(folder / "7.zip") as archive:
        archive.extractall(database)
    (database / "metadata").unlink()
    for local, stored in read_snapshot_metadata(open_storage(folder.parent), folder.name, "7").sst_names.items():
        shutil.copy(folder / "SSTs" / stored, database / local)


@settings(max_examples=examples(60))
@given(ROWS, st.sampled_from([1, 500, 20_000, 64 << 20]), ROWS, st.booleans())
def test_rocksdb_reads_and_writes_what_we_wrote(
    rows: dict[bytes, bytes], most_bytes: int, later: dict[bytes, bytes], as_records: bool
) -> None:
    with TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "build_ssts", lambda some: build_ssts(some, most_bytes))
        folder, storage = Path(scratch, "0"), open_storage(scratch)
        if as_records and library() is not None:
            patch.setattr(writing, "build_ssts_of_records", lambda some: build_ssts_of_records(some, most_bytes))
            pieces = [encode_record(*row) for row in sorted(rows.items())]
            writing.write_snapshot_of_records(storage, "0", "7", pieces, NO_FAMILIES)
        else:
            writing.write_snapshot(storage, "0", "7", sorted(rows.items()), NO_FAMILIES)
        assert list(iter_snapshot(storage, "0", "7")) == sorted(rows.items())
        snapshot = read_snapshot(storage, "0", "7")
        for key in [*list(rows)[:5], *list(later)[:5]]:
            assert find(storage, snapshot, key, b"") == rows.get(key)
        unpack_to(folder, Path(scratch, "database"))
        options = Options(raw_mode=True)
        options.create_if_missing(False)
        read_only = Rdict(str(Path(scratch, "database")), options, access_type=AccessType.read_only())
        assert dict(read_only.items()) == rows
        read_only.close()
        database = Rdict(str(Path(scratch, "database")), options)
        expected = dict(rows)
        for n, (key, value) in enumerate(later.items()):
            if n % 3 == 0:
                database.delete(key)
                expected.pop(key, None)
            else:
                database[key] = expected[key] = value
        database.flush()
        database.compact_range(None, None)
        assert dict(database.items()) == expected
        assert all(database.get(key) == expected.get(key) for key in (*rows, *later))
        database.close()


def test_keys_out_of_order_are_a_mistake() -> None:
    for rows in ([(b"b", b""), (b"a", b"")], [(b"a", b""), (b"a", b"")]):
        with pytest.raises(ValueError, match="comes after"):
            list(build_ssts(rows))


@pytest.mark.parametrize("size", [0, 1, 500, 32_700, 40_000, 100_000])
def test_a_manifest_may_have_many_blocks(size: int) -> None:
    files = [
        NewFile(
            number=n + 8, size_bytes=n * 1000, smallest=bytes([n]) * size + PUT_TAIL, largest=bytes([n]) * size + b"z" + PUT_TAIL
        )
        for n in range(100)
    ]
    found = parse_manifest(encode_manifest(files, next_file=200, sequence=5))
    assert [(f.number, f.size_bytes, f.smallest + PUT_TAIL, f.largest + PUT_TAIL, f.level) for f in found] == [
        (f.number, f.size_bytes, f.smallest, f.largest, 6) for f in files
    ]


@settings(max_examples=examples(60))
@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=60), max_size=6), st.integers(1, 4), st.sampled_from([1, 7, 1000, 65536]))
def test_runs_on_disk_come_back_in_order(runs: list[dict[bytes, bytes]], partitions: int, piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch, Spills(partitions) as collected:
        patch.setattr(spills, "_PIECE_BYTES", piece_bytes)
        patch.setattr(spills, "_COLLECTED_BYTES", 300)
        for run in runs:
            for key, value in sorted(run.items()):
                collected.add(len(key) % partitions, key, value)
            collected.end_run()
        rows = [row for run in runs for row in run.items()]
        for partition in range(partitions):
            assert list(collected.iter_rows(partition)) == sorted(row for row in rows if len(row[0]) % partitions == partition)


def test_runs_on_disk_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of them after kill -9."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(spills, "_COLLECTED_BYTES", 300)
    with Spills(2) as collected:
        for n in range(100):
            collected.add(n % 2, b"key%03d" % n, b"value")
        assert list(tmp_path.iterdir()) == []  # though most were flushed
        collected.end_run()
        assert {key for partition in range(2) for key, _ in collected.iter_rows(partition)} == {b"key%03d" % n for n in range(100)}
