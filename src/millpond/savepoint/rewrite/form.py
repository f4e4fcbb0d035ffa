"""The form in which a savepoint's state is to be written, and which forms a state can have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millpond.checkpoint.log import WHY_NOT_STRICT, CommittedBatch, StateSettings, read_batch, read_commit_version
from millpond.checkpoint.operators import SHORT_NAMES, OperatorFiles, read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.errors import CheckpointError
from millpond.storage import Storage

CODECS = ("lz4", "zstd", "snappy", "lzf")
PROVIDERS = ("hdfs", "rocksdb")
FORMATS = (1, 2)
_MOST_PARTITIONS = 100_000
# Commits of this version name sinks; they may name ids of state files or not.
_SINK_COMMITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StateForm:
    """How a state is to be written; None: as it was.

    partitions:         of all operators
    provider:           hdfs or rocksdb
    checkpoint_format:  1 or 2; the HDFS-backed provider has 1 only
    codec:              lz4, zstd, snappy or lzf
    row_checksum:       whether each row has a checksum; Spark knows these since 4.1
    """

    partitions: int | None = None
    provider: str | None = None
    checkpoint_format: int | None = None
    codec: str | None = None
    row_checksum: bool | None = None

    @property
    def is_new(self) -> bool:
        """Whether anything is to change."""
        return self != AS_IT_WAS

    def over(self, settings: StateSettings) -> StateSettings:
        """The settings of a batch with these in place of its own."""
        return replace(
            settings,
            partitions=settings.partitions if self.partitions is None else self.partitions,
            provider=settings.provider if self.provider is None else self.provider,
            codec=settings.codec if self.codec is None else self.codec,
            row_checksum=settings.row_checksum if self.row_checksum is None else self.row_checksum,
        )

    def format_over(self, batch: CommittedBatch) -> int:
        """The checkpoint format in place of the batch's own."""
        if self.checkpoint_format is not None:
            return self.checkpoint_format
        return 2 if batch.state_ids and self.over(batch.settings).provider == "rocksdb" else 1

    def describe(self) -> str:
        """The changes in words."""
        said = [
            None if self.partitions is None else f"{self.partitions} partitions",
            None if self.provider is None else f"provider {self.provider}",
            None if self.checkpoint_format is None else f"checkpoint format {self.checkpoint_format}",
            None if self.codec is None else f"codec {self.codec}",
            None if self.row_checksum is None else "row checksums" if self.row_checksum else "no row checksums",
        ]
        return ", ".join(word for word in said if word)


AS_IT_WAS = StateForm()


def check_can_rewrite(source: Storage, number: int, form: StateForm) -> None:
    """Raise UNSUPPORTED if the state can't have this form."""
    partitions = form.partitions
    if partitions is not None and (isinstance(partitions, bool) or not 1 <= partitions <= _MOST_PARTITIONS):
        raise unsupported(f"{partitions} isn't a possible number of partitions.", f"Use a number from 1 to {_MOST_PARTITIONS:,}.")
    known: list[tuple[str, object, tuple[object, ...]]] = [
        ("codec", form.codec, CODECS),
        ("provider", form.provider, PROVIDERS),
        ("checkpoint format", form.checkpoint_format, FORMATS),
    ]
    for what, wanted, possible in known:
        if wanted is not None and (isinstance(wanted, bool) or wanted not in possible):
            raise unsupported(f"Spark has no {what} {wanted!r:.80}.", f"Use one of {', '.join(map(str, possible))}.")
    batch = read_batch(source, Batch(number))
    check_strict(batch)
    after, is_two = form.over(batch.settings), form.format_over(batch) == 2
    if is_two and after.provider == "hdfs":
        raise unsupported("The HDFS-backed provider has no checkpoint format 2.", "Choose RocksDB too, or leave the format out.")
    operators = read_operator_files(source, batch.batch)
    if form.checkpoint_format is not None and not operators:
        raise unsupported("This job has no state, and so no checkpoint format to change.", "Restore it without another format.")
    if operators and is_two != bool(batch.state_ids) and read_commit_version(source, batch.batch) >= _SINK_COMMITS:
        raise unsupported(
            "The commits of this job name its sinks, and Millpond can't change the checkpoint format of such a job.",
            "Restore it without another format or provider.",
        )
    if "rocksdb" in (batch.settings.provider, after.provider):
        for operator in operators:
            _check_rocksdb(source, operator, batch.settings, after)


def check_strict(batch: CommittedBatch) -> None:
    """Raise UNSUPPORTED if rows may lie elsewhere than the hash of their keys says: nobody knows where Spark would look."""
    if not batch.settings.is_strict:
        raise unsupported(
            f"The rows of this state may lie in other partitions than the hash of their keys says: {WHY_NOT_STRICT}.",
            "Keep its number of partitions and its rows as they are; or begin the query anew, with another checkpoint.",
        )


def _check_rocksdb(source: Storage, operator: OperatorFiles, before: StateSettings, after: StateSettings) -> None:
    if operator.name not in SHORT_NAMES:
        raise unsupported(
            f"Millpond doesn't know how Spark stores the state of operator {operator.operator} ({operator.name:.80}) in RocksDB.",
            "Restore the savepoint as it is.",
        )
    only = before.encoding == "avro" or any(store.has_families for store in read_whole_stores(source, operator))
    if after.provider == "hdfs" and only:
        raise unsupported(
            f"Spark stores the state of operator {operator.operator} ({operator.name}) in RocksDB only.",
            "Restore it with RocksDB.",
        )


def unsupported(message: str, hint: str) -> CheckpointError:
    """An error for what this state can't become."""
    return CheckpointError("UNSUPPORTED", message, hint=hint)
