"""A job's samples of the last days, a file for each hour.

    <job folder>/samples/2026-11-26T13.jsonl    a line of JSON for each sample, oldest first

1. A line is added by writing the whole file in place of the one that was read.  So several watchers
   of one job lose nothing, and readers see whole files only.
2. Where the job's folder can't be written, as beside a checkpoint of others, the samples are in the
   user's own folder: `<home>/samples/<hash of the checkpoint's URI>/`.
3. Older files are deleted by whoever begins a new one.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from millpond.catalogue import JOB, JobFolder, find_job
from millpond.errors import MillpondError, RequestError
from millpond.operate.sample import Sample
from millpond.schema.prepared import ready
from millpond.settings import FileBounds, SampleSettings, home
from millpond.storage import Storage, open_storage

_FOLDER = "samples"
_HOUR = "%Y-%m-%dT%H"
_NAME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d)\.jsonl")
_BOUNDS = FileBounds()
_HOUR_MS = 3_600_000
_TRIES = 5


class SampleLog:
    """Adds samples of one job."""

    def __init__(self, folder: JobFolder, settings: SampleSettings | None = None) -> None:
        self._places = _places(folder)
        self._settings = settings or SampleSettings()

    @property
    def requests(self) -> dict[str, int]:
        """Requests that it has made so far, by kind; empty on a local disk."""
        return dict(self._places[0].requests)

    def add(self, sample: Sample) -> bool:
        """Add a sample, unless another watcher has just done so; returns whether it was added.

        Raises:  STORAGE_UNAVAILABLE, …; NOT_WRITABLE if neither place can be written.
        """
        *first, last = self._places
        for storage in first:  # 2
            try:
                return self._add(storage, sample)
            except MillpondError as error:
                if error.condition not in ("NOT_WRITABLE", "ACCESS_DENIED"):
                    raise
        return self._add(last, sample)

    def _add(self, storage: Storage, sample: Sample) -> bool:  # 1
        path, line = f"{_FOLDER}/{_name(sample.at_ms)}", msgspec.json.encode(sample) + b"\n"
        least_ms = int(self._settings.sample_seconds * 500)
        for _ in range(_TRIES):
            if storage.stamp(path) is None:
                if storage.create(path, line):
                    self._prune(storage, sample.at_ms)
                    return True
                continue
            old = storage.read(path, _BOUNDS.samples_bytes)
            newest = max((found.at_ms for found in _samples(old)), default=0)
            if newest > sample.at_ms - least_ms or len(old) + len(line) > _BOUNDS.samples_bytes:
                return False
            if storage.replace(path, old, _whole_lines(old) + line):
                return True
        return False

    def _prune(self, storage: Storage, now_ms: int) -> None:  # 3
        oldest = _name(now_ms - int(self._settings.days * 24 * _HOUR_MS))
        for name in storage.names(_FOLDER):
            if _NAME.fullmatch(name) and name < oldest:
                storage.delete(f"{_FOLDER}/{name}")


def read_samples(
    place: str | Path,
    job: str | None = None,
    *,
    start: dt.datetime | None = None,
    end: dt.datetime | None = None,
    allow: Iterable[str | Path] = (),
) -> list[Sample]:
    """A job's samples that a server has kept, oldest first; lines that can't be read are left out.

    place:       a pond or a checkpoint
    job:         None for the only job there
    start, end:  from this moment up to that one, with a time zone; None: from the first, until now
    allow:       places outside of it where checkpoints may lie
    Raises:      NO_CHECKPOINT, INVALID_REQUEST, STORAGE_UNAVAILABLE, ACCESS_DENIED.
    """
    folder = find_job(place, job, allow=allow)
    return samples_of(folder, 0 if start is None else _milliseconds(start), None if end is None else _milliseconds(end))


def _milliseconds(moment: dt.datetime) -> int:
    if moment.tzinfo is None:
        raise RequestError(
            "INVALID_REQUEST",
            f"{moment!r} has no time zone.",
            hint="Give it one: datetime.now(timezone.utc), or moment.astimezone().",
        )
    return int(moment.timestamp() * 1000)


def samples_of(folder: JobFolder, start_ms: int = 0, end_ms: int | None = None) -> list[Sample]:
    """The same of a job's folder.

    start_ms, end_ms:  milliseconds since 1970; None: until now
    """
    found: dict[int, Sample] = {}
    for storage in _places(folder):
        for name in storage.names(_FOLDER):
            if _NAME.fullmatch(name) and _overlaps(name, start_ms, end_ms):
                for sample in _read(storage, name):
                    if start_ms <= sample.at_ms and (end_ms is None or sample.at_ms < end_ms):
                        found[sample.at_ms] = sample
    return [found[at_ms] for at_ms in sorted(found)]


def newest_sample(folder: JobFolder) -> Sample | None:
    """A job's newest sample; None if nobody has watched it.  Raises as `samples_of`."""
    newest: Sample | None = None
    for storage in _places(folder):
        names = [name for name in storage.names(_FOLDER) if _NAME.fullmatch(name)]
        samples = _read(storage, names[-1]) if names else []
        newest = max([*samples, *([newest] if newest else [])], key=lambda sample: sample.at_ms, default=None)
    return newest


def _places(folder: JobFolder) -> list[Storage]:
    """Where the samples may be, the first choice first."""
    digest = hashlib.sha256(folder.checkpoint.encode()).hexdigest()[:32]
    own = open_storage(home() / _FOLDER / digest)
    return [folder.storage, own] if folder.storage.stamp(JOB) is not None else [own]


def _read(storage: Storage, name: str) -> list[Sample]:
    try:
        return list(_samples(storage.read(f"{_FOLDER}/{name}", _BOUNDS.samples_bytes)))
    except MillpondError as error:
        if error.condition not in ("FILE_GONE", "CORRUPT_FILE"):
            raise
        return []


def _samples(data: bytes) -> Iterator[Sample]:
    for line in data.splitlines():
        try:
            yield msgspec.json.decode(line, type=ready(Sample))
        except msgspec.MsgspecError:
            continue


def _whole_lines(data: bytes) -> bytes:
    return data if not data or data.endswith(b"\n") else data + b"\n"


def _name(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(max(0, at_ms) / 1000, dt.UTC).strftime(_HOUR) + ".jsonl"


def _overlaps(name: str, start_ms: int, end_ms: int | None) -> bool:
    try:
        hour = dt.datetime.strptime(name.removesuffix(".jsonl"), _HOUR).replace(tzinfo=dt.UTC)
    except ValueError:
        return False
    begin = int(hour.timestamp() * 1000)
    return begin + _HOUR_MS > start_ms and (end_ms is None or begin < end_ms)
