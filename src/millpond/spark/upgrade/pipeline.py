"""Loads a query from a user's file: `pipeline.py`, or `pipeline.py:function`.

    def query(spark):
        return spark.readStream….groupBy("page").count()

    output_mode = "update"

The function gets a session and returns the streaming DataFrame; nothing is started.  If the file has
a function `source(spark)`, too, then `query` gets the stream that it returns, as `write-state` wants
it.  For `evolve` it may have `expire`, `renamed`, `value_of` and `merge`, see `plan_evolve`.  While the file is
loaded, a query that it starts is refused: it would go on with the job's real checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.program import call_program, function_of, importable, wrong_program
from millpond.spark.program import import_queries, without_starts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FUNCTION = "query"
_MODE = "output_mode"
_SOURCE = "source"
_RULES = ("expire", "renamed", "value_of", "merge")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A query of a file.

    df:           the streaming DataFrame
    output_mode:  as the file says it; None if it doesn't
    rules:        its names `expire`, `renamed`, `value_of` and `merge`, as far as it has them
    """

    df: DataFrame
    output_mode: str | None
    rules: dict[str, Any]


def load_pipeline(spec: str, spark: SparkSession) -> Pipeline:
    """The query that `FILE` or `FILE:FUNCTION` defines.

    Raises:  FILE_MISSING; INVALID_REQUEST if the file can't be imported, starts a query, or has no
             such function, or if that doesn't return a streaming DataFrame.
    """
    path, function = _split(spec)
    with importable(path), without_starts(path):
        found = import_queries(path)
        make = function_of(found, function, path)
        source = getattr(found, _SOURCE, None)
        events = spark if source is None else call_program(f"{_SOURCE} of {path}", source, spark)
        df = call_program(f"{function} of {path}", make, events)
    if not getattr(df, "isStreaming", False):
        raise wrong_program(
            f"{function} of {path} returns no streaming DataFrame", "Return what the job starts, before writeStream."
        )
    mode = getattr(found, _MODE, None)
    rules = {name: getattr(found, name) for name in _RULES if hasattr(found, name)}
    return Pipeline(df, None if mode is None else str(mode), rules)


def _split(spec: str) -> tuple[Path, str]:
    path, colon, function = spec.rpartition(":")
    if colon and function.isidentifier() and not Path(spec).exists():
        return Path(path), function
    return Path(spec), _FUNCTION
