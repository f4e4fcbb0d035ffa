"""The pond's catalogue: which jobs there are, where their checkpoints lie, and what their tables mean.

    <pond>/pond.json                       {"format": 1}
    <pond>/jobs/<job>/job.json             {"format": 1, "job": …, "checkpoint": "checkpoint" or an absolute URI}
    <pond>/jobs/<job>/checkpoint/          Spark's checkpoint, where the job was started with `start`
    <pond>/jobs/<job>/tables/<table>.json  definitions, and names of an operator's tables
    <pond>/jobs/<job>/heartbeat.json       left by `start` while the job runs
    <pond>/jobs/<job>/hot_keys.json        left by `HotKeys` where the job finds its own, see `schema.hot_keys`

A checkpoint outside any pond has the same job folder beside it, never in it: `<checkpoint>.millpond/`; where that can't be
written, or belongs to others, in the user's cache folder: `<home>/beside/<hash of the checkpoint's URI>/`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.errors import CheckpointError, DefinitionError, MillpondError, SetupError, StorageError
from millpond.schema.definition import TableDefinition, check_table_name
from millpond.schema.hot_keys import HotKey, from_bytes, to_bytes
from millpond.schema.named import Entry, parse_entry
from millpond.schema.types import SparkType
from millpond.settings import home
from millpond.storage import Storage, open_storage

FORMAT = 1
# A pond or table that isn't there yet is looked for so often.
ARRIVAL_SECONDS = 0.2
HOT_KEYS = "hot_keys.json"
HEARTBEAT_SECONDS = 2.0
# A heartbeat older than this many intervals speaks of a job that no longer runs.
_MISSED = 5


@dataclass(frozen=True, slots=True)
class JobFolder:
    """One job's folder: its name, its checkpoint, its tables and its heartbeat.

    job:        the job's name
    storage:    the job folder
    checkpoint: URI of Spark's checkpoint
    """

    job: str
    storage: Storage
    checkpoint: str

    def entries(self) -> list[Entry]:
        """Every definition in the folder, and every name of an operator's tables.  Raises DEFINITION_MISMATCH, CORRUPT_FILE."""
        names = [name for name in self.storage.names("tables") if name.endswith(".json")]
        return [parse_entry(_read_json(self.storage, f"tables/{name}")) for name in names]

    def definitions(self) -> dict[str, TableDefinition]:
        """Table name -> definition, of every definition in the folder.  Raises as `entries`."""
        return {entry.table: entry for entry in self.entries() if isinstance(entry, TableDefinition)}

    def write_definition(self, entry: Entry) -> None:
        """Put a definition, or the name of an operator's tables, in place, replacing one of the same name."""
        check_table_name(entry.table)
        data = json.dumps(entry.to_json(), indent=1).encode()
        self.storage.write(f"tables/{entry.table}.json", data)

    def write_heartbeat(self, state: str) -> None:
        """Say that the job is `running` or was `stopped`, as of now."""
        self.storage.write("heartbeat.json", json.dumps({"state": state, "at": time.time()}).encode())

    def job_state(self) -> str:
        """running, stopped, or unknown (no heartbeat: a job that `start` didn't start)."""
        try:
            beat = _read_json(self.storage, "heartbeat.json")
        except MillpondError:
            return "unknown"
        state, at = (beat.get("state"), beat.get("at")) if isinstance(beat, dict) else (None, None)
        if not isinstance(at, int | float) or state not in ("running", "stopped"):
            return "unknown"
        return "running" if state == "running" and time.time() - at < _MISSED * HEARTBEAT_SECONDS else "stopped"

    def hot_keys(self) -> list[HotKey]:
        """The hot groups that the job has found, empty where it doesn't look for any.  Raises CORRUPT_FILE."""
        if self.storage.stamp(HOT_KEYS) is None:
            return []
        try:
            return from_bytes(self.storage.read(HOT_KEYS))
        except ValueError as broken:
            raise CheckpointError(
                "CORRUPT_FILE",
                f"{self.storage.uri}/{HOT_KEYS} can't be read: {broken}.",
                hint="Delete the file: hot keys are found again, and no answer depends on them.",
                path=f"{self.storage.uri}/{HOT_KEYS}",
            ) from broken

    def write_hot_keys(self, keys: Iterable[HotKey], columns: Mapping[str, SparkType]) -> None:
        """Put the list of hot groups in place; `columns` has the types of what tells groups apart."""
        self.storage.write(HOT_KEYS, to_bytes(keys, columns))


def job_of(pond: str | Path, job: str) -> JobFolder:
    """The folder of a job in a pond, whether it is there yet or not, its checkpoint inside.  Raises INVALID_NAME."""
    check_table_name(job)
    storage = open_storage(f"{open_storage(pond).uri}/jobs/{job}")
    return JobFolder(job, storage, f"{storage.uri}/checkpoint")


def create_job(pond: str | Path, job: str, checkpoint: str | None = None) -> JobFolder:
    """The folder of a job in a pond, made where it isn't there yet.

    checkpoint: path or URI of a checkpoint elsewhere; None for the one inside the job's folder
    Raises:     INVALID_NAME, NOT_WRITABLE, and TABLE_EXISTS where the job is there with another checkpoint
    """
    storage, root = job_of(pond, job).storage, open_storage(pond)
    if root.stamp("pond.json") is None:
        root.write("pond.json", json.dumps({"format": FORMAT}).encode())
    elsewhere = open_storage(checkpoint).uri if checkpoint else "checkpoint"
    return _create(storage, job, elsewhere)


def create_beside(checkpoint: str | Path, job: str | None = None) -> JobFolder:
    """The job folder beside a checkpoint that lies in no pond, made where it isn't there yet.

    Raises:  NOT_WRITABLE where neither the place beside it nor the cache folder can be written.
    """
    uri = open_storage(checkpoint).uri
    name = job or uri.rsplit("/", 1)[-1]
    try:
        return _create(_beside(uri), name, uri)
    except (SetupError, StorageError) as refused:
        if refused.condition not in ("NOT_WRITABLE", "ACCESS_DENIED"):
            raise
        return _create(_beside_in_cache(uri), name, uri)


def _beside(checkpoint: str) -> Storage:
    if checkpoint.count("/") == 2:  # a whole bucket, which has nothing beside it
        return _beside_in_cache(checkpoint)
    return open_storage(f"{checkpoint}.millpond")


def _beside_in_cache(checkpoint: str) -> Storage:
    digest = hashlib.sha256(checkpoint.encode()).hexdigest()[:32]
    return open_storage(home() / "beside" / digest)


def _create(storage: Storage, job: str, checkpoint: str) -> JobFolder:
    if storage.stamp("job.json") is None:
        data = {"format": FORMAT, "job": job, "checkpoint": checkpoint}
        storage.write("job.json", json.dumps(data, indent=1).encode())
    folder = _job_folder(storage)
    wanted = f"{storage.uri}/checkpoint" if checkpoint == "checkpoint" else open_storage(checkpoint).uri
    if folder.checkpoint != wanted:
        raise DefinitionError(
            "TABLE_EXISTS",
            f"The job {job!r} is there already, with its checkpoint at {folder.checkpoint}.",
            hint="Choose another name for the job, or another pond.",
            job=job,
            checkpoint=folder.checkpoint,
        )
    return folder


def open_jobs(uri: str | Path) -> list[JobFolder]:
    """The jobs at a path: all of a pond, or the one of a bare checkpoint.

    Raises:  NO_CHECKPOINT where the path is neither.
    """
    root = open_storage(uri)
    if root.stamp("pond.json") is not None:
        jobs = [open_storage(f"{root.uri}/jobs/{name}") for name in root.names("jobs")]
        return [_job_folder(job) for job in jobs if job.stamp("job.json") is not None]
    if root.stamp("job.json") is not None:
        return [_job_folder(root)]
    if root.stamp("metadata") is not None or root.names("offsets"):
        beside, cached = _beside(root.uri), _beside_in_cache(root.uri)
        for place in (beside, cached):
            try:
                if place.stamp("job.json") is not None:
                    return [_job_folder(place)]
            except StorageError as refused:
                # Credentials for a checkpoint are often for that alone.
                if refused.condition != "ACCESS_DENIED":
                    raise
                beside = cached
        return [JobFolder(root.uri.rsplit("/", 1)[-1], beside, root.uri)]
    raise CheckpointError(
        "NO_CHECKPOINT",
        f"{root.uri} is neither a pond nor a checkpoint of a streaming query.",
        hint="Name a folder that `millpond.start` wrote (it has pond.json), or a query's checkpointLocation.",
        uri=root.uri,
    )


def wait_for_jobs(uri: str | Path, timeout_seconds: float) -> None:
    """Return as soon as there is a pond or checkpoint at a path.  Raises NO_CHECKPOINT after the timeout; as `open_jobs`."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            open_jobs(uri)
            return
        except CheckpointError as error:
            left = deadline - time.monotonic()
            if error.condition != "NO_CHECKPOINT" or left <= 0:
                raise
        time.sleep(min(left, ARRIVAL_SECONDS))


def _job_folder(storage: Storage) -> JobFolder:
    data = _read_json(storage, "job.json")
    job, checkpoint = (data.get("job"), data.get("checkpoint")) if isinstance(data, dict) else (None, None)
    if not isinstance(job, str) or not isinstance(checkpoint, str):
        raise CheckpointError(
            "CORRUPT_FILE",
            f"{storage.uri}/job.json names no job and no checkpoint.",
            hint="Restore the file from a copy, or delete it and define the tables again.",
            path=f"{storage.uri}/job.json",
        )
    where = f"{storage.uri}/checkpoint" if checkpoint == "checkpoint" else checkpoint
    return JobFolder(job, storage, where)


def _read_json(storage: Storage, path: str) -> Any:
    try:
        return json.loads(storage.read(path))
    except (ValueError, RecursionError) as broken:
        raise CheckpointError(
            "CORRUPT_FILE",
            f"{storage.uri}/{path} isn't valid JSON: {broken}.",
            hint="Delete the file and define the table again.",
            path=f"{storage.uri}/{path}",
        ) from broken
