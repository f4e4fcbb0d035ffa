"""Compares the rows of one table on both sides, in key order.

1. Rows of both sides come in chunks.  Up to the smaller of the last ids of two chunks, both sides
   have all of their rows: compare these, and go on.
2. Rows with equal bytes are the same, if both sides compute the same columns of them.  So only
   rows that differ are decoded.
3. Of the others, each column is computed as a reader sees it, and compared by value
   (`same_value`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import ne
from typing import Any, Literal

from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.schema.types import shape_of
from millpond.tables.diff.same_value import Same, compile_same
from millpond.tables.diff.sorted_rows import Chunk, SortedRows
from millpond.tables.failed import FailingValues
from millpond.tables.finish.definition import compile_definition, compile_stored
from millpond.tables.kept.shorter import Hidden
from millpond.tables.scan.ttl import has_passed

Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDiff:
    """One row that differs.

    kind:     added (only on the right), removed (only on the left) or changed
    key:      the key's columns
    old, new: the other columns on the left and on the right; None if that side has no such row.  A
              value that can't be computed raises its error when it is read
    columns:  which columns of a changed row differ
    """

    kind: Kind
    key: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any] | None
    columns: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Counts:
    """How many rows of a table were compared.

    added:    are only on the right
    removed:  are only on the left
    changed:  are on both sides, and differ in a compared column
    same:     are on both sides, and don't
    """

    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0

    @property
    def differ(self) -> int:
        """All rows that differ."""
        return self.added + self.removed + self.changed


@dataclass(frozen=True, slots=True, kw_only=True)
class RetypedColumn:
    """A column whose type differs.

    name:         of the column
    left, right:  its types
    compared:     whether its values can be compared all the same, such as two kinds of numbers
    """

    name: str
    left: str
    right: str
    compared: bool


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of both sides of a table, besides the key.

    compared:    in the left side's order, with the function that compares two values
    only_left, only_right:  that one side lacks
    """

    compared: tuple[tuple[str, Same], ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    retyped: tuple[RetypedColumn, ...]


def match_columns(left: TableDefinition, right: TableDefinition, ignore: Sequence[str]) -> Columns:
    """The columns to compare, by name."""
    here = {c.name: c.type for c in left.values if c.name not in ignore}
    there = {c.name: c.type for c in right.values if c.name not in ignore}
    compared: list[tuple[str, Same]] = []
    retyped: list[RetypedColumn] = []
    for name, type_ in here.items():
        if name not in there:
            continue
        same = compile_same(type_, there[name])
        if same is not None:
            compared.append((name, same))
        if str(type_) != str(there[name]):
            retyped.append(RetypedColumn(name=name, left=str(type_), right=str(there[name]), compared=same is not None))
    only_left, only_right = (tuple(n for n in some if n not in other) for some, other in ((here, there), (there, here)))
    return Columns(tuple(compared), only_left, only_right, tuple(retyped))


def has_same_key(left: TableDefinition, right: TableDefinition) -> bool:
    """Whether both tables have the same key columns, so that one row of each can be one row."""
    keys = [(d.many, [(c.name, c.index, c.path) for c in d.key], [shape_of(f.type) for f in d.key_fields]) for d in (left, right)]
    return keys[0] == keys[1]


class SideRows:
    """The rows of one side, and what a reader sees of them."""

    def __init__(
        self, definition: TableDefinition, schema: StoreSchema, rows: SortedRows, judged_ms: int, hidden: Hidden | None
    ) -> None:
        self.definition, self.rows = definition, rows
        self.may_hide = definition.having is not None or schema.ttl or hidden is not None
        self._hides = None if hidden is None else hidden.hides
        self._ttl, self._judged_ms = schema.ttl, judged_ms
        self._finish = compile_definition(definition)

    def reader(self, names: Sequence[str]) -> Callable[[bytes, bytes], tuple[Any, ...] | None]:
        """The function from a row to some of its columns in stored form; None if no reader sees the row."""
        evaluate = compile_stored(self.definition, names)
        computed = [c.expression for c in self.definition.values if c.name in names]
        computed += [] if self.definition.having is None else [self.definition.having]
        hides = self._hides
        needs_key = hides is not None or any(node.op == "key" for expression in computed for node in expression.walk())

        def read(id_: bytes, stored: bytes) -> tuple[Any, ...] | None:
            key, row = self.rows.decode(id_, stored) if needs_key else ((), self.rows.decode_value(id_, stored))
            is_over = (self._ttl and has_passed(row, self._judged_ms)) or (hides is not None and hides(key))
            return None if is_over else evaluate(key, row)

        return read

    def show(self, id_: bytes, stored: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        """(key, other columns) of a row that readers see, in Python's form."""
        finished = self._finish(*self.rows.decode(id_, stored))
        assert finished is not None
        # Bypass the row's own reads: reading a failed value would raise its error.
        items = list(dict.items(finished))
        kind = FailingValues if isinstance(finished, FailingValues) else dict
        count = len(self.definition.key)
        return kind(items[:count]), kind(items[count:])


class Comparison:
    """One table of both sides, once."""

    def __init__(self, left: SideRows, right: SideRows, columns: Columns) -> None:
        self.counts = Counts()
        self._left, self._right = left, right
        self._names = tuple(name for name, _ in columns.compared)
        self._same = tuple(same for _, same in columns.compared)
        self._read_left, self._read_right = left.reader(self._names), right.reader(self._names)
        self._is_one = _computes_the_same(left.definition, right.definition)  # 2
        self._skips = self._is_one and not (left.may_hide or right.may_hide)

    def differences(self) -> Iterator[RowDiff]:
        """The rows that differ, in key order; `counts` counts meanwhile.

        Raises:  as `SortedRows.iter_chunks`; DEFINITION_MISMATCH.
        """
        pairs: Iterator[tuple[bytes, bytes | None, bytes | None]]
        for (ids, rows), (other_ids, other_rows) in aligned(self._left.rows.iter_chunks(), self._right.rows.iter_chunks()):
            if self._skips and ids == other_ids:
                unequal = [*compress(count(), map(ne, rows, other_rows))]
                self.counts.same += len(ids) - len(unequal)
                pairs = ((ids[n], rows[n], other_rows[n]) for n in unequal)
            else:
                here, there = dict(zip(ids, rows, strict=True)), dict(zip(other_ids, other_rows, strict=True))
                pairs = ((id_, here.get(id_), there.get(id_)) for id_ in self._wanted(here, there))
            yield from (found for pair in pairs if (found := self._compare(*pair)) is not None)

    def _wanted(self, here: dict[bytes, bytes], there: dict[bytes, bytes]) -> list[bytes]:
        """The ids whose rows must be compared, in order."""
        if not self._skips:
            return sorted(here.keys() | there.keys())
        unequal = {id_ for id_, row in here.items() if there.get(id_) != row}
        self.counts.same += len(here) - len(unequal)
        return sorted(unequal | (there.keys() - here.keys()))

    def _compare(self, id_: bytes, old: bytes | None, new: bytes | None) -> RowDiff | None:  # 3
        before = None if old is None else self._read_left(id_, old)
        after = None if new is None else self._read_right(id_, new)
        if before is None or old is None:
            if after is None or new is None:
                return None
            self.counts.added += 1
            key, values = self._right.show(id_, new)
            return RowDiff(kind="added", key=key, old=None, new=values)
        if after is None or new is None:
            self.counts.removed += 1
            key, values = self._left.show(id_, old)
            return RowDiff(kind="removed", key=key, old=values, new=None)
        changed: tuple[str, ...] = ()
        if not (self._is_one and old == new):
            compared = zip(self._names, self._same, before, after, strict=True)
            changed = tuple([name for name, same, a, b in compared if not same(a, b)])
        if not changed:
            self.counts.same += 1
            return None
        self.counts.changed += 1
        key, values = self._left.show(id_, old)
        return RowDiff(kind="changed", key=key, old=values, new=self._right.show(id_, new)[1], columns=changed)


def _computes_the_same(left: TableDefinition, right: TableDefinition) -> bool:
    """Whether equal bytes of a row mean equal columns."""
    meanings = [
        (
            d.key,
            [(c.name, c.type, c.expression) for c in d.values],
            d.having,
            [shape_of(f.type) for f in (*d.key_fields, *d.value_schema)],
        )
        for d in (left, right)
    ]
    return meanings[0] == meanings[1]


def aligned(left: Iterator[Chunk], right: Iterator[Chunk]) -> Iterator[tuple[Chunk, Chunk]]:  # 1
    """All rows of both sides from one id to another, and then from there to the next."""
    sides = _Ahead(left), _Ahead(right)
    while True:
        ends = [side.ids[-1] for side in sides if side.fill()]
        if not ends:
            return
        yield sides[0].take(min(ends)), sides[1].take(min(ends))


class _Ahead:
    """The chunk of one side that isn't compared to its end yet."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self.ids: list[bytes] = []
        self._rows: list[bytes] = []
        self._at = 0

    def fill(self) -> bool:
        """Read the next chunk if this one is at its end; whether there are rows."""
        while self._at == len(self.ids):
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self.ids, self._rows = chunk
            self._at = 0
        return True

    def take(self, last: bytes) -> Chunk:
        """The rows up to an id."""
        first, self._at = self._at, bisect_right(self.ids, last, self._at)
        return self.ids[first : self._at], self._rows[first : self._at]
