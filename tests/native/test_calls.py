"""The compiled library gives Python's answers, and gives none for input that Python refuses."""

from __future__ import annotations

import random
import struct
from array import array

import lz4.block
import numpy as np
import pytest
import xxhash

from millpond.checkpoint.encoding import _split
from millpond.checkpoint.files.codecs import decompress
from millpond.checkpoint.files.records import DELETE, MERGE, PUT, iter_changelog, iter_spans
from millpond.checkpoint.rocksdb.blocks import Entries
from millpond.checkpoint.rocksdb.merge import resolve_all
from millpond.checkpoint.rows.columns import span
from millpond.errors import CheckpointError
from millpond.native import calls, library
from millpond.native.memory import Memory

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
    """A block packed by LZ4 as in an SST; nobody checks the checksum here."""
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
        assert calls.read_words(data, *where, 0, [], [0]) is None
        assert calls.read_words(data, *where, 0, [0], []) is None
        assert calls.unpack_blocks(data, *where) is None
        run = (data, *where), np.array([1 << 8 | 1, 1 << 8 | 1], np.uint64), (b"", np.array([0, 0]), np.array([0, 0]))
        assert calls.newest_entries([run], b"", (0, 0)) is None
        run = (b"ab", np.array([0, 1]), np.array([1, 1])), run[1], (data, *where)
        assert calls.newest_entries([run], b"", (0, 0)) is None
        assert calls.newest_records(data, [(where[0][1], where[1][1], False)], b"", (0, 0), Memory()) is None
    assert calls.read_words(data, np.array([8]), np.array([8]), 0, [], [0, 1]) is None
    assert calls.read_words(data, np.array([8]), np.array([8]), 2, [], [0]) is None
    assert calls.read_words(data, np.array([0]), np.array([16]), 0, [], [-1]) is None
    assert calls.find_parts(np.array([0]), np.array([16]), np.array([9 << 32 | 8], np.uint64), None) is None
    assert calls.find_parts(np.array([0]), np.array([16]), np.array([(1 << 64) - 1], np.uint64), None) is None


def test_words_that_flags_have_in_no_row_arent_kept() -> None:
    rows = [struct.pack("<3Q", 0, i << 40, i % 2 * 4) for i in range(50)]
    found = calls.read_words(*span(rows)[:3], 3, [0, 2], [1])
    assert found is not None
    assert found[0] is None
    assert {place: words.tolist() for place, words in found.items() if words is not None} == {
        1: [i << 40 for i in range(50)],
        2: [i % 2 * 4 for i in range(50)],
    }


def test_values_lie_where_their_slots_say_and_nothing_is_read_of_a_null() -> None:
    slots = np.array([16 << 32 | 5, (1 << 64) - 1, 8 << 32], np.uint64)
    found = calls.find_parts(np.array([0, 32, 64]), np.array([21, 8, 8]), slots, np.array([True, False, True]))
    assert [part.tolist() for part in found or ()] == [[16, 32, 72], [5, 0, 0]]


def lz4_stream(random_: random.Random, content: bytes) -> bytes:
    """A stream as Spark writes it, in blocks of odd sizes, some of them raw."""
    out, at = b"", 0
    while at < len(content):
        block = content[at : at + random_.choice([1, 20, 300, 5000])]
        at += len(block)
        raw = random_.random() < 0.2
        packed = block if raw else lz4.block.compress(block, store_size=False)
        checksum = xxhash.xxh32_intdigest(block, 0x9747B28C) & 0x0FFFFFFF
        out += struct.pack("<8sBiii", b"LZ4Block", (0x10 if raw else 0x20) | 5, len(packed), len(block), checksum) + packed
        if random_.random() < 0.05:  # streams may follow each other
            out += struct.pack("<8sBiii", b"LZ4Block", 0x15, 0, 0, 0)
    return out + struct.pack("<8sBiii", b"LZ4Block", 0x15, 0, 0, 0)


def test_a_stream_unpacks_to_what_python_makes_of_it_and_a_damaged_one_to_nothing_else() -> None:
    random_ = random.Random("streams")
    memory, odd = Memory(), 0
    for _ in range(600):
        content = b"".join(random_.choice([b"state", bytes(9), random_.randbytes(7)]) for _ in range(random_.randint(0, 900)))
        streams = [lz4_stream(random_, content), lz4_stream(random_, content[: len(content) // 2])]
        found = calls.unpack_streams(streams, memory)
        assert found is not None
        data, ends = found
        assert (bytes(data), ends) == (content + content[: len(content) // 2], [len(content), len(content) + len(content) // 2])
        broken = damaged(random_, streams[0])
        try:
            plain: bytes | None = decompress("lz4", broken)
        except CheckpointError:
            plain = None
        again = calls.unpack_streams([broken], memory)
        assert again is None or bytes(again[0]) == plain
        odd += again is not None
    assert 0 < odd < 300


@pytest.mark.parametrize("typed", [False, True])
def test_of_the_records_of_several_files_each_key_s_last_one_stays(typed: bool) -> None:
    random_ = random.Random(f"newest {typed}")
    memory, refused = Memory(), 0
    for _ in range(600):
        family, before = random_.choice([(b"", (0, 0)), (b"", (1, 1)), (b"\x07\x00", (3, 1))])
        keys = [random_.randbytes(random_.choice([0, 1, 8, 16])) for _ in range(random_.choice([1, 20, 300]))]
        state: dict[bytes, bytes] = {}
        data, files = b"", []
        for _ in range(random_.randint(1, 4)):
            start = len(data) + random_.choice([0, 3])
            data = data.ljust(start, b"?")
            for _ in range(random_.choice([0, 3, 100, 700])):
                key, value = random_.choice(keys), random_.randbytes(random_.choice([0, 8, 40]))
                mine = random_.random() < 0.8 or not family
                head = (family if mine else b"\x08\x00") + bytes(before[0] - len(family))
                kind = random_.choice([PUT, PUT, PUT, DELETE]) if mine else random_.choice([PUT, DELETE, *[MERGE] * typed])
                whole = head + key
                data += (bytes((kind,)) if typed else b"") + struct.pack(">i", len(whole)) + whole
                data += (
                    struct.pack(">i", -1)
                    if kind == DELETE
                    else struct.pack(">i", len(value) + before[1]) + bytes(before[1]) + value
                )
                if mine:
                    state.pop(key, None)
                    if kind == PUT:
                        state[key] = value
            data += b"\x00" if typed else struct.pack(">i", -1)
            files.append((start, len(data), typed))
        found = calls.newest_records(data, files, family, before, memory)
        assert found is not None
        key_begin, key_size, begin, size = found
        rows = list(zip(calls.to_list(data, key_begin, key_size) or [], calls.to_list(data, begin, size) or [], strict=True))
        assert len(rows) == len(state)
        assert dict(rows) == state
        for broken in (data[:-1], data + b"\x00", data[:-1] + b"\x05"):
            files[-1] = files[-1][0], len(broken), typed
            assert calls.newest_records(broken, files, family, before, memory) is None
            refused += 1
    assert refused == 1800


def test_records_that_put_nothing_are_left_to_who_knows_them() -> None:
    def found(record: bytes, before: tuple[int, int] = (0, 0), family: bytes = b"") -> bool:
        data = record + b"\x00"
        return calls.newest_records(data, [(0, len(data), True)], family, before, Memory()) is not None

    def record(kind: int, key: bytes, value: bytes) -> bytes:
        return bytes((kind,)) + struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value

    assert found(record(PUT, b"key", b"value"))
    assert not found(record(MERGE, b"key", b"value"))
    assert not found(record(0x20, b"from", b"upto"))
    assert found(record(PUT, b"\x00key", b"\x00value"), (1, 1))
    assert not found(record(PUT, b"\x01key", b"\x00value"), (1, 1))
    assert not found(record(PUT, b"\x00key", b"\x01value"), (1, 1))
    assert not found(record(PUT, b"\x00key", b""), (1, 1))
    assert not found(record(PUT, b"\x07", b"\x00value"), (3, 1), b"\x07")


def test_of_sorted_runs_the_newest_entries_are_those_of_python() -> None:
    random_ = random.Random("sorted")
    for _ in range(600):
        family, before = random_.choice([(b"", (0, 0)), (b"", (1, 1)), (b"\x01", (2, 1))])
        keys = {
            random_.choice([b"\x00", b"\x01"]) + b"\x00" + random_.randbytes(random_.randint(0, 3))
            for _ in range(random_.randint(1, 60))
        }
        if before != (2, 1):
            keys = {key[1:] for key in keys}
        numbers = iter(random_.sample(range(10_000), 4 * len(keys)))
        entries = []
        for key in keys:
            for _ in range(random_.choice([1, 1, 1, 4])):
                kind = random_.choice([0, 1, 1, 1, 7])
                entries.append((key, -(next(numbers) << 8 | kind), bytes(before[1]) + random_.randbytes(random_.randint(0, 6))))
        runs: list[list[tuple[bytes, int, bytes]]] = [[] for _ in range(random_.randint(1, 6))]
        for entry in entries:
            random_.choice(runs).append(entry)
        entries.sort()
        plain = resolve_all(
            Entries([k for k, _, _ in entries], array("Q", [-t for _, t, _ in entries]), [v for _, _, v in entries]), b""
        )
        expected = {k[before[0] :]: v[before[1] :] for k, v in zip(*plain, strict=True) if v is not None and k.startswith(family)}

        def found(
            runs: list[list[tuple[bytes, int, bytes]]], family: bytes = family, before: tuple[int, int] = before
        ) -> list[tuple[bytes, bytes]] | None:
            parts = [
                (span(k for k, _, _ in r)[:3], np.array([-t for _, t, _ in r], np.uint64), span(v for _, _, v in r)[:3])
                for r in runs
            ]
            answer = calls.newest_entries(parts, family, before)
            if answer is None:
                return None
            pairs = [(calls.to_list(*keys), calls.to_list(*values)) for keys, values in answer]
            return [pair for k, v in pairs for pair in zip(k or [], v or [], strict=True)]

        rows = found([sorted(run) for run in runs])
        assert rows is not None
        assert len(rows) == len(expected)
        assert dict(rows) == expected
        if len(entries) > 2:
            shuffled = [sorted(run) for run in runs]
            run = max(shuffled, key=len)
            run[0], run[-1] = run[-1], run[0]
            assert len(run) == 1 or found(shuffled) is None
            twice = [sorted(run) for run in runs]
            twice.append([(entries[0][0], entries[0][1], b"\x00")])
            assert found(twice) is None
            merged = [sorted(run) for run in runs]
            merged.append([(b"\xff" * 9, -(20_000 << 8 | 2), b"\x00")])
            assert found(merged) is None
    assert calls.newest_entries([], b"", (0, 0)) == []


def test_memory_is_used_again_only_when_nobody_looks_into_it() -> None:
    memory = Memory()
    first = memory.take(1000)
    address = np.frombuffer(first, np.uint8).ctypes.data
    array_ = np.frombuffer(first, np.uint8)[:10]
    del first
    array_[:] = 7
    second = memory.take(1000)
    assert np.frombuffer(second, np.uint8).ctypes.data != address
    second[:] = bytes(1000)
    assert array_.tolist() == [7] * 10
    del array_
    assert np.frombuffer(memory.take(1000), np.uint8).ctypes.data == address
    held = [memory.take(size) for size in (0, 5_000_000, 1, 5_000_000, 9_000_000)]
    for number, view in enumerate(held):
        view[:] = bytes([number]) * len(view)
    assert [set(view) for view in held] == [set(), {1}, {2}, {3}, {4}]


def test_what_is_kept_is_never_given_out_again() -> None:
    memory = Memory()
    kept = [memory.keep(size) for size in (0, 1, 0, 10_000_000, 64, 7_000_000, 7_000_000, 7_000_000, 40_000_000)]
    for number, array_ in enumerate(kept):
        array_[:] = number
    assert [len(array_) for array_ in kept] == [0, 1, 0, 10_000_000, 64, 7_000_000, 7_000_000, 7_000_000, 40_000_000]
    assert [set(np.unique(array_).tolist()) - {number} for number, array_ in enumerate(kept)] == [set()] * len(kept)
    assert all(array_.ctypes.data % 64 == 0 for array_ in kept)


def test_the_library_of_other_sources_isnt_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library._load.__wrapped__() is not None
    monkeypatch.setattr(library, "source_stamp", lambda: 1)
    assert library._load.__wrapped__() is None
