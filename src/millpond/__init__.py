"""Millpond: state you can query, for Spark Structured Streaming jobs.

Reading needs no Spark and no Java: `open`, `read_arrow`, `read_row`.  The job's side needs `millpond[spark]`: `session`, `start`,
`publish`, `define`, `salted`, `buffered`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.errors import (
    CheckpointError,
    DefinitionError,
    MillpondError,
    ReplicaError,
    RequestError,
    SetupError,
    StorageError,
)
from millpond.settings import Retention
from millpond.tables import Bounds, Pond, Row, Rows, Table, open, read_arrow, read_row

if TYPE_CHECKING:
    from millpond.client import connect, connect_async
    from millpond.spark import Job, define, publish, salted, session, start
    from millpond.spark.broadcast import broadcast
    from millpond.spark.buffered import buffered
    from millpond.spark.hot_keys import HotKeys
    from millpond.spark.model_records import publish_model, remove_model, roll_back_model
    from millpond.spark.models import read_models, serve_models

__version__ = "0.1.0"
__all__ = [
    "Bounds",
    "CheckpointError",
    "DefinitionError",
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
_SPARK_SIDE = frozenset({"Job", "define", "publish", "salted", "session", "start"})
_MODELS = frozenset({"read_models", "serve_models"})
_MODEL_RECORDS = frozenset({"publish_model", "remove_model", "roll_back_model"})
_CLIENT = frozenset({"connect", "connect_async"})


def __getattr__(name: str) -> Any:
    # PySpark is imported at the first use of the job's side, never by a reader.
    if name in _SPARK_SIDE:
        from millpond import spark

        return getattr(spark, name)
    if name == "broadcast":
        from millpond.spark.broadcast import broadcast

        return broadcast
    if name == "buffered":
        from millpond.spark.buffered import buffered

        return buffered
    if name == "HotKeys":
        from millpond.spark.hot_keys import HotKeys

        return HotKeys
    if name in _MODELS:
        from millpond.spark import models

        return getattr(models, name)
    if name in _MODEL_RECORDS:
        from millpond.spark import model_records

        return getattr(model_records, name)
    if name in _CLIENT:
        from millpond import client

        return getattr(client, name)
    raise AttributeError(f"module 'millpond' has no attribute {name!r}")
