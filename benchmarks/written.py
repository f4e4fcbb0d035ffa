"""A job's checkpoint written by hand, as Spark would: for states that Spark takes an hour to make, and commits at a known time.

The HDFS-backed provider, one store, long -> two longs: key k, count n, total.
"""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

PARTITIONS = 8
ROW_BYTES = 48
"""Of a record in an unpacked change file."""


class WrittenCheckpoint:
    """Writes a checkpoint batch by batch."""

    def __init__(self, path: Path) -> None:
        from millpond.schema.types import Field, atomic, struct_of

        self.path = path
        long = atomic("long")
        schemas = [struct_of((Field("k", long),)), struct_of((Field("n", long), Field("total", long)))]
        body = b"".join(struct.pack(">iH", 1, len(text)) + text for text in (json.dumps(s.to_json()).encode() for s in schemas))
        metadata = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": PARTITIONS}],
        }
        self._write("metadata", json.dumps({"id": "written by hand"}).encode())
        self._write("state/0/_metadata/metadata", b"v1\n" + json.dumps(metadata).encode())
        self._write("state/0/0/_metadata/schema", struct.pack(">H", 2) + b"v2" + body)

    def commit(self, batch: int, keys: Any) -> int:
        """Put a row for each of the keys (a numpy array of longs); when commits/N was there, in nanoseconds since 1970."""
        import numpy as np

        record = np.dtype(
            [("a", ">i4"), ("key_nulls", "<i8"), ("k", "<i8"), ("b", ">i4"), ("nulls", "<i8"), ("n", "<i8"), ("total", "<i8")]
        )
        places = places_of(keys)
        for partition in range(PARTITIONS):
            mine = keys[places == partition]
            rows = np.zeros(len(mine), record)
            rows["a"], rows["b"], rows["k"], rows["n"], rows["total"] = 16, 24, mine, batch + 1, mine * 3
            self._write(f"state/0/{partition}/{batch + 1}.delta", lz4_stream(rows.tobytes() + struct.pack(">i", -1)))
        conf = {
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.streaming.stateStore.compression.codec": "lz4",
            "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
        }
        planned = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000, "conf": conf}
        self._write(f"sources/0/{batch}", b'v1\n{"path":"file:///in/%d","timestamp":%d,"batchId":%d}' % (batch, batch, batch))
        self._write(f"offsets/{batch}", f'v1\n{json.dumps(planned)}\n{{"logOffset":{batch}}}'.encode())
        temporary = self.path / f".{batch}.tmp"
        temporary.write_bytes(b'v1\n{"nextBatchWatermarkMs":0}')
        (self.path / "commits").mkdir(exist_ok=True)
        # Read before: a reader may see the file before this thread goes on.
        committed = time.time_ns()
        os.rename(temporary, self.path / "commits" / str(batch))
        return committed

    def largest_file_bytes(self) -> int:
        """Of the change files."""
        return max(path.stat().st_size for path in self.path.rglob("*.delta"))

    def _write(self, name: str, data: bytes) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(data)


def write_checkpoint(path: Path, keys: int) -> WrittenCheckpoint:
    """Two batches: the first puts every key in random order, the second changes a hundredth of them."""
    import numpy as np

    written = WrittenCheckpoint(path)
    shuffled = np.random.default_rng(1).permutation(keys).astype(np.int64)
    written.commit(0, shuffled)
    written.commit(1, shuffled[: keys // 100])
    return written


def places_of(keys: Any) -> Any:
    """The partition of each key (a numpy array of longs), by Spark's hash."""
    import numpy as np

    from millpond.native.rewrite import KINDS, hash_rows

    rows = np.zeros(len(keys), [("nulls", "<i8"), ("k", "<i8")])
    rows["k"] = keys
    begin = np.arange(len(keys), dtype=np.int64) * 16
    return hash_rows((rows.tobytes(), begin, np.full(len(keys), 16, np.int64)), 0, 1, [KINDS["long"]]) % PARTITIONS


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
