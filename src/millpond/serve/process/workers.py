"""One server of several processes: one follows, the others answer at one port, a parent restarts them.

1. Every door has a listening socket of its own at the same address (SO_REUSEPORT): the system
   distributes connections evenly.
2. The parent opens all sockets and keeps them open: if a door dies, the next one answers the
   connections that wait at its socket.
3. The follower updates the replicas; doors only read them.  If it fails, doors still answer, and
   say how far they are behind.
4. The parent restarts a process that ends: at once the first time, then after pauses that double.
5. At SIGTERM doors drain, then the follower ends.  A process whose parent has ended ends by itself.
6. At SIGHUP doors read tokens, certificate and options again.

Processes are spawned, never forked: an open LMDB environment doesn't survive a fork.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from millpond.logs import EventLog, write_logs
from millpond.operate.watcher import Watcher
from millpond.schema.definition.indexes import Indexes
from millpond.serve.backups import Backups
from millpond.serve.connections.beside import Listeners
from millpond.serve.metrics.counts import Meter
from millpond.serve.ponds import Ponds, open_ponds
from millpond.serve.process.server import pushing, serve_http
from millpond.serve.process.shared import staying_in
from millpond.serve.process.signals import ENDING, Terminal, hangups_blocked, say_end
from millpond.settings import BackupSettings, ReplicaSettings, RetentionWords, ServeSettings
from millpond.signals import SignalEvent
from millpond.tables.pond import Pond, open

log = EventLog(__name__)
_LAST_PAUSE_SECONDS = 5.0
# A process that ran for so long didn't fail at its start.
_STEADY_SECONDS = 30.0
_METER_SECONDS = 1.0
# How long retention may take to begin before requests are answered: some milliseconds, unless a
# replica is built.
_BEGUN_SECONDS = 2.0
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of all processes of one server.

    places:     pond's name -> its place
    allow:      places outside of the ponds that they may name
    shard:      the partitions to follow; None for all
    backend:    of the replicas
    retention:  pond's name -> table -> its retention
    indexes:    pond's name -> table -> its indexes
    read_again: returns the present settings, for SIGHUP
    shared:     the folder that the processes share (counts, rates, sockets); None for a single
                process
    """

    places: dict[str, str]
    replica_dir: str | None
    settings: ServeSettings
    retention: dict[str, dict[str, RetentionWords]]
    indexes: dict[str, dict[str, Indexes]]
    shared: Path | None
    read_again: Callable[[], ServeSettings] | None = None
    allow: tuple[str, ...] = ()
    shard: str | None = None
    backend: str = "lmdb"
    backups: BackupSettings = field(default_factory=BackupSettings)

    def open_ponds(self, *, follow: bool) -> AbstractContextManager[Ponds]:
        """All ponds; the process that follows them also makes savepoints and archives, and measures their jobs.

        Raises:  INVALID_REQUEST if an interval isn't one; as `millpond.open`.
        """
        backups = Backups(self.places, self.backups, self.allow) if follow else None
        watcher = Watcher(self.places, allow=self.allow) if follow and self.settings.samples else None
        return open_ponds(self.places, lambda name: self.open_pond(name, follow=follow), backups, watcher)

    def open_pond(self, name: str, *, follow: bool) -> Pond:
        """The pond of that name, opened for this server."""
        reads = ReplicaSettings(read_deadline_seconds=self.settings.max_seconds)
        place, wanted, indexes = self.places[name], self.retention[name], self.indexes[name]
        pond = open(
            place,
            replica_dir=self.replica_dir,
            follow=follow,
            wait_seconds=0,
            retention=wanted,
            indexes=indexes,
            shard=self.shard,
            backend=self.backend,
            allow=self.allow,
            settings=reads,
        )
        if wanted and follow:
            pond.wait_until_begun(_BEGUN_SECONDS)
        return pond


@dataclass(slots=True)
class _Worker:
    """One process, with its failures."""

    name: str
    run: Callable[..., None]
    arguments: tuple[Any, ...]
    process: SpawnProcess
    started: float
    failures: int = 0
    due: float = field(default=0.0)


def serve_workers(plan: Plan, listeners: list[Listeners], *, on_ready: Callable[[], None]) -> None:
    """Answer requests with a door for each of the listeners until SIGTERM or Ctrl-C.

    on_ready:  called once, when every door has answered
    """
    ending, terminal = SignalEvent(), Terminal()
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signals: list[int] = []
    reloads: list[int] = []

    def end(number: int, _frame: object) -> None:
        if number == signal.SIGHUP and not terminal.is_gone:
            reloads.append(number)
        else:
            signals.append(number)
            ending.set()
        with suppress(BlockingIOError):
            wake.send(b"x")

    before = {number: signal.signal(number, end) for number in (*ENDING, signal.SIGHUP)}
    with hangups_blocked():  # SIGHUP must not end multiprocessing's own processes either
        ready = _SPAWN.Semaphore(0)
    workers = [_start("follower", _follow, (plan,))]
    try:
        workers += [_start(f"door {n}", _answer, (plan, all_of_one, ready)) for n, all_of_one in enumerate(listeners)]
        threading.Thread(target=_announce, args=(ready, len(listeners), on_ready, ending), daemon=True).start()
        while not ending.is_set():
            due = [w.due for w in workers if w.due]
            alive = [w.process.sentinel for w in workers if not w.due]
            wait([*alive, woken], timeout=max(0.0, min(due) - time.monotonic()) if due else None)
            if reloads:
                reloads.clear()
                woken.recv(4096)
                _reload(workers[1:])
            if not ending.is_set():
                _mend(workers)
        say_end(signals[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for all_of_one in listeners:
            all_of_one.close()  # doors close theirs before they drain, so new connections are refused at once
        _end(workers, plan.settings.drain_seconds)
        for end_of_pair in (woken, wake):
            end_of_pair.close()


def _start(name: str, run: Callable[..., None], arguments: tuple[Any, ...]) -> _Worker:
    process = _SPAWN.Process(target=run, args=arguments, name=f"millpond {name}")
    with hangups_blocked():
        process.start()
    return _Worker(name, run, arguments, process, time.monotonic())


def _reload(doors: list[_Worker]) -> None:  # 6
    for door in doors:
        if door.process.pid is not None and door.process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(door.process.pid, signal.SIGHUP)


def _mend(workers: list[_Worker]) -> None:
    """Note which processes have ended, and start those again whose pause is over."""  # 4
    now = time.monotonic()
    for worker in workers:
        if not worker.due and not worker.process.is_alive():
            worker.failures = 1 if now - worker.started > _STEADY_SECONDS else worker.failures + 1
            pause = 0.0 if worker.failures == 1 else min(_LAST_PAUSE_SECONDS, 0.1 * 2**worker.failures)
            log.error("process.ended", process=worker.name, exit_code=worker.process.exitcode, again_in_seconds=pause)
            worker.due = now + pause
        if worker.due and now >= worker.due:
            fresh = _start(worker.name, worker.run, worker.arguments)
            worker.process, worker.started, worker.due = fresh.process, fresh.started, 0.0


def _end(workers: list[_Worker], drain_seconds: float) -> None:  # 5
    follower, doors = workers[0], workers[1:]
    for some in (doors, [follower]):
        for worker in some:
            if worker.process.is_alive():
                worker.process.terminate()
        deadline = time.monotonic() + drain_seconds + 5
        for worker in some:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _announce(ready: Any, doors: int, on_ready: Callable[[], None], ending: SignalEvent) -> None:
    started = 0
    while started < doors and not ending.is_set():
        started += ready.acquire(timeout=0.2)
    if not ending.is_set():
        on_ready()


# ---------------------------------------------------------------- in the processes


def _answer(plan: Plan, listeners: Listeners, ready: Any) -> None:
    """A door, which reads the follower's replicas."""
    _end_with_parent()
    write_logs(plan.settings.log_level, plan.settings.log_format)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides when to end
    with staying_in(plan.shared), plan.open_ponds(follow=False) as ponds:
        serve_http(
            ponds,
            listeners,
            settings=plan.settings,
            shared=plan.shared,
            read_again=plan.read_again,
            on_ready=ready.release,
        )


def _follow(plan: Plan) -> None:
    """The follower: it updates the replicas, and writes its counts for the doors."""
    stop = SignalEvent()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    write_logs(plan.settings.log_level, plan.settings.log_format)
    meter = Meter(plan.shared)
    with staying_in(plan.shared), plan.open_ponds(follow=True) as ponds, pushing(ponds, meter, plan.settings):
        ponds.reads = meter.reads
        while not stop.wait(_METER_SECONDS):
            meter.note_followers(ponds.statistics())
            meter.write()
        meter.note_followers(ponds.statistics())
        meter.write()


def _end_with_parent() -> None:
    """End as at SIGTERM when the parent has ended in any way."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="millpond-parent", daemon=True).start()
