"""Checkpoints of the HDFS-backed provider, written file by file as Spark does, so that a test decides exactly what happens."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.block
import xxhash

from millpond.checkpoint.partition import partition_of
from millpond.checkpoint.rows.unsaferow import encoder
from millpond.schema.types import Field, atomic, struct_of
from millpond.storage import Storage

KEY = (Field("k", atomic("string")),)
VALUE = (Field("v", atomic("long")),)
PARTITIONS = 2
encode_value = encoder(VALUE)


def lz4_file(data: bytes) -> bytes:
    """A stream as Spark writes it: blocks of 32 KiB, an end mark."""
    out = b""
    for begin in range(0, len(data), 32768):
        block = data[begin : begin + 32768]
        packed = lz4.block.compress(block, store_size=False)
        checksum = xxhash.xxh32_intdigest(block, 0x9747B28C) & 0x0FFFFFFF
        out += b"LZ4Block" + struct.pack("<Biii", 0x25, len(packed), len(block), checksum) + packed
    return out + b"LZ4Block" + struct.pack("<Biii", 0x15, 0, 0, 0)


def delta_file(
    changes: list[tuple[Any, Any]], key_fields: tuple[Field, ...] = KEY, value_fields: tuple[Field, ...] = VALUE
) -> bytes:
    """A delta file with these changes; a key or a value is a row, or the only value in it; None deletes."""
    out = bytearray()
    encode_key, encode_value = encoder(key_fields), encoder(value_fields)
    for key, value in changes:
        row = encode_key(key if isinstance(key, tuple) else (key,))
        out += struct.pack(">i", len(row)) + row
        if value is None:
            out += struct.pack(">i", -1)
        else:
            row = encode_value(value if isinstance(value, tuple) else (value,))
            out += struct.pack(">i", len(row)) + row
    return lz4_file(bytes(out) + struct.pack(">i", -1))


def log_entry(number: int) -> bytes:
    """An entry of a file source's log, with one file."""
    return b'v1\n{"path":"file:///in/%d.json","timestamp":%d,"batchId":%d}' % (number, number, number)


def schema_file(key: tuple[Field, ...], value: tuple[Field, ...]) -> bytes:
    """The schema file of a store with these columns."""
    return _schema_file(struct_of(key).to_json(), struct_of(value).to_json())


def _schema_file(key: Any, value: Any) -> bytes:
    schema = json.dumps(key), json.dumps(value)
    return struct.pack(">H", 2) + b"v2" + b"".join(struct.pack(">iH", 1, len(s)) + s.encode() for s in schema)


class WrittenCheckpoint:
    """A checkpoint of the HDFS-backed provider, written file by file as Spark does.

    key:      the columns of the key; a key of several columns is a tuple
    value:    the other columns; a value of several columns is a tuple
    sources:  gives the sources' offsets at the end of a batch
    watermarked:  whether the key has the watermark's column; each batch is planned with `watermark_ms`
    watermarked_column:  the position of that column
    partitions:  of the state
    """

    def __init__(
        self,
        path: Path,
        job_id: str = "job-1",
        *,
        key: tuple[Field, ...] = KEY,
        value: tuple[Field, ...] = VALUE,
        sources: Callable[[int], list[Any]] = lambda batch: [{"logOffset": batch}],
        watermarked: bool = False,
        watermarked_column: int = 0,
        partitions: int = PARTITIONS,
    ) -> None:
        self.path = path
        self.partitions = partitions
        self.key, self.value = key, value
        self.sources = sources
        self.next_batch = 0
        self.state: list[dict[Any, Any]] = [{} for _ in range(self.partitions)]
        self.clock = time.time_ns() // 1_000_000
        self.watermark_ms = 0
        key_json = struct_of(key).to_json()
        if watermarked:
            key_json["fields"][watermarked_column]["metadata"]["spark.watermarkDelayMs"] = 1000
        metadata = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": self.partitions}],
        }
        self.write("metadata", json.dumps({"id": job_id}).encode())
        self.write("state/0/_metadata/metadata", b"v1\n" + json.dumps(metadata).encode())
        self.write("state/0/0/_metadata/schema", _schema_file(key_json, struct_of(value).to_json()))

    def write(self, name: str, data: bytes, at: float | None = None) -> None:
        """Write a file at once; with `at`, it has this file time from the beginning."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_bytes(data)
        if at is not None:
            os.utime(temporary, (at, at))
        temporary.rename(target)

    def plan(self, changes: list[tuple[Any, Any]], *, snapshot: bool) -> None:
        """Write everything of a batch except its commit."""
        batch = self.next_batch
        self.clock += 1
        conf = {
            "spark.sql.shuffle.partitions": str(self.partitions),
            "spark.sql.streaming.stateStore.compression.codec": "lz4",
            "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
        }
        planned = {"batchWatermarkMs": self.watermark_ms, "batchTimestampMs": self.clock, "conf": conf}
        offsets = ["-" if offset is None else json.dumps(offset) for offset in self.sources(batch)]
        for source, offset in enumerate(self.sources(batch)):
            if isinstance(offset, dict) and offset.keys() == {"logOffset"}:
                self._log_files(f"sources/{source}", offset["logOffset"])
        self.write(f"offsets/{batch}", "\n".join(["v1", json.dumps(planned), *offsets]).encode())
        for partition in range(self.partitions):
            mine = [(k, v) for k, v in changes if self._partition(k) == partition]
            for key, value in mine:
                if value is None:
                    self.state[partition].pop(key, None)
                else:
                    self.state[partition][key] = value
            self.write(f"state/0/{partition}/{batch + 1}.delta", delta_file(mine, self.key, self.value))
            if snapshot:
                rows: list[tuple[Any, Any]] = [*self.state[partition].items()]
                self.write(f"state/0/{partition}/{batch + 1}.snapshot", delta_file(rows, self.key, self.value))

    def _log_files(self, folder: str, upto: int) -> None:
        """The entries of a file source's log that aren't there: a file each.  Each tenth has all before it."""
        entries = [json.dumps({"path": f"file:///in/{n}.json", "timestamp": n, "batchId": n}) for n in range(upto + 1)]
        for number in range(upto, -1, -1):
            is_compact = number % 10 == 9
            name = f"{folder}/{number}.compact" if is_compact else f"{folder}/{number}"
            if self._has_entry(name):
                break  # and all before it
            lines = entries[: number + 1] if is_compact else entries[number : number + 1]
            self.write(name, "\n".join(["v1", *lines]).encode())

    def _has_entry(self, name: str) -> bool:
        return (self.path / name).exists()

    def _partition(self, key: Any) -> int:
        row = key if isinstance(key, tuple) else (key,)
        return partition_of(self.key, row, self.partitions) if row else 0  # an aggregation without keys has one partition

    def commit(self, at: float | None = None) -> None:
        self.write(f"commits/{self.next_batch}", b'v1\n{"nextBatchWatermarkMs":%d}' % self.watermark_ms, at)
        self.next_batch += 1

    def clean(self, keep: int) -> None:
        """Clean up as Spark does, if there is a snapshot to go on from."""
        oldest = self.next_batch - keep
        for folder in ("offsets", "commits"):
            for file in (self.path / folder).iterdir():
                if int(file.name) < oldest:
                    file.unlink()
        for partition in range(self.partitions):
            folder = self.path / f"state/0/{partition}"
            bases = [int(p.stem) for p in folder.glob("*.snapshot") if int(p.stem) <= oldest + 1]
            for file in [*folder.glob("*.delta"), *folder.glob("*.snapshot")]:
                if bases and int(file.stem) < max(bases):
                    file.unlink()

    def content(self) -> dict[Any, int]:
        return {k: v for rows in self.state for k, v in rows.items()}


class UploadedCheckpoint(WrittenCheckpoint):
    """A checkpoint written directly to a bucket, past any proxy."""

    def __init__(self, storage: Storage, job_id: str = "job-1") -> None:
        self.storage = storage
        super().__init__(None, job_id)  # type: ignore[arg-type] # no path: `write` needs none

    def _has_entry(self, name: str) -> bool:
        return self.storage.stamp(name) is not None

    def write(self, name: str, data: bytes, at: float | None = None) -> None:
        if at is not None:
            raise ValueError("an object's time is the store's own")
        self.storage.write(name, data)

    def batch(self, changes: list[tuple[str, int | None]], *, snapshot: bool = False) -> None:
        self.plan(changes, snapshot=snapshot)
        self.commit()
