"""From commit to visible: how soon after commits/N is there the first answer of batch N is given, also under full read load.

    python benchmarks/visible.py [--batches 300] [--write]

Batches of 1,000 changed rows, in a table of 100,000, are committed by hand at a known time, at random moments; or by a live Spark
job, one right after another.  `millpond serve` follows and answers.  Two readers ask for random keys and note when an answer
names a batch that they haven't seen: one in Python, in a process of its own, and one over HTTP.

    quiet     both ask about every millisecond
    loaded    the reader in Python asks without a pause, and wrk asks the server over 32 connections: more than two cores can do
    loaded_2  the same, with `millpond serve --workers 2`: who follows answers nobody
    spark     as quiet, beside a Spark job that never pauses; its commit times are the files' own (changed at the rename), which
              the system's clock rounds down by up to 4 ms

What is measured ends when the answer is in the reader's hands.  A batch that no answer named, since a later one was there first,
counts from its own commit to that later answer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results import write_result
from running import free_port, running
from written import WrittenCheckpoint
from wrk import require_wrk

KEYS, CHANGED = 100_000, 1_000
MODES = ("quiet", "loaded", "loaded_2", "spark")
WARM_BATCHES = 20
READER_PAUSE_SECONDS = 0.001
SLOWEST_BATCH_SECONDS = 0.25
LAST_BATCH_SECONDS = 3

IN_PYTHON = """
import json, random, signal, sys, time
import millpond
place, home, name, column, keys, pause = *sys.argv[1:5], int(sys.argv[5]), float(sys.argv[6])
seen, times, asked, ending = -1, {}, 0, []
signal.signal(signal.SIGTERM, lambda *_: ending.append(True))
with millpond.open(place, replica_dir=home, follow=False) as pond:
    table = pond[name]
    print("ready", flush=True)
    while not ending:
        batch = table.get({column: random.randrange(keys)}).batch
        asked += 1
        if batch > seen:
            times[batch] = time.time_ns()
            seen = batch
        if pause:
            time.sleep(pause)
print(json.dumps({"times": times, "asked": asked}), flush=True)
"""
OVER_HTTP = """
import json, random, re, signal, socket, sys, time
port, name, column, keys, pause = int(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]), float(sys.argv[5])
named = re.compile(rb'"batch":([0-9]+)')
seen, times, asked, ending = -1, {}, 0, []
signal.signal(signal.SIGTERM, lambda *_: ending.append(True))
with socket.create_connection(("127.0.0.1", port)) as connection:
    print("ready", flush=True)
    while not ending:
        path = f"/tables/{name}/rows?{column}={random.randrange(keys)}"
        connection.sendall(f"GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode())
        told = b""
        while not told.endswith(b"}"):
            told += connection.recv(65536)
        batch = int(named.search(told)[1])
        asked += 1
        if batch > seen:
            times[batch] = time.time_ns()
            seen = batch
        time.sleep(pause)
print(json.dumps({"times": times, "asked": asked}), flush=True)
"""
FROM_WRK = """
import json, sys
from wrk import load
print(json.dumps(load(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
"""


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of the values don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextlib.contextmanager
def server(place: Path, home: Path, workers: int) -> Iterator[tuple[int, int]]:
    """The port of `millpond serve` and its process id, once its first table can be read."""
    port = free_port()
    command = [sys.executable, "-m", "millpond.cli", "serve", str(place), "--port", str(port), "--replica-dir", str(home)]
    command += ["--workers", str(workers)] if workers > 1 else []
    with running("millpond", command, lambda: tables_of(port) != []) as pid:
        yield port, pid


def tables_of(port: int) -> list[Any]:
    import httpx

    try:
        listed = httpx.get(f"http://127.0.0.1:{port}/tables").json()["tables"]
    except httpx.TransportError:
        return []
    return [t for t in listed if "error" not in t]


class HandWriter:
    """Commits batches by hand."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        self.place = folder / "checkpoint"
        self._keys = np.arange(KEYS, dtype=np.int64)
        self._random = np.random.default_rng(3)
        self._written = WrittenCheckpoint(self.place)
        self._written.commit(0, self._keys)
        self._newest = 0

    def run(self, batches: int) -> dict[int, int]:
        """Commit so many batches; when each was committed."""
        times = {}
        for _ in range(batches):
            time.sleep(random.uniform(0.02, 0.06))
            self._newest += 1
            times[self._newest] = self._written.commit(self._newest, self._random.choice(self._keys, CHANGED, replace=False))
        return times

    def close(self) -> None:
        """Nothing is left open."""


class SparkWriter:
    """Lets Spark commit batches."""

    def __init__(self, folder: Path) -> None:
        from pyspark.sql import functions as F

        import millpond

        self._spark = millpond.session("visible", **{"spark.master": "local[2]", "spark.ui.enabled": "false"})
        self._spark.sparkContext.setLogLevel("ERROR")
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", CHANGED).option("numPartitions", 2).load()
        counts = source.groupBy((F.col("value") % KEYS).alias("k")).agg(F.count("*").alias("n"), F.sum("value").alias("total"))
        self.place = folder / "pond"
        self._job = millpond.start(counts, table="counts", pond=self.place, partitions=2)
        self._job.wait_for_batch(5, timeout_seconds=300)

    def run(self, batches: int) -> dict[int, int]:
        """Wait for so many batches; when each was committed."""
        commits = self.place / "jobs/counts/checkpoint/commits"
        first = 1 + max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        times: dict[int, int] = {}
        for batch in range(first, first + batches):
            self._job.wait_for_batch(batch, timeout_seconds=120)
            times[batch] = (commits / str(batch)).stat().st_ctime_ns
        return times

    def close(self) -> None:
        """End the job and Spark."""
        self._job.stop()
        self._spark.stop()


def measure(mode: str, batches: int) -> dict[str, Any]:
    """One mode."""
    is_loaded = mode.startswith("loaded")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, contextlib.ExitStack() as opened:
        writer = SparkWriter(Path(folder)) if mode == "spark" else HandWriter(Path(folder))
        opened.callback(writer.close)
        home = Path(folder, "home")
        port, _ = opened.enter_context(server(writer.place, home, 2 if mode.endswith("_2") else 1))
        table = tables_of(port)[0]["table"]
        what, pause = [table, "k", str(KEYS)], 0.0 if is_loaded else READER_PAUSE_SECONDS
        readers = {
            "python": [IN_PYTHON, str(writer.place), str(home), *what, str(pause)],
            "http": [OVER_HTTP, str(port), *what, str(READER_PAUSE_SECONDS)],
        }
        started = {name: _start(opened, command) for name, command in readers.items()}
        for reader in started.values():
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        writer.run(WARM_BATCHES)
        if is_loaded:
            address, seconds = f"http://127.0.0.1:{port}", int(batches * SLOWEST_BATCH_SECONDS)
            wrk = _start(opened, [FROM_WRK, address, f"/tables/{table}/rows?k=", str(KEYS), str(seconds)])
            time.sleep(1)
        times = writer.run(batches)
        result: dict[str, Any] = {"batches": len(times)}
        if is_loaded:
            assert wrk.poll() is None, "the load ended before the last batch"
        time.sleep(LAST_BATCH_SECONDS)
        for name, reader in started.items():
            reader.send_signal(signal.SIGTERM)
            seen = json.loads(reader.communicate(timeout=60)[0])
            visible = _first_answers({int(batch): at for batch, at in seen["times"].items()}, times)
            result[name] = {
                "p50_ms": round(percentile(visible, 0.5), 2),
                "p99_ms": round(percentile(visible, 0.99), 2),
                "max_ms": round(max(visible), 2),
                "answers": seen["asked"],
            }
        if is_loaded:
            result["wrk"] = json.loads(wrk.communicate(timeout=300)[0])
    return result


def _start(opened: contextlib.ExitStack, command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", *command], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
    opened.callback(_end, process)
    return process


def _first_answers(seen: dict[int, int], committed: dict[int, int]) -> list[float]:
    """Milliseconds from each commit to the first answer that names its batch or a later one."""
    out, batches = [], sorted(seen)
    for batch, at in committed.items():
        first = next(b for b in batches if b >= batch)
        out.append((seen[first] - at) / 1e6)
    return out


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def main() -> None:
    """All modes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/visible.json")
    options = parser.parse_args()
    if any(mode.startswith("loaded") for mode in options.modes):
        require_wrk()
    runs = {}
    for mode in options.modes:
        runs[mode] = measure(mode, options.batches)
        print(mode, runs[mode], file=sys.stderr, flush=True)
    result = {
        "what": "commit to visible",
        "size": {"changed_rows_of_a_batch": CHANGED, "keys": KEYS},
        "modes": {
            mode: {reader: {name: run[reader][name] for name in ("p50_ms", "p99_ms")} for reader in ("python", "http")}
            for mode, run in runs.items()
        },
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("visible", result, runs)


if __name__ == "__main__":
    main()
