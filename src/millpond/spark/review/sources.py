"""Streams that can't be opened here, replaced by empty folders with the same columns.

Kafka's columns are always the same, so neither its package nor a broker is needed.  A stream of files
with a schema needs no files.  Any other stream that can't be opened ends the program, and the error
names it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond.spark.upgrade.rehearsal import spark_error

_KAFKA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_HEADERS = ", headers array<struct<key: string, value: binary>>"
_FILES = ("json", "csv", "parquet", "orc", "text", "xml")


class Sources:
    """Opens the streams of one program.

    notes:  gets a sentence for each that was replaced
    """

    def __init__(self, folder: str, notes: list[str]) -> None:
        self._folder, self._notes = folder, notes

    def load(self, reader: Any, load: Callable[[], Any]) -> Any:
        """The stream that a reader opens, or an empty one in its place.  Raises what Spark raises."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        described = reader.__dict__.setdefault("_millpond", {})
        form = str(described.get("format", "")).lower()
        try:
            return load()
        except (PySparkException, Py4JError) as error:
            schema = described.get("schema")
            if form == "kafka":
                headers = str(described.get("options", {}).get("includeheaders", "")).lower() == "true"
                schema = _KAFKA + (_HEADERS if headers else "")
            elif form not in _FILES or schema is None:
                self._notes.append(f"The source {form or '(default)'} can't be opened here: {spark_error(error).message:.300}")
                raise
            self._notes.append(f"The source {form} can't be opened here, so a stream with the same columns stands for it.")
            empty = Path(tempfile.mkdtemp(dir=self._folder))
            return type(reader)(reader._spark).schema(schema).format("json").load(str(empty))
