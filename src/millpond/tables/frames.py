"""Answers as data frames.  The only module that imports pandas and polars.

Both are made of Arrow's columns, so that no value changes on the way.  pandas' own types have no NULL among whole numbers, no
decimals, and times of the years 1677 to 2262 alone: so its columns have Arrow's types (`pandas.ArrowDtype`).
"""

from __future__ import annotations

from typing import Any

from millpond.errors import RequestError, library_missing


def to_pandas(table: Any) -> Any:
    """A pandas.DataFrame of a pyarrow.Table.  Raises LIBRARY_MISSING."""
    try:
        import pandas
    except ImportError as missing:
        raise library_missing("pandas", "pandas") from missing
    return table.to_pandas(types_mapper=pandas.ArrowDtype)


def to_polars(table: Any) -> Any:
    """A polars.DataFrame of a pyarrow.Table; maps are lists of structs there.

    Raises:  LIBRARY_MISSING; WRONG_TYPE where polars can't hold a column.
    """
    try:
        import polars  # no types of its own where it isn't installed
    except ImportError as missing:
        raise library_missing("polars", "polars") from missing
    try:
        table.validate(full=True)  # Spark's strings may hold any bytes, and polars trusts whoever hands it some
        return polars.from_arrow(table)
    except Exception as refused:
        raise RequestError(
            "WRONG_TYPE",
            f"polars can't hold this table: {refused}.",
            hint="Take `to_arrow` or `to_pandas`, and leave out the column.",
        ) from refused
