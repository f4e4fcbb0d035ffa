"""Targets that are gone for as long as you like, under the real command: `python -m sending.outage --seconds 3600`.

Batches go on meanwhile.  Each sender is `millpond send`, a process of its own.  All the time this reads its status line, its
metrics and its memory.  Afterwards everything must arrive, each change once and in the order of its key.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sending.places import Kafka, Place, Postgres, Webhook
from servers.kafka import KafkaBroker
from servers.postgres import PostgresServer
from spark_files.batches import Batches
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

TABLE = "ck.aggregate_0"
KINDS = ("changelog", "compacted", "postgres", "webhook")
_KEYS, _ROWS, _KEEP = 60, 40, 60
_FAILS, _PATIENCE_SECONDS = "failed TARGET_UNAVAILABLE", 120
Change = tuple[int, str, Any, Any]
"""batch, kind, value before, value after"""


class Written(Batches):
    """Commits batches, and knows what each of them changed.

    changes:  key -> its changes, in order
    """

    def __init__(self, folder: Path, seed: int, pause_seconds: float) -> None:
        super().__init__(pause_seconds)
        self.checkpoint = WrittenCheckpoint(folder / "ck")
        self.changes: dict[str, list[Change]] = defaultdict(list)
        self._random, self._number = random.Random(seed), 0
        self.batch()

    @property
    def newest(self) -> int:
        """The newest committed batch."""
        return self.checkpoint.next_batch - 1

    def batch(self) -> None:
        """Commit a batch; a value is there only once."""
        before, batch = self.checkpoint.content(), self.checkpoint.next_batch
        changes: list[tuple[str, int | None]] = []
        for key in self._random.sample(range(_KEYS), self._random.randrange(_ROWS)):
            name, self._number = f"k{key}", self._number + 1
            old, new = before.get(name), None if self._random.random() < 0.3 else self._number
            if old is None and new is None:
                continue
            changes.append((name, new))
            self.changes[name].append((batch, "insert" if old is None else "expire" if new is None else "update", old, new))
        self.checkpoint.plan(changes, snapshot=batch % 10 == 0)
        self.checkpoint.commit()
        if batch % _KEEP == _KEEP - 1:
            self.checkpoint.clean(_KEEP)


@dataclass
class Sending:
    """`millpond send` to one target.

    memory_bytes:  its memory without mapped files, at each look
    """

    kind: str
    place: Place
    stop: Callable[[], None]
    start: Callable[[], None]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    memory_bytes: list[int] = field(default_factory=list)

    def begin(self, checkpoint: Path, home: Path) -> None:
        """Start the command."""
        self.folder.mkdir()
        (self.folder / "options").write_text("".join(f"{name}={value}\n" for name, value in self.place.options.items()))
        command = [sys.executable, "-m", "millpond.cli", "send", str(checkpoint), TABLE, "--to", self.place.to]
        command += ["--history", "forever", "--target-options", str(self.folder / "options")]
        command += ["--metrics", str(self.folder / "send.prom")]
        with (self.folder / "log").open("wb") as log:
            environment = {**os.environ, "MILLPOND_HOME": str(home)}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def metrics(self) -> dict[str, float]:
        """Name without `millpond_send_` -> value; of a failure, `failed CONDITION`."""
        try:
            text = (self.folder / "send.prom").read_text()
        except FileNotFoundError:
            return {}
        found = {}
        for name, labels, value in re.findall(r"^millpond_send_(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
            condition = re.search(r'condition="(\w+)"', labels)
            found[f"{name} {condition[1]}" if condition else name] = float(value)
        return found

    def look(self) -> dict[str, float]:
        """Its metrics; notes its memory."""
        assert self.process is not None
        assert self.process.poll() is None, self.words()
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        self.memory_bytes.append(int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) * 1024)
        return self.metrics()

    def words(self) -> str:
        """What it wrote."""
        return (self.folder / "log").read_text(errors="replace")

    def wait_for(self, batch: int, timeout_seconds: float) -> float:
        """Wait until that batch is sent; returns how long it took."""
        began = time.monotonic()
        wait_until(
            lambda: (said := self.look()).get("batch", -1) >= batch and _FAILS not in said,
            f"batch {batch} at {self.kind}, see {self.folder / 'log'}",
            seconds=timeout_seconds,
        )
        return time.monotonic() - began

    def end(self) -> None:
        """End it, as Ctrl-C does."""
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(60) == 0, self.words()[-2000:]
            self.process = None

    def differences(self, written: Written, first: int) -> list[str]:
        """What isn't as it must be at the target.

        first:  the batch of the whole read
        """
        found = [] if self.place.rows() == written.checkpoint.content() else [f"{self.kind}: other rows than the table's"]
        if not self.place.is_log:
            return found
        arrived: dict[str, list[Change]] = defaultdict(list)
        for kind, batch, key, old, new in self.place.logged():
            if batch > first:
                arrived[key].append((batch, kind, old, new))
        expected = {key: [change for change in changes if change[0] > first] for key, changes in written.changes.items()}
        for key in sorted({*arrived, *expected}):
            came, wanted = arrived.get(key, []), expected.get(key, [])
            if came != wanted:
                place = next((n for n, (a, b) in enumerate(zip(came, wanted, strict=False)) if a != b), min(len(came), len(wanted)))
                found.append(f"{self.kind}: change {place} of {key} is {came[place : place + 1]} for {wanted[place : place + 1]}")
        return found


@contextlib.contextmanager
def places(kinds: tuple[str, ...], folder: Path) -> Iterator[list[Sending]]:
    """Targets with servers of their own."""
    found: list[Sending] = []
    with contextlib.ExitStack() as ends:
        if {"changelog", "compacted"} & set(kinds):
            broker = KafkaBroker()
            ends.callback(broker.remove)
            broker.start()
        for kind in kinds:
            if kind == "postgres":
                server = PostgresServer()
                ends.callback(server.remove)
                server.start()
                made: tuple[Place, Any, Any] = Postgres(folder, server.address), server.stop, server.start
            elif kind == "webhook":
                hook = Webhook(folder)
                ends.callback(hook.close)
                made = hook, hook.close, hook.reopen
            else:
                made = Kafka(kind, broker.address), broker.kill, broker.start
            found.append(Sending(kind, *made, folder / kind))
        yield found


def outage(folder: Path, kinds: tuple[str, ...], *, seconds: float, seed: int, pause_seconds: float) -> dict[str, Any]:
    """Let all targets go away for so long; returns what was seen, with `differences`."""
    written = Written(folder, seed, pause_seconds)
    with places(kinds, folder) as sendings:
        try:
            for sending in sendings:
                sending.begin(written.checkpoint.path, folder / "home")
            first = written.newest
            for sending in sendings:
                sending.wait_for(first, 60)
            written.start()
            time.sleep(6)  # all of them follow, and have written metrics
            seen = _without_targets(sendings, seconds)
            for start in {sending.start for sending in sendings}:
                start()
            at = written.newest
            for sending in sendings:
                seen[sending.kind]["caught_up_seconds"] = round(sending.wait_for(at, 900), 1)
            written.end()
            for sending in sendings:
                sending.wait_for(written.newest, 60)
                sending.end()
            changes = sum(len(each) for each in written.changes.values())
            differences = [text for sending in sendings for text in sending.differences(written, first)]
            return {"batches": written.newest + 1, "changes": changes, "targets": seen, "differences": differences}
        finally:
            for sending in sendings:
                if sending.process is not None:
                    sending.process.kill()
                    sending.process.wait()


def _without_targets(sendings: list[Sending], seconds: float) -> dict[str, Any]:
    """End all targets, and look at the senders for so long, and until each of them says that it fails."""
    before = {sending.kind: sending.look() for sending in sendings}
    for sending in sendings:
        sending.memory_bytes.clear()
    for stop in {sending.stop for sending in sendings}:
        stop()
    began = time.monotonic()
    said: dict[str, list[tuple[float, dict[str, float]]]] = {sending.kind: [] for sending in sendings}
    silent = {sending.kind for sending in sendings}
    while (at := time.monotonic() - began) < seconds or (silent and at < seconds + _PATIENCE_SECONDS):
        for sending in sendings:
            look = sending.look()
            said[sending.kind].append((at, look))
            if _FAILS in look:
                silent.discard(sending.kind)
        time.sleep(1)
    assert not silent, (silent, [sending.words()[-2000:] for sending in sendings if sending.kind in silent])
    found = {}
    for sending in sendings:
        looks, last = said[sending.kind], said[sending.kind][-1][1]
        failed = [at for at, look in looks if _FAILS in look]
        memory = sending.memory_bytes
        half = len(memory) // 2
        found[sending.kind] = {
            "outage_seconds": round(looks[-1][0], 1),
            "seen_failing_after_seconds": round(failed[0], 1),
            "looks": len(looks),
            "looks_that_fail": len(failed),
            "failures": last["errors_total"] - before[sending.kind]["errors_total"],
            "behind_batches": last["behind_batches"],
            "behind_seconds": last["behind_seconds"],
            "in_its_words": re.findall(r"^send: .*tries again.*$", sending.words(), re.MULTILINE)[-1:],
            "memory_mib": {
                "first": round(memory[0] / 2**20, 1),
                "most_of_the_first_half": round(max(memory[: half or 1]) / 2**20, 1),
                "most_of_the_second_half": round(max(memory[half:]) / 2**20, 1),
            },
        }
    return found


def main() -> int:
    """Run it; returns 0 if nothing differs."""
    parser = argparse.ArgumentParser(prog="sending.outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between batches")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--result", type=Path, help="a JSON file for what it came to")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from results import machine

    folder, load, began = Path(tempfile.mkdtemp(prefix="millpond-outage-")), os.getloadavg()[0], time.monotonic()
    print(f"targets are gone for {given.seconds:g} s; seed {given.seed}, in {folder}", flush=True)
    found = outage(folder, tuple(given.kinds), seconds=given.seconds, seed=given.seed, pause_seconds=given.pause)
    result = {
        "command": f"python -m sending.outage --seconds {given.seconds:g} --seed {given.seed} --pause {given.pause:g}",
        "machine": machine(),
        "load_average": {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)},
        "seconds": round(time.monotonic() - began),
        "outage_seconds": given.seconds,
        **found,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.result is not None:
        given.result.write_text(text + "\n")
    if found["differences"]:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
