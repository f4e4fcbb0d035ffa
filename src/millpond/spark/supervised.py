"""What `millpond run` and `millpond drill` ask of the program that they run, by its environment.

`start` writes the jobs that it starts into a folder, so that whoever runs the program knows them;
it waits for the lease, as a standby does; or it starts them in another pond, without their sinks.
`millpond doctor` asks more: whatever starts a job gives it to the reviewer in place of starting it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

from millpond.catalogue import JobFolder
from millpond.errors import RequestError, SavepointError, StorageError
from millpond.ownership.lease import check_not_held
from millpond.storage.machine import process_began_ms

FOLDER = "MILLPOND_RUN_FOLDER"
STANDBY = "MILLPOND_RUN_STANDBY"
DRILL_POND = "MILLPOND_DRILL_POND"
WATCHED = "MILLPOND_RUN_PARENT"
"""the number of a pipe's end, of which the parent has the other one"""
ORDERS = (FOLDER, STANDBY, DRILL_POND)
_LOOK_SECONDS, _LOOK_SECONDS_REMOTE = 0.5, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the environment asks for.

    folder:      where `start` names its jobs; None: nowhere
    is_standby:  whether `start` waits while somebody else has a job's lease
    pond:        in place of every job's own pond, and without sinks; None: as the program says
    """

    folder: Path | None = None
    is_standby: bool = False
    pond: str | None = None

    def to_environment(self) -> dict[str, str]:
        """As environment variables."""
        folder, pond = self.folder, self.pond
        return {
            **({} if folder is None else {FOLDER: str(folder)}),
            **({STANDBY: "1"} if self.is_standby else {}),
            **({} if pond is None else {DRILL_POND: pond}),
        }


def orders() -> Orders:
    """Those of this process."""
    folder = os.environ.get(FOLDER)
    return Orders(
        folder=None if folder is None else Path(folder),
        is_standby=os.environ.get(STANDBY) == "1",
        pond=os.environ.get(DRILL_POND),
    )


def note_start(folder: JobFolder) -> None:
    """Name a job that starts now to whoever runs this program."""
    place = orders().folder
    if place is not None:
        said = {"job": folder.job, "folder": folder.storage.uri, "checkpoint": folder.checkpoint}
        name = hashlib.sha256(folder.storage.uri.encode()).hexdigest()
        with suppress(OSError):  # the folder may be gone: the job matters more
            written = place / f"{name}.new"
            written.write_text(json.dumps(said))
            written.replace(place / f"{name}.json")


def read_starts(place: Path) -> list[dict[str, str]]:
    """The jobs that a program has started: their names, folders and checkpoints."""
    found = []
    for path in place.glob("*.json"):
        with suppress(OSError, ValueError):  # the folder may be gone
            found.append(json.loads(path.read_text()))
    return sorted(found, key=lambda said: said["folder"])


def wait_as_standby(folder: JobFolder, *, fenced: bool) -> None:
    """Wait until nobody has the job's lease, if this program is a standby.

    Raises:  INVALID_REQUEST if the job isn't fenced; CORRUPT_FILE, and what the storage raises.
    """
    if not orders().is_standby:
        return
    if not fenced:
        raise RequestError(
            "INVALID_REQUEST",
            f"The job {folder.job} isn't fenced, so a standby can't take it over.",
            hint="Write start(…, fenced=True): a job that was paused could otherwise spoil what the standby commits.",
        )
    pause = _LOOK_SECONDS_REMOTE if folder.storage.is_remote else _LOOK_SECONDS
    owner: object = None
    trouble = ""
    while True:
        try:
            check_not_held(folder.storage)
        except StorageError as error:  # it may pass: a standby that gives up is missed when it is needed
            if str(error) != trouble:
                trouble = str(error)
                print(f"millpond: {folder.job}: standby. {error}", file=sys.stderr, flush=True)
            time.sleep(pause)
        except SavepointError as error:
            if error.condition != "CHECKPOINT_IN_USE":
                raise
            _counted.set()
            trouble = ""
            if owner != error.context.get("owner"):
                owner = error.context.get("owner")
                print(f"millpond: {folder.job}: standby. {error.message}", file=sys.stderr, flush=True)
            time.sleep(pause)
        else:
            return


def watch_parent(end: Callable[[], None]) -> None:
    """Call `end`, in a thread, when the parent has closed its end of the pipe or has ended, however that came."""
    number = os.environ.pop(WATCHED, None)
    if number is None:
        return

    def watch() -> None:
        os.read(int(number), 1)
        end()

    threading.Thread(target=watch, name="millpond-parent", daemon=True).start()


class Reviewer(Protocol):
    """Keeps the jobs that a program would start, while the program is looked at."""

    def start_job(self, df: Any, folder: JobFolder, *, trigger: str | None, output_mode: str, sink: Any) -> Any:
        """In place of `start`."""

    def start_aggregate(self, job: str) -> Any:
        """In place of `Aggregate.start`."""


_reviewers: list[Reviewer] = []


def reviewer() -> Reviewer | None:
    """Who keeps the jobs of this process in place of starting them; None: nobody."""
    return _reviewers[-1] if _reviewers else None


@contextmanager
def reviewed_by(keeper: Reviewer) -> Iterator[None]:
    """Within this context no job starts: `keeper` gets each one."""
    _reviewers.append(keeper)
    try:
        yield
    finally:
        _reviewers.remove(keeper)


_starting = threading.local()
# Whether a job of this process has begun by `process_began_ms`, or has waited as a standby.
_counted = threading.Event()


def began_ms() -> int:
    """When the run of a job that starts now began: with its process, but not if that has waited, or has run a job before."""
    if _counted.is_set():
        return int(time.time() * 1000)
    _counted.set()
    return process_began_ms()


@contextmanager
def starting() -> Iterator[None]:
    """`start` starts a query within this context."""
    _starting.is_ours = True
    try:
        yield
    finally:
        _starting.is_ours = False


def refuse_other_queries() -> None:
    """From now on this process starts queries by `start` only: in a drill, others would go on with their real checkpoints."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    for name in ("start", "toTable"):
        begin = getattr(DataStreamWriter, name)

        @wraps(begin)
        def checked(*arguments: Any, _begin: Callable[..., Any] = begin, **options: Any) -> Any:
            if not getattr(_starting, "is_ours", False):
                raise RequestError(
                    "INVALID_REQUEST",
                    "The program starts a query without millpond.start, which a drill can't keep from its real checkpoint.",
                    hint="Start it by millpond.start, or leave it out where MILLPOND_DRILL_POND is in the environment.",
                )
            return _begin(*arguments, **options)

        setattr(DataStreamWriter, name, checked)


def drilled_job(folder: JobFolder) -> None:
    """Refuse a job that a drill hasn't restored.  Raises INVALID_REQUEST."""
    if orders().pond is not None and folder.storage.stamp("job.json") is None:
        raise RequestError(
            "INVALID_REQUEST",
            f"The job {folder.job} has no savepoint, so a drill can't restore it.",
            hint="Make savepoints of every job that the program starts: millpond savepoint create.",
        )
