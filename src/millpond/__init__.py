"""Millpond: state you can query, for Spark Structured Streaming jobs.

Reading needs no Spark and no Java: `open`, `read_arrow`, `read_row`.  The job's side needs
`millpond[spark]`: `session`, `start`, `publish`, `define`, `salted`, `buffered`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millpond.errors import (
    CheckpointError,
    DefinitionError,
    MillpondError,
    ReplicaError,
    RequestError,
    SetupError,
    StorageError,
    importing_pyspark,
)
from millpond.schema.far_time import FarTime
from millpond.settings import Retention
from millpond.tables import Bounds, Pond, Row, Rows, Table, open, read_arrow, read_row

if TYPE_CHECKING:
    from millpond.client import connect, connect_async
    from millpond.spark.broadcast.stream import broadcast
    from millpond.spark.buffered import buffered
    from millpond.spark.job import Job
    from millpond.spark.models.publish import publish_model, remove_model, roll_back_model
    from millpond.spark.models.serve import read_models, serve_models
    from millpond.spark.salted.hot_keys import HotKeys
    from millpond.spark.salted.stream import salted
    from millpond.spark.session import session
    from millpond.spark.start import define, publish, start

__version__ = "0.1.0"
__all__ = [
    "Bounds",
    "CheckpointError",
    "DefinitionError",
    "FarTime",
    "HotKeys",
    "Job",
    "MillpondError",
    "Pond",
    "ReplicaError",
    "RequestError",
    "Retention",
    "Row",
    "Rows",
    "SetupError",
    "StorageError",
    "Table",
    "broadcast",
    "buffered",
    "connect",
    "connect_async",
    "define",
    "open",
    "publish",
    "publish_model",
    "read_arrow",
    "read_models",
    "read_row",
    "remove_model",
    "roll_back_model",
    "salted",
    "serve_models",
    "session",
    "start",
]
_LATER = {
    "HotKeys": "millpond.spark.salted.hot_keys",
    "Job": "millpond.spark",
    "broadcast": "millpond.spark.broadcast.stream",
    "buffered": "millpond.spark.buffered",
    "connect": "millpond.client",
    "connect_async": "millpond.client",
    "define": "millpond.spark",
    "publish": "millpond.spark",
    "publish_model": "millpond.spark.models.publish",
    "read_models": "millpond.spark.models.serve",
    "remove_model": "millpond.spark.models.publish",
    "roll_back_model": "millpond.spark.models.publish",
    "salted": "millpond.spark",
    "serve_models": "millpond.spark.models.serve",
    "session": "millpond.spark",
    "start": "millpond.spark",
}
"""Names that are imported at their first use, and their modules: a reader never imports PySpark."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'millpond' has no attribute {name!r}")
    with importing_pyspark():
        return getattr(import_module(_LATER[name]), name)
