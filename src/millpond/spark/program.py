"""A user's Python file with queries.

While the file is loaded, a query that it starts is refused: it would go on with the job's real
checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value

from millpond.program import import_program, wrong_program


def import_queries(path: Path) -> ModuleType:
    """Run a file as a module, whose functions and classes Spark's workers get as they are.

    Raises:  FILE_MISSING; INVALID_REQUEST if it raises.
    """
    module = import_program(path)
    register_pickle_by_value(module)  # Spark's workers can't import it
    return module


@contextmanager
def without_starts(path: Path) -> Iterator[None]:
    """Refuse to start a query: it would go on with the job's checkpoint."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    start = DataStreamWriter.start

    def refuse(*_: object, **__: object) -> Any:
        raise wrong_program(f"{path} starts a query when it is loaded", "Start it below: if __name__ == '__main__'.")

    DataStreamWriter.start = refuse
    try:
        yield
    finally:
        DataStreamWriter.start = start
