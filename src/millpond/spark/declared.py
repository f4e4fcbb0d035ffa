"""The aggregate of a table and the stream that its job reads, from a user's file.

    views.py     names at the top level that are aggregates, or a function `aggregate()`; and a
                 function source(spark), which returns the streaming DataFrame
    views.sql    statements of `millpond apply`

Nothing is started: what stands under `if __name__ == "__main__"` isn't run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from millpond.errors import RequestError, SetupError
from millpond.program import call_program, function_of, importable, wrong_program
from millpond.spark.aggregate.declare import Aggregate
from millpond.spark.program import import_queries, without_starts
from millpond.spark.sql.declare import declare, open_source
from millpond.spark.sql.statement import parse_statements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FUNCTION, _SOURCE = "aggregate", "source"


def load_aggregate(path: Path, table: str, spark: SparkSession) -> tuple[Aggregate, DataFrame]:
    """The aggregate whose table has this name, and its stream.

    Raises:  FILE_MISSING; INVALID_STATEMENT; INVALID_REQUEST if the file can't be imported, starts a
             query, or has no such aggregate or no source.
    """
    if path.suffix.lower() == ".sql":
        return _of_statements(path, table, spark)
    with importable(path), without_starts(path):
        module = import_queries(path)
        found = list(_aggregates(module, path))
        for aggregate in found:
            if aggregate.table == table:
                source = call_program(f"{_SOURCE} of {path}", function_of(module, _SOURCE, path), spark)
                if not getattr(source, "isStreaming", False):
                    raise wrong_program(f"{_SOURCE} of {path} returns no streaming DataFrame", "Return what the job reads.")
                return aggregate, source
    raise _unknown(path, table, [each.table for each in found])


def _aggregates(module: ModuleType, path: Path) -> Iterator[Aggregate]:
    yield from (each for each in vars(module).values() if isinstance(each, Aggregate))
    function = getattr(module, _FUNCTION, None)
    if callable(function):
        made = call_program(f"{_FUNCTION} of {path}", function)
        if not isinstance(made, Aggregate):
            raise wrong_program(f"{_FUNCTION} of {path} returns no aggregate", "Return a millpond.Aggregate.")
        yield made


def _of_statements(path: Path, table: str, spark: SparkSession) -> tuple[Aggregate, DataFrame]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SetupError("FILE_MISSING", f"There is no file {path}.", hint="Name a file of SQL statements.") from None
    except (OSError, UnicodeDecodeError) as wrong:
        raise RequestError("INVALID_REQUEST", f"{path} can't be read: {wrong}.", hint="Name a file of SQL statements.") from None
    names = []
    for statement in parse_statements(text):
        aggregate = declare(statement)
        names.append(aggregate.table)
        if aggregate.table == table:
            if statement.source is None:
                raise wrong_program(f"{table} of {path} has no source", "Add FROM json.`/data/visits` SCHEMA '…'.")
            return aggregate, open_source(spark, statement.source)
    raise _unknown(path, table, names)


def _unknown(path: Path, table: str, names: list[str]) -> RequestError:
    return wrong_program(f"{path} declares no aggregate {table}", f"It declares: {', '.join(names) or 'none'}.")
