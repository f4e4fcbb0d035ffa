"""Expired rows on disk: after any cut or damage, reads give only rows that were written, and in their order."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.replica.history.keeper import ClosedRow, ClosedRows
from millpond.replica.journal.segments import (
    StoreJournal,
    decode_segment,
    encode_frame,
    is_whole,
    iter_store,
    segments,
)
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, atomic
from suite.sizes import examples

STORE = StoreSchema(
    operator=0,
    operator_name="dedupe",
    store="default",
    index=0,
    single=False,
    key=(Field("a", atomic("long")),),
    value=(Field("b", atomic("void")),),
)
OTHER = replace(STORE, operator=1)
ROWS = st.builds(ClosedRow, st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=600), st.binary(max_size=40))
FOUND = st.builds(ClosedRows, st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1), st.lists(ROWS, min_size=1, max_size=5))


def written(folder: Path, found: list[ClosedRows], segment_bytes: int = 1 << 20) -> Path:
    journal = StoreJournal(folder, STORE, segment_bytes=segment_bytes)
    for rows in found:
        journal.append(rows)
    journal.close()
    return folder


def some(*batches: int) -> list[ClosedRows]:
    return [ClosedRows(b, 1000 * b, [ClosedRow(i, b"key %d" % i, b"value %d" % (b * i)) for i in range(3)]) for b in batches]


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(FOUND, max_size=6), st.sampled_from([1, 200, 1 << 20]))
def test_what_was_written_is_read(found: list[ClosedRows], segment_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = written(Path(root) / "store", found, segment_bytes)
        assert list(iter_store(folder, STORE)) == found
        assert list(iter_store(folder, OTHER)) == []


def test_rows_of_one_batch_that_are_many_are_in_several_frames(tmp_path: Path) -> None:
    many = ClosedRows(7, 7000, [ClosedRow(i, b"%d" % i, b"v" * (i % 9)) for i in range(2500)])
    read = list(iter_store(written(tmp_path / "s", [many]), STORE))
    assert len(read) == 3
    assert [row for found in read for row in found.rows] == many.rows


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_a_tail_torn_at_any_byte_is_never_read_and_is_cut_off_before_more_is_added(tmp_path: Path, step: int) -> None:
    found = some(1, 2, 3)
    data = segments(written(tmp_path / "whole", found))[0].read_bytes()
    ends = [decode_segment(data[:n]).end for n in range(len(data) + 1)]
    assert len(set(ends)) == 5  # nothing, the header, and each further batch
    for size in sorted({*range(0, len(data), step), *ends[:-1]}):
        for rest in (b"", b"\0" * 64, b"\xa5" * 29):
            folder = tmp_path / f"{size}-{len(rest)}"
            folder.mkdir()
            path = folder / f"{1:020d}-000000"
            path.write_bytes(data[:size] + rest)
            read = list(iter_store(folder, STORE))
            assert read == found[: len(read)]
            assert len(read) >= sum(end <= size for end in sorted(set(ends))[2:])
            assert is_whole(folder, (path.name, size)) == (size in ends)
            assert not is_whole(folder, (path.name, len(data)))
            written(folder, some(9))
            assert list(iter_store(folder, STORE)) == read + some(9)


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_a_byte_that_changed_ends_what_is_read(data: st.DataObject) -> None:
    found = some(1, 2, 3)
    with tempfile.TemporaryDirectory() as root:
        path = segments(written(Path(root) / "store", found))[0]
        there = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(there) - 1))
        there[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(there)
        read = list(iter_store(path.parent, STORE))
        assert read == found[: len(read)]
        assert len(read) < 3


def test_what_another_segment_left_on_the_disk_is_no_frame(tmp_path: Path) -> None:
    one, other = (segments(written(tmp_path / name, some(1, 2)))[0] for name in ("one", "other"))
    data = other.read_bytes()
    with one.open("ab") as file:
        file.write(data[8 + int.from_bytes(data[:4], "little") :])
    assert list(iter_store(one.parent, STORE)) == some(1, 2)


def test_a_frame_that_is_right_and_holds_no_rows_is_refused() -> None:
    for body in (b"x", b"x" * 17, b"x" * 40):
        assert decode_segment(encode_frame(body, 0)).store is None


def test_a_journal_without_a_segment_has_none_to_drop(tmp_path: Path) -> None:
    journal = StoreJournal(tmp_path / "s", STORE, segment_bytes=1)
    for batch in (None, 4):
        journal.drop_before(batch)
    assert journal.sync() is None


def test_segments_are_dropped_when_all_their_rows_are_forgotten(tmp_path: Path) -> None:
    folder = written(tmp_path / "s", some(*range(10)), segment_bytes=1)
    assert len(segments(folder)) == 10
    journal = StoreJournal(folder, STORE, segment_bytes=1)
    journal.drop_before(4)
    assert [rows.batch for rows in iter_store(folder, STORE)] == list(range(3, 10))
    journal.append(some(11)[0])
    assert [rows.batch for rows in iter_store(folder, STORE)] == [*range(3, 10), 11]
    journal.drop_before(None)
    assert list(iter_store(folder, STORE)) == []
    journal.append(some(12)[0])
    name, size = journal.sync() or pytest.fail("nothing is there")
    assert (folder / name).stat().st_size == size
    assert list(iter_store(folder, STORE)) == some(12)
    journal.close()
