"""The state of a savepoint under another number of partitions.

1. Read each partition of each store as Spark stores it: key and value bytes, the newest of each key.
2. Spark must have put every row where its hash says: else this isn't how Spark divides this state,
   and nothing is written.
3. Collect the rows by their new partitions, on disk.
4. Write one snapshot for each new partition, also for those without rows.
5. Read what was written, and compare it with what was read: as many rows, and the same sum of their
   hashes, whatever their order.
6. Write the new number into offsets/N, which is what Spark goes by, and into operator metadata.

Only for the HDFS-backed provider: Spark itself repartitions state in RocksDB, and nothing but
RocksDB writes its files.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from millpond.checkpoint.files.codecs import iter_unpacked
from millpond.checkpoint.files.pack import pack
from millpond.checkpoint.files.records import DELETE, END_MARK, iter_records
from millpond.checkpoint.log import CommittedBatch, read_batch
from millpond.checkpoint.operators import OperatorFiles, read_operator_files
from millpond.checkpoint.partition import partition_of_key
from millpond.checkpoint.position import Batch, version_of
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.schemas import parse_schema
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.savepoint.manifest import damaged
from millpond.schema.store import StoreSchema
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage

PARTITIONS = "spark.sql.shuffle.partitions"
MOST_PARTITIONS = 100_000
_STATE_FILE = re.compile(r"state/\d+/\d+/(?:[^/]+/)?\d+\.(?:delta|snapshot)")
_BOUNDS = FileBounds()
_WINDOW_BYTES = 8 << 20
_SPILL_BYTES = 1 << 20
_SUM = 1 << 256
_INT = struct.Struct(">i")
_JOIN_COUNTS = "-keyToNumValues"
_LIMIT = "globalLimit"


@dataclass(slots=True)
class _Rows:
    """Rows in any order: how many, and the sum of their hashes."""

    count: int = 0
    sum: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        digest = hashlib.blake2b(_INT.pack(len(key)) + key + value, digest_size=32).digest()
        self.count += 1
        self.sum = (self.sum + int.from_bytes(digest)) % _SUM


def is_state_file(path: str) -> bool:
    """Whether a file of the HDFS-backed provider holds rows of one partition."""
    return _STATE_FILE.fullmatch(path) is not None


def check_can_rescale(source: Storage, number: int, partitions: int) -> None:
    """Raises UNSUPPORTED, or INVALID_REQUEST for an impossible number of partitions."""
    if isinstance(partitions, bool) or not 1 <= partitions <= MOST_PARTITIONS:
        raise CheckpointError(
            "UNSUPPORTED",
            f"{partitions} isn't a possible number of partitions.",
            hint=f"Use a number from 1 to {MOST_PARTITIONS:,}.",
        )
    batch = read_batch(source, Batch(number))
    if batch.settings.provider != "hdfs":
        raise CheckpointError(
            "UNSUPPORTED",
            "Millpond rescales state of the HDFS-backed provider only, and this state is in RocksDB.",
            hint="Restore the savepoint as it is, then call spark._streamingCheckpointManager.repartition(folder, partitions).",
            provider=batch.settings.provider,
        )


def rescale(source: Storage, number: int, target: Storage, partitions: int) -> None:
    """Write the state of a batch into a restored checkpoint, under another number of partitions.

    source:  the checkpoint with the state
    target:  the restored checkpoint, with all files but those of partitions
    Raises:  UNSUPPORTED for state that isn't divided by Spark's hash of its key; CORRUPT_FILE and
             the like from reading; SAVEPOINT_DAMAGED if what was written isn't what was read.
    """
    batch = read_batch(source, Batch(number))
    for operator in read_operator_files(source, batch.batch):
        for index, name in enumerate(operator.stores):
            _rescale_store(source, target, batch, _schema(source, operator, name, index), partitions)
        _write_metadata(source, target, operator, partitions)
    _write_offsets(source, target, batch, partitions)


def _schema(source: Storage, operator: OperatorFiles, name: str, index: int) -> StoreSchema:
    families = parse_schema(source.read(operator.stores[name][-1], _BOUNDS.schema_bytes))
    return StoreSchema(
        operator=operator.operator,
        # All columns of the key of these counts are hashed, unlike those of the rows that they count.
        operator_name="" if name.endswith(_JOIN_COUNTS) else operator.name,
        store=name,
        index=index,
        key=families[0].key,
        value=families[0].value,
        single=operator.name == _LIMIT or not families[0].key,
    )


def _rescale_store(source: Storage, target: Storage, batch: CommittedBatch, store: StoreSchema, partitions: int) -> None:
    before, after = (1, 1) if store.single else (batch.settings.partitions, partitions)
    read, written, decode = _Rows(), _Rows(), decoder(store.key)
    version = version_of(batch.batch)
    with ExitStack() as opened:
        spills = _Spills(Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="millpond-rescale-"))), after)
        for partition in range(before):
            for key, value in _newest(source, batch, store, partition).items():
                values = decode(key)
                if not store.single and partition_of_key(store, values, before) != partition:  # 2
                    raise CheckpointError(
                        "UNSUPPORTED",
                        f"A row of {store.folder(partition)} isn't where Spark's hash of its key says.",
                        hint="Report this with the query's key columns: this state can't be rescaled.",
                    )
                read.add(key, value)
                spills.add(0 if store.single else partition_of_key(store, values, after), key, value)  # 3
        for partition in range(after):  # 4
            content = spills.iter(partition)
            path = f"{store.folder(partition)}/{version}.snapshot"
            target.write_pieces(path, pack(batch.settings.codec, content))
    for partition in range(after):  # 5
        path = f"{store.folder(partition)}/{version}.snapshot"
        for key, value in _file(target, path, batch).items():
            written.add(key, value)
    if read != written:
        raise damaged(target.uri, f"has {written.count} rows of {store.id} after rescaling, and had {read.count}, or others")


def _newest(source: Storage, batch: CommittedBatch, store: StoreSchema, partition: int) -> dict[bytes, bytes]:  # 1
    base, changes = StateReader(source).files(batch, store, partition)
    rows: dict[bytes, bytes] = {}
    for path in changes if base is None else [base, *changes]:
        rows.update(_file(source, path, batch, rows))
    return rows


def _file(storage: Storage, path: str, batch: CommittedBatch, rows: dict[bytes, bytes] | None = None) -> dict[bytes, bytes]:
    """The rows after a file's records, as they are stored, with checksums if the state has them."""
    rows = {} if rows is None else rows
    pieces = storage.iter_pieces(path, _WINDOW_BYTES, _BOUNDS.state_bytes)
    for kind, key, value in iter_records(b"".join(iter_unpacked(batch.settings.codec, pieces, _WINDOW_BYTES))):
        if kind == DELETE:
            # A deleted key has a checksum of its own before it.
            rows.pop(key[4:] if batch.settings.row_checksum else key, None)
        else:
            rows[key] = value
    return rows


class _Spills:
    """Records of each new partition, in a file each."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self._folder = folder
        self._pending: list[list[bytes]] = [[] for _ in range(partitions)]
        self._size = 0

    def add(self, partition: int, key: bytes, value: bytes) -> None:
        """One more row."""
        record = b"".join((_INT.pack(len(key)), key, _INT.pack(len(value)), value))
        self._pending[partition].append(record)
        self._size += len(record)
        if self._size >= 64 * _SPILL_BYTES:
            self._flush()

    def iter(self, partition: int) -> Iterator[bytes]:
        """The content of the partition's snapshot."""
        self._flush()
        path = self._folder / str(partition)
        if path.exists():
            with open(path, "rb") as file:
                yield from _pieces(file)
        yield END_MARK

    def _flush(self) -> None:
        for partition, records in enumerate(self._pending):
            if records:
                with open(self._folder / str(partition), "ab") as file:
                    file.writelines(records)
                records.clear()
        self._size = 0


def _pieces(file: IO[bytes]) -> Iterable[bytes]:
    while piece := file.read(_SPILL_BYTES):
        yield piece


def _write_offsets(source: Storage, target: Storage, batch: CommittedBatch, partitions: int) -> None:  # 6
    path = f"offsets/{batch.batch}"
    lines = source.read(path, _BOUNDS.log_bytes).decode().split("\n")
    planned = parse_json(lines[1])
    planned["conf"] = {**planned.get("conf", {}), PARTITIONS: str(partitions)}
    lines[1] = json.dumps(planned, separators=(",", ":"))
    target.write(path, "\n".join(lines).encode())


def _write_metadata(source: Storage, target: Storage, operator: OperatorFiles, partitions: int) -> None:
    if operator.metadata is None:
        return
    version, _, text = source.read(operator.metadata, _BOUNDS.schema_bytes).partition(b"\n")
    try:
        data = parse_json(text)
        for store in data["stateStoreInfo"]:
            store["numPartitions"] = partitions
    except DAMAGE as broken:
        raise CheckpointError(
            "CORRUPT_FILE", f"{operator.metadata} isn't readable: {broken!r:.200}.", hint="Restore the file from a copy."
        ) from broken
    target.write(operator.metadata, version + b"\n" + json.dumps(data, separators=(",", ":")).encode())
