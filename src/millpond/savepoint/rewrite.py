"""The state of a savepoint in another form: other partitions, another codec, with or without checksums.

1. Read each partition of each store: key and value as Spark's rows, the newest of each key.
2. Spark must have put every row where its hash says: else this isn't how Spark divides this state,
   and nothing is written.
3. Collect the rows by their new partitions, on disk.
4. Write one snapshot for each new partition, also for those without rows.
5. Read what was written, and compare it with what was read: as many rows, and the same sum of their
   hashes, whatever their order.
6. Write the new form into offsets/N, which is what Spark goes by, and into operator metadata.

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
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO

from millpond.checkpoint.files.checksums import crc32c
from millpond.checkpoint.files.codecs import corrupt, iter_unpacked, naming
from millpond.checkpoint.files.pack import pack
from millpond.checkpoint.files.records import DELETE, END_MARK, iter_records
from millpond.checkpoint.log import CommittedBatch, StateSettings, read_batch, with_settings
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

CODECS = ("lz4", "zstd", "snappy", "lzf")
_MOST_PARTITIONS = 100_000
_STATE_FILE = re.compile(r"state/\d+/\d+/(?:[^/]+/)?\d+\.(?:delta|snapshot)")
_BOUNDS = FileBounds()
_WINDOW_BYTES = 8 << 20
_SPILL_BYTES = 1 << 20
_SUM = 1 << 256
_INT = struct.Struct(">i")
_JOIN_COUNTS = "-keyToNumValues"
_LIMIT = "globalLimit"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateForm:
    """How a state is to be written; None: as it was.

    partitions:    of all operators
    codec:         lz4, zstd, snappy or lzf
    row_checksum:  whether each row has a checksum; Spark knows these since 4.1
    """

    partitions: int | None = None
    codec: str | None = None
    row_checksum: bool | None = None

    @property
    def is_new(self) -> bool:
        """Whether anything is to change."""
        return self != _AS_IT_WAS

    def over(self, settings: StateSettings) -> StateSettings:
        """The settings of a batch with these in place of its own."""
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(settings, **given)

    def describe(self) -> str:
        """The changes in words."""
        said = [
            None if self.partitions is None else f"{self.partitions} partitions",
            None if self.codec is None else f"codec {self.codec}",
            None if self.row_checksum is None else "row checksums" if self.row_checksum else "no row checksums",
        ]
        return ", ".join(word for word in said if word)


_AS_IT_WAS = StateForm()


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


def check_can_rewrite(source: Storage, number: int, form: StateForm) -> None:
    """Raise UNSUPPORTED if the state can't have this form."""
    partitions = form.partitions
    if partitions is not None and (isinstance(partitions, bool) or not 1 <= partitions <= _MOST_PARTITIONS):
        raise CheckpointError(
            "UNSUPPORTED",
            f"{partitions} isn't a possible number of partitions.",
            hint=f"Use a number from 1 to {_MOST_PARTITIONS:,}.",
        )
    if form.codec not in (None, *CODECS):
        raise CheckpointError("UNSUPPORTED", f"Spark has no codec {form.codec!r:.80}.", hint=f"Use one of {', '.join(CODECS)}.")
    batch = read_batch(source, Batch(number))
    if batch.settings.provider != "hdfs":
        raise CheckpointError(
            "UNSUPPORTED",
            "Millpond rewrites state of the HDFS-backed provider only, and this state is in RocksDB.",
            hint="Restore the savepoint as it is, then call spark._streamingCheckpointManager.repartition(folder, partitions).",
            provider=batch.settings.provider,
        )


def rewrite_state(source: Storage, number: int, target: Storage, form: StateForm) -> None:
    """Write the state of a batch into a restored checkpoint, in another form.

    source:  the checkpoint with the state
    target:  the restored checkpoint, with all files but those of partitions
    Raises:  UNSUPPORTED for state that isn't divided by Spark's hash of its key; CORRUPT_FILE and
             the like from reading; SAVEPOINT_DAMAGED if what was written isn't what was read.
    """
    batch = read_batch(source, Batch(number))
    settings = form.over(batch.settings)
    for operator in read_operator_files(source, batch.batch):
        for index, name in enumerate(operator.stores):
            _rewrite_store(source, target, batch, _schema(source, operator, name, index), settings)
        _write_metadata(source, target, operator, settings.partitions)
    _write_offsets(source, target, batch, settings)


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


def _rewrite_store(source: Storage, target: Storage, batch: CommittedBatch, store: StoreSchema, settings: StateSettings) -> None:
    before, after = (1, 1) if store.single else (batch.settings.partitions, settings.partitions)
    read, written, decode = _Rows(), _Rows(), decoder(store.key)
    version = version_of(batch.batch)
    with ExitStack() as opened:
        spills = _Spills(Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="millpond-rewrite-"))), after)
        for partition in range(before):
            for key, value in _newest(source, batch, store, partition).items():
                values = decode(key)
                if not store.single and partition_of_key(store, values, before) != partition:  # 2
                    raise CheckpointError(
                        "UNSUPPORTED",
                        f"A row of {store.folder(partition)} isn't where Spark's hash of its key says.",
                        hint="Report this with the query's key columns: this state can't be divided anew.",
                    )
                read.add(key, value)
                if settings.row_checksum:
                    value = crc32c(key + value).to_bytes(4, "little") + value
                spills.add(0 if store.single else partition_of_key(store, values, after), key, value)  # 3
        for partition in range(after):  # 4
            target.write_pieces(f"{store.folder(partition)}/{version}.snapshot", pack(settings.codec, spills.iter(partition)))
    for partition in range(after):  # 5
        for key, value in _file(target, f"{store.folder(partition)}/{version}.snapshot", settings, {}).items():
            written.add(key, value)
    if read != written:
        raise damaged(target.uri, f"has {written.count} rows of {store.id} after it was written, and had {read.count}, or others")


def _newest(source: Storage, batch: CommittedBatch, store: StoreSchema, partition: int) -> dict[bytes, bytes]:  # 1
    base, changes = StateReader(source).files(batch, store, partition)
    rows: dict[bytes, bytes] = {}
    for path in changes if base is None else [base, *changes]:
        _file(source, path, batch.settings, rows)
    return rows


def _file(storage: Storage, path: str, settings: StateSettings, rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """These rows after the records of a file, without checksums."""
    pieces = storage.iter_pieces(path, _WINDOW_BYTES, _BOUNDS.state_bytes)
    try:
        for kind, key, value in iter_records(b"".join(iter_unpacked(settings.codec, pieces, _WINDOW_BYTES))):
            if kind == DELETE:
                rows.pop(_checked(key, b"") if settings.row_checksum else key, None)
            else:
                rows[key] = _checked(value, key) if settings.row_checksum else value
    except CheckpointError as error:
        raise (error if "path" in error.context else naming(error, path)) from error
    return rows


def _checked(row: bytes, before: bytes) -> bytes:
    """A row without the checksum in front of it, which is of other bytes and of the row."""
    if len(row) < 4 or crc32c(before + row[4:]).to_bytes(4, "little") != row[:4]:
        raise corrupt("a row doesn't match its checksum", 0)
    return row[4:]


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


def _write_offsets(source: Storage, target: Storage, batch: CommittedBatch, settings: StateSettings) -> None:  # 6
    path = f"offsets/{batch.batch}"
    lines = source.read(path, _BOUNDS.log_bytes).decode().split("\n")
    planned = parse_json(lines[1])
    planned["conf"] = with_settings(planned.get("conf", {}), settings)
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
