"""State in another form: the same rows, under any number of partitions, in any codec, with checksums or without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.checkpoint.files.codecs import decompress
from millpond.checkpoint.files.pack import pack
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.position import Batch
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from savepoint.test_golden_cells import rows_of
from spark_files.golden import CELLS
from suite.sizes import a_few

HDFS = [cell for cell in CELLS if cell.endswith("hdfs") or "-hdfs-" in cell]


@pytest.mark.parametrize("codec", ["lz4", "zstd", "snappy", "lzf"])
@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 32769, 65535, 200_001])
def test_what_is_packed_unpacks(codec: str, size: int) -> None:
    numbers = bytes((n * n // 7) % 251 for n in range(1000))
    for data in (numbers * (size // 1000) + numbers[: size % 1000], bytes(size)):
        pieces = [data[begin : begin + 10_007] for begin in range(0, len(data), 10_007)]
        assert decompress(codec, b"".join(pack(codec, pieces))) == data


@pytest.mark.parametrize("cell", a_few(HDFS, 8))
def test_a_state_keeps_its_rows_under_any_number_of_partitions(golden: Callable, tmp_path: Path, cell: str) -> None:
    checkpoint = golden(cell).checkpoint
    made = plan_savepoint(checkpoint, "one").run()
    batch = made.manifest.batch

    def without_partitions(place: Path) -> dict[str, list[tuple[bytes, bytes]]]:
        return {store: sorted((key, value) for (_, key), value in rows.items()) for store, rows in rows_of(place, batch).items()}

    expected = without_partitions(checkpoint)
    place, name = checkpoint, "one"
    for partitions, codec, checksum in ((5, "zstd", None), (1, "snappy", True), (3, "lzf", None), (2, "lz4", False)):
        target = tmp_path / f"of-{partitions}"
        plan_restore(place, name, target, partitions=partitions, codec=codec, row_checksum=checksum).run()
        assert without_partitions(target) == expected
        settings = read_batch(open_storage(target), Batch(batch)).settings
        assert (settings.partitions, settings.codec) == (partitions, codec)
        assert checksum is None or settings.row_checksum == checksum
        again = plan_savepoint(target, f"s{partitions}").run()
        assert verify_savepoint(again).problems == ()
        place, name = target, f"s{partitions}"


def test_what_cant_be_rescaled_is_refused_before_anything_is_written(golden: Callable, tmp_path: Path) -> None:
    rocksdb, hdfs = golden("counts-rocksdb-changelog").checkpoint, golden("counts-hdfs").checkpoint
    for place in (rocksdb, hdfs):
        plan_savepoint(place, "one").run()
    with pytest.raises(MillpondError) as caught:
        plan_restore(hdfs, "one", tmp_path / "restored", codec="none")
    assert caught.value.condition == "UNSUPPORTED"
    for place, partitions in ((rocksdb, 4), (hdfs, 0), (hdfs, -1), (hdfs, 10**9), (hdfs, True)):
        with pytest.raises(MillpondError) as caught:
            plan_restore(place, "one", tmp_path / "restored", partitions=partitions)
        assert caught.value.condition == "UNSUPPORTED"
        assert not (tmp_path / "restored").exists()


def test_rows_that_lie_elsewhere_than_their_hash_says_are_refused(golden: Callable, tmp_path: Path) -> None:
    """As if Spark divided this state by another rule than ours."""
    checkpoint = golden("counts-hdfs").checkpoint
    folders = [checkpoint / "state/0" / str(n) for n in range(2)]
    schema = folders[0] / "_metadata"
    schema.rename(tmp_path / "schema")
    folders[0].rename(tmp_path / "zero")
    folders[1].rename(folders[0])
    (tmp_path / "zero").rename(folders[1])
    (tmp_path / "schema").rename(schema)
    plan_savepoint(checkpoint, "one").run()
    with pytest.raises(MillpondError, match="Spark's hash") as caught:
        plan_restore(checkpoint, "one", tmp_path / "restored", partitions=4).run()
    assert caught.value.condition == "UNSUPPORTED"
    assert not (tmp_path / "restored").exists() or not any((tmp_path / "restored").iterdir())


def test_a_damaged_state_isnt_rescaled(golden: Callable, tmp_path: Path) -> None:
    made = plan_savepoint(golden("counts-hdfs").checkpoint, "one").run()
    (path, *_) = (file.path for file in made.manifest.files if file.path.endswith(".snapshot"))
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
