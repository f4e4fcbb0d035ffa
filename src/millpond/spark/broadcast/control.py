"""Control state: what every shard of a broadcast holds alike, and the records that change it.

All shards get the same records of a batch, in one order, and number the changes from 1 on: so they hold the same state without
asking each other.

    record   JSON of the control stream's columns, without those that are NULL; of one that couldn't be parsed, its text and file
    action   put (also where none is named), remove, or rollback: the key has again what it had as of the version that is named
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

Key = Any
Row = Mapping[str, Any]
"""The columns of a key by name, read-only: their values are immutable too, see SIMPLE."""
ACTION, VERSION = "action", "version"
CORRUPT, FILE = "_corrupt_record", "_file"
"""Members of a record that Spark's reader couldn't parse: its text, and the URI of its file if it came from one."""
PUT, REMOVE, ROLLBACK = "put", "remove", "rollback"
WHOLE = ("byte", "short", "integer", "long")
REALS = ("float", "double")
SIMPLE = frozenset({"string", "boolean", "binary", "decimal", *WHOLE, *REALS})
"""Types of columns that come back from Spark's state as they were, whatever the machine's time zone is."""


class Change(NamedTuple):
    """One change of control state.

    version:  its number, from 1
    row:      what the key has from here on, without the key; None where it was removed
    batch:    the first batch whose events met it
    since_ms: that batch's time, milliseconds since 1970
    replaced: the version whose row it took the place of, None where there was none
    """

    version: int
    action: str
    key: Key
    row: Row | None
    batch: int
    since_ms: int
    replaced: int | None


class Refused(NamedTuple):
    """A record that changed nothing.

    number: of refused records, from 1
    key:    None where it had none that could be read
    record: as it came
    """

    number: int
    key: Key
    reason: str
    record: str
    batch: int
    since_ms: int


class ControlState(Protocol):
    """Where control state lies, see `broadcast_shard`."""

    def made_by(self, version: int) -> tuple[Key, Row | None] | None:
        """The key of a change and what it has since, None where it was removed; None where the change is forgotten."""

    def add(self, change: Change) -> None:
        """Write a change."""

    def refuse(self, refused: Refused) -> None:
        """Write a refused record."""


@dataclass(frozen=True, slots=True)
class Control(Mapping[Key, Row]):
    """The control state that a batch's events meet: by key a mapping of the other columns.

    A worker keeps one for all batches of a version, so nothing in it can be changed: a change raises TypeError or AttributeError.

    version:  the newest change in it; 0 if there was none yet
    refused:  the number of records that were refused so far
    """

    version: int = 0
    refused: int = 0
    _rows: Mapping[Key, tuple[int, Row]] = field(default_factory=lambda: MappingProxyType({}))

    def __getitem__(self, key: Key) -> Row:
        return self._rows[key][1]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def version_of(self, key: Key) -> int | None:
        """The version that gave a key its row, None if it has none."""
        found = self._rows.get(key)
        return None if found is None else found[0]


@dataclass(slots=True)
class Draft:
    """Control state while it is read or changed; `freeze` makes what a function may see."""

    version: int = 0
    refused: int = 0
    rows: dict[Key, tuple[int, Row]] = field(default_factory=dict)

    @classmethod
    def of(cls, control: Control) -> Draft:
        """A copy to change."""
        return cls(control.version, control.refused, dict(control._rows))

    def put(self, key: Key, row: Mapping[str, Any] | None) -> int | None:
        """Count one more version, which gives a key this row, or takes its row away.  The version of the row before."""
        self.version += 1
        before = self.rows.get(key)
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = (self.version, MappingProxyType(dict(row)))
        return None if before is None else before[0]

    def freeze(self) -> Control:
        """The state as it is now.  The draft isn't used any more."""
        return Control(self.version, self.refused, MappingProxyType(self.rows))


class Records:
    """Reads control records."""

    def __init__(self, key: str, columns: Sequence[StructField], reason: str | None = None) -> None:
        """Of a stream with these columns.

        key:      the name of one of them
        reason:   of another, which says why a record is refused already; NULL where it isn't
        """
        self.key, self._reason = key, reason
        self.values = values_of(key, columns, reason)
        self._readers = {c.name: _reader(c.dataType) for c in columns}

    def apply(
        self, texts: list[str], control: Control, state: ControlState, batch: int, since_ms: int
    ) -> tuple[Control, list[Change]]:
        """The control state after these records, which are in order, and every change of it, which is written."""
        changes: list[Change] = []
        after = Draft.of(control)
        for text in texts:
            key = None
            try:
                record = self._read(text)
                key = record.get(self.key)
                action, row = self._wanted(record, after, state)
            except _Wrong as wrong:
                after.refused += 1
                state.refuse(Refused(after.refused, key, str(wrong), wrong.record or text, batch, since_ms))
                continue
            replaced = after.put(key, row)
            changes.append(Change(after.version, action, key, row, batch, since_ms, replaced))
            state.add(changes[-1])
        return after.freeze(), changes

    def _read(self, text: str) -> Row:
        try:
            found = json.loads(text, parse_float=Decimal)
            if CORRUPT in found:
                place = f" (in {found[FILE]})" if FILE in found else ""
                raise _Wrong(f"the record isn't JSON of the stream's columns{place}", found[CORRUPT])
            return {name: self._readers[name](value) for name, value in found.items() if value is not None}
        except (ValueError, KeyError, TypeError, ArithmeticError) as broken:
            raise _Wrong(f"the record isn't readable: {broken!r}") from None

    def _wanted(self, record: Row, draft: Draft, state: ControlState) -> tuple[str, Row | None]:
        """The action of a record, and the row that its key is to have."""
        key, action = record.get(self.key), record.get(ACTION, PUT)
        if self._reason is not None and record.get(self._reason) is not None:
            raise _Wrong(record[self._reason])
        if key is None:
            raise _Wrong(f"{self.key} is NULL")
        if action == PUT:
            return action, {f.name: record.get(f.name) for f in self.values}
        if action == REMOVE:
            if key not in draft.rows:
                raise _Wrong(f"there is no {self.key} {key!r} to remove")
            return action, None
        if action == ROLLBACK:
            return action, self._earlier(key, record.get(VERSION), draft.version, state)
        raise _Wrong(f"the action {action!r} isn't one of {PUT}, {REMOVE}, {ROLLBACK}")

    def _earlier(self, key: Key, version: int | None, newest: int, state: ControlState) -> Row | None:
        """What a key had as of a version: what its newest change up to there has made of it."""
        if version is None or not 0 <= version <= newest:
            raise _Wrong(f"a rollback names one of the versions up to {newest}, not {version}")
        for number in range(version, 0, -1):
            change = state.made_by(number)
            if change is None:
                raise _Wrong(f"version {number} is forgotten, so that what {key!r} had then isn't known")
            if change[0] == key:
                return change[1]
        raise _Wrong(f"{self.key} {key!r} had nothing as of version {version}")


class _Wrong(Exception):
    """Why a record is refused.

    record:  its text, where that isn't the JSON of its columns
    """

    def __init__(self, reason: str, record: str | None = None) -> None:
        super().__init__(reason)
        self.record = record


def columns_of(schema: StructType, key: str, order: str) -> list[StructField]:
    """The columns that a control record has, of all that its stream has."""
    apart = {CORRUPT, FILE} if has_corrupt(schema) else set()
    return [f for f in schema.fields if f.name == key or f.name not in (order, *apart)]


def has_corrupt(schema: StructType) -> bool:
    """Whether a stream tells the text of records that its reader couldn't parse."""
    return CORRUPT in schema.names and schema[CORRUPT].dataType.typeName() == "string"


def values_of(key: str, columns: Sequence[StructField], reason: str | None) -> list[StructField]:
    """The columns that a key has, of all that records have."""
    return [c for c in columns if c.name not in (key, ACTION, VERSION, reason)]


def is_simple(type_: DataType) -> bool:
    """Whether control state may have columns of a type."""
    return type_.typeName() in SIMPLE


def _reader(type_: DataType) -> Callable[[Any], Any]:
    """A function from what `to_json` writes of a type to the value."""
    name = type_.typeName()
    if name in WHOLE:
        return int
    if name == "double":
        return float
    if name == "float":
        return _single
    if name == "binary":
        return base64.b64decode
    return Decimal if name == "decimal" else lambda value: value


def _single(value: Any) -> float:
    """A number as 32 bits hold it: what the batch of its record meets is what the state gives to later ones."""
    number = float(value)
    return float(struct.unpack("f", struct.pack("f", number))[0])
