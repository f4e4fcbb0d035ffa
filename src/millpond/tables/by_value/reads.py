"""The reads of a table by an index: the rows with the greatest values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from millpond.errors import RequestError
from millpond.schema.definition.indexes import Index
from millpond.tables.answer import Rows
from millpond.tables.by_value.rows import Given, index_span
from millpond.tables.job.bounds import Bounds
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.key_range import Span
from millpond.tables.scan.keys import KeyReader

By = str | Sequence[str]


class IndexReads(ABC):
    """The reads of a table by its indexes.  `Table` is the only subclass."""

    _keys: KeyReader

    @abstractmethod
    def _page(
        self, span_of: Callable[[Binding], Span], limit: int | None, reverse: bool, token: str | None, bounds: Bounds | None
    ) -> Rows:
        """The rows of a span, or the page that a token names."""

    def top(
        self,
        by: By,
        /,
        limit: int | None = 10,
        *,
        key: Any = None,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Rows:
        """The rows with the greatest values of a column, the greatest first: `top("hits", 10)`.

        The table needs an index by the column.  Values of other columns choose among rows of an
        index that begins with them: `top("hits", 10, site="a.org")` by the index ("site", "hits").
        Of equal values, the row with the last key comes first; NULL comes last.  For the least
        values, use `range(by=…)`.

        by:     a column, or several of which later ones decide between equal rows
        limit:  at most so many rows, None for all
        key:    columns as a dict, if their names aren't Python's or are those of options
        token:  as `scan`
        Raises:  NO_INDEX, UNKNOWN_COLUMN, WRONG_TYPE, INVALID_REQUEST for an earlier batch; as
                 `scan`.
        """
        return self._by_index(by, self._keys.given(key, columns), None, None, limit, reverse=True, token=token, bounds=bounds)

    def _by_index(
        self,
        by: By,
        within: Given,
        start: Given | None,
        end: Given | None,
        limit: int | None,
        *,
        reverse: bool,
        token: str | None,
        bounds: Bounds | None,
    ) -> Rows:
        columns = parse_by(by)
        return self._page(lambda binding: index_span(binding, columns, within, start, end), limit, reverse, token, bounds)


def parse_by(by: By) -> Index:
    """The columns of `by`.  Raises INVALID_REQUEST."""
    columns = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Sequence) else ()
    if not columns or not all(isinstance(name, str) for name in columns):
        raise RequestError("INVALID_REQUEST", f"by is {by!r:.80}.", hint="Name a column, or several.")
    return columns
