"""Other value columns for the rows of a store: which of them go on, and with what the others begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.schema.types import Field

Stored = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueChange:
    """The columns that a store's rows are to have.

    operator:  Spark's operator id
    store:     Spark's store name
    before:    the columns that they have
    after:     the columns that they get
    places:    for each of these, which column it continues; None for one that is new
    start:     for each of these, the value with which it begins, in stored form; of those that
               continue a column, nothing is read
    """

    operator: int
    store: str
    before: tuple[Field, ...]
    after: tuple[Field, ...]
    places: tuple[int | None, ...]
    start: tuple[Stored, ...]

    def apply(self, row: tuple[Stored, ...]) -> tuple[Stored, ...]:
        """A row's value with the new columns."""
        return tuple(start if place is None else row[place] for place, start in zip(self.places, self.start, strict=True))
