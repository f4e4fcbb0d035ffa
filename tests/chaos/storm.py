"""The chaos: a storm over a whole town of processes; then all answers are judged.

1. Start the broker, with all input, the cluster and its job, the servers, the sender, and those who ask.
2. Until there were enough kills: rest a moment, then kill (SIGKILL) or pause (SIGSTOP) a process, change the weather of the network
   and of S3, let a clock jump, or fill the disk of the replicas. Start again whatever ended.
3. End the storm. All must heal: the job commits again; then it is ended, and everybody must come to its last batch.
4. Judge the rest of the logs, and what the sender has brought.

The seed fixes input and order of the faults; what they hit depends on the machine.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chaos.checks import OF_COPIES, OF_ONE, OF_SAVEPOINTS, PagesLog, sent_differences
from chaos.topic import PlannedBatches
from chaos.town import COPIES, SENT, SHARDS, Town
from chaos.weather import Sky
from sending.places import committed_records
from soak.checks import ReaderLog
from soak.model import JobRun
from soak.processes import Process, signal_if_there
from soak.under_fire import UnderFire

# Shares of random faults.  A JVM takes ten seconds of the machine to come back, so those that have one are hit less often.
_VICTIMS = {
    "shard": 400,
    "router": 130,
    "console": 80,
    "sender": 80,
    "saves": 80,
    "looks-at-console": 40,
    "asks-router": 40,
    "asks-shards": 40,
    "asks-console": 40,
}
# Their share of all kills, and how it is divided.
_JVM_SHARE = 0.08
_JVMS = {"executor": 14, "driver": 12, "worker": 8, "broker": 14, "runner": 4, "master": 4}
_PAUSED, _WEATHER, _JUMP, _FULL = 0.12, 0.12, 0.04, 0.01
_PAUSE_SECONDS = (0.3, 5.0)
_HEAL_SECONDS = 300.0
# Between two blows at the job, it commits so many batches, or else it has as long.
_JOB_BATCHES, _JOB_SECONDS = 2, 120.0
_TELL_SECONDS = 30.0
# Exit codes of a command that can't go on now, and of one without room on its disk: a service manager starts it again.
_UNAVAILABLE = {4, 6}


class Chaos(UnderFire):
    """See the module.  `folder` is empty.

    rest_seconds:  the mean time between two faults
    faults:        other than kills and pauses
    exits:         processes that couldn't go on, by name and exit code
    healed:        how long each took after the storm, in seconds
    """

    restart_seconds = 1.0

    def __init__(self, folder: Path, home: Path, *, seed: int, can_fill: bool, kills: int, rest_seconds: float) -> None:
        super().__init__(home, seed)
        self._can_fill, self._kills, self._rest_seconds = can_fill, kills, rest_seconds
        self.run_of_job = JobRun(seed, 0, 0)
        self.town = Town(folder, home, seed, records=2000 + 4 * round(kills * rest_seconds))
        self.faults, self.exits = Counter[str](), Counter[str]()
        self.healed: dict[str, float] = {}
        self.sent = 0
        rules = {"asks-router": OF_COPIES, "asks-shards": OF_COPIES, "saves": OF_SAVEPOINTS}
        for name, path in self.town.logs.items():
            log = PagesLog if name == "looks-at-console" else ReaderLog
            self.logs[name] = log(path, [self.run_of_job], self.counts, set(), [], rules.get(name, OF_ONE))
        self.planned = PlannedBatches(self.run_of_job, self.town.checkpoint)
        self._sky = Sky([{} for _ in range(SHARDS * COPIES)])
        self._sky.clear()
        self._hit_at, self._hit_batch = 0.0, -1

    # ------------------------------------------------------------ the storm

    def run(self, tell: Callable[[], object]) -> None:
        """Run all of it; `tell` is called now and then."""
        told_at = time.monotonic()
        try:
            self._begin()
            while self.storm.kills.total() < self._kills:
                self.rest(self.chance.expovariate(1 / self._rest_seconds))
                self._fault()
                if time.monotonic() > told_at + _TELL_SECONDS:
                    tell()
                    told_at = time.monotonic()
            self._heal()
        finally:
            self.stop_all()

    def _begin(self) -> None:  # 1
        for name, process in self.town.processes.items():
            process.start()
            self.processes.append(process)
            if name == "broker":
                self.wait_until("the broker listens", self.town.broker.listens, 60)
            elif name == "worker-1":
                self.wait_until("the cluster is there", lambda: self.town.cluster.alive_workers() == 2, 90)
            elif name == "job":
                self.wait_until("the job has committed", lambda: self.planned.committed() >= 1, _HEAL_SECONDS)
        self.has_begun = True
        self.wait_until("all got answers", lambda: all(self.counts_of(name) for name in self.logs), _HEAL_SECONDS)

    def counts_of(self, name: str) -> bool:
        """Whether somebody got a right answer, and it was judged."""
        return self.logs[name].newest[1] >= 0 or (name == "saves" and self.counts.answers["at"] > 0)

    def _fault(self) -> None:  # 2
        kind = self.chance.random()
        if kind < _WEATHER:
            self._sky.change(self.chance)
            self._set_weather()
        elif kind < _WEATHER + _JUMP and self.town.clocks.is_there:
            self.faults[f"clock of {_kind(self.town.clocks.jump(self.chance))}"] += 1
        elif kind < _WEATHER + _JUMP + _FULL and self._can_fill:
            self.fill()
        else:
            jvms = sum(self.storm.kills[name] for name in _JVMS)
            is_due = jvms < _JVM_SHARE * self.storm.kills.total() and self._has_gone_on()
            victims = _JVMS if is_due else _VICTIMS
            self._hit(self.chance.choices(list(victims), list(victims.values()))[0], is_pause=self.chance.random() < _PAUSED)

    def _hit(self, victim: str, *, is_pause: bool) -> None:
        """Kill or pause one; nothing if it isn't there now."""
        pids, process = self._targets(victim)
        if not pids:
            return
        if is_pause:
            self.pause(victim, pids, self.chance.uniform(*_PAUSE_SECONDS))
            return
        if process is not None:
            process.kill()
        for pid in pids if process is None else []:
            signal_if_there(pid, signal.SIGKILL)
        self.storm.kills[victim] += 1

    def _targets(self, victim: str) -> tuple[list[int], Process | None]:
        """The ids of a victim, and the process that is killed as a whole, if it is one of ours."""
        if victim == "driver":
            return self.town.driver(), None
        if victim == "executor":
            executors = self.town.executors()
            return [self.chance.choice(executors)] if executors else [], None
        names = {
            "shard": [name for name in self.town.processes if _kind(name) == "shard"],
            "worker": ["worker-0", "worker-1"],
            "runner": ["job"],
        }.get(victim, [victim])
        process = self.town.processes[self.chance.choice(names)]
        return (process.members(), process) if process.alive() else ([], None)

    def _has_gone_on(self) -> bool:
        """Whether the job has come further since the last blow at a JVM: else these would hit starts again and again."""
        newest, now = self.planned.newest, time.monotonic()
        if newest < self._hit_batch + _JOB_BATCHES and now < self._hit_at + _JOB_SECONDS:
            return False
        self._hit_at, self._hit_batch = now, newest
        return True

    def _set_weather(self) -> None:
        self.town.network.set(self._sky)
        self.faults["weather"] += 1

    # ------------------------------------------------------------ the end

    def _heal(self) -> None:  # 3
        self.calm()
        self._sky.clear()
        self._set_weather()
        self.town.clocks.right()
        at = self.planned.committed()
        self._until_healed("the job", lambda: self.planned.committed() >= at + 3)
        self._until_healed("a savepoint", lambda before=self.counts.answers["at"]: self.counts.answers["at"] > before)
        self._end_job()
        last = self.planned.committed()
        self.planned.note()
        for name, log in self.logs.items():
            if name == "saves":
                continue
            follows = name.startswith("asks")
            self._until_healed(
                name, lambda log=log, follows=follows: log.newest[1] == last and (not follows or log.replayed[1] == last)
            )
        self._until_healed("sender", lambda: not self._sent_differences(last))
        for name in ("saves", "looks-at-console", "asks-console", "asks-shards", "asks-router", "sender", "router", "console"):
            self._end(name)
        for name in self.town.processes:
            if _kind(name) == "shard":
                self._end(name)
        for name, log in self.logs.items():  # 4
            log.judge()
            self.wrong += log.wrong
            if log.unjudged():
                self.wrong.append(f"{name}: its last answers can't be judged")
        self.check_ends()
        self.wrong += self._sent_differences(last)

    def _until_healed(self, what: str, holds: object) -> None:
        began = time.monotonic()
        self.wait_until(f"{what} has healed", lambda: self.judge() or holds(), _HEAL_SECONDS)  # type: ignore[operator]
        self.healed[what] = round(time.monotonic() - began, 1)

    def _end_job(self) -> None:
        job = self.town.processes["job"]
        self.processes.remove(job)
        for pid in self.town.driver():
            signal_if_there(pid, signal.SIGKILL)
        job.kill()

    def _end(self, name: str) -> None:
        process = self.town.processes[name]
        self.processes.remove(process)
        code = process.end()
        if code not in (0, None, -signal.SIGTERM):  # the last, because it was started a moment ago
            self.wrong.append(f"{name} ended with {code}: {process.last_words()[-500:]}")

    def _sent_differences(self, last: int) -> list[str]:
        records = [change for _, change in committed_records(self.town.broker_address, SENT)]
        self.sent = len(records)
        return sent_differences(records, self.run_of_job, last)

    def stop_all(self) -> None:
        """See `UnderFire`."""
        for pid in self.town.driver():
            signal_if_there(pid, signal.SIGKILL)
        super().stop_all()
        self.planned.end()
        self.town.end()

    def judge(self) -> None:
        """See `UnderFire`."""
        if self.planned.failed is not None:
            raise self.planned.failed
        super().judge()

    def check_ends(self) -> None:
        """A command that couldn't go on for now is no error; anything else is."""
        for process in self.processes:
            for code in process.unwanted:
                if code in _UNAVAILABLE:
                    self.exits[f"{_kind(process.name)} {code}"] += 1
                else:
                    self.wrong.append(f"{process.name} ended by itself with {code}: {process.last_words()[-1500:]}")
            process.unwanted = []

    def dump(self, folder: Path) -> None:
        """Write down what was planned, for who looks for the cause of a wrong answer."""
        with suppress(OSError):
            lines = [f"{batch} {found}" for batch, found in sorted(self.run_of_job.planned.items())]
            (folder / "planned").write_text("\n".join(lines))


def _kind(name: str) -> str:
    """`shard` of `shard-1-0`."""
    return name.split("-", maxsplit=1)[0] if name.startswith(("shard-", "worker-")) else name
