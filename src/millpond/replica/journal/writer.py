"""Copies expired rows from the serving generation into the journal, in a thread, about a second behind.

This adds no work to applying a batch: the order in which expired rows will be removed shows which
ones expired since the mark.

1. If the mark is of this generation and the disk has its segments, continue after it; else copy all
   rows into a new folder.
2. Read rows that expired since, some thousand at a time, and write them.
3. Flush, then move the mark to the batch of a snapshot whose expired rows are all written.
4. Remove segments whose rows the replica no longer keeps, and folders of earlier generations.

After a failure, copying continues from the mark; frames written twice count once.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from millpond.logs import EventLog, Trouble
from millpond.replica.backends.base import Backend, Snapshot
from millpond.replica.folder import FOLDER_MODE
from millpond.replica.history.keeper import (
    ORDER,
    ClosedRow,
    ClosedRows,
    Keeper,
    closed_table,
    number_key,
    split_number,
    split_order,
)
from millpond.replica.journal.segments import (
    FORMAT,
    SEGMENT_BYTES,
    Mark,
    StoreJournal,
    is_end_whole,
    read_mark,
    remove_others,
    store_folder,
    write_mark,
)
from millpond.replica.record import ReplicaRecord, StoresRecord
from millpond.replica.row_stamp import changed_batch, without_stamp
from millpond.schema.store import StoreSchema

# The most that a power cut can lose; a flush takes milliseconds.
_SECONDS = 1.0
# How often to move the mark if nothing expires: it shows a later build that the job is the same.
_IDLE_SECONDS = 10.0
# How long closing waits: an unfinished copy of all rows begins again another time.
_CLOSE_SECONDS = 2.0
_CHUNK_ROWS = 10_000


@dataclass(slots=True)
class _Source:
    """The generation to copy.

    stores:    those with kept expired rows: number in the replica -> the store
    """

    generation: str
    backend: Backend
    job_id: str
    checkpoint: str
    stores: dict[int, StoreSchema]


@dataclass(slots=True)
class _Target:
    """The target of a copy.

    whole:    whether the mark names this folder; until then nothing in it counts
    reached:  the mark's batch
    at:       number of a store -> (batch, number) of the first row that isn't written yet
    unmarked: whether rows were written since the mark
    """

    source: _Source
    folder: Path
    whole: bool
    reached: int
    at: dict[int, tuple[int, int]]
    unmarked: bool = False
    journals: dict[int, StoreJournal] = field(default_factory=dict)


class JournalCopy:
    """Writes the journal in a replica's folder.

    error:   why expired rows can't be flushed, None if they can
    errors:  how often flushing failed
    """

    def __init__(self, place: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._place = place
        self._segment_bytes = segment_bytes
        self._source: _Source | None = None
        self._target: _Target | None = None
        self._in_thread = False
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._flushing = threading.Lock()
        self._marked_at = 0.0
        self.error: str | None = None
        self.errors = 0
        self._trouble = Trouble(EventLog(__name__), "journal", replica=str(place))

    def start(self) -> None:
        """Flush in a thread, from the first generation with kept expired rows on."""
        self._in_thread = True

    def follow(self, generation: str, backend: Backend, stores: StoresRecord, keeper: Keeper) -> None:
        """Copy this generation from now on."""
        kept = {keeper.of(store.id).number: store for store in stores.stores if keeper.of(store.id).keeps_closed}
        self._source = _Source(generation, backend, stores.job_id, stores.checkpoint, kept)
        if kept and self._in_thread and self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="millpond-journal", daemon=True)
            self._thread.start()

    def leave(self) -> None:
        """Stop copying, since no generation serves."""
        self._source = None

    def close(self) -> None:
        """Flush a last time, and end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.flush(_CLOSE_SECONDS)
        self._source = None
        with self._flushing:
            self._drop_target()

    def flush(self, seconds: float = float("inf")) -> bool:
        """Copy all expired rows to the journal; returns whether the time was enough."""
        return self._try_flush(time.monotonic() + seconds, in_passing=False)

    def _try_flush(self, deadline: float, *, in_passing: bool) -> bool:
        with self._flushing:
            try:
                done = self._flush(deadline, in_passing)
            except Exception as problem:  # noqa: BLE001 - a full disk, a folder that is gone: rows are served all the same
                self.error, self.errors = str(problem) or repr(problem), self.errors + 1
                self._trouble.met(problem)
                self._drop_target()
                return False
            self.error = None
            self._trouble.over()
            return done

    def _run(self) -> None:
        while not self._stop.wait(_SECONDS):
            self._try_flush(float("inf"), in_passing=True)

    def _flush(self, deadline: float, in_passing: bool) -> bool:
        """See `flush`; `in_passing` yields to other threads, and rarely moves the mark if nothing expired."""
        source = self._source
        if source is None or not source.stores:
            self._drop_target()
            if source is not None:
                remove_others(self._place, None)
            return True
        if self._target is None or self._target.source is not source:
            self._drop_target()
            self._target = self._begin(source)  # 1
        target = self._target
        while True:  # 2
            with source.backend.snapshot() as snapshot:
                record = snapshot.record()
                if record.status != "live":
                    return True
                chunk, done = _next_rows(snapshot, target)
                oldest = {number: _oldest(snapshot, number) for number in source.stores} if done else {}
            for number, found in chunk:
                self._journal(target, number).append(found)
                target.unmarked = True
            if done:
                break
            if time.monotonic() > deadline or self._source is not source or (self._stop.is_set() and in_passing):
                return False
        recent = in_passing and time.monotonic() - self._marked_at < _IDLE_SECONDS
        if target.whole and not target.unmarked and (record.batch == target.reached or recent):
            return True
        self._mark(target, record)  # 3
        for number, batch in oldest.items():  # 4
            self._journal(target, number).drop_before(batch)
        remove_others(self._place, target.folder.name)
        return True

    def _begin(self, source: _Source) -> _Target:
        mark = read_mark(self._place)
        if mark is not None and mark.generation == source.generation and self._is_usable(mark):
            folder, at = self._place / mark.folder, dict.fromkeys(source.stores, (mark.batch + 1, 0))
            for number, store in source.stores.items():
                if (name := store_folder(store.id)) not in mark.ends:  # no rows of it were kept lately
                    at[number] = (0, 0)
                    with contextlib.suppress(FileNotFoundError):
                        shutil.rmtree(folder / name)
            return _Target(source, folder, True, mark.batch, at)
        folder = self._place / f"closed-{uuid.uuid4().hex[:8]}"
        folder.mkdir(mode=FOLDER_MODE)
        return _Target(source, folder, False, -1, dict.fromkeys(source.stores, (0, 0)))

    def _is_usable(self, mark: Mark) -> bool:
        """Whether the segments can grow after the mark, so that the mark stays valid."""
        return all(is_end_whole(self._place / mark.folder / name, end) for name, end in mark.ends.items())

    def _journal(self, target: _Target, number: int) -> StoreJournal:
        if number not in target.journals:
            store = target.source.stores[number]
            folder = target.folder / store_folder(store.id)
            target.journals[number] = StoreJournal(folder, store, segment_bytes=self._segment_bytes)
        return target.journals[number]

    def _mark(self, target: _Target, record: ReplicaRecord) -> None:
        source = target.source
        ends = {store_folder(store.id): self._journal(target, number).sync() for number, store in source.stores.items()}
        mark = Mark(
            format=FORMAT,
            folder=target.folder.name,
            generation=source.generation,
            checkpoint=source.checkpoint,
            job_id=source.job_id,
            batch=record.batch,
            fingerprint=record.fingerprint,
            commit_identity=record.commit_identity,
            commit_modified_ns=record.commit_modified_ns,
            commit_size_bytes=record.commit_size_bytes,
            ends=ends,
        )
        write_mark(self._place, mark)
        target.whole, target.reached, target.unmarked = True, record.batch, False
        self._marked_at = time.monotonic()

    def _drop_target(self) -> None:
        target, self._target = self._target, None
        if target is None:
            return
        for journal in target.journals.values():
            with contextlib.suppress(OSError):  # unflushed bytes are beyond the mark
                journal.close()
        if not target.whole:
            shutil.rmtree(target.folder, ignore_errors=True)


def _next_rows(snapshot: Snapshot, target: _Target) -> tuple[list[tuple[int, ClosedRows]], bool]:
    """The next expired rows by store and batch, and whether these are all; moves `target.at` on."""
    out: list[tuple[int, ClosedRows]] = []
    left = _CHUNK_ROWS
    for number, store in target.source.stores.items():
        table = closed_table(store.id)
        for key, value in snapshot.iterate(ORDER, number_key(number, *target.at[number])):
            whose, batch, place = split_number(key)
            if whose != number:
                break
            if not left:
                return out, False
            left -= 1
            target.at[number] = (batch, place + 1)
            started_ms, stored_key = split_order(value)
            found = snapshot.get(table, stored_key)
            if found is None or changed_batch(found) != batch:
                continue  # it has expired again since, which comes later
            if not out or (out[-1][0], out[-1][1].batch) != (number, batch):
                out.append((number, ClosedRows(batch, started_ms)))
            out[-1][1].rows.append(ClosedRow(place, stored_key, without_stamp(found)))
    return out, True


def _oldest(snapshot: Snapshot, number: int) -> int | None:
    """The oldest batch of whose expired rows some are still kept."""
    first = next(iter(snapshot.iterate(ORDER, number_key(number, 0))), None)
    if first is None or split_number(first[0])[0] != number:
        return None
    return split_number(first[0])[1]
