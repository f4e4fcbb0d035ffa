"""Keys a second read from a RocksDB snapshot, beside RocksDB itself reading the same files, by turns in one run.

    python benchmarks/sst.py [--keys 1000000] [--write]

RocksDB writes the snapshots as Spark has it write them (LZ4 blocks of 4 KiB): counts by a text key in one SST, the same over four
levels, and lists of 1 to 20 numbers.  Then `iter_chunks` and `iter_snapshot` take out every key and value as bytes, and so does
rocksdict.  CPU seconds, since other programs may share the machine; a look-up of one key is timed from a cold start.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from results import write_result

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
ROUNDS = 5


def key_row(text: str) -> bytes:
    """A key of one text column, as Spark writes it."""
    raw = text.encode()
    return b"\x00" + bytes(8) + struct.pack("<Q", 16 << 32 | len(raw)) + raw.ljust((len(raw) + 7) // 8 * 8, b"\x00")


def count_row(i: int) -> bytes:
    """count, sum, average's sum."""
    return b"\x00" + bytes(8) + struct.pack("<qqd", i, i * 7, i / 3)


def list_value(i: int) -> bytes:
    """1 to 20 elements as ListState keeps them: length, row of one long."""
    return b"".join(struct.pack("<iqq", 16, 0, i * n) for n in range(1 + i * 7919 % 20))


def fill(folder: Path, keys: int, value: Callable[[int], bytes], levels: int) -> None:
    """Write a snapshot; each further level writes a tenth of the keys of the one before anew."""
    from rocksdict import WriteBatch

    from spark_files.snapshot import SnapshotWriter

    writer = SnapshotWriter(folder)
    for level in range(levels):
        for begin in range(0, keys, 50_000):
            batch = WriteBatch(raw_mode=True)
            for i in range(begin, min(begin + 50_000, keys)):
                if i % 10**level == 0:
                    batch.put(key_row(f"/page/{i}"), value(i + level))
            writer.database.write(batch)
        writer.database.flush()
        if level == 0:
            writer.database.compact_range(None, None)
    writer.publish("1")
    writer.close()


def cpu_seconds(read: Callable[[], Iterator[Any]]) -> float:
    """What it takes to go through all of it."""
    began = time.process_time()
    for _ in read():
        pass
    return time.process_time() - began


def measure(scratch: Path, keys: int, value: Callable[[int], bytes], levels: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One snapshot, read in turn by us and by RocksDB: medians, and processor seconds of each round."""
    from rocksdict import AccessType, Options, Rdict

    from millpond.checkpoint.rocksdb.snapshot import find, iter_chunks, iter_snapshot, read_snapshot, read_snapshot_metadata
    from millpond.storage import open_storage

    fill(scratch / "0", keys, value, levels)
    storage = open_storage(scratch)
    opened = scratch / "opened"
    shutil.unpack_archive(scratch / "0" / "1.zip", opened)
    for local, dfs in read_snapshot_metadata(storage, "0", "1").sst_names.items():
        shutil.copy(scratch / "0" / "SSTs" / dfs, opened / local)
    database = Rdict(str(opened), options=Options(raw_mode=True), access_type=AccessType.read_only())
    assert sum(1 for ours, own in zip(iter_snapshot(storage, "0", "1"), database.items(), strict=True) if ours == own) == keys
    times: dict[str, list[float]] = {"chunks": [], "pairs": [], "rocksdict": []}
    for _ in range(ROUNDS):
        times["chunks"].append(cpu_seconds(lambda: iter_chunks(storage, read_snapshot(storage, "0", "1"), b"")))
        times["pairs"].append(cpu_seconds(lambda: iter_snapshot(storage, "0", "1")))
        times["rocksdict"].append(cpu_seconds(database.items))
    database.close()
    tracemalloc.start()
    for _ in iter_snapshot(storage, "0", "1"):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    looked_up = []
    for i in range(0, keys, keys // 50):
        began = time.perf_counter()
        found = find(storage, read_snapshot(storage, "0", "1"), key_row(f"/page/{i}"), b"")
        looked_up.append(time.perf_counter() - began)
        assert found is not None
    rates = {name: keys / median(seconds) for name, seconds in times.items()}
    medians = {
        "sst_bytes": sum(p.stat().st_size for p in (scratch / "0" / "SSTs").iterdir()),
        "keys_per_cpu_second_in_chunks": round(rates["chunks"]),
        "keys_per_cpu_second_one_by_one": round(rates["pairs"]),
        "rocksdict_keys_per_cpu_second": round(rates["rocksdict"]),
        "ratio_in_chunks": round(rates["chunks"] / rates["rocksdict"], 3),
        "ratio_one_by_one": round(rates["pairs"] / rates["rocksdict"], 3),
        "peak_memory_mib": round(peak / (1 << 20), 1),
        "cold_lookup_ms": round(1000 * median(looked_up), 2),
    }
    return medians, {name: [round(seconds, 3) for seconds in each] for name, each in times.items()}


def main() -> None:
    """Three kinds of snapshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/sst.json")
    options = parser.parse_args()
    result: dict[str, Any] = {"keys": options.keys}
    rounds: dict[str, Any] = {}
    for name, value, levels in (("counts", count_row, 1), ("counts_on_four_levels", count_row, 4), ("lists", list_value, 2)):
        with tempfile.TemporaryDirectory() as scratch:
            result[name], rounds[name] = measure(Path(scratch), options.keys, value, levels)
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("sst", result, rounds)


if __name__ == "__main__":
    main()
