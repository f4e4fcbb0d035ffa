"""Finding many records at once gives the same as finding them one by one, and the same errors for damage."""

from __future__ import annotations

import itertools
import random
import struct

import pytest

from millpond.checkpoint.files.record_spans import RecordSpans, locate_changelog, locate_records
from millpond.checkpoint.files.records import DELETE, MERGE, PUT, Record, iter_changelog, iter_records
from millpond.errors import CheckpointError
from suite.sizes import a_few

pytestmark = pytest.mark.usefixtures("either_way")

INT = struct.Struct(">i")


def file_of(records: list[Record], *, typed: bool) -> bytes:
    out = bytearray(b"\x00\x02v2" if typed else b"")
    for kind, key, value in records:
        out += bytes((kind,)) if typed else b""
        out += INT.pack(len(key)) + key
        out += INT.pack(-1) if kind == DELETE else INT.pack(len(value)) + value
    return bytes(out) + (b"\x00" if typed else INT.pack(-1))


def taken_out(found: RecordSpans) -> list[Record]:
    return list(zip(found.kinds.tolist(), found.keys.tolist(), found.values.tolist(), strict=True))


def words_of(random_: random.Random, words: int) -> bytes:
    """Bytes like those of rows: mostly zeros, and numbers that look like lengths."""
    return b"".join(struct.pack("<q", random_.choice([0, 0, 1, 8, 24, 32, -1, random_.getrandbits(63)])) for _ in range(words))


def records_of(random_: random.Random, count: int, *, typed: bool, shape: str) -> list[Record]:
    out: list[Record] = []
    odd = random_.choice([0, 1]) if not typed else 3
    for _ in range(count):
        key = bytes(odd) + words_of(random_, 2 if shape == "equal" else random_.choice([2, 3, 3, 4, 9]))
        kind = PUT
        if shape == "mixed" and random_.random() < 0.2:
            kind = DELETE
        elif shape == "mixed" and typed and random_.random() < 0.1:
            kind = MERGE
        value = b"" if kind == DELETE else bytes(odd) + words_of(random_, 4 if shape != "mixed" else random_.choice([0, 4, 4, 5]))
        out.append((kind, key, value))
    return out


@pytest.mark.parametrize("shape", ["equal", "keys", "mixed"])
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_records_are_those_of_the_plain_walk(seed: int, typed: bool, shape: str) -> None:
    random_ = random.Random(f"{seed}{typed}{shape}")
    records = records_of(random_, random_.choice([0, 1, 31, 33, 500, 3000, 6000]), typed=typed, shape=shape)
    if shape == "equal" and records:
        records.insert(random_.randrange(len(records)), (PUT, b"a longer key than all others", b""))
    data = file_of(records, typed=typed)
    assert list(iter_changelog(data) if typed else iter_records(data)) == records
    assert taken_out(locate_changelog(data) if typed else locate_records(data)) == records


@pytest.mark.parametrize(("typed", "shape"), a_few(itertools.product([False, True], ["equal", "keys", "mixed"]), 3))
def test_damage_is_told_as_the_plain_walk_tells_it(typed: bool, shape: str) -> None:
    random_ = random.Random(f"{typed}{shape}")
    whole = file_of(records_of(random_, 4000, typed=typed, shape=shape), typed=typed)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(random_.randint(1, 3)):
            data[random_.randrange(4, len(data))] = random_.choice([0, 1, 7, 8, 255, random_.randrange(256)])
        damaged = bytes(data[: random_.choice([len(data), len(data), random_.randrange(8, len(data))])])
        try:
            expected = list(iter_changelog(damaged) if typed else iter_records(damaged))
        except CheckpointError as error:
            with pytest.raises(CheckpointError) as raised:
                (locate_changelog if typed else locate_records)(damaged)
            assert (raised.value.condition, raised.value.message) == (error.condition, error.message)
        else:
            assert taken_out((locate_changelog if typed else locate_records)(damaged)) == expected
