"""What is wrong with a checkpoint, and whether Spark starts from it as it is.

1. `metadata`, the plans (offsets/N) and commits (commits/N).  Spark reads the newest of each, and
   the plan before the newest; others don't matter to it.
2. Each file source's log.
3. The state that Spark loads: that of the newest plan's batch if it is committed, else that of the
   batch before.  Every operator's metadata and schema, and every file of each partition.
4. Signs of a second job, a rewind, lost settings, or times of a copy (`writers.py`).

A running job writes meanwhile: if its newest batch has changed, all is looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from millpond.catalogue import KnownState
from millpond.checkpoint.log import CommittedBatch, encode_commit, job_id, read_batch
from millpond.checkpoint.operators import gone_state, metadata_path, read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import log_offset, partitions_of_stores, schema_files
from millpond.checkpoint.source_files import newest_entry
from millpond.errors import CheckpointError, StorageError
from millpond.savepoint.join_counts import join_holes
from millpond.savepoint.repair.chains import below, chain_problems, has_every_change, leave_out_snapshots
from millpond.savepoint.repair.elsewhere import named_elsewhere
from millpond.savepoint.repair.finding import Diagnosis, Effect, Finding
from millpond.savepoint.repair.logs import Logs, is_readable, read_logs, source_problems
from millpond.savepoint.repair.operators import make_up, needs_schema_files, writes_schema_files
from millpond.savepoint.repair.whole_files import WholeFiles
from millpond.savepoint.repair.writers import signs_of_others
from millpond.savepoint.restore import encode_metadata
from millpond.savepoint.row_problems import row_problems
from millpond.savepoint.rows import count_rows
from millpond.schema.store import StoreSchema
from millpond.storage import Storage
from millpond.storage.names import numbers
from millpond.storage.patched import PatchedStorage

_LOOKS = 5
_ID = re.compile("-".join(["[0-9A-Fa-f]+"] * 5))
_COPY = "A repaired copy is made by millpond repair --yes."
_BACK = "A repaired copy goes on from the batch before, and loses nothing if that one is whole."
_LOAD = "CANNOT_LOAD_STATE_STORE when its next batch begins"


def diagnose(storage: Storage, known: KnownState | None = None) -> Diagnosis:
    """Look at all that Spark reads of a checkpoint when it starts.  The job may run meanwhile.

    known:   of the query; by default that it keeps state
    Raises:  NO_CHECKPOINT if there is neither `metadata` nor any plan; what the storage raises.
    """
    return examine(storage, known)[0]


def examine(storage: Storage, known: KnownState | None = None) -> tuple[Diagnosis, Logs, WholeFiles]:
    """The same, with what was read for it."""
    for look in range(_LOOKS):
        logs, files = read_logs(storage), WholeFiles(storage)
        found = list(_findings(storage, logs, files, known))
        if not found or look == _LOOKS - 1 or _newest(storage) == (logs.planned, logs.committed):
            break
    committed = max(logs.commits, default=None)
    return Diagnosis(checkpoint=storage.uri, planned=logs.planned, committed=committed, findings=tuple(found)), logs, files


def view_of(storage: Storage, logs: Logs, number: int) -> tuple[PatchedStorage, CommittedBatch]:
    """A checkpoint in which a batch is committed, and which has an id, whether or not these files are whole.

    A commit that can't be read has the watermark with which the next batch was planned.  Plans that
    can't be read aren't there: the age of state files is compared with them.
    """
    view = PatchedStorage(storage)
    for bad in logs.bad_plans:
        view.delete(f"offsets/{bad}")
    try:
        job_id(storage)
    except CheckpointError:
        view.write("metadata", encode_metadata("lost"))
    if number not in logs.commits:
        after = logs.plans.get(number + 1, logs.plans[number])
        view.write(f"commits/{number}", encode_commit(after.watermark_ms))
    return view, read_batch(view, Batch(number))


def _newest(storage: Storage) -> tuple[int | None, int | None]:
    return max(numbers(storage.names("offsets")), default=None), max(numbers(storage.names("commits")), default=None)


def _findings(storage: Storage, logs: Logs, files: WholeFiles, known: KnownState | None) -> Iterator[Finding]:
    if logs.planned is None and not storage.names("state") and logs.committed is None:
        job_id(storage)  # a query that was started, and has planned nothing
        return
    yield from _metadata(storage)  # 1
    yield from _plans(storage, logs)
    yield from _commits(storage, logs)
    newest = logs.plans.get(-1 if logs.planned is None else logs.planned)
    for source, offset in newest.offsets.items() if newest is not None else ():  # 2
        for path, error in source_problems(storage, source, offset, later=True).items():
            effect: Effect = "fails"
            means = "Spark doesn't start: its source reads the log from the newest compacted entry on."
            if is_readable(error):
                means, effect = "Spark may read a file twice, whose name was changed there.", "wrong"
            elif path == f"sources/{source}/{_unread_entry(storage, logs, source)}":
                means, effect = "Spark writes the entry again, with files that it hasn't seen, and reads none of these.", "wrong"
            yield _file(storage, path, error, effect, means, "A repaired copy goes on from a batch before this entry.")
    yield from _left_checksums(storage, logs)
    base = _base(logs)
    if base is not None:
        view, batch = view_of(storage, logs, base)
        yield from _gone(storage, batch, logs.known(known))  # 3
        yield from _state(storage, view, batch, files)
    yield from signs_of_others(storage, logs)  # 4


def _unread_entry(storage: Storage, logs: Logs, source: str) -> int | None:
    """The last entry of a source's log, if it is missing and Spark doesn't need it to start.

    It needs those of the newest batch: between the offsets of the two newest plans.
    """
    assert logs.planned is not None
    newest, before = (logs.plans.get(number) for number in (logs.planned, logs.planned - 1))
    if newest is None or before is None or newest.offsets[source] != before.offsets.get(source):
        return None
    last = newest_entry(storage, source)
    return None if last is None or log_offset(newest.offsets[source]) != last + 1 else last + 1


def _metadata(storage: Storage) -> Iterator[Finding]:
    try:
        read_id(storage)
    except CheckpointError as error:
        means = "Spark doesn't start: it can't read the query's id."
        if storage.stamp("metadata") is None:
            means = "Spark doesn't start (STREAMING_CHECKPOINT_MISSING_METADATA_FILE)."
        yield _file(storage, "metadata", error, "fails", means, "A repaired copy has a new id; nothing else depends on it.")


def read_id(storage: Storage) -> str:
    """The query's id.  Raises NO_CHECKPOINT, CORRUPT_FILE; also if Spark doesn't take it for one."""
    found = job_id(storage)
    if not _ID.fullmatch(found):
        raise CheckpointError("CORRUPT_FILE", f"{found!r:.80} isn't an id of a query.", hint="Restore the file from a copy.")
    return found


def _plans(storage: Storage, logs: Logs) -> Iterator[Finding]:
    newest = logs.planned
    if newest is None:
        yield Finding(
            kind="missing",
            path="offsets",
            what="There is no plan of any batch, but there are commits or state.",
            effect="wrong",
            means="Spark would begin anew at batch 0, and read the sources from their start.",
            remedy="Nothing says up to where the sources were read: restore a savepoint.",
        )
        return
    for number in range(min((*logs.plans, *logs.bad_plans)), newest + 1):
        if number in logs.plans:
            continue
        error = logs.bad_plans.get(number)
        if error is None and number not in logs.commits and not storage.names("state"):
            continue  # a job without state may leave batches out of both logs (asynchronous progress)
        if number < newest - 1:
            yield _file(
                storage, f"offsets/{number}", error, "none", "Spark reads only the two newest plans.", "Nothing needs to be done."
            )
        elif is_readable(error):
            yield _file(storage, f"offsets/{number}", error, "wrong", "Spark goes by what the damaged file says.", _BACK)
        elif number == newest:
            yield _file(storage, f"offsets/{number}", error, "fails", "Spark doesn't start.", _BACK)
        else:
            means = f"Spark doesn't start (batch {number} doesn't exist)."
            yield _file(storage, f"offsets/{number}", error, "fails", means, _COPY)


def _commits(storage: Storage, logs: Logs) -> Iterator[Finding]:
    newest, planned = logs.committed, logs.planned
    for number in sorted(logs.bad_commits):
        error, is_newest = logs.bad_commits[number], number == newest
        if not is_newest:
            yield _file(
                storage, f"commits/{number}", error, "none", "Spark reads only the newest commit.", "Nothing needs to be done."
            )
        elif is_readable(error):
            means = "Spark takes the damaged file's watermark, and in checkpoint format 2 the state's ids, for true."
            yield _file(storage, f"commits/{number}", error, "wrong", means, _BACK)
        else:
            yield _file(
                storage, f"commits/{number}", error, "fails", "Spark doesn't start: it can't read its newest commit.", _BACK
            )
    oldest = min((*logs.commits, *logs.bad_commits), default=0)
    for number in range(oldest, newest or 0):
        # Jobs without state may leave commits out (asynchronous progress).
        if number in logs.plans and number not in logs.commits and number not in logs.bad_commits and storage.names("state"):
            means = "Spark reads only the newest commit. Millpond can't read this batch."
            yield _file(storage, f"commits/{number}", None, "none", means, "Nothing needs to be done.")
    if newest is None or planned is None:
        if newest is None and planned:
            means = (
                f"Spark runs batch {planned} again; a sink may get it twice." if not logs.is_format_2 else "Spark doesn't start."
            )
            yield _behind("commits", f"No batch is committed, and batch {planned} is planned.", "none", means)
        return
    if newest < planned and not storage.names("state"):
        return
    if newest > planned:
        yield Finding(
            kind="ahead",
            path=f"commits/{newest}",
            what=f"Batch {newest} is committed, and the newest plan is that of batch {planned}.",
            effect="fails",
            means=f"Spark runs batch {planned} again, and fails when it commits (CONCURRENT_STREAM_LOG_UPDATE).",
            remedy=f"A repaired copy goes on after batch {planned}, whose plan is there.",
        )
    elif newest < planned - 1:
        what = f"Batch {planned} is planned, and the newest commit is that of batch {newest}: batch {planned - 1} has none."
        if logs.is_format_2:
            means = f"Only the lost commit names the state's files of batch {planned - 1}: Spark isn't known to find them."
            yield _behind(f"commits/{planned - 1}", what, "may fail", means)
        else:
            means = f"Spark warns, and runs batch {planned} on the state of batch {planned - 1}, which is right."
            yield _behind(f"commits/{planned - 1}", what, "none", means)


def _left_checksums(storage: Storage, logs: Logs) -> Iterator[Finding]:
    """Hadoop's checksums of files that are gone.  Spark can't write such a file while its checksum is there."""
    if logs.planned is None:
        return
    next_files = [f"offsets/{logs.planned + 1}", f"commits/{logs.planned + 1}"]
    if logs.planned not in logs.commits and logs.planned not in logs.bad_commits:
        next_files.append(f"commits/{logs.planned}")
    for path in next_files:
        if _has_left_checksum(storage, path):
            yield _left(path)


def _has_left_checksum(storage: Storage, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return not storage.is_remote and storage.stamp(path) is None and storage.stamp(f"{folder}/.{name}.crc") is not None


def _left(path: str) -> Finding:
    folder, _, name = path.rpartition("/")
    return Finding(
        kind="left",
        path=f"{folder}/.{name}.crc",
        what=f"{path} is missing, and its hidden checksum is still there.",
        effect="fails",
        means=f"Spark can't write {path} (Rename destination already exists; of a log, Multiple streaming queries …).",
        remedy="Delete the hidden file too; a repaired copy has no such files.",
    )


def _behind(path: str, what: str, effect: Effect, means: str) -> Finding:
    return Finding(kind="behind", path=path, what=what, effect=effect, means=means, remedy=_COPY)


def _base(logs: Logs) -> int | None:
    """The batch whose state Spark loads; None if it loads none, or can't even find out."""
    planned = logs.planned
    if planned is None or planned not in logs.plans:
        return None
    committed = logs.committed
    base = planned if committed is not None and committed >= planned else planned - 1
    return base if base in logs.plans and (base in logs.commits or not logs.is_format_2) else None


def _state(storage: Storage, view: PatchedStorage, batch: CommittedBatch, files: WholeFiles) -> Iterator[Finding]:
    named = set()
    for operator in numbers(storage.names("state")):
        for finding in _operator(storage, view, batch, files, operator):
            named.add(finding.path)
            yield finding
    for path in sorted(files.differing_beside.keys() - named):
        means = f"Spark fails ({_LOAD}) if it reads or copies the file: it compares it with the checksum beside it."
        remedy = "Delete the checksum; a repaired copy has no such files."
        yield _file(storage, path, files.differing_beside[path], "may fail", means, remedy)
    for hole in join_holes(view, batch) if not named else ():
        yield Finding(
            kind="hole",
            path=hole.folder,
            what=str(hole),
            effect="may fail",
            means="Spark fails once it comes to a row that isn't there, or leaves it out; rows that no count names stay for ever.",
            remedy="A repaired copy goes on from an earlier batch, whose counts are right.",
        )
    for problem in row_problems(view, batch) if not named else ():
        if problem.error is not None:
            path, means = below(storage, problem.error, problem.folder), "Spark fails once it reads this file."
            named.add(path)
            yield _file(storage, path, problem.error, "may fail", means, _BACK)
            continue
        means = "Spark takes these rows for those of the partition: its state and output are wrong."
        yield Finding(kind="damaged", path=problem.folder, what=problem.what, effect="wrong", means=means, remedy=_BACK)
    if not named and batch.settings.codec != "lz4":
        for (operator, _, partition), rows in count_rows(view, batch):
            if isinstance(rows, StorageError):
                raise rows
            if isinstance(rows, CheckpointError):
                path = below(storage, rows, f"state/{operator}/{partition}")
                yield _file(
                    storage, path, rows, "may fail", "Spark fails when it reads the damaged row, or takes it for true.", _BACK
                )


def _gone(storage: Storage, batch: CommittedBatch, known: KnownState) -> Iterator[Finding]:
    for path in gone_state(storage, batch, known):
        operator = path.removeprefix("state/")
        is_all = path == "state"
        yield Finding(
            kind="missing",
            path=path,
            what="There is no state." if is_all else f"The state of operator {operator} is missing.",
            effect="fails",
            means=f"Spark fails ({_LOAD})" + (", unless the query keeps none: then say --stateless." if is_all else "."),
            remedy="Restore the folder, or a savepoint: the rows are in no file here.",
        )


def _operator(storage: Storage, view: PatchedStorage, batch: CommittedBatch, files: WholeFiles, operator: int) -> Iterator[Finding]:
    bad = list(_described(storage, view, batch, files, operator))
    for path, error in bad:
        if _has_left_checksum(storage, path) and "/v2/" not in path and "/_stateSchema/" not in path:
            yield _left(path)
        else:
            is_gone = storage.stamp(path) is None
            is_written_again = is_gone and writes_schema_files(storage, operator, batch)
            is_readable = path in files.differing
            yield _description(storage, path, error, is_gone=is_gone, is_written_again=is_written_again, is_readable=is_readable)
        view.delete(path)
    if needs_schema_files(storage, operator):
        if not bad:
            yield from named_elsewhere(storage, metadata_path(storage, operator, batch.batch))
        elif not writes_schema_files(storage, operator, batch):
            return
    else:
        make_up(view, operator, batch)
    for files_of in read_operator_files(view, batch.batch, only=operator):
        try:
            places = list(partitions_of_stores(view, batch, files_of))
        except CheckpointError as error:
            yield _file(storage, below(storage, error, f"state/{operator}"), error, "fails", f"Spark fails ({_LOAD}).", _BACK)
            continue
        lost = {n for n in {partition for _, partition in places} if not storage.names(f"state/{operator}/{n}")}
        for number in sorted(lost):  # one finding, not one for each file
            path, what = f"state/{operator}/{number}", "The partition has no files."
            yield Finding(kind="missing", path=path, what=what, effect="fails", means=f"Spark fails ({_LOAD}).", remedy=_BACK)
        for store, partition in ((store, n) for store, n in places if n not in lost):
            yield from _partition(storage, view, batch, files, store, partition)


def _partition(
    storage: Storage, view: PatchedStorage, batch: CommittedBatch, files: WholeFiles, store: StoreSchema, partition: int
) -> Iterator[Finding]:
    """What is wrong with the state of one partition."""
    problems = chain_problems(view, batch, files, store, partition)
    is_made_good = False
    if problems:
        without = view.copy()
        try:
            leave_out_snapshots(without, batch, files, store, partition)
            is_made_good = True
        except CheckpointError:
            pass  # one of the problems
    for path, error in problems.items():
        finding = _state_file(storage, path, error, files, is_made_good=is_made_good)
        if finding.effect == "fails" and not path.endswith(".changelog") and has_every_change(view, batch, store, partition):
            means = f"Spark makes the state anew from all changes since the first, or fails ({_LOAD})."
            finding = replace(finding, effect="may fail", means=means)
        yield finding


def _described(
    storage: Storage, view: PatchedStorage, batch: CommittedBatch, files: WholeFiles, operator: int
) -> Iterator[tuple[str, CheckpointError]]:
    """The metadata and schema files of an operator that are missing or damaged."""
    path = metadata_path(storage, operator, batch.batch)
    try:
        found = read_operator_files(view, batch.batch, only=operator)
    except CheckpointError as error:
        if needs_schema_files(storage, operator) and storage.stamp(path) is None:
            yield f"state/{operator}/_metadata/v2/0", error
        else:
            yield below(storage, error, path), error
        return
    for operator_files in found:
        for file in schema_files(operator_files):
            if (problem := files.why_not(file, batch.settings)) is not None:
                yield file, problem


def _description(
    storage: Storage, path: str, error: CheckpointError, *, is_gone: bool, is_written_again: bool, is_readable: bool
) -> Finding:
    """The finding of a metadata or schema file.

    is_written_again:  whether Spark writes a lost one again
    is_readable:       whether only its checksum shows the damage
    """
    if "/_metadata/v2/" in path:
        means, remedy = (
            "Spark doesn't start (STDS_FAILED_TO_READ_OPERATOR_METADATA).",
            "An older one is taken if it names all schemas.",
        )
        return _file(storage, path, error, "fails", means, remedy)
    if "/_stateSchema/" in path and not is_written_again:
        means = "Spark doesn't start: it can't read the columns of the state."
        return _file(storage, path, error, "may fail" if is_readable else "fails", means, "Restore the file.")
    remedy = "Start the job with the same query as before: Spark writes the file again from it."
    if is_gone:
        means = "Spark writes it again from the query, and doesn't compare the query with the state."
        return _file(storage, path, error, "none", means, remedy)
    means = "Spark doesn't start: it can't read the columns of the state."
    if not path.endswith("/schema"):
        means = "Spark's own reader of state fails; the job itself starts."
    effect: Effect = "fails" if path.endswith("/schema") else "may fail"
    return _file(storage, path, error, effect, means, f"A repaired copy leaves it out. {remedy}")


def _state_file(storage: Storage, path: str, error: CheckpointError, files: WholeFiles, *, is_made_good: bool) -> Finding:
    remedy = "A repaired copy goes on from an earlier batch, whose state is whole."
    if is_made_good:
        remedy = "A repaired copy uses an older snapshot and the changes after it, which give the same rows."
    if error.condition == "REWOUND_IN_PLACE":
        means = "Spark loads the snapshot of the deleted batches in place of the state."
        return Finding(kind="rewound", path=path, what=error.message, effect="wrong", means=means, remedy=remedy)
    if is_made_good:
        means = f"Spark 4.1 and later use an older snapshot by themselves; earlier versions fail ({_LOAD})."
        return _file(storage, path, error, "may fail", means, remedy)
    is_other = "SST has" in error.message or "another run" in error.message  # which RocksDB sees when it opens the file
    if path.endswith(".sst") and error.condition == "CORRUPT_FILE" and not is_other:
        return _file(storage, path, error, "may fail", "Spark fails once it reads the damaged block.", remedy)
    if path in files.unread:
        means = "Spark reads all of the state before it comes to the damage. It fails if a hidden checksum shows the damage."
        return _file(storage, path, error, "may fail", means, remedy)
    if path in files.differing:
        return _file(storage, path, error, "may fail", f"Spark fails ({_LOAD}), or takes a damaged row for true.", remedy)
    return _file(storage, path, error, "fails", f"Spark fails ({_LOAD}).", remedy)


def _file(storage: Storage, path: str, error: CheckpointError | None, effect: Effect, means: str, remedy: str) -> Finding:
    if error is None or error.condition in ("FILE_GONE", "NO_CHECKPOINT"):
        kind, what = "missing", "The file is missing."
    elif (stamp := storage.stamp(path)) is not None and stamp.size_bytes == 0:
        kind, what = "empty", "The file is empty."
    else:
        kind, what = "damaged", error.message.removeprefix(f"{path}: ")
    return Finding(kind=kind, path=path, what=what, effect=effect, means=means, remedy=remedy)
