"""The interface of local and remote tables to notebooks and to libraries that take Arrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from html import escape
from typing import Any

from millpond.errors import MillpondError
from millpond.tables.answer import Rows
from millpond.tables.forms import frames
from millpond.tables.forms.html import ROWS
from millpond.tables.job.bounds import Bounds


class ShownTable(ABC):
    """A table for notebooks and for libraries that take Arrow."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's name."""

    @property
    @abstractmethod
    def job(self) -> str:
        """The name of the job whose state this is."""

    @abstractmethod
    def _columns_text(self) -> str:
        """The known names and types of columns."""

    @abstractmethod
    def scan(self, key: Any = None, /, *, limit: int | None = None) -> Rows:
        """Its rows."""

    @abstractmethod
    def to_arrow(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Any:
        """Its rows as a pyarrow.Table."""

    def to_pandas(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Any:
        """The rows of a scan as a pandas.DataFrame with Arrow's types, so that no value changes.

        Raises:  LIBRARY_MISSING; as `to_arrow`.
        """
        return frames.to_pandas(self.to_arrow(key, bounds=bounds, **columns))

    def to_polars(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Any:
        """The rows of a scan as a polars.DataFrame; maps are lists of structs there.

        Raises:  LIBRARY_MISSING; WRONG_TYPE if polars can't hold a column; as `to_arrow`.
        """
        return frames.to_polars(self.to_arrow(key, bounds=bounds, **columns))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """All rows, for libraries that take Arrow's PyCapsule interface.

            duckdb.sql("FROM table")
            polars.DataFrame(table)

        Raises:  as `to_arrow`.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<Table {self.name}: {self._columns_text()}>"

    def _repr_html_(self) -> str:
        try:
            rows = self.scan(limit=ROWS)
        except MillpondError as error:
            return f"<p>{escape(repr(self))}</p><p>{escape(str(error))}</p>"
        return rows._repr_html_()
