"""Aggregates of users' files, for commands that read a source once more by Spark on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.cli.queries import settings_of
from millpond.errors import importing_pyspark
from millpond.program import importable
from millpond.storage import open_storage
from millpond.versions import meant_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millpond.spark.aggregate.declare import Aggregate


@contextmanager
def open_aggregate(
    command: str, place: str, table: str, file: Path, conf: tuple[str, ...]
) -> Iterator[tuple[Aggregate, DataFrame]]:
    """The aggregate of a table, and the stream of its job, in a session that ends with the block.

    Raises:  as `load_aggregate`; INVALID_REQUEST; PYSPARK_MISSING.
    """
    settings = settings_of(conf)
    with importing_pyspark():
        from millpond.spark.declared import load_aggregate
        from millpond.spark.session import session
    # Spark's workers import what the file imports from beside it.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(file.resolve().parent), os.environ.get("PYTHONPATH", "")])
    spark = session(f"millpond {command}", **{"spark.ui.enabled": "false", **settings})
    spark.sparkContext.setLogLevel("OFF")
    try:
        declared = load_aggregate(file, meant_table(open_storage(place), table), spark)
        with importable(file):
            yield declared
    finally:
        spark.stop()
