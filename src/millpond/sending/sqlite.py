"""A SQLite database."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from millpond.schema.types import atomic
from millpond.schema.values import to_text
from millpond.sending.sql import SqlTarget
from millpond.sending.target import Part, SentPosition, Shape
from millpond.tables.history.changes import RowChange

_BUSY_SECONDS = 5.0


def _real(value: float) -> Any:
    """SQLite would store NaN as NULL."""
    return "NaN" if math.isnan(value) else value


def _same(value: Any) -> Any:
    return value


class SqliteTarget(SqlTarget):
    """One file; reads may go on while it is written to."""

    types = {  # noqa: RUF012 - a ClassVar of the base
        "boolean": ("boolean", int),
        **dict.fromkeys(("byte", "short", "integer", "long"), ("integer", _same)),
        **dict.fromkeys(("float", "double"), ("real", _real)),
        "binary": ("blob", bytes),
        **{kind: ("text", to_text(atomic(kind))) for kind in ("string", "date", "timestamp", "timestamp_ntz")},
    }
    json = "text"
    mark = "?"
    same = "IS"

    def __init__(self, file: Path, shape: Shape, *, table: str) -> None:
        self._file = file.absolute()
        self._connection: sqlite3.Connection | None = None
        super().__init__(f"sqlite://{self._file}", shape, table=table, schema=None)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise self._unavailable(error) from error
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._refused(error) from error

    def open(self, *, resync: bool) -> SentPosition | None:
        """Open the file."""
        with self._errors():
            self._connection = sqlite3.connect(self._file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self.run("BEGIN IMMEDIATE")
            position = self.prepare(resync=resync)
            self.run("COMMIT")
            return position

    def run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Run one statement."""
        assert self._connection is not None
        return self._connection.execute(statement, values)

    def run_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement for each row."""
        assert self._connection is not None
        if rows:
            self._connection.executemany(statement, rows)

    def columns_there(self) -> list[str]:
        """The columns of the table."""
        return [row[1] for row in self.run(f"PRAGMA table_info({self.quoted(self._name)})")]

    def begin(self, part: Part) -> None:
        """Begin, as the only writer."""
        with self._errors():
            self.run("BEGIN IMMEDIATE")
            self.start(part)

    def add(self, changes: list[RowChange]) -> None:
        """Write the last change of each key."""
        with self._errors():
            self.write(changes)

    def commit(self, position: SentPosition) -> None:
        """Commit rows and position."""
        with self._errors():
            self.store(position)
            self.run("COMMIT")
        self.stored()

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None
