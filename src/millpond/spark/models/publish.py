"""Records for a folder's model stream (`read_models`): publishing a model needs no Spark and no Java.

Shape:  `<folder>/<published_ns>-<random>.json`, one JSON object; `<folder>/models/<SHA-256>`, the
        bytes of its model

A record whose members the job would refuse is refused here, before anything is written.  Only the
job finds out whether a model loads and scores (`check`).
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
# Separates a type from the name of a further model of that type.
BESIDE = "/"
RECORD = "type string, action string, version long, name string, description string, format string, share double, shadow boolean"
"""The columns of a record from any source, besides those that say where the model's bytes are."""
PUBLISHED = f"{RECORD}, uri string, published_ns long"


@dataclass(frozen=True, slots=True)
class Published:
    """What was published.

    record:  the URI of the record's file, for `Bounds(contains_file=…)`
    sha256:  the hash of the model's bytes, in hex; None if no model was published
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
    """Let a model serve records of a type from now on.

    The bytes are written beside the record, which appears after they are complete.

    content: the model's bytes, or the path of its file
    type:    a type; or a type, a slash and a name, for a further model of that type, with `share`
             or `shadow`
    share:   the share of the records that the further model scores, above 0 and at most 1
    shadow:  the further model scores all records but answers none; only the statistics show its
             results
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
    """Remove the model of a type: its records become error rows.

    Raises:  INVALID_REQUEST, NOT_WRITABLE, DISK_FULL.
    """
    _check_type(type)
    return Published(_publish(open_storage(folder), type=type, action=REMOVE))


def roll_back_model(folder: str | Path, version: int, *, type: str = ONLY_TYPE) -> Published:
    """Restore the model that served a type as of a version.

    Raises:  INVALID_REQUEST, NOT_WRITABLE, DISK_FULL.
    """
    _check_type(type)
    if isinstance(version, bool) or not isinstance(version, int) or not 0 < version < 1 << 63:
        raise _invalid(f"version is {version!r:.80}", "Give a version's number, from 1: the table of versions has them.")
    return Published(_publish(open_storage(folder), type=type, action=ROLLBACK, version=version))


def why_no_type(type_: Any) -> str | None:
    """Why a value names no type of models; None if it does."""
    if not isinstance(type_, str):
        return "type is NULL" if type_ is None else f"type is {type_!r:.80}, which isn't text"
    base, slash, name = type_.partition(BESIDE)
    if not base or (slash and not name):
        return f"type is {type_!r:.80}: write TYPE, or TYPE{BESIDE}NAME for a further model of that type"
    return None


def why_no_part(type_: str, share: float | None, shadow: bool | None) -> str | None:
    """Why a model can't have this share of its type's records; None if it can."""
    is_beside = BESIDE in type_
    if is_beside and (share is None) == (not shadow):
        return f"{type_} is a further model of its type: it needs either a share or shadow"
    if not is_beside and (share is not None or shadow):
        return f"{type_} is the type's own model: only a further one, {type_}{BESIDE}NAME, has a share or shadow"
    if share is not None and not 0 < share <= 1:
        return f"a share must be above 0 and at most 1, not {share}"
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
    """Write a record; returns its URI."""
    now = time.time_ns()
    name = f"{now:020d}-{uuid.uuid4().hex[:8]}.json"
    storage.write(name, json.dumps({**record, "published_ns": now}).encode())
    return f"{storage.uri}/{name}"


def _invalid(found: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"Nothing was published: {found}.", hint=hint)
