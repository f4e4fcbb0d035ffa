"""Finds many records of a change log or snapshot at once: the same that `records` finds one by one.

1. If records have equal sizes, their lengths lie at equal distances: take all records that agree.
2. Otherwise the compiled library walks the file.  Without it numpy does, from several guessed
   places at once.  No guess is trusted: a walk only counts if another one that counts arrives at
   its start.
3. The rest is read record by record, which also reports damage.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.checkpoint.files.records import DELETE, MERGE, PUT, iter_spans, parse_changelog_header
from millpond.checkpoint.rows.columns import Array, Spans
from millpond.native import calls
from millpond.native.library import library

# With fewer records of one size, numpy isn't worth it.
_FEW_RECORDS = 32
_FEW_BYTES = 64 << 10
_LANE_BYTES = 4 << 10
_MOST_LANES = 8192
# How far to search for a record from a guess, in multiples of the largest of the first records.
_LOOK_RECORDS, _LOOK_BYTES = 3, 4096
_KINDS = (PUT, DELETE, MERGE)
Block = tuple[Array, Array, Array, Array, Array, int]
"""(kind, begin and size of the key, begin and size of the value, stride) of consecutive records"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpans:
    """The records of one file, in write order.

    kinds:  uint8 array, see `records`
    """

    kinds: Array
    keys: Spans
    values: Spans


def locate_changelog(data: bytes) -> RecordSpans:
    """The records of a decompressed RocksDB change log of any version.

    Raises as `records.iter_changelog`.
    """
    header = parse_changelog_header(data)
    return locate_records(data, header.start, typed=header.version in (2, 4))


def locate_records(data: bytes, start: int = 0, *, typed: bool = False) -> RecordSpans:
    """The records of a decompressed delta, snapshot or change log, from `start` on.

    typed:   whether each begins with its type
    Raises:  as `records.iter_records`.
    """
    walk = _Walk(data, typed=typed)
    blocks: list[Block] = []
    position = start
    while (block := walk.equal_records(position)) is not None:
        blocks.append(block)
        position = int(block[3][-1] + block[4][-1])
    found = calls.find_records(data, position, typed=typed) if library(len(data) - position) is not None else None
    if found is not None:
        blocks.append((*found, 0))
    elif len(data) - position >= _FEW_BYTES and (block := walk.lanes(position)) is not None:
        blocks.append(block)
    else:
        blocks.append(walk.plain(position))
    np = walk.np
    blocks = [block for block in blocks if len(block[0])] or blocks[-1:]
    if len(blocks) == 1:
        kinds, key_begin, key_size, begin, size, stride = blocks[0]
    else:
        kinds, key_begin, key_size, begin, size = (np.concatenate([block[i] for block in blocks]) for i in range(5))
        stride = 0
    return RecordSpans(kinds=kinds, keys=Spans(data, key_begin, key_size, stride), values=Spans(data, begin, size, stride))


def find_whole_records(data: bytes) -> tuple[RecordSpans, int] | None:
    """The whole records in the first part of a delta or snapshot, and where the last one ends.

    None without the library.
    """
    found = calls.find_whole_records(data, typed=False)
    if found is None:
        return None
    (kinds, key_begin, key_size, begin, size), end = found
    return RecordSpans(kinds=kinds, keys=Spans(data, key_begin, key_size), values=Spans(data, begin, size)), end


class _Walk:
    def __init__(self, data: bytes, *, typed: bool) -> None:
        import numpy as np

        self.np = np
        self._data = data
        self._typed = typed
        self._mark = 1 if typed else 0
        self._bytes = np.frombuffer(data, np.uint8)
        # Lengths at every byte.
        self._ints: Array = np.ndarray((max(0, len(data) - 3),), ">i4", data if len(data) > 3 else bytes(4), strides=(1,))

    def plain(self, position: int) -> Block:
        """All records from here on, one by one."""
        np = self.np
        found = list(iter_spans(self._data, position, typed=self._typed))
        kinds, *places = zip(*found, strict=True) if found else ((), (), (), (), ())
        return np.array(kinds, np.uint8), *(np.array(part, np.int64) for part in places), 0

    def equal_records(self, position: int) -> Block | None:
        """Records from here on with keys and values as long as the first one's; None if they are few."""
        np, mark, total = self.np, self._mark, len(self._data)
        lengths = self._lengths(position)
        if lengths is None:
            return None
        kind, key, value = lengths
        stride = mark + 8 + key + max(value, 0)
        most, count, step = (total - position) // stride, 0, _FEW_RECORDS
        while count < most:
            upto = min(most, count + step)
            at = position + count * stride
            same = self._strided(">i4", at + mark, upto - count, stride) == key
            same &= self._strided(">i4", at + mark + 4 + key, upto - count, stride) == value
            if mark:
                same &= self._strided("u1", at, upto - count, stride) == kind
            if not same.all():
                count += int(np.argmin(same))
                break
            count, step = upto, step * 8
        if count < _FEW_RECORDS:
            return None
        begin = position + stride * np.arange(count, dtype=np.int64)
        size = np.full(count, max(value, 0), np.int64)
        return (
            np.full(count, kind, np.uint8), begin + mark + 4, np.full(count, key, np.int64), begin + mark + 8 + key, size, stride
        )  # fmt: skip

    def _lengths(self, position: int) -> tuple[int, int, int] | None:
        """(kind, key bytes, value bytes or -1) of the record that begins here, None if none does."""
        data, mark = self._data, self._mark
        key = int.from_bytes(data[position + mark : position + mark + 4], "big", signed=True)
        if position + mark + 8 > len(data) or key < 0 or position + mark + 8 + key > len(data):
            return None
        at = position + mark + 4 + key
        value = int.from_bytes(data[at : at + 4], "big", signed=True)
        kind = data[position] if mark else (DELETE if value == -1 else PUT)
        if kind not in _KINDS or value < -1 or (value == -1) != (kind == DELETE) or at + 4 + value > len(data):
            return None
        return kind, key, value

    def _strided(self, code: str, offset: int, count: int, stride: int) -> Array:
        return self.np.ndarray((count,), code, self._data, offset=offset, strides=(stride,))

    # ------------------------------------------------------------ several places at once

    def lanes(self, position: int) -> Block | None:
        """All records from here on; None if a walk fails."""
        np, total = self.np, len(self._data)
        end = total - (1 if self._typed else 4)
        starts = self._starts(position, end)
        if starts is None:
            return None
        # A lane walks until it arrives at the start of another one, not always the next: it passes
        # wrong guesses.
        goals = np.append(starts, end)
        lane, at, goal = np.arange(len(starts)), starts, np.arange(1, len(starts) + 1)
        arrived: Array = np.zeros(len(starts), np.int64)  # 0: nowhere
        steps = []
        while len(lane):
            good, kind, key, value, after = self._records(at)
            good &= after <= end
            if not good.all():
                lane, goal = lane[good], goal[good]
                at, kind, key, value, after = at[good], kind[good], key[good], value[good], after[good]
            steps.append((lane, kind, at + self._mark + 4, key, after - value, value))
            passed = after > goals[goal]
            if passed.any():
                goal[passed] = np.searchsorted(goals, after[passed])
            there = after == goals[goal]
            arrived[lane[there]] = goal[there]
            lane, at, goal = lane[~there], after[~there], goal[~there]
        line: Array = np.zeros(len(starts) + 1, bool)
        reached = 0
        while reached < len(starts):
            line[reached] = True
            reached = int(arrived[reached])
            if not reached:
                return None
        if self._typed:
            if self._data[end] != 0:
                return None
        elif int(self._ints[end]) != -1:
            return None
        lane, kinds, key_begin, key_size, begin, size = (np.concatenate(part) for part in zip(*steps, strict=True))
        order = np.flatnonzero(line[lane])
        order = order[np.argsort(key_begin[order])]
        return kinds[order], key_begin[order], key_size[order], begin[order], size[order], 0

    def _records(self, at: Array) -> tuple[Array, Array, Array, Array, Array]:
        """For possible records at these places: whether they are, kind, bytes of key and value, and end."""
        np, mark, last = self.np, self._mark, len(self._data) - 4
        place = at + mark
        good = place <= last
        key = self._ints[np.minimum(place, last)].astype(np.int64)
        good &= key >= 0
        second = place + 4 + key
        good &= second <= last
        second = np.where(good, second, 0)
        value = self._ints[second].astype(np.int64)
        deletes = value == -1
        good &= value >= -1
        if mark:
            kind = self._bytes[np.minimum(at, last)]
            good &= np.where(deletes, kind == DELETE, (kind == PUT) | (kind == MERGE))
        else:
            kind = np.where(deletes, np.uint8(DELETE), np.uint8(PUT))
        value = np.where(deletes, 0, value)
        after = second + 4 + value
        good &= after <= last + 4
        return good, kind, key, value, after

    def _starts(self, position: int, end: int) -> Array | None:
        """The first start, then guesses of further ones, far from each other."""
        np = self.np
        sample = []
        at = position
        for _ in range(2 * _FEW_RECORDS):
            lengths = self._lengths(at)
            if lengths is None:
                break
            sample.append(lengths)
            at += self._mark + 8 + lengths[1] + max(lengths[2], 0)
        if len(sample) < _FEW_RECORDS:
            return None
        sizes = [self._mark + 8 + key + max(value, 0) for _, key, value in sample]
        apart = 8 if all(size % 8 == 0 for size in sizes) else 1
        look = min(_LOOK_BYTES, _LOOK_RECORDS * max(sizes))
        count = min(_MOST_LANES, (end - position) // _LANE_BYTES)
        if count < 2:
            return None
        lane = (end - position) // count // 8 * 8
        tries = (position + lane * np.arange(1, count, dtype=np.int64))[:, None] + np.arange(0, look, apart, dtype=np.int64)
        shape, tries = tries.shape, tries.ravel()
        # Zeros look like empty records; the first records of the file show how small one may be.
        least_key, most_key = min(key for _, key, _ in sample), 4 * max(key for _, key, _ in sample)
        most_value = 4 * max(value for _, _, value in sample) + 64
        good, _, key, value, after = self._records(tries)
        good &= (key >= least_key) & (key <= most_key) & (value <= most_value) & (after < end)
        for _ in range(2):  # and the two that follow
            chosen = np.flatnonzero(good)
            again, _, key, value, then = self._records(after[chosen])
            again &= (key >= least_key) & (key <= most_key) & (value <= most_value) & (then < end)
            good[chosen] = again
            after[chosen] = then
        good = good.reshape(shape)
        some = good.any(axis=1)
        starts = tries.reshape(shape)[np.flatnonzero(some), good.argmax(axis=1)[some]]
        return np.append(position, starts)
