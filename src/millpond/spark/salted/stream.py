"""Aggregates whose groups lie in several parts, so that one task doesn't get all rows of a hot group.

The state is grouped by (salt, group).  Reads of the table merge the parts, so readers see no salt.

The salt is a hash of the row, never a random number.  A task that Spark runs again must send each
row to the same part as before, or rows are counted twice or lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millpond.errors import RequestError
from millpond.schema.definition.parts import METADATA
from millpond.spark.derive.plan import is_deterministic, require_classic
from millpond.spark.salted.hot_keys import HotKeys
from millpond.spark.shards import place_of, unhashable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SALT = "salt"
# More parts than this make every read of a key too expensive.
MOST_SALTS = 1024


class Salted:
    """A grouped stream: `agg` makes the DataFrame to start."""

    def __init__(self, df: DataFrame, by: Sequence[str | Column]) -> None:
        self._df = df
        self._by = by

    def agg(self, *aggregates: Column) -> DataFrame:
        """The aggregates of each part of each group, as a DataFrame for `start`.

        Shape:  a column `salt`, then those of `by`, then the aggregates.  A sink of the query gets
                these partial rows, and must key them by all columns before the aggregates; or use
                no sink and read the table.
        """
        return self._df.groupBy(SALT, *self._by).agg(*aggregates)


def salted(
    df: DataFrame,
    *,
    by: Sequence[str | Column],
    salts: int = 8,
    source: Sequence[str] | None = None,
    hot: Sequence[Any] | HotKeys | None = None,
) -> Salted:
    """Group a stream with several parts for each group.

    `start`, `publish` and `define` recognise such an aggregation by its plan.

    by:      the columns to group by, as for `df.groupBy`
    salts:   the number of parts of a group; a checkpoint keeps it
    source:  columns that tell a row from others, such as its offset: rows with equal values in them
             go to one part.  All columns by default
    hot:     split only these groups; the others lie in one part.  Either values of the first column
             of `by`, which must be a name; or HotKeys, which finds groups while the job runs, by
             all columns of `by` that are names.  No answer depends on the list
    Raises:  INVALID_REQUEST, SPARK_CONNECT, and with HotKeys what `start` raises for a job's
             folder, such as NOT_WRITABLE.
    """
    require_classic(df, "_jdf")
    from pyspark.sql import functions as sf

    if isinstance(salts, bool) or not isinstance(salts, int) or not 1 <= salts <= MOST_SALTS:
        raise _invalid(f"salts is {salts!r}", f"Use a whole number from 1 to {MOST_SALTS}.")
    if isinstance(by, str) or not by:
        raise _invalid(f"by is {by!r}", 'Name what to group by in a list: by=["page"].')
    if any(name.lower() == SALT for name in (*df.columns, *by_names(by))):
        raise _invalid(f"the stream has a column {SALT!r} already", "Rename that column.")
    place = place_of(_source_columns(df, source), salts)
    if hot is not None:
        df, is_hot = _hot_rows(df, by, hot)
        place = sf.when(is_hot, place).otherwise(sf.lit(0))
    parts = {METADATA: {"values": list(range(salts))}}
    return Salted(df.select("*", place.alias(SALT, metadata=parts)), by)


def by_names(by: Sequence[str | Column]) -> list[str]:
    """The columns given by name."""
    return [column for column in by if isinstance(column, str)]


def _source_columns(df: DataFrame, source: Sequence[str] | None) -> list[str]:
    """The columns that are hashed for a row's salt.

    Raises:  INVALID_REQUEST if the same row could get two salts, or Spark can't hash them.
    """
    if source is not None and (isinstance(source, str) or not source or any(name not in df.columns for name in source)):
        raise _invalid(f"source is {source!r}", f"Name some of its columns: {', '.join(df.columns)}.")
    names = df.columns if source is None else list(source)
    if not is_deterministic(df, names):
        raise _invalid(
            "the stream computes columns whose values change when a task runs again",
            "Name columns that don't change, with source=[…], such as partition and offset.",
        )
    unhashed = unhashable(df.schema, names)
    if unhashed:
        raise _invalid(f"Spark can't hash the columns {', '.join(unhashed)}", "Name other columns with source=[…].")
    return names


def _hot_rows(df: DataFrame, by: Sequence[str | Column], hot: Sequence[Any] | HotKeys) -> tuple[DataFrame, Column]:
    """The stream, and whether a row is of a hot group."""
    from pyspark.sql import functions as sf

    if isinstance(hot, HotKeys):
        if not by_names(by):
            raise _invalid("hot needs a name in by", "Make a column with withColumn, and group by its name.")
        return hot.find(df, by_names(by))
    first = by[0]
    if not isinstance(first, str):
        raise _invalid("hot needs a name as the first of by", "Make a column with withColumn, and group by its name first.")
    if isinstance(hot, str):
        raise _invalid(f"hot is {hot!r}", "Give a list of values, or HotKeys.")
    kind = df.schema[first].dataType.typeName() if first in df.columns else None
    if kind == "string" and (others := [value for value in hot if not isinstance(value, str | None)]):
        raise _invalid(f"hot names {others[0]!r}, but {first} is text", "Give texts.")
    is_hot = sf.col(first).isin([value for value in hot if value is not None])
    return df, is_hot | sf.col(first).isNull() if None in hot else is_hot


def _invalid(found: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"The stream can't be salted: {found}.", hint=hint)
