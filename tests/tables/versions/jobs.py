"""Versions of `views` whose jobs are written file by file: each row of version N has values that only N has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from millpond.catalogue import create_job
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.schema.definition.default_table import undefined_table
from millpond.storage import open_storage
from millpond.versions import job_name
from spark_files.checkpoint import WrittenCheckpoint

OF_VERSION = 1_000_000
KEYS = 40


class WrittenVersion:
    """The job of a version: batch b has the values version * OF_VERSION + b.

    ends:  gives where the sources end after a batch
    """

    def __init__(self, pond: Path, version: int, ends: Callable[[int], list[Any]] | None = None) -> None:
        self.version, self.name = version, job_name("views", version)
        folder = create_job(pond, self.name)
        sources = ends or (lambda batch: [{"events": {"0": 10 * batch + 10}}])
        self.written = WrittenCheckpoint(pond / "jobs" / self.name / "checkpoint", f"job {version}", sources=sources)
        self.run_batch()
        (store,), _ = read_stores(open_storage(folder.checkpoint), Batch(0))
        folder.write_definition(undefined_table(self.name, store, None))

    def run_batch(self) -> None:
        value = self.version * OF_VERSION + self.written.next_batch
        self.written.plan([(f"k{n:02d}", value) for n in range(KEYS)], snapshot=False)
        self.written.commit()


def version_of(rows: Iterable[Any]) -> int:
    """The version that an answer is of; fails unless all its rows are of one batch of one version."""
    (value,) = {row["v"] for row in rows}
    return int(value) // OF_VERSION


def log_files(written: WrittenCheckpoint, entry: int, paths: Iterable[str]) -> None:
    """An entry of the log of a file source."""
    lines = [json.dumps({"path": path, "timestamp": 1, "batchId": entry}) for path in paths]
    written.write(f"sources/0/{entry}", "\n".join(["v1", *lines]).encode())
