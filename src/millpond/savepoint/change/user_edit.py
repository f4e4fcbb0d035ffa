"""What a user's functions get and give when they edit a savepoint, and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.checkpoint.whole.rows import Columns
from millpond.savepoint.rewrite.row_values import NamedColumns, call_user, wrong
from millpond.schema.types import Field

_SAMPLES = 5
Json = Any


@dataclass(slots=True)
class StateRow:
    """One row of a job's state, for a function that edits it.

    table:  the name of its table
    key:    column -> value, in the form in which reads give values
    value:  the same; of a list of transformWithState, a list of such dicts
    """

    table: str
    key: dict[str, Any]
    value: Any


Edit = Callable[[StateRow], "StateRow | None"]
Merge = Callable[[StateRow, StateRow], StateRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class EditSample:
    """A row that an edit changes.

    table:   of the row
    before:  its key and value as JSON, {"key": {column: value}, "value": …}
    after:   the same after the edit; None if the row is removed
    """

    table: str
    before: dict[str, Json]
    after: dict[str, Json] | None


@dataclass(slots=True, kw_only=True)
class EditCounts:
    """What an edit does to the rows of a table.

    rows:     before
    changed:  get another value or key
    removed:  are removed
    merged:   vanish because another row has the same key now
    samples:  the first rows that change
    """

    rows: int = 0
    changed: int = 0
    removed: int = 0
    merged: int = 0
    samples: list[EditSample] = field(default_factory=list)


class UserTable:
    """A table whose rows a user's functions edit.

    key, value:  the columns of the dicts that the functions get
    """

    def __init__(self, name: str, key: Sequence[Field], value: Sequence[Field], counts: EditCounts) -> None:
        self.name, self.counts = name, counts
        self.key, self.value = NamedColumns(key, name), NamedColumns(value, name)

    def call(self, what: str, row: Callable[[], StateRow], function: Callable[..., Any], *rows: StateRow) -> StateRow | None:
        """Call a function.

        row:     gives the row again, for messages: the function may have changed what it got
        Raises:  INVALID_REQUEST if it raises, or gives something else than a row of the table or None.
        """
        found = call_user(lambda: f"{what} of {self.name}, key {row().key!r:.200},", function, *rows)
        if found is not None and not isinstance(found, StateRow):
            raise wrong(f"{what} of {self.name} gives {type(found).__name__}", "Return the row, a StateRow, or None.")
        if found is not None and found.table != self.name:
            raise wrong(f"A row of {self.name} becomes one of {found.table!r:.80}", "Leave its table as it is.")
        return found

    def sample(self, before: Callable[[], StateRow], after: StateRow | None) -> None:
        """Keep a row that changes, if there are only a few yet."""
        if len(self.counts.samples) < _SAMPLES:
            after_json = None if after is None else self._to_json(after)
            self.counts.samples.append(EditSample(table=self.name, before=self._to_json(before()), after=after_json))

    def _to_json(self, row: StateRow) -> dict[str, Json]:
        values = [self.value.to_json(v) for v in row.value] if isinstance(row.value, list) else self.value.to_json(row.value)
        return {"key": self.key.to_json(row.key), "value": values}


def is_same(columns: Columns, before: Columns) -> bool:
    """Whether `NamedColumns.write` found no change."""
    return all(column is was for column, was in zip(columns, before, strict=True))
