"""The versions of the names of a pond, as their checkpoints show them: no replica is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millpond.catalogue import JobFolder, read_catalogue
from millpond.checkpoint.log import newest_committed, read_batch
from millpond.errors import MillpondError, RequestError
from millpond.storage import Storage, open_storage
from millpond.storage.places import Places
from millpond.tables.versions.input import Missing, missing
from millpond.versions import NameFile, job_name, list_names, parse_job, path_of, read_name, table_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a name.

    name, version:  the name, and the number; 0 for the job that was there before there were versions
    is_current:     whether the name means it
    job:            the name of its job
    table:          its own name for readers
    job_state:      running, stopped or unknown
    batch:          the newest one; None if there is none, or it can't be read
    offsets:        source -> where that batch ends
    committed_ms:   when the batch was committed, if that is known
    watermark_ms:   after that batch; None if there is none
    behind:         what the current version has read and this one hasn't; None if it can't be read
    behind_source:  records that the source had when the job last asked it, and that the batch doesn't
                    have; None if the job isn't running, or its source isn't Kafka
    error:          why it can't be read
    """

    name: str
    version: int
    is_current: bool
    job: str
    table: str
    job_state: str
    batch: int | None = None
    offsets: dict[str, Any] | None = None
    committed_ms: int | None = None
    watermark_ms: int | None = None
    behind: Missing | None = None
    behind_source: int | None = None
    error: MillpondError | None = None


def list_versions(place: str | Path, name: str | None = None, *, allow: Iterable[str | Path] = ()) -> list[Version]:
    """The versions in a pond, by name and number.

    name:    only of this name
    allow:   places outside of a pond where its checkpoints may lie, as for `open`
    Raises:  UNKNOWN_VERSION if the name has no versions; NO_CHECKPOINT, CORRUPT_FILE.
    """
    folders = _folders(place, allow)
    root = open_storage(place)
    names = list_names(root) if name is None else [find_name(root, name).name]
    return [version for each in names for version in _of_name(read_name(root, each), folders)]


def find_name(pond: Storage, name: str) -> NameFile:
    """What a name means.  Raises UNKNOWN_VERSION, CORRUPT_FILE."""
    try:
        return read_name(pond, name)
    except MillpondError as error:
        if error.condition != "FILE_GONE":
            raise
        known = ", ".join(list_names(pond))
        raise RequestError(
            "UNKNOWN_VERSION",
            f"{name} has no versions in {pond.uri}.",
            hint=f"Names with versions are: {known}." if known else "Declare them: Aggregate(…, version=1).",
            table=name,
        ) from None


def find_version(place: str | Path, name: str, version: int, allow: Iterable[str | Path] = ()) -> JobFolder:
    """The job of a version.  Raises UNKNOWN_VERSION; what its folder raises."""
    folders = _folders(place, allow)
    numbers = sorted(n for (own, n) in folders if own == name)
    found = folders.get((name, version))
    if isinstance(found, MillpondError):
        raise found
    if found is None:
        raise RequestError(
            "UNKNOWN_VERSION",
            f"{name} has no version {version} in {place}.",
            hint=f"It has: {', '.join(map(str, numbers))}." if numbers else "Start one first.",
            table=name,
            version=version,
        )
    return found


def newest_input(folder: JobFolder) -> tuple[Storage, dict[str, Any]]:
    """A job's checkpoint, and where its newest batch ends.  Raises NO_COMMITTED_BATCH, …"""
    storage = folder.open_checkpoint()
    return storage, read_batch(storage, newest_committed(storage)).offsets


def behind_source(folder: JobFolder) -> int | None:
    """As `Version.behind_source`.  Raises NO_COMMITTED_BATCH, …"""
    newest = folder.newest()
    if newest is None:
        return None
    storage, offsets = newest_input(folder)
    return records_behind(storage, newest, offsets)


def records_behind(storage: Storage, newest: Mapping[str, Any], offsets: Mapping[str, Any]) -> int | None:
    """How many records lie between two ends of a job's sources; None if that isn't known.

    newest:   where the sources ended when the job last asked them
    offsets:  where its newest batch ends
    """
    left = missing((storage, newest), (storage, offsets))
    return None if left.unknown else left.records


def _folders(place: str | Path, allow: Iterable[str | Path]) -> dict[tuple[str, int], JobFolder | MillpondError]:
    """Name and version -> the job, or why its folder can't be read."""
    found = read_catalogue(place, Places.of(allow))
    jobs: dict[str, JobFolder | MillpondError] = {**found.broken, **{folder.job: folder for folder in found.jobs}}
    plain = {(job, 0): folder for job, folder in jobs.items()}
    return plain | {parsed: folder for job, folder in jobs.items() if (parsed := parse_job(job)) is not None and parsed[1]}


def _of_name(found: NameFile, folders: dict[tuple[str, int], JobFolder | MillpondError]) -> list[Version]:
    each = sorted({version for name, version in folders if name == found.name} | {found.current})
    current = folders.get((found.name, found.current))
    try:
        ahead = newest_input(current) if isinstance(current, JobFolder) else None
    except MillpondError:
        ahead = None
    return [_facts(found, version, folders.get((found.name, version)), ahead) for version in each]


def _facts(
    found: NameFile, version: int, folder: JobFolder | MillpondError | None, ahead: tuple[Storage, dict[str, Any]] | None
) -> Version:
    facts = Version(
        name=found.name,
        version=version,
        is_current=version == found.current,
        job=job_name(found.name, version),
        table=table_name(found.name, version),
        job_state="unknown",
    )
    if folder is None:
        why = f"{path_of(found.name)} names it, and there is no such job."
        return replace(facts, error=RequestError("UNKNOWN_VERSION", why, hint="Start it, or cut over to another version."))
    if isinstance(folder, MillpondError):
        return replace(facts, error=folder)
    facts = replace(facts, job_state=folder.job_state())
    try:
        storage = folder.open_checkpoint()
        batch = read_batch(storage, newest_committed(storage))
        behind = None if ahead is None else missing(ahead, (storage, batch.offsets))
        left = behind_source(folder)
    except MillpondError as error:
        return replace(facts, error=error)
    committed_ms = None if batch.committed_ns is None else batch.committed_ns // 1_000_000
    return replace(
        facts,
        job_state=folder.job_state(batch.committed_ns),
        batch=int(batch.batch),
        offsets=batch.offsets,
        committed_ms=committed_ms,
        watermark_ms=batch.watermark_ms,
        behind=behind,
        behind_source=left,
    )
