"""What the compiled library answers is what Python answers, and what Python refuses it doesn't answer."""

from __future__ import annotations

import random
import struct
from array import array

import lz4.block
import numpy as np
import pytest

from millpond.checkpoint.columns import span
from millpond.checkpoint.encoding import _split
from millpond.checkpoint.records import DELETE, MERGE, PUT, iter_changelog, iter_spans
from millpond.checkpoint.runs import resolve_all
from millpond.checkpoint.sst_blocks import Entries
from millpond.errors import CheckpointError
from millpond.native import calls, library

pytestmark = pytest.mark.skipif(library.library() is None, reason="the compiled library isn't built: python hatch_build.py")


def damaged(random_: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(random_.randint(1, 3)):
        if out:
            out[random_.randrange(len(out))] = random_.choice([0, 1, 0x7F, 0x80, 0xFF, random_.randrange(256)])
    return bytes(out[: random_.choice([len(out), len(out), random_.randint(0, len(out))])])


@pytest.mark.parametrize("typed", [False, True])
def test_records_are_found_where_the_plain_walk_finds_them_and_nowhere_else(typed: bool) -> None:
    random_ = random.Random(f"records {typed}")
    answered = refused = 0
    for _ in range(1500):
        data = b""
        for _ in range(random_.randint(0, 8)):
            kind = random_.choice([PUT, DELETE, MERGE] if typed else [PUT, DELETE])
            key, value = random_.randbytes(random_.randint(0, 20)), random_.randbytes(random_.randint(0, 20))
            data += (bytes((kind,)) if typed else b"") + struct.pack(">i", len(key)) + key
            data += struct.pack(">i", -1) if kind == DELETE else struct.pack(">i", len(value)) + value
        data += b"\x00" if typed else struct.pack(">i", -1)
        if random_.random() < 0.8:
            data = damaged(random_, data)
        found = calls.find_records(data, 0, typed=typed)
        try:
            plain = list(iter_spans(data, 0, typed=typed))
        except CheckpointError:
            refused += 1
            assert found is None
            continue
        answered += 1
        assert found is not None
        key = data[plain[-1][1] :][: plain[-1][2]] if plain else b""
        if any(kind not in (PUT, DELETE) for kind, *_ in plain):
            assert calls.find_last(data, 0, key, typed=typed) is None
        else:
            values = [(kind, data[at : at + n]) for kind, begin, size, at, n in plain if data[begin : begin + size] == key]
            assert calls.find_last(data, 0, key, typed=typed) == (values[-1] if values else (0, b""))
        assert list(zip(*(part.tolist() for part in found), strict=True)) == plain
    assert answered > 100 < refused
    assert list(iter_changelog(struct.pack(">i", -1))) == []


def stored(block: bytes) -> bytes:
    """As an SST keeps a block packed by LZ4; nobody checks the checksum here."""
    size, head = len(block), b""
    while size >= 0x80:
        head, size = head + bytes((size & 0x7F | 0x80,)), size >> 7
    return head + bytes((size,)) + lz4.block.compress(block, store_size=False) + b"\x04" + bytes(4)


def test_lz4_blocks_unpack_to_what_went_in_and_damaged_ones_as_lz4_itself_does() -> None:
    random_ = random.Random("lz4")
    odd = 0
    for _ in range(3000):
        shape = random_.choice(
            [
                [random_.randbytes(random_.randint(0, 300))],
                [random_.randbytes(random_.randint(1, 40)) for _ in range(4)],
                [bytes([random_.randrange(3)]) for _ in range(9)],
            ]
        )
        block = b"".join(random_.choice(shape) for _ in range(random_.randint(0, 120)))
        whole = stored(block)
        begin, size = np.array([0], np.int64), np.array([len(whole) - 5], np.int64)
        unpacked = calls.unpack_blocks(whole, begin, size)
        if unpacked is None:
            assert len(block) > 32 * len(whole)
            continue
        assert (unpacked[0], unpacked[1].tolist()) == (block, [len(block)])
        head = len(whole) - 5 - len(lz4.block.compress(block, store_size=False))
        packed = damaged(random_, whole[head:-5])
        broken = whole[:head] + packed + whole[-5:]
        again = calls.unpack_blocks(broken, begin, np.array([len(broken) - 5], np.int64))
        try:
            own = lz4.block.decompress(packed, uncompressed_size=len(block))
        except lz4.block.LZ4BlockError:
            own = None
        if again is not None:
            odd += 1
            assert own == again[0]
    assert odd


@pytest.mark.parametrize("delimiter", [b"", b","])
def test_runs_are_merged_as_python_merges_them(delimiter: bytes) -> None:
    random_ = random.Random(f"runs {delimiter!r}")
    for _ in range(400):
        keys = sorted({random_.randbytes(random_.randint(0, 3)) for _ in range(random_.randint(1, 30))})
        versions = [(key, random_.randint(1, 25)) for key in keys]
        numbers = random_.sample(range(10_000), sum(n for _, n in versions))
        entries = []
        for key, count in versions:
            for _ in range(count):
                kind = random_.choice([0, 1, 1, 2, 2, 2, 2, 2, 7])
                entries.append((key, -(numbers.pop() << 8 | kind), random_.randbytes(random_.randint(0, 6))))
        runs: list[list[tuple[bytes, int, bytes]]] = [[] for _ in range(random_.randint(1, 6))]
        for entry in entries:
            random_.choice(runs).append(entry)
        parts = []
        for run in runs:
            run.sort()
            tags = np.array([-tag for _, tag, _ in run], np.uint64)
            parts.append((span(k for k, _, _ in run)[:3], tags, span(v for _, _, v in run)[:3], 0, len(run)))
        entries.sort()
        tags = array("Q", [-tag for _, tag, _ in entries])
        plain = resolve_all(Entries([k for k, _, _ in entries], tags, [v for _, _, v in entries]), delimiter)
        expected = [(key, value) for key, value in zip(*plain, strict=True) if value is not None]
        found = [calls.to_list(*pieces) for pieces in calls.merge_runs(parts, delimiter)]
        assert list(zip(*found, strict=True)) == expected  # type: ignore[arg-type]


def test_runs_that_arent_in_order_or_say_two_things_are_refused() -> None:
    def merged(*entries: tuple[bytes, int]) -> int:
        tags = np.array([tag for _, tag in entries], np.uint64)
        with pytest.raises(calls.NotMerged) as refused:
            calls.merge_runs([(span(k for k, _ in entries)[:3], tags, span(b"" for _ in entries)[:3], 0, len(entries))], b"")
        return refused.value.reason

    assert merged((b"b", 9 << 8 | 1), (b"a", 8 << 8 | 1)) == calls.NOT_IN_ORDER
    assert merged((b"a", 9 << 8 | 1), (b"a", 9 << 8 | 2)) == calls.ONE_SEQUENCE_NUMBER
    assert merged((b"a", 9 << 8 | 3)) == calls.UNKNOWN_KIND


@pytest.mark.parametrize("delimiter", [b"", b","])
def test_elements_are_found_where_python_finds_them(delimiter: bytes) -> None:
    random_ = random.Random(f"lists {delimiter!r}")
    refused = 0
    for _ in range(1500):
        rows = [b"\x00" + random_.randbytes(random_.randint(0, 9)) for _ in range(random_.randint(1, 5))]
        value = delimiter.join(struct.pack("<i", len(row)) + row for row in rows)
        value = damaged(random_, value) if random_.random() < 0.5 else value
        data = b"before" + value + b"\x00behind"
        found = calls.find_elements(data, np.array([6]), np.array([len(value)]), delimiter)
        try:
            elements = list(_split(value, delimiter))
            assert all(element[:1] == b"\x00" for element in elements)
        except (CheckpointError, AssertionError):
            refused += 1
            assert found is None
            continue
        assert found is not None
        assert found[0].tolist() == [len(elements)]
        assert calls.to_list(data, *found[1:]) == [element[1:] for element in elements]
    assert refused


def test_what_lies_outside_of_its_buffer_is_never_touched() -> None:
    data = b"sixteen bytes ok"
    for begin, size in ((-1, 4), (0, 17), (16, 1), (17, 0), (1 << 62, 1 << 62), (4, -4), (0, 1 << 62)):
        where = np.array([0, begin]), np.array([1, size])
        with pytest.raises(IndexError):
            calls.to_list(data, *where)
        if 0 <= size < 1 << 40:
            assert calls.gather(data, *where) is None
            with pytest.raises(calls.NotMerged):
                calls.merge_runs([((data, *where), np.array([257, 1], np.uint64), (data, *where), 0, 2)], b"")
        assert calls.find_elements(data, *where, b"") is None
        assert calls.mark_newest([(data, *where)], unique=False) is None
        assert calls.read_words(data, where[0], where[0] + where[1], [0]) is None
        assert calls.unpack_blocks(data, *where) is None
    assert calls.read_words(data, np.array([8]), np.array([16]), [0, 1]) is None
    assert calls.read_words(data, np.array([0]), np.array([16]), [-1]) is None


def test_the_library_of_other_sources_isnt_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library._load.__wrapped__() is not None
    monkeypatch.setattr(library, "source_stamp", lambda: 1)
    assert library._load.__wrapped__() is None
