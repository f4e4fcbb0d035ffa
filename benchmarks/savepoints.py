"""Savepoints of a large state on one disk: the first, the next one, and `cp -r` beside them, by turns in one run.

    python benchmarks/savepoints.py [--keys 20000000] [--rounds 3] [--write]

Both states have 8 partitions of rows long -> two longs, in random order; the numbers are random, so that little of them packs.  The
HDFS-backed one has a snapshot a partition; RocksDB itself writes the other one's SSTs, in LZ4 blocks.  Between two savepoints the
job commits a batch that changes a hundredth of the keys.

    first       a savepoint with no other before it; rows aren't counted
    next        one after it, which shares its files where they are the same
    counted     as `first`, and all rows are decoded, counted, and found in the partition of their key
    copy        `cp -r` of the whole checkpoint, then `sync`

Every savepoint is verified after the run.  What is timed includes the hashes of all files and `syncfs`; files are in the system's
cache, as those that Spark has just written.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import write_result
from written import PARTITIONS, WrittenCheckpoint, lz4_stream, places_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def write_hdfs(path: Path, keys: int) -> Callable[[int], None]:
    """A state in snapshots; the function commits one more batch."""
    import numpy as np

    written, random = WrittenCheckpoint(path), np.random.default_rng(1)
    record = np.dtype(
        [("a", ">i4"), ("key_nulls", "<i8"), ("k", "<i8"), ("b", ">i4"), ("nulls", "<i8"), ("n", "<i8"), ("total", "<i8")]
    )

    def rows(some: Any) -> bytes:
        found = np.zeros(len(some), record)
        found["a"], found["b"], found["k"] = 16, 24, some
        found["n"], found["total"] = random.integers(0, 1 << 62, (2, len(some)))
        return bytes(found.tobytes()) + struct.pack(">i", -1)

    def commit(batch: int) -> None:
        written.commit(batch, random.integers(0, keys, keys // 100))

    commit(0)
    places = places_of(np.arange(keys))
    for partition in range(PARTITIONS):
        mine = random.permutation(np.flatnonzero(places == partition))
        (path / f"state/0/{partition}/1.snapshot").write_bytes(lz4_stream(rows(mine)))
    return commit


def write_rocksdb(path: Path, keys: int) -> Callable[[int], None]:
    """A state in SSTs; the function commits one more batch, with SSTs for what it changes."""
    import numpy as np
    from rocksdict import WriteBatch

    from spark_files.snapshot import SnapshotWriter

    written, random = WrittenCheckpoint(path), np.random.default_rng(1)
    writers = [SnapshotWriter(path / f"state/0/{partition}") for partition in range(PARTITIONS)]

    def put(batch: int, some: Any) -> None:
        places = places_of(some)
        for partition, writer in enumerate(writers):
            mine = some[places == partition]
            values = random.integers(0, 1 << 62, (len(mine), 2))
            for begin in range(0, len(mine), 100_000):
                changes = WriteBatch(raw_mode=True)
                pairs = zip(mine[begin : begin + 100_000].tolist(), values[begin : begin + 100_000].tolist(), strict=True)
                for key, (n, total) in pairs:
                    changes.put(b"\0" + struct.pack("<qq", 0, key), b"\0" + struct.pack("<qqq", 0, n, total))
                writer.database.write(changes)
            writer.publish(str(batch + 1))

    def commit(batch: int) -> None:
        written.commit(batch, np.empty(0, np.int64))
        for delta in path.glob(f"state/0/*/{batch + 1}.delta"):
            delta.unlink()
        offsets = path / "offsets" / str(batch)
        lines = offsets.read_text().split("\n")
        planned = json.loads(lines[1])
        planned["conf"]["spark.sql.streaming.stateStore.providerClass"] = PROVIDER
        lines[1] = json.dumps(planned)
        offsets.write_text("\n".join(lines))
        put(batch, np.arange(keys) if batch == 0 else random.integers(0, keys, keys // 100))

    commit(0)
    return commit


def measure(checkpoint: Path, commit: Callable[[int], None], rounds: int) -> list[dict[str, float]]:
    """Seconds of each kind, in each round."""
    from millpond.savepoint.create import plan_savepoint
    from millpond.savepoint.manage.delete import plan_delete_savepoint
    from millpond.savepoint.manifest import Savepoint
    from millpond.savepoint.verify import verify_savepoint

    def timed(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return round(time.perf_counter() - began, 3)

    def create(name: str, *, count: bool = False) -> Savepoint:
        return plan_savepoint(checkpoint, name, count=count).run()

    found = []
    for number in range(rounds):
        seconds = {}
        subprocess.run(["sync"], check=True)
        seconds["first"] = timed(lambda: create("first"))
        commit(2 * number + 1)
        subprocess.run(["sync"], check=True)
        made: list[Savepoint] = []
        seconds["next"] = timed(lambda: made.append(create("next")))  # noqa: B023 - called at once
        assert verify_savepoint(made[0]).is_whole
        for name in ("first", "next"):
            plan_delete_savepoint(checkpoint, name).run()
        subprocess.run(["sync"], check=True)
        seconds["counted"] = timed(lambda: create("counted", count=True))
        plan_delete_savepoint(checkpoint, "counted").run()
        copy = checkpoint.with_name("copy")
        subprocess.run(["sync"], check=True)
        seconds["copy"] = timed(lambda: subprocess.run(f"cp -r {checkpoint} {copy} && sync", shell=True, check=True))  # noqa: B023
        shutil.rmtree(copy)
        commit(2 * number + 2)
        found.append(seconds)
        print(checkpoint.name, seconds, file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Write both states, and make savepoints of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/savepoints.json")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {}
    sizes: dict[str, int] = {}
    for name, write in (("hdfs", write_hdfs), ("rocksdb", write_rocksdb)):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / name
            commit = write(checkpoint, options.keys)
            sizes[name] = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
            rounds[name] = measure(checkpoint, commit, options.rounds)
    kinds = ("first", "next", "counted", "copy")
    result = {
        "what": "seconds of a savepoint of a whole state on one disk, beside cp -r and sync",
        "keys": options.keys,
        "checkpoint_bytes": sizes,
        "median_seconds": {
            name: {kind: statistics.median(r[kind] for r in many) for kind in kinds} for name, many in rounds.items()
        },
        "ratio_to_copy": {
            name: {kind: round(statistics.median(r[kind] / r["copy"] for r in many), 3) for kind in kinds[:3]}
            for name, many in rounds.items()
        },
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("savepoints", result, rounds)


if __name__ == "__main__":
    main()
