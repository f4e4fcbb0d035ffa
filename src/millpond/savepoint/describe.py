"""The manifest of a batch whose files are copied."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import NamedTuple

from millpond.catalogue import JobFolder
from millpond.checkpoint.log import CommittedBatch, job_id, read_conf
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.restart_files import RestartFile
from millpond.savepoint.manifest import Manifest, PartitionState, SavepointFile
from millpond.savepoint.origin import read_origin
from millpond.savepoint.rows import PartitionId
from millpond.schema.definition.operator_name import Entry
from millpond.storage import Storage


def describe_batch(
    job: JobFolder,
    checkpoint: Storage,
    batch: CommittedBatch,
    files: Iterable[tuple[RestartFile, SavepointFile]],
    tables: Iterable[Entry],
    *,
    name: str,
    note: str = "",
    parent: str | None = None,
    shares_with: str | None = None,
    rows: Mapping[PartitionId, int] | None = None,
) -> Manifest:
    """The manifest.

    checkpoint:  the files themselves, or their copy
    files:       each file, and what was copied of it
    tables:      the definitions of the job's tables
    parent, shares_with: as in `Manifest`
    rows:        of each partition, as far as they were counted
    Raises:      what reading the checkpoint and the job's folder raises.
    """
    described = describe_files(files, rows or {})
    return Manifest(
        name=name,
        note=note,
        parent=parent,
        shares_with=shares_with,
        job=job.job,
        job_id=job_id(checkpoint),
        checkpoint=job.checkpoint,
        origin=read_origin(job.storage),
        batch=batch.batch,
        offsets=batch.offsets,
        watermark_ms=batch.watermark_ms,
        batch_started_ms=batch.started_ms,
        committed_ms=None if batch.committed_ns is None else batch.committed_ns // 1_000_000,
        created_ms=int(time.time() * 1000),
        millpond=version("millpond"),
        checkpoint_format=2 if batch.state_ids else 1,
        conf=read_conf(checkpoint, batch.batch),
        operators={operator.operator: operator.name for operator in read_operator_files(checkpoint, batch.batch)},
        partitions=described.partitions,
        tables={table: entry.to_json() for table, entry in sorted((e.table, e) for e in tables)},
        files=described.files,
    )


class DescribedFiles(NamedTuple):
    """The files of a manifest, and what they are for each partition of the state."""

    files: tuple[SavepointFile, ...]
    partitions: tuple[PartitionState, ...]


def describe_files(files: Iterable[tuple[RestartFile, SavepointFile]], rows: Mapping[PartitionId, int]) -> DescribedFiles:
    """What a manifest says of its files.

    rows:  of each partition, as far as they were counted
    """
    sizes: Counter[PartitionId] = Counter()
    copied: list[SavepointFile] = []
    for file, content in files:
        copied.append(content)
        if file.partition is not None:
            sizes[file.partition] += content.size_bytes
    partitions = (
        PartitionState(operator=op, store=store, partition=n, rows=rows.get((op, store, n)), size_bytes=size)
        for (op, store, n), size in sorted(sizes.items())
    )
    return DescribedFiles(tuple(sorted(copied, key=lambda file: file.path)), tuple(partitions))
