"""A drill: do the newest savepoints bring the jobs back, and how long does that take?

1. Restore the newest savepoint of each job into a scratch pond, where every file is compared with
   its hash.  A job whose savepoint is damaged isn't back; the others are tried.
2. Run the program once.  `start` finds its jobs there, and gives them no sinks; a query that the
   program starts by other means is refused.
3. Wait until each job has committed a batch after its savepoint.
4. End the program, and look at all that Spark would read of each checkpoint.
5. Record the drill in the jobs' own folders, and delete the scratch pond.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import JobFolder, create_job, find_job, job_of
from millpond.checkpoint.log import committed_batches
from millpond.errors import CheckpointError, MillpondError, SavepointError
from millpond.operate.run.drills import Drill, add_drill
from millpond.operate.run.runner import Runner, Status
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.savepoint.restore import restore_files, restore_tables
from millpond.settings import RunSettings
from millpond.spark.supervised import Orders
from millpond.storage import open_storage

_MOST_PROBLEM_LETTERS = 500
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Restored:
    """A job in the scratch pond."""

    folder: JobFolder
    savepoint: Savepoint


def newest_savepoints(place: str | Path, job: str | None = None) -> list[Savepoint]:
    """The newest savepoint of each job of a pond.

    job:     only this one
    Raises:  UNKNOWN_SAVEPOINT if there is none; what the storage raises.
    """
    newest = {found.manifest.job: found for found in list_savepoints(place).found}
    if job is not None:
        newest = {name: found for name, found in newest.items() if name == job}
    if not newest:
        of = "" if job is None else f" of the job {job}"
        raise SavepointError(
            "UNKNOWN_SAVEPOINT",
            f"There is no savepoint{of} in {place}.",
            hint="Make one: millpond savepoint create; or let a server make them: millpond serve --savepoint-every.",
        )
    return list(newest.values())


def run_drill(
    place: str | Path,
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    job: str | None = None,
    within_seconds: float,
    wait_seconds: float | None = None,
    scratch: str | Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Drill]:
    """Run a drill; one result for each job, by its name.

    place:          a pond
    program:        the Python file that starts its jobs, with its arguments
    job:            only this one; the program must start no other
    within_seconds: the objective
    wait_seconds:   so long to wait for commits; None: twice the objective, at least a minute
    scratch:        where the scratch pond is made, in a folder of its own; None: among temporary files
    say:            called with what happens now
    Raises:         UNKNOWN_SAVEPOINT; NOT_WRITABLE, and what the storages raise.  A savepoint that
                    can't be restored and a program that fails are in the results.
    """
    began = time.time()
    savepoints = newest_savepoints(place, job)
    wait = max(60.0, 2 * within_seconds) if wait_seconds is None else wait_seconds
    with _scratch_pond(scratch, say) as pond:
        say("restoring " + ", ".join(f"{found.manifest.job} from {found.manifest.name}" for found in savepoints))
        restored, broken = list[_Restored](), dict[str, str]()
        for savepoint in savepoints:  # 1
            try:
                restored.append(_restore(savepoint, pond))
            except (SavepointError, CheckpointError) as error:
                broken[savepoint.manifest.job] = str(error)
        restore_seconds = time.time() - began
        commits: dict[str, tuple[int, float]] = {}
        problem = ""
        if restored:
            say(f"starting {program}")
            commits, problem = _run(program, arguments, pond, restored, time.monotonic() + wait)  # 2, 3
        found = {each.folder.job: _problem(each.folder) for each in restored if each.folder.job in commits}  # 4
        drills = []
        for savepoint in savepoints:
            manifest = savepoint.manifest
            batch, at = commits.get(manifest.job, (None, None))
            drill = Drill(
                at_ms=int(began * 1000),
                job=manifest.job,
                savepoint=manifest.name,
                savepoint_batch=manifest.batch,
                savepoint_age_seconds=max(0.0, began - manifest.created_ms / 1000),
                within_seconds=within_seconds,
                restore_seconds=restore_seconds,
                recovery_seconds=None if at is None else max(0.0, at - began),
                batch=batch,
                problem=(broken.get(manifest.job) or found.get(manifest.job, problem))[:_MOST_PROBLEM_LETTERS],
            )
            _record(place, drill)  # 5
            drills.append(drill)
    return sorted(drills, key=lambda drill: drill.job)


@contextmanager
def _scratch_pond(given: str | Path | None, say: Callable[[str], None]) -> Iterator[str]:
    """The URI of a new folder, which is gone afterwards."""
    root = open_storage(tempfile.gettempdir() if given is None else given)
    storage = root.folder(f"millpond-drill-{uuid.uuid4().hex}")
    try:
        yield storage.uri
    finally:
        try:
            storage.delete_all()
        except MillpondError as error:
            say(f"The copies couldn't be deleted: {error}")


def _restore(savepoint: Savepoint, pond: str) -> _Restored:
    folder = job_of(pond, savepoint.manifest.job)
    restore_files(savepoint, folder.open_checkpoint(), str(uuid.uuid4()))
    restore_tables(folder, savepoint.manifest)
    return _Restored(create_job(pond, savepoint.manifest.job), savepoint)


def _run(
    program: str | Path, arguments: Sequence[str], pond: str, restored: Iterable[_Restored], deadline: float
) -> tuple[dict[str, tuple[int, float]], str]:
    """Each job's first commit, its batch and time; and why the others have none."""
    ended: list[Status] = []
    runner = Runner(program, arguments, orders=Orders(pond=pond), settings=RunSettings(most_idle_runs=0))
    working = threading.Thread(target=lambda: ended.append(runner.run()), name="millpond-drill")
    working.start()
    commits: dict[str, tuple[int, float]] = {}
    waiting = {each.folder.job: each for each in restored}
    try:
        while waiting and time.monotonic() < deadline:
            is_over = not working.is_alive()
            for name, each in list(waiting.items()):
                found = _first_commit(each)
                if found is not None:
                    commits[name] = found
                    del waiting[name]
            if is_over:
                break
            time.sleep(_LOOK_SECONDS)
    finally:
        runner.stop()
        working.join()
    last = ended[0].last if ended else None
    if last is not None and not last.is_good:
        return commits, last.describe()
    return commits, "It has committed no batch: perhaps its sources have nothing after the savepoint." if waiting else ""


def _first_commit(job: _Restored) -> tuple[int, float] | None:
    storage = job.folder.open_checkpoint()
    after = [batch for batch in committed_batches(storage) if batch > job.savepoint.manifest.batch]
    stamp = storage.stamp(f"commits/{after[0]}") if after else None
    return None if stamp is None else (after[0], stamp.modified_ns / 1e9)


def _problem(folder: JobFolder) -> str:
    """What keeps Spark from starting from a checkpoint; empty if nothing does."""
    try:
        found = diagnose(folder.open_checkpoint(), folder.known_state()).findings
    except MillpondError as error:
        return str(error)
    return "; ".join(f"{finding.path}: {finding.means}" for finding in found if finding.effect != "none")


def _record(place: str | Path, drill: Drill) -> None:
    with suppress(MillpondError):  # the job itself may be gone: its savepoint isn't
        add_drill(find_job(place, drill.job).storage, drill)
