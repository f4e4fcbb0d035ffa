"""Shared by the scripts that write golden checkpoints: settings, stored form, JSON.

It runs without Millpond, with any version of Spark.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORE = "spark.sql.streaming.stateStore."
CHANGELOG = {STORE + "providerClass": ROCKSDB, STORE + "rocksdb.changelogCheckpointing.enabled": "true"}
SNAPSHOTS = {STORE + "providerClass": ROCKSDB}
DEFAULTS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    STORE + "providerClass": HDFS,
    STORE + "minDeltasForSnapshot": "3",
    STORE + "maintenanceInterval": "300ms",
    STORE + "checkpointFormatVersion": "1",
    STORE + "compression.codec": "lz4",
    STORE + "rocksdb.changelogCheckpointing.enabled": "false",
}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def stored(value: Any) -> Any:
    """A value that PySpark collected, in stored form as JSON."""
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - EPOCH.date()).days
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"binary": bytes(value).hex()}
    if isinstance(value, (tuple, list)):
        return [stored(v) for v in value]
    return value


def write_json(path: Path, data: Any) -> None:
    """One line without blanks."""
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
