"""Verify a savepoint: every file has its hash, none is missing, none is extra, and all rows can be decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from millpond.checkpoint.log import CommittedBatch, read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import restart_files
from millpond.errors import CheckpointError, MillpondError
from millpond.savepoint.join_counts import join_holes
from millpond.savepoint.log_problems import log_problems
from millpond.savepoint.manifest import CHECKPOINT, Savepoint
from millpond.savepoint.row_problems import row_problems
from millpond.savepoint.rows import PartitionId, count_rows
from millpond.savepoint.threads import Progress
from millpond.settings import FileBounds
from millpond.storage.below import files_below
from millpond.storage.copying import hash_file

_BOUNDS = FileBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with a savepoint.

    path:       the file, below the savepoint's folder; the partition's folder if it isn't one file
    condition:  of the error, such as SAVEPOINT_DAMAGED
    message:    with the position, where that is known
    """

    path: str
    condition: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of a verification.

    name:               of the savepoint
    files, size_bytes:  of the files whose hash is right
    rows:               so many were decoded
    problems:           empty if the savepoint is whole
    """

    name: str
    files: int
    size_bytes: int
    rows: int
    problems: tuple[Problem, ...]

    @property
    def is_whole(self) -> bool:
        """Whether Spark can start from it."""
        return not self.problems


def verify_savepoint(savepoint: Savepoint, progress: Progress | None = None) -> Verified:
    """Read all of a savepoint, and compare it with its manifest.

    Raises:  what the storage raises; all that is wrong with the savepoint is in `problems`.
    """
    manifest, storage = savepoint.manifest, savepoint.storage
    problems: list[Problem] = []
    good = size = 0
    for done, file in enumerate(manifest.files, 1):
        path = f"{CHECKPOINT}/{file.path}"
        try:
            found = hash_file(storage, path, most_bytes=_BOUNDS.state_bytes)
            if found == file.content:
                good, size = good + 1, size + file.size_bytes
            else:
                what = f"it has {found.size_bytes:,} bytes of {file.size_bytes:,}, and another hash"
                problems.append(Problem(path=path, condition="SAVEPOINT_DAMAGED", message=what))
        except CheckpointError as error:
            problems.append(Problem(path=path, condition=error.condition, message=error.message))
        if progress is not None:
            progress(done, len(manifest.files))
    listed = {file.path for file in manifest.files}
    for path in files_below(savepoint.checkpoint):
        if path not in listed:
            what = "the manifest doesn't have this file"
            problems.append(Problem(path=f"{CHECKPOINT}/{path}", condition="SAVEPOINT_DAMAGED", message=what))
    rows = 0
    try:
        batch = read_batch(savepoint.checkpoint, Batch(manifest.batch))
        problems += _missing(savepoint, batch, listed)
        problems += [_problem(CHECKPOINT, error) for error in log_problems(savepoint.checkpoint, batch)]
        rows = _compare_rows(savepoint, batch, problems, progress)
        problems += _wrong_rows(savepoint, batch, {problem.path for problem in problems})
    except MillpondError as error:
        problems.append(_problem(CHECKPOINT, error))
    return Verified(name=manifest.name, files=good, size_bytes=size, rows=rows, problems=tuple(problems))


def _wrong_rows(savepoint: Savepoint, batch: CommittedBatch, known: set[str]) -> Iterator[Problem]:
    """Rows that can't be read, of other partitions, or missing where a join counts them.

    known:  files and folders that aren't named again
    """
    for rows in row_problems(savepoint.checkpoint, batch):
        path = f"{CHECKPOINT}/{rows.folder}"
        damaged = Problem(path=path, condition="SAVEPOINT_DAMAGED", message=rows.what)
        found = damaged if rows.error is None else _problem(path, rows.error)
        if not {path, found.path} & known:
            yield found
    for hole in join_holes(savepoint.checkpoint, batch):
        yield Problem(path=f"{CHECKPOINT}/{hole.folder}", condition="SAVEPOINT_DAMAGED", message=str(hole))


def _missing(savepoint: Savepoint, batch: CommittedBatch, listed: set[str]) -> list[Problem]:
    """Files that a restart needs and the manifest doesn't list."""
    needed = {file.path for file in restart_files(savepoint.checkpoint, batch)}
    what = "a restart needs this file, and the manifest doesn't have it"
    return [Problem(path=f"{CHECKPOINT}/{path}", condition="SAVEPOINT_DAMAGED", message=what) for path in sorted(needed - listed)]


def _compare_rows(savepoint: Savepoint, batch: CommittedBatch, problems: list[Problem], progress: Progress | None) -> int:
    counted: Counter[PartitionId] = Counter()
    for (operator, store, partition), rows in count_rows(savepoint.checkpoint, batch):
        if isinstance(rows, MillpondError):
            problems.append(_problem(f"{CHECKPOINT}/state/{operator}/{partition}", rows))
        else:
            counted[operator, store, partition] += rows
        if progress is not None:  # which may end this
            progress(len(savepoint.manifest.files), len(savepoint.manifest.files))
    for state in savepoint.manifest.partitions:
        rows = counted[state.operator, state.store, state.partition]
        if state.rows is not None and rows != state.rows:
            path = f"{CHECKPOINT}/state/{state.operator}/{state.partition}"
            what = f"store {state.store} has {rows:,} rows, and had {state.rows:,} when the savepoint was made"
            problems.append(Problem(path=path, condition="SAVEPOINT_DAMAGED", message=what))
    return sum(counted.values())


def _problem(path: str, error: MillpondError) -> Problem:
    return Problem(path=str(error.context.get("path", path)), condition=error.condition, message=error.message)
