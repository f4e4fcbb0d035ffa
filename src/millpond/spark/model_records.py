"""Records for the model stream of a folder (`models.read_models`): whoever publishes a model needs neither Spark nor Java.

Shape:  `<folder>/<published_ns>-<random>.json`, one JSON object; `<folder>/models/<SHA-256>`, the bytes that it speaks of
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

from millpond.spark.control import PUT, REMOVE, ROLLBACK
from millpond.spark.model_store import ModelStore
from millpond.storage import open_storage

ONLY_TYPE = "all"
# Behind a type: which model beside the one that serves it.
BESIDE = "/"
RECORD = "type string, action string, version long, name string, description string, format string, share double, shadow boolean"
"""What a record says of a model, wherever it comes from; beside it stands where the model's bytes are."""
PUBLISHED = f"{RECORD}, uri string, published_ns long"


def publish_model(
    folder: str | Path,
    content: bytes | Path,
    *,
    name: str,
    type: str = ONLY_TYPE,
    description: str = "",
    format: str = "onnx",
    share: float | None = None,
    shadow: bool = False,
) -> str:
    """Have a model serve records of a type from now on; the SHA-256 of its bytes.

    type:    a type; or a type, a slash and a name, for a model beside the one that serves it, with either of
    share:   the part of the records that it scores in its place, from above 0 to 1
    shadow:  it scores all records and answers none: what it does is seen in the statistics alone

    The bytes are written beside the record, which appears when they are whole.
    Raises:  NOT_WRITABLE, DISK_FULL; OSError where the file of a model can't be read.
    """
    if isinstance(content, Path):
        content = content.read_bytes()
    digest = ModelStore(open_storage(folder).uri).keep(content)
    uri = f"{open_storage(folder).uri}/models/{digest}"
    _publish(folder, type=type, action=PUT, name=name, description=description, format=format, uri=uri, **_part(share, shadow))
    return digest


def remove_model(folder: str | Path, *, type: str = ONLY_TYPE) -> None:
    """Have no model serve records of a type: they become error rows."""
    _publish(folder, type=type, action=REMOVE)


def roll_back_model(folder: str | Path, version: int, *, type: str = ONLY_TYPE) -> None:
    """Have the model serve again that ran for a type as of a version."""
    _publish(folder, type=type, action=ROLLBACK, version=version)


def _part(share: float | None, shadow: bool) -> dict[str, Any]:
    return {**({} if share is None else {"share": share}), **({"shadow": True} if shadow else {})}


def _publish(folder: str | Path, **record: Any) -> None:
    now = time.time_ns()
    told = json.dumps({**record, "published_ns": now}).encode()
    open_storage(folder).write(f"{now:020d}-{uuid.uuid4().hex[:8]}.json", told)
