"""Samples of all jobs of some places at intervals, kept by one thread.

An error of one job stops no other; the log names it, and the next try comes at
the next sample.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millpond.catalogue import JobFolder, read_catalogue, shown_name
from millpond.errors import MillpondError
from millpond.logs import EventLog, Trouble
from millpond.operate.measure import JobMeter
from millpond.operate.sample import Sample
from millpond.operate.sample_log import SampleLog, newest_sample
from millpond.settings import SampleSettings
from millpond.storage.places import Places

log = EventLog(__name__)


@dataclass(slots=True)
class _Watched:
    """One job.  `error` says why its last sample failed; None if it didn't."""

    pond: str
    meter: JobMeter
    kept: SampleLog
    trouble: Trouble
    newest: Sample | None = None
    error: MillpondError | None = None


def read_newest(places: Mapping[str, str], allow: Iterable[str] = ()) -> dict[str, Sample]:
    """The newest sample of each job that another process has kept, by the names of `Watcher.samples`.

    Jobs and places that can't be read now are left out.
    """
    found: dict[str, Sample] = {}
    for pond, place in places.items():
        try:
            for folder in read_catalogue(place, Places.of(tuple(allow))).jobs:
                sample = newest_sample(folder)
                if sample is not None:
                    found[shown_name(pond, folder.job, len(places))] = sample
        except MillpondError:
            continue
    return found


Statistics = Callable[[], Mapping[str, Mapping[str, Any]]]
"""`Pond.statistics` of the jobs, by the names of `Watcher.samples`"""


class Watcher:
    """Measures every job of some places; a context manager, which runs it.

    statistics:  of the replicas of these jobs that this process follows
    """

    def __init__(self, places: Mapping[str, str], settings: SampleSettings | None = None, allow: Iterable[str] = ()) -> None:
        """places:  a pond's name -> its place"""
        self.statistics: Statistics = dict
        self._places, self._settings, self._allow = places, settings or SampleSettings(), Places.of(tuple(allow))
        self._jobs: dict[str, _Watched] = {}
        self._troubles = {name: Trouble(log, "samples", pond=name) for name in places}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millpond-samples", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def samples(self) -> dict[str, Sample]:
        """The newest sample of each job, by its name; with several places, the place's name precedes it."""
        return {name: job.newest for name, job in list(self._jobs.items()) if job.newest is not None}

    def errors(self) -> dict[str, MillpondError]:
        """By job, why its last sample couldn't be kept."""
        return {name: job.error for name, job in list(self._jobs.items()) if job.error is not None}

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._settings.sample_seconds, time.monotonic())
            followed = self._read_statistics()
            for name, place in self._places.items():
                self._look(name, place, followed)

    def _read_statistics(self) -> Mapping[str, Mapping[str, Any]]:
        try:
            return self.statistics()
        except Exception as raised:  # noqa: BLE001 - samples without these are better than none
            for trouble in self._troubles.values():
                trouble.met(raised)
            return {}

    def _look(self, pond: str, place: str, followed: Mapping[str, Mapping[str, Any]]) -> None:
        trouble = self._troubles[pond]
        try:
            found = read_catalogue(place, self._allow)
            trouble.over()
        except Exception as raised:  # noqa: BLE001 - the next look may go well
            trouble.met(raised, expected=isinstance(raised, MillpondError) and raised.condition == "NO_CHECKPOINT")
            return
        ponds = len(self._places)
        names = {shown_name(pond, folder.job, ponds): folder for folder in found.jobs}
        there = names.keys() | {shown_name(pond, job, ponds) for job in found.broken}
        for gone in [name for name, job in self._jobs.items() if job.pond == pond and name not in there]:
            del self._jobs[gone]
        for name, folder in names.items():
            if self._stop.is_set():
                return
            self._sample(pond, name, folder, followed.get(name))

    def _sample(self, pond: str, name: str, folder: JobFolder, followed: Mapping[str, Any] | None) -> None:
        job = self._jobs.get(name)
        trouble = self._troubles[pond] if job is None else job.trouble
        try:
            if job is None or job.meter.checkpoint != folder.checkpoint:  # a rescale in a bucket gives a job another one
                meter, kept = JobMeter(folder, self._settings), SampleLog(folder, self._settings)
                job = self._jobs[name] = _Watched(pond, meter, kept, Trouble(log, "samples", job=name))
            job.newest = job.meter.look(len(self._jobs), followed)
            job.kept.add(job.newest)
            job.error = None
            trouble.over()
        except Exception as raised:  # noqa: BLE001 - the next sample may go well
            trouble.met(raised)
            if job is not None:
                job.error = raised if isinstance(raised, MillpondError) else None
