"""State variables for a changed transformWithState: other columns, other names, with and without a TTL.

A column of the same name goes on, also as a wider number; a new one begins as NULL, unless a
function gives the value.  Elements that get a TTL expire a given time after the savepoint's batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond.checkpoint.rocksdb.snapshot import SnapshotMetadata
from millpond.checkpoint.whole.rows import Columns, FamilyCodec, StoreCodec
from millpond.checkpoint.whole.store import WholeStore
from millpond.savepoint.rewrite.form import unsupported
from millpond.savepoint.rewrite.row_edit import Row, RowEdit
from millpond.savepoint.rewrite.row_values import NamedColumns, call_user
from millpond.savepoint.rewrite.twins import BY_KEY, family_beside, rows_beside
from millpond.schema.types import Field, shape_of

ValueOf = Callable[[str, dict[str, Any]], dict[str, Any]]
"""gets a variable's name and an element of it by column, and returns the same with the new columns"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableChange:
    """What becomes of one variable.

    old, new:    its names
    before:      the user's columns, without the time of expiry
    after:       the columns that it gets
    had_ttl:     whether its elements have a time of expiry
    has_ttl:     whether they get one
    expires_ms:  the time at which elements without one expire
    """

    old: str
    new: str
    before: tuple[Field, ...]
    after: tuple[Field, ...]
    had_ttl: bool
    has_ttl: bool
    expires_ms: int | None

    @property
    def has_other_columns(self) -> bool:
        """Whether the user's columns have other names or types."""
        before, after = ([(f.name, shape_of(f.type)) for f in fields] for fields in (self.before, self.after))
        return before != after

    @property
    def places(self) -> tuple[int | None, ...]:
        """For each new column, which old one it continues."""
        there = {field.name: place for place, field in enumerate(self.before)}
        return tuple(there.get(field.name) for field in self.after)


class NewVariables(RowEdit):
    """A `RowEdit` for one store of transformWithState.

    changes:   of each variable that goes on, by its old name
    dropped:   variables that the new query doesn't have; timers only if there are none
    becomes:   the store of the new query
    value_of:  the user's function; None: columns go by their names
    """

    def __init__(
        self,
        becomes: WholeStore,
        changes: Mapping[str, VariableChange],
        dropped: Iterable[str],
        value_of: ValueOf | None,
    ) -> None:
        self.operator, self.store = becomes.operator.operator, becomes.name
        self._becomes, self._changes, self._dropped = becomes, changes, frozenset(dropped)
        self._value_of = value_of
        self._numbers: SnapshotMetadata | None = None

    def store_after(self, store: WholeStore) -> WholeStore:
        return replace(self._becomes, files=store.files)

    def numbers_after(self, numbers: SnapshotMetadata) -> SnapshotMetadata:
        """Families that stay keep their number; new ones get the next."""
        before, largest = numbers.column_families, numbers.largest_family
        renamed = {change.new: change.old for change in self._changes.values()}
        after = {}
        for name in self._becomes.families:
            number = before.get(renamed.get(name, name))
            if number is None:
                largest += 1
                number = largest
            after[name] = number
        internal = frozenset(name for name in after if name.startswith("$"))
        self._numbers = replace(numbers, column_families=after, internal=internal, largest_family=largest)
        return self._numbers

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:
        assert self._numbers is not None
        into = codec.over(self._becomes, self._numbers.column_families)
        movers: dict[str, _Mover] = {}
        for key, value in rows:
            family = codec.family_of(key)
            variable = family_beside(family)
            if variable in self._dropped:
                if variable.endswith(BY_KEY):
                    hint = "Start it with the time mode that it had, or as a new job."
                    raise unsupported("The state has timers of a time mode that the new query doesn't have.", hint)
                continue
            change = self._changes.get(variable)
            if change is None:
                if family in self._becomes.families:
                    yield key, value  # else the job dropped this variable before, and Spark left its rows
            elif family == variable:
                if family not in movers:
                    movers[family] = _Mover(change, codec.of(family), into, self._value_of)
                yield from movers[family].rows(key, value)


class _Mover:
    """The rows of one variable."""

    def __init__(self, change: VariableChange, codec: FamilyCodec, into: StoreCodec, value_of: ValueOf | None) -> None:
        self._change, self._from, self._into, self._to = change, codec, into, into.of(change.new)
        self._value_of = value_of if change.has_other_columns else None
        self._read = NamedColumns(change.before, change.old)
        self._write = NamedColumns(change.after, change.new)

    def rows(self, key: bytes, value: bytes) -> Iterator[Row]:
        columns = self._from.read_key(key)
        elements = [self._element(element) for element in self._from.read_value(value)]
        yield self._to.write_key(columns), self._to.write_value(elements)
        yield from rows_beside(self._into, self._change.new, columns, elements)

    def _element(self, element: Columns) -> Columns:
        change = self._change
        user, expires = element if change.had_ttl else (element, change.expires_ms)
        user = self._columns(user)
        return (user, expires) if change.has_ttl else user

    def _columns(self, user: Columns) -> Columns:
        if self._value_of is None:
            return tuple(None if place is None else user[place] for place in self._change.places)
        before = self._read.read(user)
        what = f"value_of, of {before!r:.200} of {self._change.new},"
        found = call_user(lambda: what, self._value_of, self._change.new, dict(before))
        return self._write.write(found, None)
