"""The example programs, imported from their files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from inputs.real_log import first_lines
from live_jobs.rocksdb_state import rocksdb

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example() -> Iterator[Callable[[str], ModuleType]]:
    """`example("sessions")` is that program as a module.  Workers can't import it, so they get its functions by value."""
    from pyspark import cloudpickle

    loaded: list[ModuleType] = []

    def load(name: str) -> ModuleType:
        spec = spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)
        cloudpickle.register_pickle_by_value(module)
        loaded.append(module)
        return module

    yield load
    for module in loaded:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]


@pytest.fixture
def on_rocksdb(spark: Any) -> Iterator[Any]:
    """The session; its new queries keep their state in RocksDB."""
    with rocksdb(spark):
        yield spark


@pytest.fixture
def real_log(tmp_path: Path) -> Path:
    """The first hours of a day of NASA's web server."""
    cut = tmp_path / "nasa.tsv"
    cut.write_bytes(first_lines())
    return cut


@pytest.fixture
def read_log(spark: Any) -> Callable[..., Any]:
    """`read_log(path)` is a stream of its requests, in few batches."""
    from millpond.spark.accesslog.source import log_stream

    def read(path: Path, rows_per_batch: int = 2000) -> Any:
        return log_stream(spark, str(path), rows_per_batch=rows_per_batch).where("error IS NULL")

    return read


@pytest.fixture
def pages_of() -> Callable[[Path], list[tuple[str, str, int]]]:
    """`pages_of(path)` is the content of a TSV log, by its own columns."""
    return requests_of


def requests_of(path: Path) -> list[tuple[str, str, int]]:
    """(host, page, milliseconds) of each line of a TSV log; a page is a URL without its query."""
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        fields = [line.rstrip("\n").split("\t") for line in lines][1:]
    return [(f[0], f[4].partition("#")[0].partition("?")[0], int(f[2]) * 1000) for f in fields]
