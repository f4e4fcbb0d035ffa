"""From which savepoint a job's checkpoint was restored: `origin.json` in the job's folder."""

from __future__ import annotations

import json

from millpond.errors import CheckpointError
from millpond.savepoint.manifest import Manifest
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage

NAME = "origin.json"


def write_origin(folder: Storage, manifest: Manifest) -> None:
    """Record it, with the job and batch of the savepoint."""
    origin = {"savepoint": manifest.name, "job": manifest.job, "job_id": manifest.job_id, "batch": manifest.batch}
    folder.write(NAME, json.dumps(origin).encode())


def read_origin(folder: Storage) -> str | None:
    """The savepoint's name; None if the job wasn't restored.

    Raises:  CORRUPT_FILE.
    """
    if folder.stamp(NAME) is None:
        return None
    try:
        found = parse_json(folder.read(NAME, FileBounds().note_bytes))["savepoint"]
        if not isinstance(found, str):
            raise ValueError("it names no savepoint")
    except DAMAGE as broken:
        path = f"{folder.uri}/{NAME}"
        raise CheckpointError(
            "CORRUPT_FILE",
            f"{path} can't be read: {broken}.",
            hint="Delete the file; it only says from which savepoint the job was restored.",
            path=path,
        ) from broken
    return found
