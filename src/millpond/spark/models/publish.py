"""Records for the model stream of a folder (`models.read_models`): whoever publishes a model needs neither Spark nor Java.

Shape:  `<folder>/<published_ns>-<random>.json`, one JSON object; `<folder>/models/<SHA-256>`, the bytes that it speaks of

A record that the job would refuse for its own members is refused here, before anything is written.  Whether a model loads and
scores is known to the job alone (`model_check`).
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.errors import RequestError
from millpond.spark.broadcast.control import PUT, REMOVE, ROLLBACK
from millpond.spark.models.store import ModelStore
from millpond.storage import Storage, open_storage

ONLY_TYPE = "all"
# Behind a type: which model beside the one that serves it.
BESIDE = "/"
RECORD = "type string, action string, version long, name string, description string, format string, share double, shadow boolean"
"""What a record says of a model, wherever it comes from; beside it stands where the model's bytes are."""
PUBLISHED = f"{RECORD}, uri string, published_ns long"


@dataclass(frozen=True, slots=True)
class Published:
    """What was published.

    record:  the URI of the record's file: what `Bounds(contains_file=…)` waits for
    sha256:  of a model's bytes, in hex; None where no model was published
    """

    record: str
    sha256: str | None = None


def publish_model(
    folder: str | Path,
    content: bytes | str | os.PathLike[str],
    *,
    name: str,
    type: str = ONLY_TYPE,
    description: str = "",
    format: str = "onnx",
    share: float | None = None,
    shadow: bool = False,
) -> Published:
    """Have a model serve records of a type from now on.

    content: its bytes, or the path of a file of them
    type:    a type; or a type, a slash and a name, for a model beside the one that serves it, with either of
    share:   the part of the records that it scores in its place, from above 0 to 1
    shadow:  it scores all records and answers none: what it does is seen in the statistics alone

    The bytes are written beside the record, which appears when they are whole.
    Raises:  INVALID_REQUEST, before anything is written; NOT_WRITABLE, DISK_FULL.
    """
    record = {"type": type, "action": PUT, "name": name, "description": description, "format": format}
    for member, value in record.items():
        if not isinstance(value, str) or (not value and member != "description"):
            raise _invalid(f"{member} is {value!r:.80}", "Give a text.")
    if share is not None and (isinstance(share, bool) or not isinstance(share, int | float)):
        raise _invalid(f"share is {share!r:.80}", "Give a number above 0 and at most 1.")
    if not isinstance(shadow, bool):
        raise _invalid(f"shadow is {shadow!r:.80}", "Give True or False.")
    wrong = why_no_type(type) or why_no_part(type, share, shadow)
    if wrong is not None:
        raise _invalid(wrong, f"Write TYPE, or TYPE{BESIDE}NAME with share=… or shadow=True.")
    storage = open_storage(folder)
    digest = ModelStore(storage.uri).keep(_bytes_of(content))
    part = {**({} if share is None else {"share": share}), **({"shadow": True} if shadow else {})}
    return Published(_publish(storage, **record, uri=f"{storage.uri}/models/{digest}", **part), digest)


def remove_model(folder: str | Path, *, type: str = ONLY_TYPE) -> Published:
    """Have no model serve records of a type: they become error rows.  Raises INVALID_REQUEST, NOT_WRITABLE, DISK_FULL."""
    _check_type(type)
    return Published(_publish(open_storage(folder), type=type, action=REMOVE))


def roll_back_model(folder: str | Path, version: int, *, type: str = ONLY_TYPE) -> Published:
    """Have the model serve again that ran for a type as of a version.  Raises INVALID_REQUEST, NOT_WRITABLE, DISK_FULL."""
    _check_type(type)
    if isinstance(version, bool) or not isinstance(version, int) or not 0 < version < 1 << 63:
        raise _invalid(f"version is {version!r:.80}", "Give a version's number, from 1: the table of versions has them.")
    return Published(_publish(open_storage(folder), type=type, action=ROLLBACK, version=version))


def why_no_type(type_: Any) -> str | None:
    """Why a value names no type of models; None where it does."""
    if not isinstance(type_, str):
        return "type is NULL" if type_ is None else f"type is {type_!r:.80}, no text"
    base, slash, name = type_.partition(BESIDE)
    if not base or (slash and not name):
        return f"type is {type_!r:.80}: a type is TYPE, or TYPE{BESIDE}NAME for a model beside the one that serves it"
    return None


def why_no_part(type_: str, share: float | None, shadow: bool | None) -> str | None:
    """Why a model can't have this part of its type's records; None where it can."""
    is_beside = BESIDE in type_
    if is_beside and (share is None) == (not shadow):
        return f"{type_} is a model beside another: it has either a share or is a shadow"
    if not is_beside and (share is not None or shadow):
        return f"{type_} is the model that serves: a share or a shadow is of a model beside it, {type_}{BESIDE}NAME"
    if share is not None and not 0 < share <= 1:
        return f"a share is above 0 and at most 1, not {share}"
    return None


def _check_type(type_: Any) -> None:
    wrong = why_no_type(type_)
    if wrong is not None:
        raise _invalid(wrong, "Name the type of the model.")


def _bytes_of(content: bytes | str | os.PathLike[str]) -> bytes:
    if isinstance(content, str | os.PathLike):
        try:
            content = Path(content).read_bytes()
        except (OSError, ValueError) as unreadable:
            raise _invalid(
                f"its file can't be read: {unreadable}", "Give the path of a model's file, or its bytes."
            ) from unreadable
    if not isinstance(content, bytes | bytearray | memoryview):
        raise _invalid(f"content is {type(content).__name__}", "Give the path of a model's file, or its bytes.")
    if not len(content):
        raise _invalid("it has no bytes", "Give the path of a model's file, or its bytes.")
    return bytes(content)


def _publish(storage: Storage, **record: Any) -> str:
    """Put a record in place; its URI."""
    now = time.time_ns()
    name = f"{now:020d}-{uuid.uuid4().hex[:8]}.json"
    storage.write(name, json.dumps({**record, "published_ns": now}).encode())
    return f"{storage.uri}/{name}"


def _invalid(found: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"Nothing was published: {found}.", hint=hint)
