"""Loads a query from a user's file: `pipeline.py`, or `pipeline.py:function`.

    def query(spark):
        return spark.readStream….groupBy("page").count()

    output_mode = "update"

The function gets a session and returns the streaming DataFrame; nothing is started.  While the file
is loaded, a query that it starts is refused: it would go on with the job's real checkpoint.
"""

from __future__ import annotations

import importlib.util
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.errors import MillpondError, RequestError, SetupError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FUNCTION = "query"
_MODE = "output_mode"
_MODULE = "_millpond_pipeline_"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A query of a file.

    df:           the streaming DataFrame
    output_mode:  as the file says it; None if it doesn't
    """

    df: DataFrame
    output_mode: str | None


def load_pipeline(spec: str, spark: SparkSession) -> Pipeline:
    """The query that `FILE` or `FILE:FUNCTION` defines.

    Raises:  FILE_MISSING; INVALID_REQUEST if the file can't be imported, starts a query, or has no
             such function, or if that doesn't return a streaming DataFrame.
    """
    path, function = _split(spec)
    if not path.is_file():
        raise SetupError("FILE_MISSING", f"There is no file {path}.", hint="Name the Python file that defines the query.")
    with _importable(path), _without_starts(path):
        try:
            found = _import(path)
            make = getattr(found, function, None)
            if not callable(make):
                raise _wrong(f"{path} has no function {function!r}", f"Define it, or name another: {path.name}:FUNCTION.")
            df = make(spark)
        except MillpondError:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise _wrong(f"{path} ends with {type(error).__name__}: {error!s:.300}", "Mend the file, and check again.") from error
    if not getattr(df, "isStreaming", False):
        raise _wrong(f"{function} of {path} returns no streaming DataFrame", "Return what the job starts, before writeStream.")
    mode = getattr(found, _MODE, None)
    return Pipeline(df, None if mode is None else str(mode))


def _split(spec: str) -> tuple[Path, str]:
    path, colon, function = spec.rpartition(":")
    if colon and function.isidentifier() and not Path(spec).exists():
        return Path(path), function
    return Path(spec), _FUNCTION


def _import(path: Path) -> Any:
    from pyspark.cloudpickle import register_pickle_by_value

    name = f"{_MODULE}{uuid.uuid4().hex}"
    described = importlib.util.spec_from_file_location(name, path)
    if described is None or described.loader is None:
        raise _wrong(f"{path} isn't a Python file", "Name the Python file that defines the query.")
    module = importlib.util.module_from_spec(described)
    sys.modules[name] = module
    try:
        described.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    register_pickle_by_value(module)  # Spark's workers can't import it
    return module


@contextmanager
def _importable(path: Path) -> Iterator[None]:
    """Modules beside the file can be imported, as if Python ran the file.

    They are forgotten afterwards: those of the old code may have the same names as those of the new.
    """
    folder, before = path.resolve().parent, set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and not name.startswith(_MODULE) and Path(file).is_relative_to(folder):
                del sys.modules[name]


@contextmanager
def _without_starts(path: Path) -> Iterator[None]:
    """Refuse to start a query: it would go on with the job's checkpoint."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    start = DataStreamWriter.start

    def refuse(*_: object, **__: object) -> Any:
        raise _wrong(f"{path} starts a query when it is loaded", "Start it below: if __name__ == '__main__'.")

    DataStreamWriter.start = refuse
    try:
        yield
    finally:
        DataStreamWriter.start = start


def _wrong(what: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"{what}.", hint=hint)
