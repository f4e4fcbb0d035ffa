"""Answers as data frames.  The only module that imports pandas and polars.

Both are made of Arrow's columns, so that no value changes.  pandas' own types have no NULL for
whole numbers, no decimals, and only times of the years 1677 to 2262.  So its columns have Arrow's
types (`pandas.ArrowDtype`).  A value that can't be computed is NULL, with a warning: a data frame
has no place for its error.
"""

from __future__ import annotations

import warnings
from typing import Any

from millpond.errors import RequestError, library_missing
from millpond.tables.forms.arrow_errors import Failures


def to_pandas(table: Any) -> Any:
    """A pandas.DataFrame of a pyarrow.Table.  Raises LIBRARY_MISSING."""
    try:
        import pandas
    except ImportError as missing:
        raise library_missing("pandas", "pandas") from missing
    _warn(table)
    return table.to_pandas(types_mapper=pandas.ArrowDtype)


def _warn(table: Any) -> None:
    failures = Failures()
    failures.add_table(table.schema.metadata, 0)
    if failures.count:
        first = failures.first[0]
        what = (
            f"{failures.count} values can't be computed, so they are NULL"
            if failures.count > 1
            else "A value can't be computed, so it is NULL"
        )
        warnings.warn(f"{what}; row {first['row']}: {first['message']}", stacklevel=3)


def to_polars(table: Any) -> Any:
    """A polars.DataFrame of a pyarrow.Table; maps are lists of structs there.

    Raises:  LIBRARY_MISSING; WRONG_TYPE if polars can't hold a column.
    """
    try:
        import polars  # without types if it isn't installed
    except ImportError as missing:
        raise library_missing("polars", "polars") from missing
    try:
        _warn(table)
        table.validate(full=True)  # Spark's strings may hold any bytes, but polars doesn't check them
        return polars.from_arrow(table)
    except Exception as refused:
        raise RequestError(
            "WRONG_TYPE",
            f"polars can't hold this table: {refused}.",
            hint="Use `to_arrow` or `to_pandas`, and leave out the column.",
        ) from refused
