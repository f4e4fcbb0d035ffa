"""What a follower takes while it builds a replica: 10 M keys beside 1 M, in one run.

    python benchmarks/memory.py [--keys 10000000] [--write]

The checkpoint is written by hand, not by Spark (which takes most of an hour): the HDFS-backed provider, 8 partitions, two
batches; the first puts every key (long -> two longs), the second changes a hundredth of them. Each bootstrap is a process of
its own. Its private memory (RssAnon) is what it asks for; pages of the replica's file that are mapped (RssFile) are the
system's cache, and given back when others need them.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import machine, write_result

PARTITIONS = 8
READER = """
import json, sys, threading, time
from pathlib import Path
import millpond

def memory():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) // 1024 for name in ("VmHWM", "RssAnon", "RssFile")}

most, done = {}, threading.Event()

def watch():
    while not done.wait(0.02):
        for name, mib in memory().items():
            most[name] = max(most.get(name, 0), mib)

before = memory()
threading.Thread(target=watch, daemon=True).start()
began = time.perf_counter()
with millpond.open(sys.argv[1], replica_dir=sys.argv[2], wait_seconds=3000) as pond:
    seconds = time.perf_counter() - began
    (name,) = pond.tables()
    rows = int(pond[name].count())
    size = next(iter(pond.statistics().values()))["size_bytes"]
done.set()
print(json.dumps({"rows": rows, "seconds": round(seconds, 1), "replica_mib": size >> 20, "at_start_mib": before, "peak_mib": most}))
"""


def lz4_stream(data: bytes) -> bytes:
    """As Spark's writer: blocks of 32 KiB and an end mark."""
    import lz4.block
    import xxhash

    out = []
    for at in range(0, len(data), 32768):
        block = data[at : at + 32768]
        packed = lz4.block.compress(block, store_size=False)
        checksum = xxhash.xxh32_intdigest(block, 0x9747B28C) & 0x0FFFFFFF
        out.append(b"LZ4Block" + struct.pack("<Biii", 0x25, len(packed), len(block), checksum) + packed)
    return b"".join([*out, b"LZ4Block" + struct.pack("<Biii", 0x15, 0, 0, 0)])


def write_checkpoint(path: Path, keys: int) -> None:
    """All of a job's files, two batches."""
    import numpy as np

    from millpond.schema.types import Field, atomic, struct_of

    def write(name: str, data: bytes) -> None:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)

    long = atomic("long")
    schemas = [struct_of((Field("k", long),)), struct_of((Field("n", long), Field("total", long)))]
    body = b"".join(struct.pack(">iH", 1, len(text)) + text for text in (json.dumps(s.to_json()).encode() for s in schemas))
    metadata = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": PARTITIONS}],
    }
    write("metadata", json.dumps({"id": "written by hand"}).encode())
    write("state/0/_metadata/metadata", b"v1\n" + json.dumps(metadata).encode())
    write("state/0/0/_metadata/schema", struct.pack(">H", 2) + b"v2" + body)
    record = np.dtype(
        [("a", ">i4"), ("key_nulls", "<i8"), ("k", "<i8"), ("b", ">i4"), ("nulls", "<i8"), ("n", "<i8"), ("total", "<i8")]
    )
    shuffled = np.random.default_rng(1).permutation(keys).astype(np.int64)
    for batch, chosen in enumerate((shuffled, shuffled[: keys // 100])):
        for partition in range(PARTITIONS):
            mine = chosen[chosen % PARTITIONS == partition]
            rows = np.zeros(len(mine), record)
            rows["a"], rows["b"], rows["k"], rows["n"], rows["total"] = 16, 24, mine, batch + 1, mine * 3
            write(f"state/0/{partition}/{batch + 1}.delta", lz4_stream(rows.tobytes() + struct.pack(">i", -1)))
        conf = {"spark.sql.shuffle.partitions": str(PARTITIONS), "spark.sql.streaming.stateStore.compression.codec": "lz4"}
        planned = {"batchWatermarkMs": 0, "batchTimestampMs": 1000 + batch, "conf": conf}
        write(f"offsets/{batch}", f'v1\n{json.dumps(planned)}\n{{"logOffset":{batch}}}'.encode())
        write(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


def main() -> None:
    """Write both, build both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/memory.json")
    options = parser.parse_args()
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for keys in (options.keys // 10, options.keys):
            checkpoint = Path(scratch, f"checkpoint-{keys}")
            began = time.perf_counter()
            write_checkpoint(checkpoint, keys)
            largest = max(p.stat().st_size for p in checkpoint.rglob("*.delta"))
            command = [sys.executable, "-c", READER, str(checkpoint), f"{scratch}/home-{keys}"]
            print(f"{keys} keys written in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            assert answer["rows"] == keys, answer
            unpacked = 48 * keys // PARTITIONS
            runs[str(keys)] = {**answer, "largest_file_mib": largest >> 20, "largest_file_unpacked_mib": unpacked >> 20}
    result = {
        "what": "bootstrap of a replica (long -> two longs, 8 partitions, HDFS-backed); checkpoint written by hand",
        "machine": machine(),
        "load_average_after": os.getloadavg()[0],
        "keys": runs,
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("memory", result)


if __name__ == "__main__":
    main()
