"""Control state, of which every shard of a broadcast has a copy, and the records that change it.

All shards get the same records of a batch, in the same order, and number the changes from 1 on.  So
they have the same state without asking each other.

    record   JSON of the control stream's columns without NULLs; if it couldn't be parsed, its text and file
    action   put (the default), remove, or rollback: restores the key's row as of the named version
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
"""Members of a record that Spark's reader couldn't parse: its text, and the URI of its file, if any."""
PUT, REMOVE, ROLLBACK = "put", "remove", "rollback"
WHOLE = ("byte", "short", "integer", "long")
REALS = ("float", "double")
SIMPLE = frozenset({"string", "boolean", "binary", "decimal", *WHOLE, *REALS})
"""Types that Spark's state returns unchanged, with any time zone of the machine."""


class Change(NamedTuple):
    """One change of control state.

    version:  its number, from 1
    row:      the key's row from here on, without the key; None if it was removed
    batch:    the first batch whose events meet it
    since_ms: that batch's time, milliseconds since 1970
    replaced: the version whose row it replaces; None if there was none
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

    number: counts refused records, from 1
    key:    None if none could be read
    record: its text
    """

    number: int
    key: Key
    reason: str
    record: str
    batch: int
    since_ms: int


class ControlState(Protocol):
    """The storage of control state, see `shard`."""

    def made_by(self, version: int) -> tuple[Key, Row | None] | None:
        """The key of a change and its new row, None if it was removed; None if the change is forgotten."""

    def add(self, change: Change) -> None:
        """Write a change."""

    def refuse(self, refused: Refused) -> None:
        """Write a refused record."""


@dataclass(frozen=True, slots=True)
class Control(Mapping[Key, Row]):
    """The control state for a batch's events: by key a mapping of the other columns.

    A worker uses one for all batches of a version, so it can't be changed: that raises TypeError or
    AttributeError.

    version:  its newest change; 0 if there was none yet
    refused:  how many records were refused so far
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
        """The version that gave a key its row; None if it has no row."""
        found = self._rows.get(key)
        return None if found is None else found[0]


@dataclass(slots=True)
class Draft:
    """Control state while it is read or changed; `freeze` makes a state for the function."""

    version: int = 0
    refused: int = 0
    rows: dict[Key, tuple[int, Row]] = field(default_factory=dict)

    @classmethod
    def of(cls, control: Control) -> Draft:
        """A copy to change."""
        return cls(control.version, control.refused, dict(control._rows))

    def put(self, key: Key, row: Mapping[str, Any] | None) -> int | None:
        """Count one more version, which sets or removes a key's row.  Returns the version of the old row."""
        self.version += 1
        before = self.rows.get(key)
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = (self.version, MappingProxyType(dict(row)))
        return None if before is None else before[0]

    def freeze(self) -> Control:
        """The state as it is now.  Don't use the draft after that."""
        return Control(self.version, self.refused, MappingProxyType(self.rows))


class Records:
    """Reads control records."""

    def __init__(self, key: str, columns: Sequence[StructField], reason: str | None = None) -> None:
        """The columns are those of the control stream.

        key:      the name of one of them
        reason:   the name of another, which says why a record is already refused; NULL if it isn't
        """
        self.key, self._reason = key, reason
        self.values = values_of(key, columns, reason)
        self._readers = {c.name: _reader(c.dataType) for c in columns}

    def apply(
        self, texts: list[str], control: Control, state: ControlState, batch: int, since_ms: int
    ) -> tuple[Control, list[Change]]:
        """Apply records in order: the new control state, and all changes, which are written."""
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
            raise _Wrong(f"the record can't be read: {broken!r}") from None

    def _wanted(self, record: Row, draft: Draft, state: ControlState) -> tuple[str, Row | None]:
        """The action of a record, and its key's new row."""
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
        """A key's row as of a version: its newest change up to there tells it."""
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

    record:  its text, if that isn't the JSON of its columns
    """

    def __init__(self, reason: str, record: str | None = None) -> None:
        super().__init__(reason)
        self.record = record


def columns_of(schema: StructType, key: str, order: str) -> list[StructField]:
    """The columns of a control record, among those of its stream."""
    apart = {CORRUPT, FILE} if has_corrupt(schema) else set()
    return [f for f in schema.fields if f.name == key or f.name not in (order, *apart)]


def has_corrupt(schema: StructType) -> bool:
    """Whether a stream has the text of records that its reader couldn't parse."""
    return CORRUPT in schema.names and schema[CORRUPT].dataType.typeName() == "string"


def values_of(key: str, columns: Sequence[StructField], reason: str | None) -> list[StructField]:
    """The columns of a key's row, among those of records."""
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
    """A number rounded to 32 bits, so that its own batch sees the value that the state gives later ones."""
    number = float(value)
    return float(struct.unpack("f", struct.pack("f", number))[0])
