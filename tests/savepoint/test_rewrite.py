"""State in another form: the same rows, under any number of partitions, for either provider, in any format and codec."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from millpond.checkpoint.files.codecs import decompress
from millpond.checkpoint.files.pack import pack
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.errors import MillpondError
from millpond.native.library import library, switched_off
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.rewrite import hdfs_state, rocksdb_state, spills, straight
from millpond.savepoint.rewrite.rocksdb_state import RocksDbState
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from savepoint.test_golden_cells import rows_of
from spark_files.golden import CELLS, GOLDEN
from suite.sizes import a_few

HDFS = [cell for cell in CELLS if cell.endswith("hdfs") or "-hdfs-" in cell]
# With NULL in place of numbers in keys: their rows lie where the numbers' hash says.
DISPLACED = [cell for cell in CELLS if "transform-two-keys" in cell]
PLACED = [cell for cell in CELLS if cell not in DISPLACED]
ROCKSDB = [cell for cell in PLACED if "rocksdb" in cell]


@pytest.mark.parametrize("codec", ["lz4", "zstd", "snappy", "lzf"])
@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 32769, 65535, 200_001])
def test_what_is_packed_unpacks(codec: str, size: int) -> None:
    numbers = bytes((n * n // 7) % 251 for n in range(1000))
    for data in (numbers * (size // 1000) + numbers[: size % 1000], bytes(size)):
        pieces = [data[begin : begin + 10_007] for begin in range(0, len(data), 10_007)]
        assert decompress(codec, b"".join(pack(codec, pieces))) == data


FORMS: list[dict[str, Any]] = [
    {"partitions": 5, "codec": "zstd"},
    {"partitions": 1, "codec": "snappy", "row_checksum": True},
    {"partitions": 3, "codec": "lzf"},
    {"partitions": 2, "codec": "lz4", "row_checksum": False},
]
IN_ROCKSDB: list[dict[str, Any]] = [{"checkpoint_format": 2}, {"partitions": 7}, {"checkpoint_format": 1, "row_checksum": True}]


def without_partitions(place: Path, batch: int) -> dict[str, list[tuple[bytes, bytes]]]:
    return {store: sorted((key, value) for (_, key), value in rows.items()) for store, rows in rows_of(place, batch).items()}


def is_empty(folder: Path) -> bool:
    return not folder.exists() or not any(folder.iterdir())


def rewritten(place: Path, name: str, target: Path, form: dict[str, Any]) -> Path:
    """Restore a savepoint in another form; the result has a savepoint of the same name."""
    plan_restore(place, name, target, **form).run()
    assert verify_savepoint(plan_savepoint(target, name).run()).problems == ()
    return target


def whole_state(place: Path, number: int) -> list[tuple[str, bytes, bytes]]:
    """All rows of a state in RocksDB as they are there, also those that only Spark needs: store, key, value."""
    storage = open_storage(place)
    batch = read_batch(storage, Batch(number))
    return sorted(
        (store.id, key, value)
        for operator in read_operator_files(storage, batch.batch)
        for store in read_whole_stores(storage, operator)
        for partition in partitions_of(batch, store.files)
        for key, value in RocksDbState(storage, batch, store).iter_rows(partition)
    )


@pytest.mark.parametrize("cell", a_few(PLACED, 4))
def test_a_state_keeps_its_rows_in_every_form(golden: Callable, tmp_path: Path, cell: str) -> None:
    checkpoint = golden(cell).checkpoint
    batch = plan_savepoint(checkpoint, "one").run().manifest.batch
    expected, place = without_partitions(checkpoint, batch), checkpoint
    has_lost_variable = "transform-variables" in cell
    for n, form in enumerate(FORMS + (IN_ROCKSDB if cell not in HDFS else [])):
        if has_lost_variable and form.get("row_checksum"):
            with pytest.raises(MillpondError, match="whether it was a list is unknown"):
                plan_restore(place, "one", tmp_path / "refused", **form).run()
            continue
        before = read_batch(open_storage(place), Batch(batch))
        place = rewritten(place, "one", tmp_path / f"form-{n}", form)
        assert without_partitions(place, batch) == expected
        found = read_batch(open_storage(place), Batch(batch))
        assert found.settings == replace(before.settings, **{k: v for k, v in form.items() if k != "checkpoint_format"})
        assert bool(found.state_ids) == (form.get("checkpoint_format", 2 if before.state_ids else 1) == 2)


@pytest.mark.parametrize("cell", a_few([cell for cell in PLACED if "transform" not in cell], 6))
def test_many_rows_at_a_time_and_one_by_one_are_the_same(
    golden: Callable, tmp_path: Path, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With windows of few rows, and partitions in many parts."""
    checkpoint = golden(cell).checkpoint
    batch = plan_savepoint(checkpoint, "one").run().manifest.batch
    found = []
    for name in ("many", "one by one"):
        with contextlib.ExitStack() as stack:
            if name != "many":
                stack.enter_context(switched_off())
            with monkeypatch.context() as patch:
                patch.setattr(straight, "_PART_BYTES", 100)
                patch.setattr(hdfs_state, "_WINDOW_BYTES", 300)
                patch.setattr(rocksdb_state, "_CHUNK_ROWS", 3)
                found.append(rows_of(rewritten(checkpoint, "one", tmp_path / name, {"partitions": 3}), batch))
    assert found[0] == found[1]
    assert without_partitions(tmp_path / "many", batch) == without_partitions(checkpoint, batch)


@pytest.mark.skipif(library() is None, reason="the compiled library isn't built")
@pytest.mark.parametrize("cell", ["counts-hdfs", "counts-rocksdb-snapshots"])
def test_what_was_not_read_or_not_written_is_found(
    golden: Callable, tmp_path: Path, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped bit in the temporary file: the sums of what was read and written differ."""
    checkpoint = golden(cell).checkpoint
    plan_savepoint(checkpoint, "one").run()
    add = spills.Spills.add_records

    def flipped(self: spills.Spills, partition: int, records: memoryview) -> None:
        changed = bytearray(records)
        if changed:
            changed[-1] ^= 1
        add(self, partition, memoryview(changed))

    monkeypatch.setattr(spills.Spills, "add_records", flipped)
    with pytest.raises(MillpondError) as caught:
        plan_restore(checkpoint, "one", tmp_path / "restored", partitions=3).run()
    assert caught.value.condition == "SAVEPOINT_DAMAGED"
    assert is_empty(tmp_path / "restored")


@pytest.mark.parametrize("cell", a_few(ROCKSDB, 6))
def test_what_only_spark_needs_comes_along(golden: Callable, tmp_path: Path, cell: str) -> None:
    """Timers by time, expiry, counts of rows: as bytes; and the number of keys, which Spark's metrics begin with."""
    checkpoint = golden(cell).checkpoint
    batch = plan_savepoint(checkpoint, "one").run().manifest.batch
    place = rewritten(checkpoint, "one", tmp_path / "five", {"partitions": 5, "row_checksum": False})
    assert whole_state(place, batch) == whole_state(checkpoint, batch)
    counts = [0, 0]
    for path in (place / "state").rglob("*.zip"):
        with ZipFile(path) as archive:
            metadata = json.loads(archive.read("metadata").split(b"\n")[1])
        counts = [counts[0] + metadata["numKeys"], counts[1] + metadata["numInternalKeys"]]
    internal = {
        number.to_bytes(2, "little")
        for name, number in metadata["columnFamilyMapping"].items()
        if metadata["columnFamilyTypeMap"][name]
    }
    keys = [key for _, key, _ in whole_state(checkpoint, batch)]
    assert counts == [sum(key[:2] not in internal for key in keys), sum(key[:2] in internal for key in keys)]


@pytest.mark.parametrize("cell", DISPLACED)
def test_keys_with_null_in_place_of_numbers_are_refused(golden: Callable, tmp_path: Path, cell: str) -> None:
    checkpoint = golden(cell).checkpoint
    plan_savepoint(checkpoint, "one").run()
    with pytest.raises(MillpondError, match="beside a NULL") as caught:
        plan_restore(checkpoint, "one", tmp_path / "restored", partitions=5).run()
    assert caught.value.condition == "UNSUPPORTED"
    assert is_empty(tmp_path / "restored")


@pytest.mark.parametrize("cell", a_few(HDFS, 4))
def test_a_state_moves_to_rocksdb_and_back(golden: Callable, tmp_path: Path, cell: str) -> None:
    checkpoint = golden(cell).checkpoint
    batch = plan_savepoint(checkpoint, "one").run().manifest.batch
    expected = without_partitions(checkpoint, batch)
    there = rewritten(checkpoint, "one", tmp_path / "there", {"provider": "rocksdb", "partitions": 3, "checkpoint_format": 2})
    assert without_partitions(there, batch) == expected
    assert list((there / "state").rglob("*.zip"))
    assert not list((there / "state").rglob("*.snapshot"))
    again = rewritten(there, "one", tmp_path / "again", {"provider": "hdfs", "partitions": 2})
    assert rows_of(again, batch) == rows_of(checkpoint, batch)
    assert (again / "commits" / str(batch)).read_text().startswith("v1\n")
    conf = json.loads((again / "offsets" / str(batch)).read_text().split("\n")[1])["conf"]
    assert conf.get("spark.sql.streaming.join.stateFormatVersion", "1") in "12"


@pytest.mark.parametrize("cell", a_few(ROCKSDB, 6))
def test_rocksdb_moves_to_the_hdfs_backed_provider_if_that_has_such_a_state(golden: Callable, tmp_path: Path, cell: str) -> None:
    checkpoint = golden(cell).checkpoint
    batch = plan_savepoint(checkpoint, "one").run().manifest.batch
    if any(word in cell for word in ("transform", "format3", "format4")):
        with pytest.raises(MillpondError, match="in RocksDB only") as caught:
            plan_restore(checkpoint, "one", tmp_path / "there", provider="hdfs")
        assert caught.value.condition == "UNSUPPORTED"
        return
    there = rewritten(checkpoint, "one", tmp_path / "there", {"provider": "hdfs", "partitions": 4})
    assert without_partitions(there, batch) == without_partitions(checkpoint, batch)


def test_what_cant_be_rewritten_is_refused_before_anything_is_written(golden: Callable, tmp_path: Path) -> None:
    rocksdb, hdfs = golden("counts-rocksdb-changelog").checkpoint, golden("counts-hdfs").checkpoint
    for place in (rocksdb, hdfs):
        batch = plan_savepoint(place, "one").run().manifest.batch
    refused: list[tuple[Path, dict[str, Any]]] = [
        (place, {"partitions": partitions}) for place in (rocksdb, hdfs) for partitions in (0, -1, 10**9, True)
    ]
    refused += [(hdfs, form) for form in ({"codec": "none"}, {"provider": "memory"}, {"checkpoint_format": 2})]
    refused += [(rocksdb, form) for form in ({"checkpoint_format": 3}, {"checkpoint_format": True})]
    refused += [(rocksdb, {"checkpoint_format": 2, "provider": "hdfs"})]
    for place, form in refused:
        with pytest.raises(MillpondError) as caught:
            plan_restore(place, "one", tmp_path / "restored", **form)
        assert caught.value.condition == "UNSUPPORTED", form
        assert not (tmp_path / "restored").exists()
    commit = rocksdb / "commits" / str(batch)
    commit.write_text('v3\n{"nextBatchWatermarkMs":0,"sinkMetadataMap":{}}')
    plan_savepoint(rocksdb, "two").run()
    with pytest.raises(MillpondError, match="name its sinks"):
        plan_restore(rocksdb, "two", tmp_path / "restored", checkpoint_format=2)
    plan_restore(rocksdb, "two", tmp_path / "restored", partitions=3).run()
    assert (tmp_path / "restored" / "commits" / str(batch)).read_text() == commit.read_text()


def test_partitions_that_number_their_column_families_differently_are_refused(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("spark-4.3/transform-state-rocksdb-snapshots").checkpoint
    path = max((checkpoint / "state/0/1").glob("*.zip"), key=lambda path: int(path.stem))
    with ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    first, second = sorted(json.loads(members["metadata"].split(b"\n")[1])["columnFamilyMapping"].items())[:2]
    text = members["metadata"].decode()
    for (name, old), new in ((first, second[1]), (second, first[1])):
        text = text.replace(f'"{name}":{old}', f'"{name}":{new}')
    with ZipFile(path, "w") as archive:
        for name, content in {**members, "metadata": text.encode()}.items():
            archive.writestr(name, content)
    plan_savepoint(checkpoint, "one", count=False).run()
    with pytest.raises(MillpondError, match="number their column families") as caught:
        plan_restore(checkpoint, "one", tmp_path / "restored", partitions=4).run()
    assert caught.value.condition == "UNSUPPORTED"
    assert is_empty(tmp_path / "restored")


@pytest.mark.parametrize("cell", ["counts-hdfs", "counts-rocksdb-snapshots"])
def test_rows_that_lie_elsewhere_than_their_hash_says_are_refused(golden: Callable, tmp_path: Path, cell: str) -> None:
    """As if Spark divided this state by another rule than ours."""
    checkpoint = golden(cell).checkpoint
    folders = [checkpoint / "state/0" / str(n) for n in range(2)]
    schema = folders[0] / "_metadata"
    schema.rename(tmp_path / "schema")
    folders[0].rename(tmp_path / "zero")
    folders[1].rename(folders[0])
    (tmp_path / "zero").rename(folders[1])
    (tmp_path / "schema").rename(schema)
    plan_savepoint(checkpoint, "one", count=False).run()  # else it isn't made
    with pytest.raises(MillpondError, match="Spark's hash") as caught:
        plan_restore(checkpoint, "one", tmp_path / "restored", partitions=4).run()
    assert caught.value.condition == "UNSUPPORTED"
    assert is_empty(tmp_path / "restored")


@pytest.mark.parametrize(
    ("cell", "kind"),
    [("counts-hdfs", ".snapshot"), ("spark-4.3/apply-rocksdb-changelog", ".changelog"), ("counts-rocksdb-snapshots", ".sst")],
)
def test_a_damaged_state_isnt_rescaled(golden: Callable, tmp_path: Path, cell: str, kind: str) -> None:
    made = plan_savepoint(golden(cell).checkpoint, "one").run()
    (path, *_) = (file.path for file in made.manifest.files if file.path.endswith(kind))
    stored = Path(str(made.checkpoint.local_path(path)))
    data = stored.read_bytes()
    stored.write_bytes(data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])
    with pytest.raises(MillpondError) as caught:
        plan_restore(made.manifest.checkpoint, "one", tmp_path / "restored", partitions=4).run()
    assert caught.value.condition == "SAVEPOINT_DAMAGED"


def test_the_number_of_partitions_that_only_state_has_is_the_one_that_changes(golden: Callable, tmp_path: Path) -> None:
    """Spark may pin a number for state beside that of all shuffles; state goes by its own."""
    checkpoint, own = golden("counts-hdfs").checkpoint, "spark.sql.streaming.internal.stateStore.partitions"
    batch = plan_savepoint(checkpoint, "before").run().manifest.batch
    path = checkpoint / "offsets" / str(batch)
    lines = path.read_text().split("\n")
    planned = json.loads(lines[1])
    planned["conf"] |= {own: planned["conf"]["spark.sql.shuffle.partitions"], "spark.sql.shuffle.partitions": "77"}
    path.write_text("\n".join([lines[0], json.dumps(planned), *lines[2:]]))
    plan_savepoint(checkpoint, "one").run()
    plan_restore(checkpoint, "one", tmp_path / "restored", partitions=5).run()
    assert read_batch(open_storage(tmp_path / "restored"), Batch(batch)).settings.partitions == 5
    restored = rows_of(tmp_path / "restored", batch)["0/default"]
    assert {key: value for (_, key), value in restored.items()} == {
        key: value for (_, key), value in rows_of(checkpoint, batch)["0/default"].items()
    }


def last_batch(cell: str) -> int:
    return max(int(path.name) for path in (GOLDEN / cell / "checkpoint" / "commits").iterdir())


# Joins of format 4 are other stores in RocksDB; and runs of fewer batches took their input otherwise.
PAIRS = [
    (cell, twin)
    for cell in PLACED
    if cell.endswith("-hdfs") and (twin := cell.removesuffix("hdfs") + "rocksdb-changelog") in CELLS
    if not any(word in cell for word in ("processing", "format4")) and last_batch(cell) == last_batch(twin)
]


@pytest.mark.parametrize(("cell", "twin"), a_few(PAIRS, 6))
def test_a_state_that_moved_to_rocksdb_has_the_bytes_that_spark_writes_there(
    golden: Callable, tmp_path: Path, cell: str, twin: str
) -> None:
    """Spark ran the same query over the same input with both providers."""
    hdfs, rocksdb = golden(cell).checkpoint, golden(twin).checkpoint
    batch = plan_savepoint(hdfs, "one").run().manifest.batch
    there = rewritten(hdfs, "one", tmp_path / "there", {"provider": "rocksdb"})
    assert whole_state(there, batch) == whole_state(rocksdb, batch)
