"""The lease of a checkpoint: of the jobs and commands that Millpond starts, one at a time writes it.

    <job folder>/lease.json    {"format": 1, "owner": …, "what": …, "machine": …, "host": …,
                                "processes": [[pid, start], …], "length_seconds": …, "renewals": …}
                               {"format": 1, "owner": ""} after it was given back

1. To take it, create the file.  If it exists, replace it, provided that its bytes are still those
   that were read: of several who try, one has it.
2. It may be replaced if it was given back; if it has run out; if all processes that it names have
   ended, on this machine; or if the caller takes it by force.
3. Its owner renews it in the background, in the same way: only if the bytes are still its own.  So
   an owner that was stopped for long finds out that somebody else has it.
4. How old it is, is said by the clock of the file store alone: the time of the file, and of another
   one that is written to compare.  The clocks of the machines don't matter.

A lease doesn't stop a program that doesn't ask for it, as plain Spark doesn't.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from millpond.errors import CheckpointError, MillpondError, SavepointError
from millpond.logs import EventLog, Trouble
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds, LeaseSettings
from millpond.storage import Storage
from millpond.storage.machine import host_name, is_running, machine_id, process_start

NAME = "lease.json"
_FORMAT = 1
_FREE = json.dumps({"format": _FORMAT, "owner": ""}).encode()
_NOTE_BYTES = FileBounds().note_bytes
# Object stores give file times in whole seconds.
_COARSE_SECONDS = 1.0
# Each time, somebody else has written it first.
_TRIES = 10
_PAUSE_SECONDS = 0.1
log = EventLog(__name__)


class Guard(Protocol):
    """What ends a writer that can't renew its lease, and learns of each renewal."""

    def begin(self) -> None:
        """A renewal begins now."""

    def renewed(self) -> None:
        """That renewal has succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has a lease.

    owner:           a random id; empty if it was given back
    what:            the job or command, for people
    machine:         its id, see `storage.machine`
    host:            its name
    processes:       ids and starts of the processes that may write; the first one renews
    length_seconds:  so long after the last renewal it runs out
    renewals:        so far
    """

    owner: str
    what: str
    machine: str
    host: str
    processes: tuple[tuple[int, str], ...]
    length_seconds: float
    renewals: int

    @property
    def is_free(self) -> bool:
        """Whether it was given back."""
        return not self.owner

    def to_bytes(self) -> bytes:
        """The file `lease.json`."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({"format": _FORMAT, **fields}).encode()

    def has_ended(self) -> bool:
        """Whether all its processes were on this machine and have ended."""
        here = machine_id()
        return bool(here) and self.machine == here and not any(is_running(pid, start) for pid, start in self.processes)

    def is_ending(self) -> bool:
        """Whether the process that renews it has ended here, so that the others will end, too."""
        here = machine_id()
        return bool(here) and self.machine == here and not is_running(*self.processes[0])


class Lease:
    """A lease that this process has.

    last_error:  why the last renewal failed; None if it didn't
    is_lost:     whether somebody else has it now
    """

    def __init__(self, storage: Storage, holder: Holder, settings: LeaseSettings, *, is_new: bool) -> None:
        self._storage = storage
        self._holder = holder
        self._settings = settings
        self._is_new = is_new
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = Trouble(log, "lease", lease=storage.uri)
        self._is_over: Callable[[], bool] = lambda: False
        self._guard: Guard | None = None
        self.last_error: MillpondError | None = None
        self.is_lost = False
        _HELD[holder.owner] = self

    @property
    def length_seconds(self) -> float:
        """So long after the last renewal it runs out."""
        return self._settings.length_seconds

    def keep(
        self,
        *,
        on_lost: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
        guard: Guard | None = None,
    ) -> None:
        """Renew it in the background.

        on_lost:  called once, in that thread, if somebody else has it
        is_over:  whether what it is for has ended, though nobody gave it back; by default it
                  hasn't
        guard:    learns of each renewal
        """
        self._guard, self._is_over = guard, is_over

        def run() -> None:
            while not self._ended.wait(self._settings.length_seconds * self._settings.renew_part):
                if not self.renew():
                    on_lost()
                    return

        self._thread = threading.Thread(target=run, name=f"lease of {self._storage.uri}", daemon=True)
        self._thread.start()

    def renew(self) -> bool:
        """Renew it once; whether it is still ours, as far as we know.

        An error of the storage is in `last_error`: then it isn't renewed, and may run out.
        """
        with self._turn:
            if self._ended.is_set() or self.is_lost:
                return not self.is_lost
            renewed = replace(self._holder, renewals=self._holder.renewals + 1)
            try:
                if self._guard is not None:
                    self._guard.begin()
                if self._storage.replace(NAME, self._holder.to_bytes(), renewed.to_bytes()):
                    self._holder, self.last_error = renewed, None
                    if self._guard is not None:
                        self._guard.renewed()
                    self._trouble.over()
                    return True
                self.last_error = _lost(self._storage)
                self.is_lost = True
            except MillpondError as error:
                self.last_error = error
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would let the lease run out
                self.last_error = MillpondError("INTERNAL_ERROR", f"{error!r}", hint="Report this.")
            self._trouble.met(self.last_error)
        return not self.is_lost

    def check(self) -> None:
        """Renew it now, before a step that nobody else may take.

        Raises:  CHECKPOINT_IN_USE if somebody else has it; what the storage raises.
        """
        self.renew()
        if self.last_error is not None:
            raise self.last_error

    def release(self) -> None:
        """Give it back; a second call does nothing.  If that fails, it runs out."""
        with self._turn:
            if self._ended.is_set():
                return
            self._ended.set()
            try:
                if self.is_lost:
                    return
                if self._is_new and self._storage.stamp("job.json") is None:
                    self._storage.delete(NAME)  # nothing came of the job: nobody has seen this folder
                else:
                    self._storage.replace(NAME, self._holder.to_bytes(), _FREE)
            except MillpondError as error:
                self.last_error = error
            finally:
                _HELD.pop(self._holder.owner, None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._settings.length_seconds)

    def release_if_over(self) -> bool:
        """Give it back if what it is for has ended; whether it has."""
        is_over = self._is_over()
        if is_over:
            self.release()
        return is_over


_HELD: dict[str, Lease] = {}
"""owner -> the leases that this process has"""


def take_lease(
    storage: Storage,
    what: str,
    *,
    processes: Sequence[int] = (),
    take_over: bool = False,
    settings: LeaseSettings | None = None,
) -> Lease:
    """Take the lease of a job's checkpoint.

    storage:    the job's folder
    what:       the job or command, for people
    processes:  ids of other processes of this machine that write: a JVM
    take_over:  take it from whoever has it
    settings:   by default those of the environment
    Raises:     CHECKPOINT_IN_USE if somebody has it; CORRUPT_FILE if it can't be read; NOT_WRITABLE,
                and what the storage raises.
    """
    settings = settings or LeaseSettings.of_environment()
    ours = Holder(
        owner=uuid.uuid4().hex,
        what=what,
        machine=machine_id(),
        host=host_name(),
        processes=tuple((pid, process_start(pid)) for pid in (os.getpid(), *processes)),
        length_seconds=settings.length_seconds,
        renewals=0,
    )
    deadline = time.monotonic() + settings.dying_seconds
    tries = 0
    while True:
        if storage.create(NAME, ours.to_bytes()):  # 1
            return Lease(storage, ours, settings, is_new=True)
        found = _read(storage, is_forced=take_over)
        if found is None:
            continue
        text, holder = found
        ours_before = None if holder is None else _HELD.get(holder.owner)
        if ours_before is not None and ours_before.release_if_over():
            continue
        if take_over or holder is None or not _is_held(storage, holder):  # 2
            if storage.replace(NAME, text, ours.to_bytes()):
                return Lease(storage, ours, settings, is_new=False)
            tries += 1
            if tries < _TRIES:
                continue
        elif holder.is_ending() and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
            continue
        raise in_use(storage, holder or ours)


@contextmanager
def leased(storage: Storage, what: str, *, take_over: bool = False) -> Iterator[Lease]:
    """The lease for the time of a command.  Raises as `take_lease`."""
    lease = take_lease(storage, what, take_over=take_over)
    lease.keep()
    try:
        yield lease
    finally:
        lease.release()


def check_not_held(storage: Storage) -> None:
    """Raise CHECKPOINT_IN_USE if somebody has the lease of a job's checkpoint now."""
    found = _read(storage, is_forced=False) if storage.stamp(NAME) is not None else None
    if found is not None and found[1] is not None and _is_held(storage, found[1]):
        raise in_use(storage, found[1])


def in_use(storage: Storage, holder: Holder) -> SavepointError:
    """Somebody else has the lease."""
    pid = holder.processes[0][0]
    return SavepointError(
        "CHECKPOINT_IN_USE",
        f"The checkpoint of {storage.uri} belongs to {holder.what}, process {pid} on {holder.host}, "
        f"which renews its lease of {holder.length_seconds:g} seconds.",
        hint=f"Stop it, or wait {holder.length_seconds:g} seconds if it has crashed; if you know that it can't write any more, "
        "take the lease over: take_over=True.",
        lease=f"{storage.uri}/{NAME}",
        owner=holder.what,
        pid=pid,
        host=holder.host,
    )


def _lost(storage: Storage) -> SavepointError:
    return SavepointError(
        "CHECKPOINT_IN_USE",
        f"The lease of {storage.uri} belongs to somebody else now.",
        hint="Look into lease.json there; only one job may write a checkpoint.",
        lease=f"{storage.uri}/{NAME}",
    )


def _is_held(storage: Storage, holder: Holder) -> bool:
    return not (holder.is_free or holder.has_ended() or _has_run_out(storage, holder))


def _has_run_out(storage: Storage, holder: Holder) -> bool:  # 4
    clock = f".clock-{uuid.uuid4().hex}"
    storage.write(clock, b"")
    try:
        now, lease = storage.stamp(clock), storage.stamp(NAME)
    finally:
        storage.delete(clock)
    if now is None or lease is None:
        return False
    return (now.modified_ns - lease.modified_ns) / 1e9 > holder.length_seconds + _COARSE_SECONDS


def _read(storage: Storage, *, is_forced: bool) -> tuple[bytes, Holder | None] | None:
    """The file and who has the lease; None if it is gone.

    is_forced:  a file that can't be read is nobody's
    Raises:     CORRUPT_FILE.
    """
    try:
        text = storage.read(NAME, _NOTE_BYTES)
    except CheckpointError as error:
        if error.condition != "FILE_GONE":
            raise
        return None
    try:
        return text, _parse(text)
    except DAMAGE as broken:
        if is_forced:
            return text, None
        path = f"{storage.uri}/{NAME}"
        raise CheckpointError(
            "CORRUPT_FILE",
            f"{path} can't be read: {broken!r:.200}.",
            hint="Delete the file if no job runs there.",
            path=path,
        ) from broken


def _parse(text: bytes) -> Holder:
    data = parse_json(text)
    if data["format"] != _FORMAT or not isinstance(data["owner"], str):
        raise ValueError("it isn't a lease of this format")
    if not data["owner"]:
        return Holder(owner="", what="", machine="", host="", processes=(), length_seconds=0.0, renewals=0)
    if not data["processes"]:
        raise ValueError("it names no process")
    return Holder(
        owner=data["owner"],
        what=str(data["what"]),
        machine=str(data["machine"]),
        host=str(data["host"]),
        processes=tuple((int(pid), str(start)) for pid, start in data["processes"]),
        length_seconds=float(data["length_seconds"]),
        renewals=int(data["renewals"]),
    )
