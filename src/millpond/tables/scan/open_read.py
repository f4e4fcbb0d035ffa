"""A read of a table that has begun: a view, how the table is read from it, where the answer comes from, which rows have expired."""

from __future__ import annotations

from millpond.replica.backends.base import Snapshot
from millpond.replica.history.with_expired import SnapshotWithClosed
from millpond.replica.replica import View
from millpond.tables.answer import Cut
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.ttl import judge_by


class OpenRead:
    """A context manager that ends its view; `hand_on` as `View` has it.

    binding:       how the table is read from the view
    cut:           where the answer comes from
    shows_closed:  whether rows that expired are shown
    judge:         says which rows have expired; None if they have no TTL
    """

    __slots__ = ("binding", "cut", "judge", "shows_closed", "view")

    def __init__(self, view: View, binding: Binding, cut: Cut, *, shows_closed: bool) -> None:
        self.view = view
        self.binding = binding
        self.cut = cut
        self.shows_closed = shows_closed
        self.judge = None if cut.judged_ms is None else judge_by(cut.judged_ms, shown=shows_closed)

    def stored(self) -> Snapshot:
        """The rows that are in the state.  Raises DEFINITION_MISMATCH where they have parts that aren't known."""
        return self.binding.rows(self.view.rows, self.view.record)

    def shown(self) -> Snapshot:
        """The rows that the table shows: those that expired among them, where it does."""
        rows = self.stored()
        return SnapshotWithClosed(rows) if self.binding.may_expire and self.shows_closed else rows

    def hand_on(self) -> OpenRead:
        """The same read, for another to end: leaving this one no longer does."""
        return OpenRead(self.view.hand_on(), self.binding, self.cut, shows_closed=self.shows_closed)

    def close(self) -> None:
        """End the view, unless it was handed on."""
        self.view.close()

    def __enter__(self) -> OpenRead:
        return self

    def __exit__(self, *error: object) -> None:
        self.view.close()
