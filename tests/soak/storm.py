"""A soak: a storm over a real job, a server, a follower and readers; then all answers are judged.

1. Start the job in an empty checkpoint, the server on it, and the readers.
2. Until there were enough kills: rest a moment, then kill (SIGKILL) or pause (SIGSTOP) a process. Sometimes replace the job, or
   fill the disk of the replicas. Start again whatever ended. Meanwhile Spark itself cleans up its checkpoint.
3. End the job, let all readers catch up with its last batch, and end them.
4. Judge the rest of the logs.

The seed fixes input and order of the faults; what they hit depends on the machine.
"""

from __future__ import annotations

import signal
from pathlib import Path

from soak.checks import ReaderLog
from soak.job import RETAINED
from soak.oracle import Oracle
from soak.processes import Process, Server, python, signal_if_there
from soak.under_fire import UnderFire

READERS = {"http-1": "http", "http-2": "http", "attached": "attached", "following": "following"}
# Shares of 100 random faults.  The job's kills are planned, since a JVM takes ten seconds to come back.
_VICTIMS = {"door": 30, "follower": 25, "following": 14, "http-1": 7, "http-2": 7, "attached": 9, "server": 6, "job": 2}
_JOB_SHARE = 0.1
_PAUSED = 0.2
_PROVIDERS = ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider")
_REST_SECONDS = (0.2, 2.2)
_PAUSE_SECONDS = (0.3, 4.0)
_JOB_BATCHES = 4
# A JVM takes ten seconds to start, on a busy machine a hundred.
_JOB_SECONDS = 300.0


class Soak(UnderFire):
    """See the module.  `folder` is empty.  If `home` is a small file system, the storm fills it."""

    def __init__(self, folder: Path, home: Path, *, seed: int, can_fill: bool) -> None:
        super().__init__(home, seed)
        self._seed, self._can_fill = seed, can_fill
        self._pond = folder / "pond"
        self.oracle = Oracle(seed, folder, self._pond / "jobs" / "views" / "checkpoint")
        self._job = Process("job", self._job_command, folder / "job.log")
        self._server = Server(self._server_command, folder / "server.log")
        seen: set[tuple[int, int]] = set()
        self._seen, self._owed = seen, list[tuple[int, int, int, object, str]]()
        self._readers: dict[str, Process] = {}
        for name in READERS:
            path = folder / f"{name}.answers"
            self.logs[name] = ReaderLog(path, self.oracle.runs, self.counts, seen, self._owed)
            self._readers[name] = Process(
                name, lambda name=name, path=path: self._reader_command(name, path), folder / f"{name}.log"
            )
        self.processes = [self._job, self._server, *self._readers.values()]
        self._first_batch = 0

    # ------------------------------------------------------------ commands

    def _job_command(self) -> list[str]:
        run = self.oracle.runs[-1].number
        return python("soak.job", str(self.oracle.input_of(run)), str(self._pond), _PROVIDERS[(run + self._seed) % 2])

    def _server_command(self) -> list[str]:
        port = self._server.url.rpartition(":")[2] or "0"
        kept = ["--history", "views=1000000", "--keep-closed", "views=20s"]
        where = ["--replica-dir", str(self.home), "--port", port, "--json", "--workers", "2"]
        return python("millpond.cli", "serve", str(self._pond), *where, *kept)

    def _reader_command(self, name: str, path: Path) -> list[str]:
        door = READERS[name]
        place = self._server.url if door == "http" else str(self._pond)
        return python("soak.reader", name, door, place, str(self.home), str(path), str(self._seed))

    # ------------------------------------------------------------ the storm

    def run(self, kills: int, say: object = print) -> None:
        """Run the whole soak, with so many kills."""
        try:
            self._begin()
            special = self._specials(kills)
            while self.storm.kills.total() < kills:
                self.rest(self.chance.uniform(*_REST_SECONDS))
                if special and self.storm.kills.total() >= special[0][0]:
                    getattr(self, special.pop(0)[1])()
                else:
                    self._fault()
            self.wait_until("enough answers, however slow the machine is", self._has_enough, _JOB_SECONDS)
            self._end()
        finally:
            self.stop_all()
        self._judge_rest()

    def _begin(self) -> None:  # 1
        self.oracle.begin()
        self._job.start()
        self.wait_until("the job has committed", lambda: self.oracle.committed() >= 1, _JOB_SECONDS)
        self._server.start()
        self._server.wait_for_url()
        for reader in self._readers.values():
            reader.start()
        self.has_begun = True
        self.wait_until("all readers got answers", lambda: all(log.newest[1] >= 0 for log in self.logs.values()), 120)

    def _has_enough(self) -> bool:
        found = self.counts
        return found.answers.total() > 500 and found.by_url > 50 and found.batches_replayed > 50 and found.sent > 0

    def _specials(self, kills: int) -> list[tuple[int, str]]:
        """The planned events: (after so many kills, what to do)."""
        some = max(1, kills // 50)
        what = ["_replace"] * some + ["_outage"] * some + ["_kill_server"] * some + (["fill"] * 2 * some if self._can_fill else [])
        by_chance = [(self.chance.randrange(kills // 10, max(kills * 9 // 10, kills // 10 + 1)), name) for name in what]
        hits = max(1, round(kills * _JOB_SHARE))
        return sorted(by_chance + [(kills * n // hits, "_kill_job") for n in range(hits)])

    def _fault(self) -> None:  # 2
        victim = self.chance.choices(list(_VICTIMS), list(_VICTIMS.values()))[0]
        pause = self.chance.random() < _PAUSED
        seconds = self.chance.uniform(*_PAUSE_SECONDS)
        if victim == "job":
            pause = True
        if victim in ("door", "follower"):
            pid = self._server.worker(victim) if self._server.alive() else None
            if pid is None:
                return
            if pause:
                self.pause(victim, [pid], seconds)
            else:
                signal_if_there(pid, signal.SIGKILL)
                self.storm.kills[victim] += 1
            return
        process = {"job": self._job, "server": self._server, **self._readers}[victim]
        if not process.alive():
            return
        if pause:
            self.pause(victim, process.members(), seconds)
        else:
            process.kill()
            self.storm.kills[victim] += 1

    def _kill_job(self) -> None:
        """Kill the job somewhere in a batch, not at its start: otherwise kills would hit Spark's start again and again."""
        self.wait_until("the job has gone on", lambda: self.oracle.committed() >= self._first_batch + _JOB_BATCHES, _JOB_SECONDS)
        self.rest(self.chance.random())
        self._first_batch = self.oracle.committed()
        self._job.kill()
        self.storm.kills["job"] += 1

    def _kill_server(self) -> None:
        self.wait_until("the server runs", self._server.alive, 60)
        self._server.kill()
        self.storm.kills["server"] += 1

    def _replace(self) -> None:
        """Delete the checkpoint, and start the job over."""
        self.wait_until("the job has gone on", lambda: self.oracle.committed() >= self._first_batch + _JOB_BATCHES, _JOB_SECONDS)
        self._job.kill()
        self.oracle.begin()
        self._first_batch = 0
        self.storm.replaced += 1

    def _outage(self) -> None:
        """Stop all followers until Spark has cleaned up the next batch to apply."""
        self.wait_until("the job has gone on", lambda: self.oracle.committed() > self._first_batch, _JOB_SECONDS)
        follower = self._server.worker("follower") if self._server.alive() else None
        pids = [follower] if follower is not None else []
        if self._readers["following"].alive():
            pids += self._readers["following"].members()
        goal = self.oracle.committed() + 2 * RETAINED + 2
        self.pause("both followers", pids, _JOB_SECONDS)
        self.wait_until("the job has cleaned up", lambda: self.oracle.committed() >= goal, _JOB_SECONDS)
        self.go_on(pids)
        self.storm.outages += 1

    # ------------------------------------------------------------ the end

    def _end(self) -> None:  # 3
        self.calm()
        self.wait_until("the job goes on", lambda: self.oracle.committed() >= self._first_batch + 1, _JOB_SECONDS)
        self._job.kill()
        self._job.start = lambda: None  # type: ignore[method-assign]
        self.oracle.note()
        last = (len(self.oracle.runs) - 1, self.oracle.committed())
        self.wait_until(
            f"all readers have come to {last}, and so have their changes",
            lambda: self.judge() or all((log.newest, log.replayed) == (last, last) for log in self.logs.values()),
            120,
        )
        for reader in self._readers.values():
            code = reader.end()
            if code not in (0, None, -signal.SIGTERM):  # the last, because it was started again a moment ago
                self.wrong.append(f"{reader.name} ended with {code}")
        if self._server.end() != 0:
            self.wrong.append("the server didn't end well")

    def stop_all(self) -> None:
        super().stop_all()
        self.oracle.end()

    def judge(self) -> None:  # 4
        if self.oracle.failed is not None:
            raise self.oracle.failed
        super().judge()

    def _judge_rest(self) -> None:
        for name, log in self.logs.items():
            log.judge()
            self.wrong += log.wrong
            if log.path.exists() and log.unjudged():
                self.wrong.append(f"{name}: the oracle doesn't know the batch of its last answers")
        self.check_ends()
        for run, expired, batch, key, name in self._owed:
            if (run, expired) in self._seen:
                self.wrong.append(f"{name}: run {run}, batch {batch} lacks the final row of {key}, which expired in {expired}")
