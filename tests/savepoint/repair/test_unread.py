"""Damage in the parts of state files that Spark doesn't read.

Source:  each changed byte of these files was held against Java's LZ4BlockInputStream and ZipInputStream
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.checkpoint.log import newest_committed, read_batch
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.savepoint.repair.unread import iter_members
from millpond.savepoint.repair.whole_files import WholeFiles
from millpond.storage import open_storage

_LZ4_END_MARK = 21  # bytes of the header of an empty block
FILES = {
    "counts-hdfs": "state/0/0/7.delta",
    "counts-rocksdb-changelog": "state/0/0/7.changelog",
    "counts-rocksdb-snapshots": "state/0/0/12.zip",
}


def unread_from(name: str, data: bytes) -> int:
    """Where the part begins that Spark doesn't read."""
    return data.index(b"PK\x01\x02") if name.endswith(".zip") else len(data) - _LZ4_END_MARK


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("cell", FILES)
def test_every_byte_that_spark_reads_is_checked_and_no_other_stops_it(golden: Callable, cell: str, step: int) -> None:
    checkpoint: Path = golden(cell).checkpoint
    storage, path = open_storage(checkpoint), FILES[cell]
    settings = read_batch(storage, newest_committed(storage)).settings
    file, data = checkpoint / path, (checkpoint / path).read_bytes()
    begin, outcomes = unread_from(path, data), set()
    for at in [*range(0, begin, step), *range(begin, len(data))]:
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        files = WholeFiles(storage)
        error = files.why_not(path, settings)
        outcomes.add((at >= begin, error is not None, path in files.unread))
        if at >= begin and error is not None:
            assert path in files.unread, at
        if at < begin and path in files.unread:
            assert path.endswith(".zip"), at
            # A member with another name.
            assert [name for name, _ in iter_members(file.read_bytes())] != [name for name, _ in iter_members(data)]
    assert {(False, True, False), (True, True, True)} <= outcomes


@pytest.mark.parametrize(("back", "effect"), [(_LZ4_END_MARK, "may fail"), (_LZ4_END_MARK + 1, "fails")])
def test_what_is_said_of_the_newest_delta(golden: Callable, back: int, effect: str) -> None:
    checkpoint: Path = golden("counts-hdfs").checkpoint
    for snapshot in (checkpoint / "state/0/0").glob("*.snapshot"):
        snapshot.unlink()
    file = checkpoint / "state/0/0/12.delta"
    data = bytearray(file.read_bytes())
    data[-back] ^= 0x10
    file.write_bytes(data)
    (found,) = [f for f in diagnose(open_storage(checkpoint)).findings if f.path.endswith("/12.delta")]
    assert (found.kind, found.effect) == ("damaged", effect)
