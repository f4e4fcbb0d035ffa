"""What a server does for the safety of the jobs that it follows: savepoints at intervals, and archives.

One thread looks at the ponds for jobs, and starts a `Schedule` and an `Archiver` for each new one.
Both go on by themselves after an error; the log and the metrics name it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.catalogue import open_jobs, shown_name
from millpond.errors import MillpondError
from millpond.logs import EventLog, Trouble
from millpond.savepoint.archive.archiver import Archiver
from millpond.savepoint.manage.prune import keep_of
from millpond.savepoint.manage.schedule import Schedule
from millpond.settings import BackupSettings, parse_length
from millpond.storage import open_storage

log = EventLog(__name__)
# How soon a new job of a pond gets them.
_LOOK_SECONDS = 5.0


@dataclass(slots=True)
class _Job:
    """What runs for one job; None if it isn't wanted."""

    schedule: Schedule | None
    archiver: Archiver | None

    def stop(self) -> None:
        if self.schedule is not None:
            self.schedule.stop()
        if self.archiver is not None:
            self.archiver.stop()


class Backups:
    """Of all jobs of some ponds; a context manager, which runs them."""

    def __init__(self, places: Mapping[str, str], settings: BackupSettings, allow: tuple[str, ...] = ()) -> None:
        """places:  a pond's name -> its place

        Raises:  INVALID_REQUEST if a length of time isn't one.
        """
        self._places, self._settings, self._allow = places, settings, allow
        self._keep = keep_of(last=settings.keep_last, keep_for=settings.keep_for, daily=settings.keep_daily)
        for name in ("savepoint_every", "archive_keep_for"):
            if (length := getattr(settings, name)) is not None:
                parse_length(name, length)
        self._jobs: dict[str, _Job] = {}
        self._troubles: dict[str, Trouble] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millpond-backups", daemon=True)

    def __enter__(self) -> Backups:
        if self._settings.wanted:
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for job in self._jobs.values():
            job.stop()

    def facts(self) -> dict[str, dict[str, Any]]:
        """By job, as `Ponds.statistics` names it, what was made, and `backup_errors`: the last errors, by what failed."""
        found: dict[str, dict[str, Any]] = {}
        for name, job in list(self._jobs.items()):
            errors: dict[str, str] = {}
            facts = found[name] = {"backup_errors": errors}
            if job.schedule is not None:
                made = job.schedule.status()
                facts |= {"savepoints_made": made.made, "savepoint_errors": made.errors}
                if made.last_error is not None:
                    errors["savepoint"] = str(made.last_error)
            if job.archiver is not None:
                copied = job.archiver.status()
                facts |= {"archived_batches": copied.batches, "archive_errors": copied.errors}
                if copied.last_error is not None:
                    errors["archive"] = str(copied.last_error)
        return found

    def _run(self) -> None:
        while not self._stop.is_set():
            for pond, place in self._places.items():
                self._look(pond, place)
            self._stop.wait(_LOOK_SECONDS)

    def _look(self, pond: str, place: str) -> None:
        """Start what new jobs of a pond need."""
        trouble = self._troubles.setdefault(pond, Trouble(log, "backups", pond=pond))
        try:
            for folder in open_jobs(place, allow=self._allow):
                name = shown_name(pond, folder.job, len(self._places))
                if name not in self._jobs:
                    self._jobs[name] = self._begin(pond, place, folder.job)
            trouble.over()
        except Exception as raised:  # noqa: BLE001 - the next look may go well
            trouble.met(raised, expected=isinstance(raised, MillpondError) and raised.condition == "NO_CHECKPOINT")

    def _begin(self, pond: str, place: str, job: str) -> _Job:
        settings, begun = self._settings, _Job(None, None)
        try:
            if settings.savepoint_every is not None:
                begun.schedule = Schedule(place, settings.savepoint_every, keep=self._keep, job=job, allow=self._allow).start()
            if settings.archive is not None:
                root = open_storage(settings.archive)
                to = (root if len(self._places) == 1 else root.folder(pond)).folder(job)
                begun.archiver = Archiver(place, to.uri, job=job, keep_for=settings.archive_keep_for, allow=self._allow).start()
        except BaseException:
            begun.stop()
            raise
        return begun
