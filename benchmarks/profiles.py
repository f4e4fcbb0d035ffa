"""Where the time goes, by a sampling profiler: of a lookup over HTTP, and of the application of a batch.

    pip install py-spy
    python benchmarks/profiles.py [--rounds 3] [--seconds 10] [--write]

`millpond serve` follows a checkpoint that is written by hand: 100,000 keys, 1,000 changed rows a batch (benchmarks/visible.py).

    http    wrk asks it for random keys over 32 connections; the thread that answers is looked at
    apply   batches are committed at random moments, and nobody asks; the thread that follows is looked at

py-spy doesn't stop the process: its stops fall on system calls more often than elsewhere if the machine is quiet, and gave the
event loop 37 percent in one round and 58 in another.  Shares are of the samples of that thread while it runs.
A share is that of a group's functions, and of all that they call and that isn't in a group itself; the result has the median of
all rounds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from results import write_result
from visible import FROM_WRK, KEYS, HandWriter, server, tables_of
from wrk import require_wrk

SAMPLES_PER_SECOND = 300
# Function as py-spy writes it -> group.
HTTP = {
    "Runner.run": "event loop and reading sockets (uvloop)",
    "Connections.send": "writing sockets",
    "Connections.": "the connection's own steps",
    "Connection._parse": "reading the request (httptools)",
    "Connection.": "the connection's own steps",
    "HotRows._begin": "a view for the requests that are there together",
    "HotRows._end": "a view for the requests that are there together",
    "HotRows.": "the answer's own steps",
    "_Moment.": "the answer's own steps",
    "Access.": "who is let in, and metrics",
    "Meter.": "who is let in, and metrics",
    "_unquoted": "the key",
    "text_key": "the key",
    "_escape": "the key",
    "_Plan.key": "the key",
    "KeyCodec.": "the key",
    "Lookups.get": "LMDB",
    "LmdbSnapshot.get": "LMDB",
    "RowWriter.": "the row as JSON, in C",
}
APPLY = {
    "LmdbBackend.write": "LMDB: the end of the transaction",
    "LmdbWriteBatch.": "LMDB: putting rows",
    "put_rows": "stamps, and the order of rows",
    "Keeper.": "stamps, and the order of rows",
    "LocalStorage.": "opening and reading files",
    "StateReader.unpacked": "unpacking them",
    "iter_records": "finding rows and their keys",
    "StateReader.iter_file": "finding rows and their keys",
    "key_transcoder": "finding rows and their keys",
    "_column": "finding rows and their keys",
    "collect": "finding rows and their keys",
    "read_batch": "offsets and commits",
    "check_still_committed": "offsets and commits",
}
# What the thread does when there is nothing to do.
WAITING = ("FolderWatch.wait", "Condition.wait")


def shares(raw: str, groups: dict[str, str], thread: str) -> dict[str, float]:
    """Percent of the samples of the thread whose stacks hold this function, by group.  Ends the program if there are none."""
    samples: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, number = line.rsplit(" ", 1)
        frames = stack.split(";")
        if any(frame.startswith(thread) for frame in frames) and not frames[-1].startswith(WAITING):
            samples[_group(frames, groups)] += int(number)
    if not samples:
        raise SystemExit(f"py-spy saw no thread with {thread}")
    return {group: round(100 * number / samples.total(), 1) for group, number in samples.most_common()}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median share of each group, largest first."""
    groups = {group for each in rounds for group in each}
    found = {group: round(statistics.median(each.get(group, 0.0) for each in rounds), 1) for group in groups}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _group(frames: list[str], groups: dict[str, str]) -> str:
    for frame in reversed(frames):
        for begin, group in groups.items():
            if frame.startswith(begin):
                return group
    return "other"


def profile(pid: int, seconds: float, raw: Path) -> subprocess.Popen[bytes]:
    """Look at a process for so long."""
    command = ["py-spy", "record", "--nonblocking", "--rate", str(SAMPLES_PER_SECOND), "--pid", str(pid)]
    return subprocess.Popen(
        [*command, "--duration", str(seconds), "--format", "raw", "--output", str(raw)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def measure(seconds: int) -> dict[str, dict[str, float]]:
    """One round: both, one after the other."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        writer = HandWriter(Path(folder))
        with server(writer.place, Path(folder, "home"), 1) as (port, pid):
            table, raw = tables_of(port)[0]["table"], Path(folder, "raw")
            asked = [f"http://127.0.0.1:{port}", f"/tables/{table}/rows?k=", str(KEYS)]

            def wrk(seconds: int) -> subprocess.Popen[bytes]:
                return subprocess.Popen([sys.executable, "-c", FROM_WRK, *asked, str(seconds)], cwd=Path(__file__).parent)

            wrk(3).wait()
            load, looking = wrk(seconds + 3), profile(pid, seconds, raw)
            looking.wait()
            load.wait()
            http = shares(raw.read_text(), HTTP, "serve_http")
            writer.run(20)
            looking = profile(pid, seconds, raw)
            while looking.poll() is None:
                writer.run(10)
            return {"http": http, "apply": shares(raw.read_text(), APPLY, "Follower._run")}


def main() -> None:
    """All rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="of each of the two, in each round")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/profiles.json")
    options = parser.parse_args()
    require_wrk()
    if shutil.which("py-spy") is None:
        raise SystemExit("This needs py-spy: pip install py-spy")
    rounds = [measure(options.seconds) for _ in range(options.rounds)]
    result = {
        "what": "percent of a thread's time: of the one that answers lookups over HTTP, and of the one that applies batches",
        "samples_per_second": SAMPLES_PER_SECOND,
        **{thread: medians([each[thread] for each in rounds]) for thread in ("http", "apply")},
    }
    print(json.dumps({**result, "rounds": rounds}, indent=1))
    if options.write:
        write_result("profiles", result, rounds)


if __name__ == "__main__":
    main()
