"""A user's edit of the rows of a stream-stream join.

    formats 1 to 3   keyWithIndexToValue: (key, 0 to n - 1) -> a row; keyToNumValues: key -> n.  Formats 1
                     and 2 have a store for each, format 3 column families of one store
    format 4         keyWithTsToValues: (key, the row's event time) -> its rows; tsWithKey: the same
                     key, in order of time -> as many empty rows

A row's place under its key means nothing to the user.  So the function gets each row by itself, with
the join's key alone.  All rows of a side are collected on disk in order of their keys, and then
numbered anew: first those that were there, then those that came from another key.  Counts follow
from them.

Source:  SymmetricHashJoinStateManager, Spark 4.3; in every golden checkpoint the counts, places and
         times are those that this makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby

from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.checkpoint.whole.rows import Columns, FamilyCodec, StoreCodec
from millpond.savepoint.change.user_edit import Edit, EditCounts, StateRow, UserTable, is_same
from millpond.savepoint.rewrite.form import unsupported
from millpond.savepoint.rewrite.row_edit import Row, RowEdit
from millpond.savepoint.rewrite.row_values import wrong
from millpond.savepoint.rewrite.spills import Sorter
from millpond.schema.far_time import write_millis
from millpond.schema.types import Field

INDEXED, COUNTS = "-keyWithIndexToValue", "-keyToNumValues"
_TIMED, _BY_TIME = "-keyWithTsToValues", "-tsWithKey"
BESIDE = {INDEXED: COUNTS, _TIMED: _BY_TIME}
_SIZE_BYTES, _LONG_BYTES, _SIGN = 4, 8, 1 << 63
_NOTHING: Columns = (None,)
Group = tuple[Columns, int, Iterator[bytes]]
"""(a join key, the event time of its rows in format 4, its rows)"""


def family_beside_side(family: str) -> str:
    """The family that follows from that of a side's rows."""
    for end, beside in BESIDE.items():
        if family.endswith(end):
            return family.removesuffix(end) + beside
    raise AssertionError(family)


class JoinEdit(RowEdit):
    """A `RowEdit` by the user's function.

    tables:      column family of a side's rows -> the name of its table; rows of others stay as they are
    sorters:     for the rows of each
    scanned_ms:  the watermark up to which Spark has looked for rows to remove
    """

    def __init__(
        self,
        operator: int,
        store: str,
        tables: Mapping[str, str],
        edit: Edit,
        sorters: Mapping[str, Sorter],
        *,
        scanned_ms: int,
    ) -> None:
        self.operator, self.store, self._scanned_ms = operator, store, scanned_ms
        self.counts = {table: EditCounts() for table in tables.values()}
        self.sides = {family: JoinSide(sorters[family]) for family in tables}
        self._tables, self._edit = tables, edit
        self._beside = frozenset(map(family_beside_side, tables))
        self._open: dict[str, _SideRows] = {}

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:
        for row in rows:
            family = codec.family_of(row[0])
            if family in self._tables:
                if family not in self._open:
                    name = self._tables[family]
                    self._open[family] = _SideRows(
                        name, codec.of(family), self.sides[family], self.counts[name], scanned_ms=self._scanned_ms
                    )
                self._open[family].edit(row, self._edit)
            elif family not in self._beside:
                yield row

    def last(self, codec: StoreCodec) -> Iterator[Row]:
        for family, side in self.sides.items():
            of, beside = codec.of(family), family_beside_side(family)
            if of.is_list:
                yield from _rows_by_time(side, of, codec.of(beside))
                continue
            counts = codec.of(beside) if codec.has(beside) else None
            for columns, _, rows in side.groups(of.schema.key[:-1], is_timed=False):
                count = 0
                for row in rows:
                    yield of.write_key((*columns, count)), row
                    count += 1
                if counts is not None:
                    yield _count_row(counts, columns, count)


class JoinCounts(RowEdit):
    """The store with the counts of a side whose rows are edited, in formats 1 and 2."""

    follows = True

    def __init__(self, operator: int, store: str, side: JoinSide) -> None:
        self.operator, self.store, self._side = operator, store, side

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:  # noqa: ARG002
        for _ in rows:  # read, so that a damaged one is noticed
            yield from ()

    def last(self, codec: StoreCodec) -> Iterator[Row]:
        of = codec.of(self.store)
        for columns, _, rows in self._side.groups(of.schema.key, is_timed=False):
            yield _count_row(of, columns, sum(1 for _ in rows))


def _rows_by_time(side: JoinSide, of: FamilyCodec, by_time: FamilyCodec) -> Iterator[Row]:
    """Format 4: the rows of each key and time, and the empty rows by time."""
    for columns, time, rows in side.groups(of.schema.key[:-1], is_timed=True):
        every = list(rows)
        yield of.write_key((*columns, time)), of.join(every)
        yield by_time.write_key((*columns, time)), by_time.write_value([_NOTHING] * len(every))


def _count_row(of: FamilyCodec, columns: Columns, rows: int) -> Row:
    """How many rows a join key has."""
    return of.write_key(columns), of.write_value([(rows,)])


class JoinSide:
    """The edited rows of a side, on disk."""

    def __init__(self, sorter: Sorter) -> None:
        self._sorter = sorter

    def add(self, key: bytes, before: bytes, place: int, row: bytes) -> None:
        """One more row.

        key:     of the join, in format 4 with the time: `join_key`
        before:  the same before the edit
        place:   under that key
        """
        # First the rows that were there, then those of each other key, as they followed each other: a
        # place below 2**32 begins with four zero bytes, the length of a key doesn't.
        came_from = b"" if key == before else before
        self._sorter.add(key + came_from + place.to_bytes(_LONG_BYTES, "big"), row)

    def groups(self, fields: tuple[Field, ...], *, is_timed: bool) -> Iterator[Group]:
        """The rows of each key, in format 4 of each key and time; each group before the next.

        fields:  the key's columns
        """
        decode = decoder(fields)

        def key_of(row: Row) -> bytes:
            return row[0][: _SIZE_BYTES + int.from_bytes(row[0][:_SIZE_BYTES], "big")]

        for found, rows in groupby(self._sorter.iter_rows(), key=key_of):
            end = len(found) - (_LONG_BYTES if is_timed else 0)
            time = int.from_bytes(found[end:], "big") - _SIGN if is_timed else 0
            yield decode(found[_SIZE_BYTES:end]), time, (row for _, row in rows)


def join_key(key: bytes, time: int | None) -> bytes:
    """A join's key with its length, by which rows are sorted."""
    whole = key if time is None else key + (time + _SIGN).to_bytes(_LONG_BYTES, "big")
    return len(whole).to_bytes(_SIZE_BYTES, "big") + whole


class _SideRows(UserTable):
    """Rows of one side, between bytes and `StateRow`."""

    def __init__(self, name: str, codec: FamilyCodec, side: JoinSide, counts: EditCounts, *, scanned_ms: int) -> None:
        super().__init__(name, codec.schema.key[:-1], codec.schema.value, counts)
        self._scanned_ms = scanned_ms
        self._codec, self._side = codec, side
        self._write_key = encoder(codec.schema.key[:-1])
        self._time_of = None if not codec.is_list or not codec.schema.timed else _event_time(codec.schema.timed[0])

    def edit(self, row: Row, edit: Edit) -> None:
        """Edit a row, in format 4 the rows of a key and a time."""
        *columns, last = self._codec.read_key(row[0])
        if self._codec.write_key((*columns, last)) != row[0]:
            raise unsupported(
                f"A key of {self.name} has bytes that Spark doesn't write the same way twice.",
                "Leave this table out: its key has NULL of an interval type.",
            )
        for place, part in enumerate(self._codec.rows_in(row[1])):
            time, at = (last, place) if self._codec.is_list else (None, last)
            self._edit_one(tuple(columns), time, at, part, edit)

    def _edit_one(self, key: Columns, time: int | None, place: int, row: bytes, edit: Edit) -> None:
        value = self._codec.read_row(row)

        def before() -> StateRow:
            return StateRow(self.name, self.key.read(key), self.value.read(value))

        self.counts.rows += 1
        after = self.call("The edit", before, edit, before())
        if after is None:
            self.counts.removed += 1
            self.sample(before, None)
            return
        new_key, new_value = self.key.write(after.key, key), self.value.write(after.value, value)
        new_time = time if time is None or self._time_of is None else self._time(value, new_value, time)
        is_changed = not is_same(new_value, value)
        if is_changed or not is_same(new_key, key):
            self.counts.changed += 1
            self.sample(before, after)
        written = self._codec.write_row(new_value) if is_changed else row
        came_from = join_key(self._write_key(key), time)
        self._side.add(join_key(self._write_key(new_key), new_time), came_from, place, written)

    def _time(self, before: Columns, after: Columns, time: int) -> int:
        """The event time by which Spark removes the row, from the column that has the watermark."""
        assert self._time_of is not None
        was, now = self._time_of(before), self._time_of(after)
        if now == was:
            return time
        if was != time or now is None:
            raise unsupported(
                f"A row of {self.name} gets another event time, and Millpond doesn't know how Spark stores it.",
                "Leave the column with the watermark as it is.",
            )
        if now < time and now <= self._scanned_ms * 1000:
            # Spark removes the rows between the watermarks of two batches, and would never meet this one.
            raise wrong(
                f"A row of {self.name} goes back to the event time {write_millis(now // 1000)}. The watermark is past it, and "
                "Spark would never remove the row",
                f"Return None to remove the row, or give a time after {write_millis(self._scanned_ms)}.",
            )
        return now


def _event_time(place: int) -> Callable[[Columns], int | None]:
    """The value of a column with a watermark: a time, or the end of a window."""

    def event_time(value: Columns) -> int | None:
        found = value[place]
        time: int | None = found[1] if isinstance(found, tuple) else found
        return time

    return event_time
