"""An open read of a table: its view, its binding, its cut, and which rows have expired."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.errors import RequestError
from millpond.replica.backends.base import Snapshot
from millpond.replica.history.as_of import SnapshotAsOf
from millpond.replica.history.with_expired import SnapshotWithClosed
from millpond.replica.indexes import iter_by_index
from millpond.replica.replica import View
from millpond.tables.answer import Cut
from millpond.tables.kept.shorter import Hidden
from millpond.tables.scan.binding import Binding, StoredElsewhere
from millpond.tables.scan.key_range import Span
from millpond.tables.scan.ttl import judge_buckets, judge_by


class OpenRead:
    """A context manager that ends its view; `hand_on` is that of `View`.

    binding:       how the table is read from the view
    cut:           where the answer comes from
    shows_closed:  whether expired rows are shown
    hidden:        the buckets that readers don't see; None if they see all
    shows_hidden:  whether this read shows them all the same
    judge:         says which rows have expired; None if they have no TTL, and no buckets are hidden
    """

    __slots__ = ("binding", "cut", "hidden", "judge", "shows_closed", "shows_hidden", "view")

    def __init__(
        self,
        view: View,
        binding: Binding,
        cut: Cut,
        *,
        shows_closed: bool,
        hidden: Hidden | None = None,
        shows_hidden: bool = False,
    ) -> None:
        self.view = view
        self.binding = binding
        self.cut = cut
        self.shows_closed = shows_closed
        self.hidden, self.shows_hidden = hidden, shows_hidden
        self.judge = None if cut.judged_ms is None else judge_by(cut.judged_ms, shown=shows_closed)
        if hidden is not None:
            self.judge = judge_buckets(hidden, shown=shows_hidden)

    def stored(self) -> Snapshot:
        """The rows in the state.  Raises DEFINITION_MISMATCH if they have parts of an unknown kind."""
        return self.binding.rows(self.view.rows, self.view.record)

    def shown(self) -> Snapshot:
        """The rows that the table shows, expired ones among them if `shows_closed`."""
        rows = self.stored()
        return SnapshotWithClosed(rows) if self.binding.may_expire and self.shows_closed else rows

    def by_index(self, span: Span, *, reverse: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
        """(entry, ordered key, stored row) of the rows of a span of an index.

        Raises:  INVALID_REQUEST for a batch before the newest, of which there are no entries.
        """
        assert span.index is not None
        table, rows = self.binding.definition.table, self.view.rows
        if isinstance(rows, StoredElsewhere):
            return rows.by_index(span.index, *span.keys, reverse=reverse)
        if isinstance(rows, SnapshotAsOf):
            raise RequestError(
                "INVALID_REQUEST",
                f"An index has the rows of the newest batch, and batch {self.view.record.batch} of {table} is read.",
                hint="Sort the rows of a scan of that batch.",
                table=table,
            )
        with_closed = self.binding.may_expire and self.shows_closed
        return iter_by_index(rows, self.binding.table, span.index, *span.keys, reverse=reverse, with_closed=with_closed)

    def hand_on(self) -> OpenRead:
        """The same read, which the caller ends: leaving this one no longer ends it."""
        return OpenRead(
            self.view.hand_on(),
            self.binding,
            self.cut,
            shows_closed=self.shows_closed,
            hidden=self.hidden,
            shows_hidden=self.shows_hidden,
        )

    def close(self) -> None:
        """End the view, unless it was handed on."""
        self.view.close()

    def __enter__(self) -> OpenRead:
        return self

    def __exit__(self, *error: object) -> None:
        self.view.close()
