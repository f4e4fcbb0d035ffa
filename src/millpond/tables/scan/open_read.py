"""An open read of a table: its view, its binding, its cut, and which rows have expired."""

from __future__ import annotations

from millpond.replica.backends.base import Snapshot
from millpond.replica.history.with_expired import SnapshotWithClosed
from millpond.replica.replica import View
from millpond.tables.answer import Cut
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.ttl import judge_by


class OpenRead:
    """A context manager that ends its view; `hand_on` is that of `View`.

    binding:       how the table is read from the view
    cut:           where the answer comes from
    shows_closed:  whether expired rows are shown
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
        """The rows in the state.  Raises DEFINITION_MISMATCH if they have parts of an unknown kind."""
        return self.binding.rows(self.view.rows, self.view.record)

    def shown(self) -> Snapshot:
        """The rows that the table shows, expired ones among them if `shows_closed`."""
        rows = self.stored()
        return SnapshotWithClosed(rows) if self.binding.may_expire and self.shows_closed else rows

    def hand_on(self) -> OpenRead:
        """The same read, which the caller ends: leaving this one no longer ends it."""
        return OpenRead(self.view.hand_on(), self.binding, self.cut, shows_closed=self.shows_closed)

    def close(self) -> None:
        """End the view, unless it was handed on."""
        self.view.close()

    def __enter__(self) -> OpenRead:
        return self

    def __exit__(self, *error: object) -> None:
        self.view.close()
