"""Processes are killed at random moments; every answer ever given is the state of the batch that it names."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

import millpond
from millpond.errors import MillpondError
from written_checkpoint import WrittenCheckpoint

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
    """20 kills while a batch is committed every few milliseconds; a reader in this process checks every answer."""
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
        with millpond.open(job.path, replica_dir=home, follow=False, wait_seconds=30) as reader:
            while kills < 20:
                next_kill = time.monotonic() + chance.uniform(0.0, 0.5)
                while time.monotonic() < next_kill:
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
            reader.catch_up(30)
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
        with millpond.open(job.path, replica_dir=home, follow=False, wait_seconds=30) as reader:
            follower.send_signal(signal.SIGSTOP)
            for n in range(1, 30):
                job.plan([("a", n), (f"b{n}", n)], snapshot=n % 5 == 0)
                job.commit()
            job.clean(keep=3)
            row = reader["ck.aggregate_0"].get(k="a")
            assert (row["v"], row.batch) == (row.batch, row.batch)
            follower.send_signal(signal.SIGCONT)
            reader.catch_up(30)
            assert {r["k"]: r["v"] for r in reader["ck.aggregate_0"].scan()} == job.content()
    finally:
        follower.kill()
        follower.wait()


JOB = """
import sys
import millpond
from pyspark.sql import functions as F
spark = millpond.session("killed", **{"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "1g"})
spark.sparkContext.setLogLevel("OFF")
events = spark.readStream.schema("page string, bytes long").option("maxFilesPerTrigger", 1).json(sys.argv[1])
df = events.groupBy("page").agg(F.count("*").alias("hits"), F.sum("bytes").alias("bytes"))
job = millpond.start(df, table="views", pond=sys.argv[2], partitions=3)
job.wait_for_end()
"""


def recompute(folder: Path, batch: int) -> dict[str, tuple[int, int]]:
    hits: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for number in range(batch + 1):
        for line in (folder / f"{number:04d}.json").read_text().splitlines():
            row = json.loads(line)
            hits[row["page"]] += 1
            total[row["page"]] += row["bytes"]
    return {page: (hits[page], total[page]) for page in hits}


def test_a_killed_job_is_served_as_it_was_and_goes_on_exactly(tmp_path: Path) -> None:
    """The whole process group is killed, twice, in the middle of whatever it does."""
    incoming = tmp_path / "in"
    incoming.mkdir()
    for batch in range(400):
        rows = [{"page": f"/p{(batch + i * i) % 25}", "bytes": batch * 10 + i} for i in range(20)]
        (incoming / f"{batch:04d}.json").write_text("\n".join(json.dumps(row) for row in rows))
        stamp = 1_000_000_000 + batch
        os.utime(incoming / f"{batch:04d}.json", (stamp, stamp))
    chance = random.Random(SEED)
    pond_path = tmp_path / "pond"
    newest = -1
    for round_number in range(3):
        with (tmp_path / f"job-{round_number}.log").open("w") as log:
            command = [sys.executable, "-c", textwrap.dedent(JOB), str(incoming), str(pond_path)]
            job = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 120
            pond = None
            goal = newest + chance.randrange(5, 12)
            while newest < goal:
                assert time.monotonic() < deadline, (tmp_path / f"job-{round_number}.log").read_text()[-2000:]
                try:
                    pond = pond or millpond.open(pond_path, replica_dir=tmp_path / "home")
                    rows = pond["views"].scan()
                except MillpondError:
                    time.sleep(0.1)
                    continue
                assert {r["page"]: (r["hits"], r["bytes"]) for r in rows} == recompute(incoming, rows.batch), f"seed {SEED}"
                assert rows.batch >= newest
                newest = rows.batch
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        assert pond is not None
        with pond:
            pond.catch_up(20)
            rows = pond["views"].scan()
            newest = rows.batch
            assert {r["page"]: (r["hits"], r["bytes"]) for r in rows} == recompute(incoming, rows.batch)
            assert rows.lag.behind_batches == 0


FULL = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
import millpond
from millpond.errors import MillpondError
from written_checkpoint import WrittenCheckpoint
job = WrittenCheckpoint(Path(sys.argv[1]))
job.plan([("a", 1)], snapshot=False)
job.commit()
with millpond.open(job.path, replica_dir=sys.argv[2]) as pond:
    name = pond.tables()[0]
    job.plan([(f"{n} " + "x" * 400, n) for n in range(20000)], snapshot=False)
    job.commit()
    try:
        pond.catch_up(10)
        print("no error")
    except MillpondError as error:
        print(error.condition)
    row = pond[name].get(k="a")
    print(row["v"], row.batch, row.lag.behind_batches)
"""


def test_a_disk_that_fills_up_is_said_and_the_last_batch_is_still_served(tmp_path: Path) -> None:
    """A file system of 2 MiB, in a mount namespace of its own."""
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
    done = subprocess.run([*unshare, "sh", "-c", shell], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split("\n")[:2] == ["DISK_FULL", "1 0 1"], done.stdout + done.stderr
