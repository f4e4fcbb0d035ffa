"""Columns of whole tables that one statement has read, for the next ones at the same batch.

To decode a column of the replica's rows takes far longer than to compute with it.  Columns are kept
in the pieces in which they were read, by the batch that they are of; those that nobody has used for
longest go first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from millpond.schema.definition.table import TableDefinition

Pieces = list[Any]
"""arrays of one column, in order"""


@dataclass(frozen=True, slots=True)
class Place:
    """Which rows: those of a table at a batch.

    generation:   of the replica
    batch, table: of the job; the table's name in the replica
    closed:       whether expired rows are among them
    meaning:      the table's definition
    """

    generation: str
    batch: int
    table: str
    closed: bool
    meaning: TableDefinition = field(hash=False)


class ColumnCache:
    """Columns by place and name, up to so many bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Place, str], tuple[Pieces, int]] = OrderedDict()
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Of all columns that are kept."""
        return self._size_bytes

    def find(self, place: Place, name: str) -> Pieces | None:
        """A column; None if it isn't kept."""
        with self._lock:
            found = self._known.get((place, name))
            if found is None:
                return None
            self._known.move_to_end((place, name))
            return found[0]

    def keep(self, place: Place, columns: dict[str, Pieces], most_bytes: int) -> None:
        """Keep columns; those of the table's other batches go, and then the oldest beyond `most_bytes`."""
        with self._lock:
            for known, name in list(self._known):
                if (known.generation, known.table) == (place.generation, place.table) and known != place:
                    self._drop((known, name))
            for name, pieces in columns.items():
                self._drop((place, name))
                size = sum(piece.nbytes for piece in pieces)
                self._known[place, name] = pieces, size
                self._size_bytes += size
            while self._size_bytes > most_bytes:
                self._drop(next(iter(self._known)))

    def _drop(self, key: tuple[Place, str]) -> None:
        found = self._known.pop(key, None)
        if found is not None:
            self._size_bytes -= found[1]


CACHE = ColumnCache()
"""of this process"""
