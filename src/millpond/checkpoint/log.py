"""The logs of a checkpoint: the plan of each batch (offsets/N) and its commit (commits/N).

offsets/N has all settings that decide how to decode state files; session settings don't count.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.checkpoint.files.codecs import naming
from millpond.checkpoint.position import Batch
from millpond.errors import CheckpointError, ReplicaError
from millpond.schema.strict_json import parse_json
from millpond.settings import CheckpointSettings, FileBounds
from millpond.storage import FileStamp, Storage
from millpond.storage.names import numbers

_LIMITS = CheckpointSettings()
_BOUNDS = FileBounds()
_STORE = "spark.sql.streaming.stateStore."
_PARTITIONS, _OWN_PARTITIONS = "spark.sql.shuffle.partitions", "spark.sql.streaming.internal.stateStore.partitions"
_CODEC, _CHECKSUM = _STORE + "compression.codec", _STORE + "rowChecksum.enabled"
_STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"
WHY_NOT_STRICT = f"the query was begun before Spark 3.3, or with {_STRICT}=false"
_PROVIDER_CLASS, _JOIN_FORMAT = _STORE + "providerClass", "spark.sql.streaming.join.stateFormatVersion"
_CLASSES = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
_PROVIDERS = {name: provider for provider, name in _CLASSES.items()}
# Spark ignores a setting that it doesn't know.  This one says that Millpond wrote the batch, and why.
_REPAIRED = "millpond.repaired"
# The newest format of joins that both providers have.
_COMMON_JOIN_FORMAT = 2
_ENCODINGS = ("unsaferow", "avro")
_OFFSET_VERSIONS = ("v1", "v2")
_COMMIT_VERSIONS = ("v1", "v2", "v3")
# Ids become parts of file names.
_STATE_ID = re.compile(r"[0-9A-Za-z_-]+")
_MAX_PARTITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """How the state files of a batch are written.

    provider:      hdfs or rocksdb
    codec:         of deltas, snapshots and change logs
    partitions:    of stateful operators; from offsets/N, since operator metadata and folders are
                   wrong after a job is repartitioned
    encoding:      unsaferow or avro
    row_checksum:  whether each row carries a CRC-32C
    merge_operator:  the version of RocksDB's merge operator, which joins the parts of a list
    is_strict:     whether each row lies where the hash of all columns of its key says.  Queries that
                   were begun before Spark 3.3 may have partitioned their rows by a part of it
    """

    provider: str
    codec: str
    partitions: int
    encoding: str
    row_checksum: bool
    merge_operator: int
    is_strict: bool = True

    @property
    def merge_delimiter(self) -> bytes:
        """RocksDB's delimiter between the parts of a list."""
        return b"," if self.merge_operator == 1 else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """One committed batch, from its two log files.

    offsets:       per source, its end offset; None if the source had none yet
    watermark_ms:  the watermark after this batch, None if the job has none
    planned_watermark_ms:  the watermark with which it was planned, by which rows expire; 0 if there
                           was none yet
    started_ms:    when Spark planned the batch
    settings:      how its state files are written
    state_ids:     operator -> partition -> store -> id in file names; empty in checkpoint format 1
    names_state:   whether the commit says which operators have state, as in checkpoint format 2
    metadata:      the content of the file `metadata`, which has the job's id
    digest:        hash of all three files
    commit_stamp:  of commits/N, taken before it was read
    committed_ns:  when commits/N was written; None if the file was copied, so that its time is
                   another
    is_repair:     whether it has no events, and Millpond wrote it to repair rows
    """

    batch: Batch
    offsets: dict[str, Any]
    watermark_ms: int | None
    planned_watermark_ms: int
    started_ms: int
    settings: StateSettings
    state_ids: dict[int, list[list[str]]]
    names_state: bool
    metadata: bytes
    digest: str
    commit_stamp: FileStamp
    committed_ns: int | None
    is_repair: bool = False

    @property
    def fingerprint(self) -> str:
        """The digest, which differs for another job, or another run of this batch.

        Raises:  CORRUPT_FILE for a damaged `metadata`: half of it, while a program writes it in place,
                 is no other job.
        """
        _parse_job_id(self.metadata)
        return self.digest

    @property
    def took_seconds(self) -> float | None:
        """From its plan to its commit; None if that isn't known."""
        return None if self.committed_ns is None else max(0.0, self.committed_ns / 1e9 - self.started_ms / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """What offsets/N says.

    offsets:       per source, its end offset; None if the source had none yet
    watermark_ms:  with which the batch was planned; 0 if there was none yet
    started_ms:    when Spark planned it
    conf:          every setting that Spark pinned
    """

    batch: Batch
    offsets: dict[str, Any]
    watermark_ms: int
    started_ms: int
    conf: dict[str, str]

    @property
    def settings(self) -> StateSettings:
        """How its state files are written.  Raises UNSUPPORTED, CORRUPT_FILE."""
        return _settings(self.conf, f"offsets/{self.batch}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """What commits/N says.

    watermark_ms:  after the batch; 0 if there is none
    state_ids, names_state:  as in `CommittedBatch`
    is_bare:       whether the file ends after its version, which Spark reads as a watermark of 0
    """

    watermark_ms: int
    state_ids: dict[int, list[list[str]]]
    names_state: bool
    is_bare: bool


def committed_batches(storage: Storage) -> list[Batch]:
    """The committed batches that the log still has, ascending."""
    return [Batch(number) for number in numbers(storage.names("commits"))]


def newest_committed(storage: Storage) -> Batch:
    """The newest committed batch.  Raises NO_COMMITTED_BATCH."""
    batches = committed_batches(storage)
    if not batches:
        raise ReplicaError(
            "NO_COMMITTED_BATCH",
            f"{storage.uri} has no committed batch yet.",
            hint="Wait until the job has committed a batch.",
            uri=storage.uri,
        )
    return batches[-1]


def planned_batches(storage: Storage) -> list[Batch]:
    """The batches that Spark has planned and the log still has, committed or not, ascending."""
    return [Batch(number) for number in numbers(storage.names("offsets"))]


def read_batch(storage: Storage, batch: Batch) -> CommittedBatch:
    """One committed batch of the log.

    Raises:  FILE_GONE if the batch isn't committed or its log was cleaned up; INCOMPLETE_FILE,
             CORRUPT_FILE, UNKNOWN_FORMAT.
    Source:  OffsetSeqLog, CommitLog, Spark 4.3; golden checkpoints.
    """
    stamp = storage.stamp(f"commits/{batch}")
    if stamp is None:
        storage.read(f"commits/{batch}", _BOUNDS.log_bytes)  # raises FILE_GONE with the path
    assert stamp is not None
    commit_bytes = storage.read(f"commits/{batch}", _BOUNDS.log_bytes)
    offset_bytes = storage.read(f"offsets/{batch}", _BOUNDS.log_bytes)
    metadata_bytes = storage.read("metadata", _BOUNDS.note_bytes)
    plan, commit = _parse_plan(offset_bytes, batch), _parse_commit(commit_bytes, batch)
    return CommittedBatch(
        batch=batch,
        offsets=plan.offsets,
        watermark_ms=commit.watermark_ms or plan.watermark_ms or None,
        planned_watermark_ms=plan.watermark_ms,
        started_ms=plan.started_ms,
        settings=plan.settings,
        state_ids=commit.state_ids,
        names_state=commit.names_state,
        metadata=metadata_bytes,
        digest=_digest(metadata_bytes, offset_bytes, commit_bytes),
        commit_stamp=stamp,
        committed_ns=stamp.modified_ns if _is_commits_time(storage, batch, stamp, plan.started_ms) else None,
        is_repair=_REPAIRED in plan.conf,
    )


def _is_commits_time(storage: Storage, batch: Batch, commit: FileStamp, started_ms: int) -> bool:
    """Whether the modification time of commits/N can be that of the commit.

    A copy has another time: before the batch began, or long after.  A batch that ran for long looks
    similar, but its offsets/N was written when it began, and that of a copy wasn't.
    """
    late_ms = commit.modified_ns // 1_000_000 - started_ms
    if abs(late_ms) <= _LIMITS.clock_tolerance_ms:
        return True
    offsets = storage.stamp(f"offsets/{batch}") if late_ms > 0 else None
    return offsets is not None and offsets.modified_ns // 1_000_000 - started_ms <= _LIMITS.clock_tolerance_ms


def read_conf(storage: Storage, batch: Batch) -> dict[str, str]:
    """Every setting that Spark pinned in a batch, by Spark's name.  Raises as `read_batch`."""
    return read_plan(storage, batch).conf


def read_offsets(storage: Storage, batch: Batch) -> dict[str, Any]:
    """Per source, its end offset in a batch, committed or not; None if it had none yet.  Raises as `read_batch`."""
    path = f"offsets/{batch}"
    return _source_offsets(_lines(storage.read(path, _BOUNDS.log_bytes), path, _OFFSET_VERSIONS), path)


def newest_conf(storage: Storage) -> dict[str, str]:
    """The settings that Spark pinned in the newest batch, committed or not; empty if there is none.

    Raises as `read_batch`.
    """
    planned = planned_batches(storage)
    return read_conf(storage, planned[-1]) if planned else {}


def read_plan(storage: Storage, batch: Batch) -> BatchPlan:
    """What offsets/N alone says of a batch, committed or not.  Raises as `read_batch`."""
    return _parse_plan(storage.read(f"offsets/{batch}", _BOUNDS.log_bytes), batch)


def is_repair(storage: Storage, batch: Batch) -> bool:
    """Whether Millpond has planned a batch, to repair rows.  Raises as `read_batch`."""
    return _REPAIRED in read_conf(storage, batch)


def read_commit(storage: Storage, batch: Batch) -> CommitFacts:
    """What commits/N alone says.  Raises as `read_batch`."""
    return _parse_commit(storage.read(f"commits/{batch}", _BOUNDS.log_bytes), batch)


def encode_commit(watermark_ms: int) -> bytes:
    """The file commits/N of checkpoint format 1."""
    return b"v1\n" + json.dumps({"nextBatchWatermarkMs": watermark_ms}, separators=(",", ":")).encode()


def read_planned_ms(storage: Storage, batch: Batch) -> int:
    """When Spark planned a batch, committed or not; its state files can't be older.

    Raises as `read_batch`.
    """
    return read_plan(storage, batch).started_ms


def check_still_committed(storage: Storage, batch: CommittedBatch) -> None:
    """Raise FILE_GONE if commits/N isn't what was read: what was decoded may belong to another run.

    A file that a program copies to this place may get its bytes and its time while it is read: its
    stamp is another one then, and the run is the same.

    Raises:  FILE_GONE; INCOMPLETE_FILE, CORRUPT_FILE for half a file.
    """
    stamp = storage.stamp(f"commits/{batch.batch}")
    if stamp == batch.commit_stamp:
        return
    if stamp is None or read_batch(storage, batch.batch).fingerprint != batch.fingerprint:
        raise CheckpointError(
            "FILE_GONE",
            f"commits/{batch.batch} changed while its batch was read.",
            hint="Ask again in a moment; the replica is built again by itself.",
            batch=batch.batch,
        )


def _digest(metadata: bytes, offsets: bytes, commit: bytes) -> str:
    """It tells runs of a batch apart: offsets/N has its start time, metadata the job's id."""
    digest = hashlib.sha256()
    for part in (metadata.strip(), offsets, commit):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def job_id(storage: Storage) -> str:
    """The id that Spark wrote once into the checkpoint.  Raises NO_CHECKPOINT, CORRUPT_FILE."""
    try:
        data = storage.read("metadata", _BOUNDS.note_bytes)
    except CheckpointError as missing:
        if missing.condition != "FILE_GONE":
            raise
        raise CheckpointError(
            "NO_CHECKPOINT",
            f"{storage.uri} isn't the checkpoint of a streaming query: it has no file `metadata`.",
            hint="Name the checkpointLocation of a query that has been started, or start the job first.",
            uri=storage.uri,
        ) from missing
    return _parse_job_id(data)


def _parse_job_id(metadata: bytes) -> str:
    found = _json(_text(metadata, "metadata"), "metadata").get("id")
    if not isinstance(found, str):
        raise naming(CheckpointError("CORRUPT_FILE", "it has no id.", hint="Restore the file from a copy."), "metadata")
    return found


def _parse_plan(data: bytes, batch: Batch) -> BatchPlan:
    path = f"offsets/{batch}"
    lines = _lines(data, path, _OFFSET_VERSIONS)
    planned = _json(lines[1] or "{}", path)
    return BatchPlan(
        batch=batch,
        offsets=_source_offsets(lines, path),
        watermark_ms=_integer(planned, "batchWatermarkMs", path),
        started_ms=_integer(planned, "batchTimestampMs", path),
        conf=_texts(planned, "conf", path),
    )


def _parse_commit(data: bytes, batch: Batch) -> CommitFacts:
    path = f"commits/{batch}"
    lines = _lines(data, path, _COMMIT_VERSIONS)
    commit = _json(lines[1] or "{}", path)
    return CommitFacts(
        watermark_ms=_integer(commit, "nextBatchWatermarkMs", path),
        state_ids=_state_ids(commit, path),
        names_state="stateUniqueIds" in commit,
        is_bare=not lines[1],
    )


def _lines(data: bytes, path: str, versions: tuple[str, ...]) -> list[str]:
    lines = _text(data, path).split("\n")
    if len(lines) < 2:
        raise CheckpointError(
            "INCOMPLETE_FILE",
            f"{path} has {len(data)} bytes and ends before its second line.",
            hint="Restore the file from a copy; a file that is still being written is read again by itself.",
            path=path,
        )
    if lines[0] not in versions:
        raise CheckpointError(
            "UNKNOWN_FORMAT",
            f"{path} has version {lines[0]!r}; known are {', '.join(versions)}.",
            hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
            path=path,
            version=lines[0],
        )
    return lines


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as broken:
        raise _wrong(f"byte {broken.start} isn't UTF-8", path) from broken


def _json(text: str, path: str) -> dict[str, Any]:
    try:
        data = parse_json(text)
    except ValueError as broken:
        raise CheckpointError(
            "CORRUPT_FILE",
            f"{path} isn't valid JSON: {broken}.",
            hint="Restore the file from a copy; a file that is still being written is read again by itself.",
            path=path,
        ) from broken
    if not isinstance(data, dict):
        raise CheckpointError("CORRUPT_FILE", f"{path} isn't a JSON object.", hint="Restore the file from a copy.", path=path)
    return data


def _integer(data: dict[str, Any], name: str, path: str) -> int:
    """A whole number of 64 bits; 0 if it is missing."""
    value = data.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise _wrong(f"{name} is {value!r:.80}", path)
    return value


def _texts(data: dict[str, Any], name: str, path: str) -> dict[str, str]:
    """An object of texts; empty if it is missing."""
    value = data.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _wrong(f"{name} isn't an object of texts", path)
    return value


def _state_ids(commit: dict[str, Any], path: str) -> dict[int, list[list[str]]]:
    found = commit.get("stateUniqueIds") or {}
    if not isinstance(found, dict):
        raise _wrong("stateUniqueIds isn't an object", path)
    for operator, partitions in found.items():
        if not numbers([operator]) or len(operator) > 9 or not isinstance(partitions, list):
            raise _wrong(f"stateUniqueIds of operator {operator:.20} aren't lists of ids", path)
        for stores in partitions:
            if not isinstance(stores, list) or not all(isinstance(i, str) and _STATE_ID.fullmatch(i) for i in stores):
                raise _wrong(f"stateUniqueIds of operator {operator} has a value that isn't an id", path)
    return {int(operator): partitions for operator, partitions in found.items()}


def _wrong(what: str, path: str) -> CheckpointError:
    return CheckpointError("CORRUPT_FILE", f"{path}: {what}.", hint="Restore the file from a copy.", path=path)


def _source_offsets(lines: list[str], path: str) -> dict[str, Any]:
    offsets: dict[str, Any] = {}
    for i, line in enumerate(lines[2:]):
        named, colon, rest = line.partition(":")
        if lines[0] != "v1" and not colon:
            raise _wrong(f"line {i + 3} names no source", path)
        name, text = (str(i), line) if lines[0] == "v1" else (named, rest)
        if text == "-":
            offsets[name] = None
            continue
        try:
            offsets[name] = parse_json(text)
        except ValueError as broken:
            raise CheckpointError(
                "CORRUPT_FILE",
                f"{path}: the offset of source {name} isn't valid JSON.",
                hint="Restore the file from a copy.",
                path=path,
                source=name,
            ) from broken
    return offsets


def with_settings(conf: dict[str, str], settings: StateSettings) -> dict[str, str]:
    """The pinned settings of a batch whose state has another form: that of `settings`."""
    partitions = _OWN_PARTITIONS if _OWN_PARTITIONS in conf else _PARTITIONS
    checksum = "true" if settings.row_checksum else "false"
    changed = {**conf, partitions: str(settings.partitions), _CODEC: settings.codec, _CHECKSUM: checksum}
    if conf.get(_PROVIDER_CLASS, _CLASSES["hdfs"]) != _CLASSES[settings.provider]:
        changed[_PROVIDER_CLASS] = _CLASSES[settings.provider]
        # The HDFS-backed provider writes format 2 also if 3 or 4 is pinned; RocksDB would believe it.
        if conf.get(_JOIN_FORMAT, "1") not in ("1", "2"):
            changed[_JOIN_FORMAT] = str(_COMMON_JOIN_FORMAT)
    return changed


def read_commit_version(storage: Storage, batch: Batch) -> int:
    """The version of commits/N: Spark goes on with checkpoint format 1 after version 1.  Raises as `read_batch`."""
    path = f"commits/{batch}"
    return int(_lines(storage.read(path, _BOUNDS.log_bytes), path, _COMMIT_VERSIONS)[0].removeprefix("v"))


def with_state_ids(commit: bytes, path: str, state_ids: dict[int, list[list[str]]]) -> bytes:
    """A commit that names these ids of state files, which `CommittedBatch` describes; without ids as format 1 writes it."""
    lines = _lines(commit, path, _COMMIT_VERSIONS)
    data = _json(lines[1] or "{}", path)
    data.pop("stateUniqueIds", None)
    if state_ids:
        data["stateUniqueIds"] = {str(operator): ids for operator, ids in state_ids.items()}
    version = lines[0] if lines[0] == "v3" else "v2" if state_ids else "v1"
    return f"{version}\n{json.dumps(data, separators=(',', ':'), ensure_ascii=False)}".encode()


def with_offsets(plan: bytes, path: str, offsets: Mapping[str, Any], watermark_ms: int | None) -> bytes:
    """A batch's plan with other end offsets of sources, and another watermark.

    offsets:       source -> its offset as JSON; None for none.  Other sources keep theirs
    watermark_ms:  None: as it was
    Raises:        CORRUPT_FILE if the plan lacks one of the sources, and as `read_batch`
    """
    lines = _lines(plan, path, _OFFSET_VERSIONS)
    names = list(_source_offsets(lines, path))
    if unknown := offsets.keys() - set(names):
        raise _wrong(f"it has no source {min(unknown)}", path)
    for i, name in enumerate(names, start=2):
        if name in offsets:
            text = "-" if offsets[name] is None else json.dumps(offsets[name], separators=(",", ":"), ensure_ascii=False)
            lines[i] = text if lines[0] == "v1" else f"{name}:{text}"
    if watermark_ms is not None:
        lines[1] = json.dumps({**_json(lines[1] or "{}", path), "batchWatermarkMs": watermark_ms}, separators=(",", ":"))
    return "\n".join(lines).encode()


def with_start(plan: bytes, path: str, started_ms: int, watermark_ms: int, *, repair: str | None = None) -> bytes:
    """A batch's plan as that of a batch that begins at another time, with another watermark.

    repair:  what Millpond repairs by the batch; None: it is Spark's own
    """
    lines = _lines(plan, path, _OFFSET_VERSIONS)
    data = _json(lines[1] or "{}", path)
    conf = {name: value for name, value in _texts(data, "conf", path).items() if name != _REPAIRED}
    conf |= {} if repair is None else {_REPAIRED: repair}
    data |= {"batchTimestampMs": started_ms, "batchWatermarkMs": watermark_ms, "conf": conf}
    lines[1] = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return "\n".join(lines).encode()


def with_watermark(commit: bytes, path: str, watermark_ms: int) -> bytes:
    """A commit with another watermark for the batch that follows."""
    lines = _lines(commit, path, _COMMIT_VERSIONS)
    data = {**_json(lines[1] or "{}", path), "nextBatchWatermarkMs": watermark_ms}
    return f"{lines[0]}\n{json.dumps(data, separators=(',', ':'), ensure_ascii=False)}".encode()


def _settings(conf: dict[str, str], path: str) -> StateSettings:
    # Spark's own defaults for settings that older versions didn't write.
    provider = conf.get(_PROVIDER_CLASS, _CLASSES["hdfs"])
    if provider not in _PROVIDERS:
        raise CheckpointError(
            "UNSUPPORTED",
            f"{path} names the state store provider {provider}, which can't be read.",
            hint="Known are Spark's HDFSBackedStateStoreProvider and RocksDBStateStoreProvider.",
            path=path,
            provider=provider,
        )
    partitions = conf.get(_OWN_PARTITIONS) or conf.get(_PARTITIONS, "200")
    if not (partitions.isdecimal() and partitions.isascii() and len(partitions) <= 10 and 1 <= int(partitions) <= _MAX_PARTITIONS):
        raise _wrong(f"the number of partitions is {partitions!r:.80}", path)
    checksum = conf.get(_CHECKSUM, "false")
    if checksum not in ("true", "false"):
        raise _wrong(f"{_CHECKSUM} is {checksum!r:.80}", path)
    encoding = conf.get(_STORE + "encodingFormat", "unsaferow")
    if encoding not in _ENCODINGS:
        raise _wrong(f"{_STORE}encodingFormat is {encoding!r:.80}", path)
    # Without the setting, which Spark has written since 4.2, it assumes version 1.
    merge = conf.get(_STORE + "rocksdb.mergeOperatorVersion", "1")
    if merge not in ("1", "2"):
        raise _wrong(f"{_STORE}rocksdb.mergeOperatorVersion is {merge!r:.80}", path)
    return StateSettings(
        provider=_PROVIDERS[provider],
        codec=conf.get(_CODEC, "lz4"),
        partitions=int(partitions),
        encoding=encoding,
        row_checksum=checksum == "true",
        merge_operator=int(merge),
        # A checkpoint without the setting is older than it.
        is_strict=conf.get(_STRICT, "false") == "true",
    )
