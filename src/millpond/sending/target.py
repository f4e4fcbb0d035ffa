"""Where changes go: one small interface, which every kind of target implements in a file of its own.

    open      what the target has: the position of the last commit, None if it has nothing
    begin     a transaction, of whole batches
    add       changes, as often as it takes
    commit    the changes and the new position, both or neither

After any error the sender closes the target and opens it anew, so that a commit whose outcome is
unknown does no harm: what `open` returns says whether it happened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from millpond.errors import ReplicaError, RequestError, StorageError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.prepared import ready
from millpond.schema.values import encode_json, to_json
from millpond.tables.history.changes import RowChange
from millpond.wire.rows import WriteRow, row_writer, typed_columns

FORMAT = 1


class SentPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a target is; it is stored there, in the same transaction as the changes.

    table:         whose changes these are
    token:         of `Table.changes`: where to read on
    sent_through:  changes after the token up to this batch are sent, too; None: none of them
    batch:         all changes up to this batch are at the target
    run:           how often the whole table was sent: names of files have it, since a new run of a
                   job counts its batches from 0 again
    """

    table: str
    token: str
    sent_through: int | None
    batch: int
    run: int
    format: int = FORMAT

    def encode(self) -> bytes:
        """The position as JSON."""
        return msgspec.json.encode(self)


def decode_position(data: bytes | str, shape: Shape, uri: str) -> SentPosition:
    """The position that a target has.

    Raises:  TARGET_MISMATCH if it is damaged, or of another table.
    """
    try:
        found = msgspec.json.decode(data, type=ready(SentPosition))
    except (msgspec.DecodeError, UnicodeDecodeError) as damage:
        raise mismatch(uri, f"its position can't be read: {damage}") from None
    if found.format != FORMAT or found.table != shape.table:
        raise mismatch(uri, f"its position is of table {found.table!r:.140}, format {found.format}")
    return found


@dataclass(frozen=True)
class Shape:
    """What a target must know of a table.

    name:          the sender's; a target keeps one position for each
    keep_expired:  whether the target keeps the last values of expired rows
    """

    definition: TableDefinition
    name: str
    keep_expired: bool = False

    @property
    def table(self) -> str:
        """The table's name."""
        return self.definition.table

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(column.name for column in self.definition.key)

    @cached_property
    def _row(self) -> WriteRow:
        return row_writer(self.definition)

    @cached_property
    def _key(self) -> list[tuple[str, Callable[[Any], Any]]]:
        key = set(self.key)
        return [(name, to_json(type_)) for name, type_ in typed_columns(self.definition) if name in key]

    def key_json(self, row: Mapping[str, Any]) -> bytes:
        """The key's columns as a JSON object."""
        return encode_json({name: write(row[name]) for name, write in self._key})

    def row_json(self, row: Mapping[str, Any]) -> bytes:
        """All columns as a JSON object."""
        return encode_json(self._row(row))

    def change_json(self, change: RowChange, part: Part) -> bytes:
        """A change as a JSON object, with the members that `changes` has over HTTP, and `run` and `whole`."""
        old, new, final = (None if row is None else self._row(row) for row in (change.old, change.new, change.final))
        said = {"kind": change.kind, "batch": change.batch, "first_batch": change.first_batch, "repaired": change.repaired}
        return encode_json({**said, "old": old, "new": new, "final": final, "run": part.run, "whole": part.whole})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one transaction is about to get.

    batch:     of a whole read the batch that is read; else the first batch of the changes
    run:       as in `SentPosition`
    whole:     whether these are all rows of the table, as inserts
    """

    batch: int
    run: int
    whole: bool = False


class Target(ABC):
    """One place that a table's changes go to.

    one_batch:  whether each transaction has the changes of one batch only
    """

    one_batch = False

    def __init__(self, uri: str, shape: Shape) -> None:
        self.uri = uri
        self.shape = shape

    @abstractmethod
    def open(self, *, resync: bool) -> SentPosition | None:
        """Connect, and make what is missing there; returns the last commit's position.

        resync:  whether rows that are there without a position may be replaced
        Raises:  TARGET_UNAVAILABLE, TARGET_MISMATCH, TARGET_TAKEN, TARGET_REFUSED.
        """

    @abstractmethod
    def begin(self, part: Part) -> None:
        """Begin a transaction.  Of a whole read it replaces what the target has."""

    @abstractmethod
    def add(self, changes: list[RowChange]) -> None:
        """Write changes, in order; nobody sees them before the commit."""

    @abstractmethod
    def commit(self, position: SentPosition) -> None:
        """Make the changes and the position visible, in one step."""

    @abstractmethod
    def close(self) -> None:
        """Drop an open transaction, and disconnect; never raises."""

    def _refused(self, why: BaseException) -> StorageError:
        return StorageError(
            "TARGET_REFUSED",
            f"{self.uri} refuses the changes of {self.shape.table}: {_line(why)}.",
            hint="Look at the target's own message; the sender tries again.",
            uri=self.uri,
        )

    def _unavailable(self, why: BaseException | str) -> StorageError:
        return StorageError(
            "TARGET_UNAVAILABLE",
            f"{self.uri} can't be reached: {_line(why)}.",
            hint="Look whether the target runs; the sender tries again and goes on where it stood.",
            uri=self.uri,
        )

    def _taken(self) -> ReplicaError:
        return ReplicaError(
            "TARGET_TAKEN",
            f"Another sender {self.shape.name!r} writes to {self.uri}.",
            hint="Let one sender run for each name and target, or give this one another --name.",
            uri=self.uri,
        )


def mismatch(uri: str, what: str) -> RequestError:
    """TARGET_MISMATCH: what the target has doesn't fit."""
    return RequestError(
        "TARGET_MISMATCH",
        f"{uri} doesn't fit: {what}.",
        hint="Choose another target or --name; --resync replaces rows that no sender wrote.",
        uri=uri,
    )


def _line(why: BaseException | str) -> str:
    text = str(why).strip() or repr(why)
    return text.splitlines()[0].rstrip(".")[:300]
