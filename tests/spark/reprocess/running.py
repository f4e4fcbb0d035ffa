"""A job of an aggregate whose files are added, corrected and read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import millpond
from live_jobs.event_files import PROVIDERS
from spark.reprocess.corrected import ROW_CHECKSUM, declare, source

FORMS: dict[str, dict[str, Any]] = {
    "hdfs": {"conf": PROVIDERS["hdfs"]},
    "snapshots": {"conf": PROVIDERS["snapshots"]},
    "changelog": {"conf": PROVIDERS["changelog"]},
    "fenced": {"conf": PROVIDERS["hdfs"], "fenced": True},
    "hdfs, checksums": {"conf": PROVIDERS["hdfs"] | ROW_CHECKSUM},
    "snapshots, checksums": {"conf": PROVIDERS["snapshots"] | ROW_CHECKSUM},
}


class Running:
    """The job `views` of a pond, and its files."""

    def __init__(self, spark: Any, tmp_path: Path, form: str, **options: Any) -> None:
        self.folder, self.pond = tmp_path / "in", tmp_path / "pond"
        self._spark, self._form, self.options = spark, FORMS[form], options

    @property
    def checkpoint(self) -> Path:
        return self.pond / "jobs/views/checkpoint"

    @contextmanager
    def started(self, trigger: str | None = None) -> Iterator[millpond.Job]:
        kept = {name: self._spark.conf.get(name) for name in self._form["conf"]}
        fenced = {name: value for name, value in self._form.items() if name == "fenced"}
        stream = source(self._spark, self.folder)
        try:
            for name, value in self._form["conf"].items():
                self._spark.conf.set(name, value)
            job = millpond.start(declare(**self.options), stream, pond=self.pond, trigger=trigger, partitions=2, **fenced)
        finally:
            for name, value in kept.items():
                self._spark.conf.set(name, value)
        with job:
            yield job

    def run(self) -> None:
        """Read all files that are there."""
        with self.started("available-now") as job:
            assert job.wait_for_end(300)

    def plan(self, **part: Any) -> Any:
        return millpond.plan_reprocess(declare(**self.options), source(self._spark, self.folder), pond=self.pond, **part)
