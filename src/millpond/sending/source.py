"""What a sender reads: the whole of a table as of one batch, and its changes from there on.

A whole read begins with a token, reads all pages of one batch, and leaves out the changes up to
that batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, Self

from millpond.schema.definition.table import TableDefinition
from millpond.tables.answer import Rows
from millpond.tables.history.changes import Changes, RowChange

PAGE_ROWS = 10_000
"""Rows, and changes, that a sender has in memory at a time."""


class SentTable(Protocol):
    """A table of a pond, or of a server."""

    @property
    def name(self) -> str:
        """The table's name."""

    @property
    def definition(self) -> Any:
        """The table's definition."""

    def live(self) -> Self:
        """The table without expired rows."""

    def with_closed(self) -> Self:
        """The table with expired rows."""

    def scan(self, *, limit: int | None = None, token: str | None = None) -> Rows:
        """A page of rows."""

    def changes(self, since: str | int | None = None, *, limit: int | None = None, wait_seconds: float = 0.0) -> Changes:
        """The changes after a token."""


def definition_of(table: SentTable) -> TableDefinition:
    """The table's definition."""
    definition = table.definition
    assert isinstance(definition, TableDefinition)
    return definition


def iter_whole(table: SentTable, *, keep_expired: bool) -> Iterator[Rows]:
    """The pages of a whole table, all of one batch; at least one."""
    shown = table.with_closed() if keep_expired else table.live()
    token: str | None = None
    while True:
        page = shown.scan(limit=PAGE_ROWS, token=token)
        yield page
        token = page.token
        if token is None:
            return


def as_changes(page: Rows) -> list[RowChange]:
    """Rows as inserts; those that have expired as expired."""
    batch = page.batch
    return [
        RowChange(kind="expire", batch=batch, first_batch=batch, old=None, new=None, final=row)
        if row.final
        else RowChange(kind="insert", batch=batch, first_batch=batch, old=None, new=row)
        for row in page
    ]
