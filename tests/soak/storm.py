"""A soak: a storm over a real job, a server, a follower and readers; then all answers are judged.

1. Start the job in an empty checkpoint, the server on it, and the readers.
2. Until there were enough kills: rest a moment, then kill (SIGKILL) or pause (SIGSTOP) a process. Sometimes replace the job, or
   fill the disk of the replicas. Start again whatever ended. Meanwhile Spark itself cleans up its checkpoint.
3. End the job, let all readers catch up with its last batch, and end them.
4. Judge the rest of the logs.

The seed fixes input and order of the faults; what they hit depends on the machine.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from soak.checks import Counts, ReaderLog
from soak.job import RETAINED
from soak.oracle import Oracle
from soak.processes import Process, Server, python, signal_if_there

READERS = {"http-1": "http", "http-2": "http", "attached": "attached", "following": "following"}
# Shares of 100 random faults.  The job's kills are planned, since a JVM takes ten seconds to come back.
_VICTIMS = {"door": 30, "follower": 25, "following": 14, "http-1": 7, "http-2": 7, "attached": 9, "server": 6, "job": 2}
_JOB_SHARE = 0.1
_PAUSED = 0.2
_PROVIDERS = ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider")
_REST_SECONDS = (0.2, 2.2)
_PAUSE_SECONDS = (0.3, 4.0)
_FULL_SECONDS = (1.0, 4.0)
_JOB_BATCHES = 4
_JUDGE_SECONDS = 5.0
# A JVM takes ten seconds to start, on a busy machine a hundred.
_JOB_SECONDS = 300.0


@dataclass(slots=True)
class Storm:
    """The events of a storm."""

    kills: Counter[str] = field(default_factory=Counter)
    pauses: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    full: int = 0
    outages: int = 0


class Soak:
    """See the module.  `folder` is empty.  If `home` is a small file system, the storm fills it."""

    def __init__(self, folder: Path, home: Path, *, seed: int, can_fill: bool) -> None:
        self.counts, self.storm = Counts(), Storm()
        self.wrong: list[str] = []
        self._seed, self._home, self._can_fill = seed, home, can_fill
        self._chance = random.Random(seed)
        self._pond = folder / "pond"
        self.oracle = Oracle(seed, folder, self._pond / "jobs" / "views" / "checkpoint")
        self._job = Process("job", self._job_command, folder / "job.log")
        self._server = Server(self._server_command, folder / "server.log")
        seen: set[tuple[int, int]] = set()
        self._seen, self._owed = seen, list[tuple[int, int, int, object, str]]()
        self._readers: dict[str, Process] = {}
        self._logs: dict[str, ReaderLog] = {}
        for name in READERS:
            path = folder / f"{name}.answers"
            self._logs[name] = ReaderLog(path, self.oracle.runs, self.counts, seen, self._owed)
            self._readers[name] = Process(
                name, lambda name=name, path=path: self._reader_command(name, path), folder / f"{name}.log"
            )
        self._paused: list[tuple[float, list[int]]] = []
        self._emptied_at: float | None = None
        self._judged_at = 0.0
        self._first_batch = 0
        self._begun = False

    # ------------------------------------------------------------ commands

    def _job_command(self) -> list[str]:
        run = self.oracle.runs[-1].number
        return python("soak.job", str(self.oracle.input_of(run)), str(self._pond), _PROVIDERS[(run + self._seed) % 2])

    def _server_command(self) -> list[str]:
        port = self._server.url.rpartition(":")[2] or "0"
        kept = ["--history", "views=1000000", "--keep-closed", "views=20s"]
        where = ["--replica-dir", str(self._home), "--port", port, "--json", "--workers", "2"]
        return python("millpond.cli", "serve", str(self._pond), *where, *kept)

    def _reader_command(self, name: str, path: Path) -> list[str]:
        door = READERS[name]
        place = self._server.url if door == "http" else str(self._pond)
        return python("soak.reader", name, door, place, str(self._home), str(path), str(self._seed))

    # ------------------------------------------------------------ the storm

    def run(self, kills: int, say: object = print) -> None:
        """Run the whole soak, with so many kills."""
        try:
            self._begin()
            special = self._specials(kills)
            while self.storm.kills.total() < kills:
                self._rest(self._chance.uniform(*_REST_SECONDS))
                if special and self.storm.kills.total() >= special[0][0]:
                    getattr(self, special.pop(0)[1])()
                else:
                    self._fault()
            self._calm()
        finally:
            self._stop_all()
        self._judge(last=True)

    def _begin(self) -> None:  # 1
        self.oracle.begin()
        self._job.start()
        self._wait_until("the job has committed", lambda: self.oracle.committed() >= 1, _JOB_SECONDS)
        self._server.start()
        self._server.wait_for_url()
        for reader in self._readers.values():
            reader.start()
        self._begun = True
        self._wait_until("all readers got answers", lambda: all(log.newest[1] >= 0 for log in self._logs.values()), 120)

    def _specials(self, kills: int) -> list[tuple[int, str]]:
        """The planned events: (after so many kills, what to do)."""
        some = max(1, kills // 50)
        what = ["_replace"] * some + ["_outage"] * some + ["_kill_server"] * some + (["_fill"] * 2 * some if self._can_fill else [])
        by_chance = [(self._chance.randrange(kills // 10, max(kills * 9 // 10, kills // 10 + 1)), name) for name in what]
        hits = max(1, round(kills * _JOB_SHARE))
        return sorted(by_chance + [(kills * n // hits, "_kill_job") for n in range(hits)])

    def _fault(self) -> None:  # 2
        victim = self._chance.choices(list(_VICTIMS), list(_VICTIMS.values()))[0]
        pause = self._chance.random() < _PAUSED
        seconds = self._chance.uniform(*_PAUSE_SECONDS)
        if victim == "job":
            pause = True
        if victim in ("door", "follower"):
            pid = self._server.worker(victim) if self._server.alive() else None
            if pid is None:
                return
            if pause:
                self._pause(victim, [pid], seconds)
            else:
                signal_if_there(pid, signal.SIGKILL)
                self.storm.kills[victim] += 1
            return
        process = {"job": self._job, "server": self._server, **self._readers}[victim]
        if not process.alive():
            return
        if pause:
            self._pause(victim, process.members(), seconds)
        else:
            process.kill()
            self.storm.kills[victim] += 1

    def _kill_job(self) -> None:
        """Kill the job somewhere in a batch, not at its start: otherwise kills would hit Spark's start again and again."""
        self._wait_until("the job has gone on", lambda: self.oracle.committed() >= self._first_batch + _JOB_BATCHES, _JOB_SECONDS)
        self._rest(self._chance.random())
        self._first_batch = self.oracle.committed()
        self._job.kill()
        self.storm.kills["job"] += 1

    def _kill_server(self) -> None:
        self._wait_until("the server runs", self._server.alive, 60)
        self._server.kill()
        self.storm.kills["server"] += 1

    def _pause(self, victim: str, pids: list[int], seconds: float) -> None:
        for pid in pids:
            signal_if_there(pid, signal.SIGSTOP)
        self._paused.append((time.monotonic() + seconds, pids))
        self.storm.pauses[victim] += 1

    def _replace(self) -> None:
        """Delete the checkpoint, and start the job over."""
        self._wait_until("the job has gone on", lambda: self.oracle.committed() >= self._first_batch + _JOB_BATCHES, _JOB_SECONDS)
        self._job.kill()
        self.oracle.begin()
        self._first_batch = 0
        self.storm.replaced += 1

    def _fill(self) -> None:
        """Fill the disk of the replicas for a while."""
        ballast = self._home / "ballast"
        with ballast.open("wb") as file:
            for size in (1 << 20, 1 << 12):
                while (free := shutil.disk_usage(self._home).free) >= size:
                    os.posix_fallocate(file.fileno(), file.tell(), free // size * size)
                    file.seek(0, os.SEEK_END)
        self._emptied_at = time.monotonic() + self._chance.uniform(*_FULL_SECONDS)
        self.storm.full += 1

    def _outage(self) -> None:
        """Stop all followers until Spark has cleaned up the next batch to apply."""
        self._wait_until("the job has gone on", lambda: self.oracle.committed() > self._first_batch, _JOB_SECONDS)
        follower = self._server.worker("follower") if self._server.alive() else None
        pids = [follower] if follower is not None else []
        if self._readers["following"].alive():
            pids += self._readers["following"].members()
        goal = self.oracle.committed() + 2 * RETAINED + 2
        self._pause("both followers", pids, _JOB_SECONDS)
        self._wait_until("the job has cleaned up", lambda: self.oracle.committed() >= goal, _JOB_SECONDS)
        self._go_on(pids)
        self.storm.outages += 1

    def _go_on(self, pids: list[int]) -> None:
        for pid in pids:
            signal_if_there(pid, signal.SIGCONT)
        self._paused = [paused for paused in self._paused if paused[1] is not pids]

    def _rest(self, seconds: float) -> None:
        """Let time pass: continue paused processes, start ended ones again, judge new answers."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for _, pids in [p for p in self._paused if p[0] <= now]:
                self._go_on(pids)
            if self._emptied_at is not None and now >= self._emptied_at:
                (self._home / "ballast").unlink()
                self._emptied_at = None
            for process in (self._job, self._server, *self._readers.values()):
                if not process.alive():
                    process.start()
            if now - self._judged_at > _JUDGE_SECONDS:
                self._judge()
            if now >= until:
                return
            time.sleep(0.05)

    def _wait_until(self, what: str, holds: object, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():  # type: ignore[operator]
            if time.monotonic() > deadline:
                raise AssertionError(f"It never came to that: {what}.")
            self._rest(0.2) if self._begun else time.sleep(0.2)

    # ------------------------------------------------------------ the end

    def _calm(self) -> None:  # 3
        for _, pids in self._paused:
            for pid in pids:
                signal_if_there(pid, signal.SIGCONT)
        self._paused.clear()
        if self._emptied_at is not None:
            self._emptied_at = 0.0
        self._wait_until("the job goes on", lambda: self.oracle.committed() >= self._first_batch + 1, _JOB_SECONDS)
        self._job.kill()
        self._job.start = lambda: None  # type: ignore[method-assign]
        self.oracle.note()
        last = (len(self.oracle.runs) - 1, self.oracle.committed())
        self._wait_until(
            f"all readers have come to {last}, and so have their changes",
            lambda: self._judge() or all((log.newest, log.replayed) == (last, last) for log in self._logs.values()),
            120,
        )
        for reader in self._readers.values():
            code = reader.end()
            if code not in (0, None, -signal.SIGTERM):  # the last, because it was started again a moment ago
                self.wrong.append(f"{reader.name} ended with {code}")
        if self._server.end() != 0:
            self.wrong.append("the server didn't end well")

    def _stop_all(self) -> None:
        for _, pids in self._paused:
            for pid in pids:
                signal_if_there(pid, signal.SIGCONT)
        for process in (self._job, self._server, *self._readers.values()):
            process.kill()
        self.oracle.end()

    def _judge(self, *, last: bool = False) -> None:  # 4
        self._judged_at = time.monotonic()
        if self.oracle.failed is not None:
            raise self.oracle.failed
        for log in self._logs.values():
            log.judge()
            self.wrong += log.wrong
            log.wrong = []
            if last and log.path.exists() and log.unjudged():
                self.wrong.append(f"{log.path.name}: the oracle doesn't know the batch of its last answers")
        for process in (self._job, self._server, *self._readers.values()):
            self.wrong += [f"{process.name} ended by itself with {code}" for code in process.unwanted]
            process.unwanted = []
        if last:
            for run, expired, batch, key, name in self._owed:
                if (run, expired) in self._seen:
                    self.wrong.append(f"{name}: run {run}, batch {batch} lacks the final row of {key}, which expired in {expired}")
        if self.wrong and not last:
            raise AssertionError("\n".join(self.wrong))
