"""Checkpoints that Millpond refuses: each is made from a golden one; reading it ends with a condition."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millpond.checkpoint.files.records import DELETE_RANGE
from millpond.checkpoint.log import committed_batches, read_batch
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.real_time import refuse_real_time
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.errors import MillpondError
from millpond.schema.types import Field, atomic
from millpond.storage import open_storage
from spark_files.checkpoint import WrittenCheckpoint, lz4_file
from spark_files.golden import GOLDEN
from spark_files.snapshot import SnapshotWriter


@dataclass(frozen=True)
class Refusal:
    """One row of the page.

    makers:  each writes a checkpoint into a folder that isn't there yet
    """

    what: str
    why: str
    makers: tuple[Callable[[Path], None], ...]

    def conditions(self, scratch: Path) -> list[str]:
        """The condition for each of these checkpoints, or `read` if it can be read."""
        found = []
        scratch.mkdir()
        for number, make in enumerate(self.makers):
            make(scratch / str(number))
            found += conditions_of(scratch / str(number))
        return list(dict.fromkeys(found))


def conditions_of(checkpoint: Path) -> list[str]:
    """The conditions with which reading the newest state is refused."""
    storage = open_storage(checkpoint)
    try:
        batch = read_batch(storage, committed_batches(storage)[-1])
        refuse_real_time(storage, batch)
        stores, unread = read_stores(storage, batch.batch)
    except MillpondError as error:
        return [error.condition]
    found = [store.error.condition for store in unread]
    for store in stores:
        for partition in range(len(partitions_of(batch, store))):
            try:
                for _ in StateReader(storage).iter_state(batch, store, partition):
                    pass
            except MillpondError as error:
                found.append(error.condition)
    return sorted(set(found)) or ["read"]


def golden(cell: str, target: Path) -> Path:
    """A copy of a golden checkpoint."""
    shutil.copytree(GOLDEN / cell / "checkpoint", target)
    return target


def in_files(target: Path, pattern: str, old: str, new: str) -> None:
    """Replace a text in all files of a name; it must be there."""
    files = [path for path in target.glob(pattern) if old in path.read_text()]
    assert files, f"{pattern} has no {old}"
    for path in files:
        path.write_text(path.read_text().replace(old, new))


def of_operator(cell: str, old: str, new: str) -> Callable[[Path], None]:
    """Give the operator another name."""
    return lambda target: in_files(golden(cell, target), "state/0/_metadata/**/[m0-9]*", f'"{old}"', f'"{new}"')


def of_provider(target: Path) -> None:
    provider = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    in_files(golden("counts-hdfs", target), "offsets/*", provider, "com.example.OtherProvider")


def in_real_time(target: Path) -> None:
    """File times as real-time mode leaves them: the batch is planned long before its offsets are written."""
    golden("spark-4.3/counts-retried-checkpoint2-rocksdb-changelog", target)
    last = max(int(path.name) for path in (target / "commits").iterdir())
    began = json.loads((target / f"offsets/{last}").read_text().splitlines()[1])["batchTimestampMs"] / 1000
    for path in target.rglob("*"):
        os.utime(path, (began - 1, began - 1))
    for name in (f"offsets/{last}", f"commits/{last}"):
        os.utime(target / name, (began + 5, began + 5))


def with_a_range_deleted(target: Path) -> None:
    """A change log of version 2 that deletes a range of keys."""
    golden("spark-4.3/transform-state-rocksdb-changelog", target)
    newest = max(int(path.name) for path in (target / "commits").iterdir()) + 1
    for path in target.glob(f"state/0/*/{newest}.zip"):
        path.unlink()  # otherwise nobody would read the change log
    for path in target.glob(f"state/0/*/{newest}.changelog"):
        record = bytes([DELETE_RANGE]) + b"".join(struct.pack(">i", 4) + key for key in (b"\0\0aa", b"\0\0zz"))
        path.write_bytes(lz4_file(struct.pack(">H", 2) + b"v2" + record + b"\0"))


def with_a_range_deleted_in_an_sst(target: Path) -> None:
    golden("counts-rocksdb-snapshots", target)
    for folder in target.glob("state/0/[0-9]"):
        newest = max(int(path.stem) for path in folder.glob("*.zip"))
        shutil.rmtree(folder / "SSTs")
        for path in folder.glob("*.zip"):
            path.unlink()
        writer = SnapshotWriter(folder)
        writer.database[b"a"] = b"1"
        writer.database.flush()
        writer.database.delete_range(b"a", b"b")
        writer.publish(str(newest))
        writer.close()


def of_another_version(pattern: str, version: bytes) -> Callable[[Path], None]:
    """A file of an unknown version."""

    def make(target: Path) -> None:
        paths = list(golden("spark-4.3/windows-rocksdb-changelog", target).glob(pattern))
        assert paths
        for path in paths:
            path.write_bytes(re.sub(rb"^(..)?v\d", rb"\1" + version, path.read_bytes(), count=1))

    return make


def of_another_changelog(target: Path) -> None:
    for path in golden("spark-4.3/windows-rocksdb-changelog", target).glob("state/0/*/*.changelog"):
        path.write_bytes(lz4_file(struct.pack(">H", 2) + b"v9" + b"\0"))


def rewound(target: Path) -> None:
    """A job rewound to batch 2 by deleting logs, and run again with other input: the snapshot of version 5 is of the first run."""
    checkpoint = WrittenCheckpoint(target)
    checkpoint.clock -= 7_200_000
    for n in range(6):
        checkpoint.plan([("a", n), ("bb", n)], snapshot=n == 4)
        checkpoint.commit()
    for path in target.rglob("*.snapshot"):
        os.utime(path, (checkpoint.clock / 1000 + 1, checkpoint.clock / 1000 + 1))
    checkpoint.next_batch, checkpoint.clock = 3, checkpoint.clock + 7_200_000
    for n in range(3, 6):
        checkpoint.plan([("a", 100 + n), ("bb", 100 + n)], snapshot=False)
        checkpoint.commit()


def in_old_state_format(target: Path) -> None:
    """No metadata of operators, which Spark 3.5 doesn't write, and not the setting that came with it."""
    golden("spark-4.3/apply-format1-hdfs", target)
    shutil.rmtree(target / "state/0/_metadata")
    in_files(target, "offsets/*", '"spark.sql.streaming.stateStore.encodingFormat":"unsaferow",', "")


def keyed_by_a_sessions_start(target: Path) -> None:
    """A user's own column with the name of a session's column."""
    key = (Field("user", atomic("string")), Field("sessionStartTime", atomic("timestamp")))
    checkpoint = WrittenCheckpoint(target, key=key)
    checkpoint.plan([(("a", 1_000_000), 1)], snapshot=False)
    checkpoint.commit()
    shutil.rmtree(target / "state/0/_metadata")


REFUSALS = (
    Refusal(
        "State of the JVM's own operators (`flatMapGroupsWithState`, Scala's `transformWithState`)",
        "PySpark can't write it",
        (
            of_operator("spark-4.3/apply-hdfs", "applyInPandasWithState", "flatMapGroupsWithState"),
            of_operator("spark-4.3/transform-state-rocksdb-changelog", "transformWithStateInPandasExec", "transformWithStateExec"),
        ),
    ),
    Refusal("Real-time mode (`trigger(realTime=…)`)", "docs/operators.md says how Millpond recognises it", (in_real_time,)),
    Refusal("State store providers other than Spark's two", "their file formats are unknown", (of_provider,)),
    Refusal(
        "Ranges of deleted keys in change logs and SSTs",
        "no operator of Spark 4.3 writes them",
        (with_a_range_deleted, with_a_range_deleted_in_an_sst),
    ),
    Refusal(
        "Unknown versions of any file",
        "the message names the file and the version found",
        (
            of_another_version("offsets/*", b"v9"),
            of_another_version("commits/*", b"v9"),
            of_another_version("state/0/_metadata/metadata", b"v9"),
            of_another_version("state/0/0/_metadata/schema", b"v9"),
            of_another_changelog,
        ),
    ),
    Refusal("Checkpoint format 1 whose snapshots outlived a rewind in place", "Spark itself would load them", (rewound,)),
    Refusal(
        "Spark 3.5: a key column called `sessionStartTime` that isn't a session's",
        "no metadata tells the two apart",
        (keyed_by_a_sessions_start,),
    ),
    Refusal(
        "Spark 3.5: applyInPandasWithState in its old state format 1, or an aggregation in such a job",
        "they look alike",
        (in_old_state_format,),
    ),
)
