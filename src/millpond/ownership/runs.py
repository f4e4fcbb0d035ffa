"""The runs of a job of `start` or `publish`: when each began, committed its first batch, and ended.

    <job folder>/runs.json    {"format": 1, "count": …, "failures": …, "runs": [{"began_ms": …, …}, …]}    newest last

Only the owner of the job's lease writes it, or the process whose query was published.  It keeps the newest hundred runs;
`count` has all of them.
"""

from __future__ import annotations

import msgspec

from millpond.errors import CheckpointError
from millpond.schema.prepared import ready
from millpond.settings import FileBounds
from millpond.storage import Storage

NAME = "runs.json"
_FORMAT = 1
_MOST_RUNS = 100
_BOUNDS = FileBounds()


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of a job, from the start of its process to its end.  Times are milliseconds since 1970.

    began_ms:      when the process began
    host:          the machine's name
    batch:         the newest batch that was committed before; None if there was none
    committed_ms:  when its first batch was committed; None if none was
    ended_ms:      when it ended; None if it runs, or was killed
    error:         Spark's or Millpond's condition, or the class of the error; None without one
    """

    began_ms: int
    host: str
    batch: int | None = None
    committed_ms: int | None = None
    ended_ms: int | None = None
    error: str | None = None

    @property
    def recovery_seconds(self) -> float | None:
        """From the start of the process to its first commit; None if there was none, or not yet."""
        return None if self.committed_ms is None else max(0.0, (self.committed_ms - self.began_ms) / 1000)


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a job's runs.

    count:     how often it was started
    failures:  how many of these runs an error has ended
    runs:      the newest ones, oldest first
    """

    format: int = _FORMAT
    count: int = 0
    failures: int = 0
    runs: tuple[Run, ...] = ()


def read_runs(storage: Storage) -> Runs:
    """The runs of the job in a folder; none if nothing is known of them.

    Raises:  CORRUPT_FILE; what the storage raises.
    """
    if storage.stamp(NAME) is None:
        return Runs()
    try:
        found = msgspec.json.decode(storage.read(NAME, _BOUNDS.note_bytes), type=ready(Runs))
    except (msgspec.MsgspecError, UnicodeDecodeError) as broken:
        raise _corrupt(storage, str(broken)) from broken
    if found.format != _FORMAT:
        raise _corrupt(storage, f"its format is {found.format}")
    return found


def begin_run(storage: Storage, run: Run) -> None:
    """Add a run.  A file that can't be read is begun anew: no answer depends on it."""
    try:
        before = read_runs(storage)
    except CheckpointError:
        before = Runs()
    _write(storage, msgspec.structs.replace(before, count=before.count + 1, runs=(*before.runs, run)[-_MOST_RUNS:]))


def change_run(storage: Storage, run: Run) -> None:
    """Write what is known now of the newest run; nothing if another one is the newest.

    Raises:  CORRUPT_FILE, NOT_WRITABLE; what the storage raises.
    """
    before = read_runs(storage)
    if before.runs and before.runs[-1].began_ms == run.began_ms and before.runs[-1].host == run.host:
        failures = before.failures + (run.error is not None and before.runs[-1].error is None)
        _write(storage, msgspec.structs.replace(before, failures=failures, runs=(*before.runs[:-1], run)))


def _write(storage: Storage, runs: Runs) -> None:
    storage.write(NAME, msgspec.json.encode(runs))


def _corrupt(storage: Storage, why: str) -> CheckpointError:
    return CheckpointError(
        "CORRUPT_FILE",
        f"{storage.uri}/{NAME} can't be read: {why:.200}.",
        hint="Delete the file: it says only when the job ran.",
        path=f"{storage.uri}/{NAME}",
    )
