"""Kills and pauses followers at random moments: every answer is the state of the batch that it names.

Batches come every few milliseconds here, without Spark; tests/soak kills a real job and everything around it.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.schema.types import Field, atomic
from spark_files.checkpoint import WrittenCheckpoint
from suite.mounts import skip_without_mounts

pytestmark = pytest.mark.faults
SEED = int(os.environ.get("MILLPOND_SEED", "20261121"))

FOLLOWER = """
import sys, time
import millpond
pond = millpond.open(sys.argv[1], replica_dir=sys.argv[2])
print("following", flush=True)
time.sleep(1000)
"""


def start_follower(checkpoint: Path, home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", FOLLOWER, str(checkpoint), str(home)], stdout=subprocess.DEVNULL)


def test_a_follower_killed_at_any_moment_goes_on_where_it_was(tmp_path: Path) -> None:
    """20 kills, with a commit every few milliseconds; a reader in this process checks every answer."""
    chance = random.Random(SEED)
    job = WrittenCheckpoint(tmp_path / "ck")
    history: dict[int, dict[str, int]] = {}

    def commit() -> None:
        changes = [(f"key {chance.randrange(300)}", chance.choice([None, chance.randrange(1000)])) for _ in range(60)]
        job.plan(changes, snapshot=chance.random() < 0.1)
        job.commit()
        history[job.next_batch - 1] = job.content()

    commit()
    home = tmp_path / "home"
    follower = start_follower(job.path, home)
    answers = kills = 0
    newest = -1
    try:
        with millpond.open(job.path, replica_dir=home, follow=False, wait_seconds=60) as reader:
            while kills < 20:
                # However slow the machine is: six answers before each kill, and each fifth follower has applied something.
                before, wanted, began = newest, answers + 6, time.monotonic()
                next_kill = began + chance.uniform(0.0, 0.5)
                while (
                    (now := time.monotonic()) < next_kill
                    or answers < wanted
                    or (kills % 5 == 4 and newest <= max(before, 0) and now < began + 60)
                ):
                    commit()
                    rows = reader["ck.aggregate_0"].scan()
                    assert {row["k"]: row["v"] for row in rows} == history[rows.batch], f"seed {SEED}"
                    assert rows.batch >= newest
                    newest = rows.batch
                    answers += 1
                follower.kill()
                follower.wait()
                kills += 1
                follower = start_follower(job.path, home)
            reader.catch_up(60)
            rows = reader["ck.aggregate_0"].scan()
            assert rows.batch == job.next_batch - 1
            assert {row["k"]: row["v"] for row in rows} == job.content()
    finally:
        follower.kill()
        follower.wait()
    assert answers > 100
    assert newest > 0


def test_a_follower_that_was_paused_while_the_log_was_cleaned_catches_up(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "ck")
    job.plan([("a", 0)], snapshot=True)
    job.commit()
    home = tmp_path / "home"
    follower = start_follower(job.path, home)
    try:
        with millpond.open(job.path, replica_dir=home, follow=False, wait_seconds=60) as reader:
            follower.send_signal(signal.SIGSTOP)
            for n in range(1, 30):
                job.plan([("a", n), (f"b{n}", n)], snapshot=n % 5 == 0)
                job.commit()
            job.clean(keep=3)
            row = reader["ck.aggregate_0"].get(k="a")
            assert (row["v"], row.batch) == (row.batch, row.batch)
            follower.send_signal(signal.SIGCONT)
            reader.catch_up(60)
            assert {r["k"]: r["v"] for r in reader["ck.aggregate_0"].scan()} == job.content()
    finally:
        follower.kill()
        follower.wait()


def test_rows_that_expired_outlive_a_killed_follower_and_a_restart_of_the_machine(tmp_path: Path) -> None:
    """After kills at random moments, a read gives flushed rows, and says that it doesn't know the others.  It is never wrong."""
    chance = random.Random(SEED)
    job = WrittenCheckpoint(tmp_path / "ck", key=(Field("k", atomic("timestamp")),), watermarked=True)
    home, values, known, unknown = tmp_path / "home", list[int](), 0, 0

    def commit() -> None:
        """Commit a row of a new minute; the row three minutes before expires."""
        number = len(values)
        values.append(chance.randrange(1000))
        changes: list[tuple[Any, int | None]] = [((number * 60_000_000,), values[-1])]
        if number >= 3:
            changes.append((((number - 3) * 60_000_000,), None))
            job.watermark_ms = (number - 3) * 60_000
        job.plan(changes, snapshot=number % 10 == 0)
        job.commit()

    commit()
    for number in range(1, 6):
        follower = start_follower(job.path, home)
        try:
            with millpond.open(job.path, replica_dir=home, follow=False, wait_seconds=60) as reader:
                until = time.monotonic() + chance.uniform(0.5, 4)
                while time.monotonic() < until or len(values) < 30 * number:
                    commit()
                    time.sleep(0.02)
                reader.catch_up(60)
        finally:
            follower.kill()
            follower.wait()
        for generation in home.glob("replicas/*/generation-*"):
            (generation / "boot").write_text("another boot")
        commit()
        with millpond.open(job.path, replica_dir=home, wait_seconds=60) as pond:
            (table,) = (pond[name] for name in pond.tables())
            for n, value in enumerate(values[:-3]):
                row = table.with_closed().get(k=dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=n))
                if row:
                    assert (row["v"], row.final) == (value, True), f"seed {SEED}, row {n}"
                else:
                    assert row.evicted is None, f"seed {SEED}, row {n}"
                known, unknown = known + bool(row), unknown + (not row)
            assert [row["v"] for row in table.live().scan()] == values[-3:]
    assert known > 100
    assert unknown > 0  # at least those of batches that nobody followed


FULL = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
import millpond
from millpond.errors import MillpondError
from spark_files.checkpoint import WrittenCheckpoint
job = WrittenCheckpoint(Path(sys.argv[1]))
job.plan([("a", 1)], snapshot=False)
job.commit()
with millpond.open(job.path, replica_dir=sys.argv[2], wait_seconds=60) as pond:
    name = pond.tables()[0]
    job.plan([(f"{n} " + "x" * 400, n) for n in range(20000)], snapshot=False)
    job.commit()
    try:
        pond.catch_up(60)
        print("no error")
    except MillpondError as error:
        print(error.condition)
    row = pond[name].get(k="a")
    print(row["v"], row.batch, row.lag.behind_batches)
"""


def test_a_disk_that_fills_up_is_said_and_the_last_batch_is_still_served(tmp_path: Path) -> None:
    """The disk is a file system of 2 MiB, in a mount namespace of its own."""
    (tmp_path / "small").mkdir()
    script = tmp_path / "full.py"
    script.write_text(FULL)
    arguments = f"{script} {tmp_path}/ck {tmp_path}/small {Path(__file__).parent.parent}"
    shell = f"mount -t tmpfs -o size=2m none {tmp_path}/small && exec {sys.executable} {arguments}"
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    try:
        can = subprocess.run([*unshare, "sh", "-c", f"mount -t tmpfs none {tmp_path}/small"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare isn't installed")
    if can.returncode:
        pytest.skip("this system lets no test mount a small file system")
    done = subprocess.run([*unshare, "sh", "-c", shell], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.split("\n")[:2] == ["DISK_FULL", "1 0 1"], done.stdout + done.stderr


_FULL = """
import subprocess, sys
from pathlib import Path
from millpond.errors import MillpondError
from millpond.replica.backends.lmdb import open_backend
from millpond.settings import ReplicaSettings

disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
(disk / "generation").mkdir()
with open(disk / "rest", "wb", buffering=0) as rest:
    try:
        while True:
            rest.write(bytes(4096))
    except OSError:
        pass
try:
    open_backend(disk / "generation", ReplicaSettings())
except MillpondError as refused:
    print(refused.condition)
"""


def test_a_disk_that_is_full_from_the_start_is_an_error_and_no_crash(tmp_path: Path) -> None:
    """LMDB maps its lock file.  A write to a mapped page ends the process by SIGBUS if the disk has no room for the page."""
    skip_without_mounts()
    command = ["unshare", "-m", sys.executable, "-c", _FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "DISK_FULL\n"), done.stderr
