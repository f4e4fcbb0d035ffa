"""What a rewrite does with many rows at once is what Python does with each; damaged input is declined."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest

from millpond.checkpoint.files.records import END_MARK, encode_record, iter_records
from millpond.checkpoint.rocksdb.write_sst import build_ssts, build_ssts_of_records
from millpond.checkpoint.rows.columns import span
from millpond.checkpoint.rows.unsaferow import encoder
from millpond.native import library
from millpond.native import rewrite as native
from millpond.native.rewrite import KINDS, Chunk, Declined, RowSums, hash_rows, iter_merged, write_records
from millpond.savepoint.rewrite.spills import Spills
from millpond.schema.murmur import row_hash
from millpond.schema.types import Field, SparkType, atomic
from suite.sizes import examples

pytestmark = pytest.mark.skipif(library.library() is None, reason="the compiled library isn't built: python hatch_build.py")
REALS = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -2.25]
Rows = list[tuple[bytes, bytes]]


def value_of(random_: random.Random, kind: str) -> Any:
    if random_.random() < 0.1:
        return None
    if kind == "boolean":
        return random_.random() < 0.5
    if kind in ("float", "double"):
        return random_.choice([*REALS, random_.randrange(-1000, 1000) / 8])
    if kind == "string":
        return "".join(random_.choices("aß☃𝄞\0", k=random_.randrange(9)))
    if kind == "binary":
        return random_.randbytes(random_.randrange(40))
    bits = {"byte": 8, "short": 16, "integer": 32, "date": 32, "year_month_interval": 32}.get(kind, 64)
    return random_.choice([0, -1, (1 << bits - 1) - 1, -(1 << bits - 1), random_.randrange(-(1 << bits - 1), 1 << bits - 1)])


def test_keys_have_the_hashes_that_python_finds() -> None:
    random_ = random.Random("hashes")
    for _ in range(examples(200)):
        kinds = random_.choices(sorted(KINDS), k=random_.choice([1, 2, 3, 70]))
        fields = tuple(Field(f"c{n}", SparkType(kind, kind)) for n, kind in enumerate(kinds))
        hashed, before = random_.randint(1, len(kinds)), random_.randrange(2)
        rows = [tuple(value_of(random_, kind) for kind in kinds) for _ in range(random_.randrange(5))]
        keys = [bytes(before) + encoder(fields)(row) for row in rows]
        found = hash_rows(span(keys), before, len(kinds), [KINDS[kind] for kind in kinds[:hashed]])
        assert found.tolist() == [row_hash(fields[:hashed], row[:hashed]) for row in rows]


def test_rows_that_point_outside_are_declined() -> None:
    fields = (Field("k", atomic("string")),)
    row = encoder(fields)(("twelve bytes",))
    for broken in (row[:15], row[:-8], row[:8] + struct.pack("<Q", 16 << 32 | 99) + row[16:]):
        with pytest.raises(Declined):
            hash_rows(span([broken]), 0, 1, [KINDS["string"]])
    with pytest.raises(Declined):
        hash_rows(span([b"\x01" + row]), 1, 1, [KINDS["string"]])


def drawn(random_: random.Random, count: int) -> Rows:
    sizes = [0, 1, 9, 64, 65, 300, random_.choice([9, 9000])]
    rows = {random_.randbytes(random_.choice(sizes)): random_.randbytes(random_.choice(sizes)) for _ in range(count)}
    return list(rows.items())


def chunk_of(rows: Rows, gone: list[bool] | None = None) -> Chunk:
    return Chunk(span(key for key, _ in rows), span(value for _, value in rows), None if gone is None else np.array(gone, bool))


def test_records_and_sums_are_those_of_the_rows() -> None:
    random_ = random.Random("records")
    for _ in range(examples(100)):
        rows, areas = drawn(random_, random_.randrange(40)), random_.randint(1, 5)
        gone = [random_.random() < 0.2 for _ in rows]
        places = [random_.randrange(areas) for _ in rows]
        written = write_records(chunk_of(rows, gone), np.array(places, np.int64), areas)
        for area in range(areas):
            mine = [(row, is_gone) for row, is_gone, place in zip(rows, gone, places, strict=True) if place == area]
            found = list(iter_records(bytes(written[area]) + END_MARK))
            assert found == [(0x10 if is_gone else 0x01, key, b"" if is_gone else value) for (key, value), is_gone in mine]
        one, other = RowSums(), RowSums()
        one.add(chunk_of(rows))
        shuffled = random_.sample(rows, len(rows))
        for row in shuffled:
            other.add(chunk_of([row]))
        assert one == other
        if rows:
            key, value = rows[0]
            for wrong in ((key + b"\0", value), (key, value + b"\0"), (value + b"x", key)):
                changed = RowSums()
                changed.add(chunk_of([wrong, *rows[1:]]))
                assert changed != one
            deleted = RowSums()
            deleted.add(chunk_of(rows, [True] + [False] * (len(rows) - 1)))
            assert deleted != one


@pytest.mark.parametrize("piece_bytes", [1, 100, 65536])
def test_runs_become_the_ssts_that_python_writes(monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    """To the byte: the merge and the blocks, whatever the pieces that are read and the room that there is."""
    random_ = random.Random(f"runs {piece_bytes}")
    monkeypatch.setattr(native, "_PIECE_BYTES", piece_bytes)
    for _ in range(examples(60)):
        monkeypatch.setattr(native, "_MERGED_BYTES", random_.choice([1, 400, 1 << 20]))
        rows = drawn(random_, random_.choice([0, 1, 20, 400]))
        runs: list[Rows] = [[] for _ in range(random_.randint(1, 9))]
        for row in rows:
            random_.choice(runs).append(row)
        with Spills(2) as spills:
            for run in runs:
                spills.add_records(1, memoryview(b"".join(encode_record(*row) for row in sorted(run))))
                spills.end_run()
            assert list(iter_merged(spills.open_runs(0))) == []
            merged = b"".join(iter_merged(spills.open_runs(1)))
            assert [(key, value) for _, key, value in iter_records(merged + END_MARK)] == sorted(rows)
            found = list(build_ssts_of_records(iter_merged(spills.open_runs(1))))
        assert found == list(build_ssts(sorted(rows)))


def test_runs_that_are_not_in_order_are_a_mistake() -> None:
    rows = [encode_record(key, b"") for key in (b"b", b"a", b"a")]
    for wrong in (rows, rows[1:]):
        with pytest.raises(ValueError, match="order"):
            list(build_ssts_of_records([b"".join(wrong)]))


def test_damaged_records_are_declined() -> None:
    random_ = random.Random("damage")
    declined = 0
    for _ in range(examples(400)):
        data = bytearray(b"".join(encode_record(*row) for row in sorted(drawn(random_, 8))))
        for _ in range(random_.randint(1, 3)):
            if data:
                data[random_.randrange(len(data))] = random_.choice([0, 0x7F, 0x80, 0xFF])
        pieces = iter([bytes(data)])
        try:
            for piece in iter_merged([lambda _size, pieces=pieces: next(pieces, b"")]):  # type: ignore[misc]
                assert piece
            list(build_ssts_of_records([bytes(data)]))
        except (Declined, ValueError):
            declined += 1
    assert declined > 2


def test_blocks_of_a_large_row() -> None:
    rows = [(b"k" * 5000, bytes(300_000)), (b"l", b"")]
    records = b"".join(encode_record(*row) for row in rows)
    assert list(build_ssts_of_records([records[:0], records])) == list(build_ssts(rows))
