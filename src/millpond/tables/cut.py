"""One batch of one job, for several reads and tables."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from millpond.errors import RequestError
from millpond.tables.answer import Answer
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.cut_token import cut_not_open
from millpond.tables.job.held_views import HeldView
from millpond.tables.job.reads import CutReads, JobReads
from millpond.tables.table import Table


class PondCut(Answer):
    """The tables of one job at one batch: a context manager, from `pond.cut`.

    It stays open for as long as one read may take (`read_deadline_seconds`).  After that, reads
    raise CUT_EXPIRED.
    """

    def __init__(self, table_of: Callable[[str], Table], job: JobReads, bounds: Bounds | None) -> None:
        self._table_of = table_of
        self._job = job
        self._bounds = bounds
        self._lease: HeldView | None = None
        self._reads: CutReads | None = None

    def __enter__(self) -> PondCut:
        view, self.cut = self._job.open(self._bounds)
        self._lease = self._job.held_views.hold(view, self._job.settings.read_deadline_seconds)
        self._reads = CutReads(self._job, self._lease)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lease is not None:
            self._job.held_views.let_go(self._lease)

    @property
    def job(self) -> str:
        """The job's name."""
        return self._job.folder.job

    def __getitem__(self, name: str) -> Table:
        """A table of this job as of this batch.  Raises UNKNOWN_TABLE, OTHER_JOB."""
        if self._reads is None:
            raise cut_not_open("pond")
        table = self._table_of(name)
        if table.job != self.job and table.versions is not None:
            table = table.versions.of_job(self.job) or table  # a cut stays with its version
        if table.job != self.job:
            raise RequestError(
                "OTHER_JOB",
                f"{name} is a table of {table.job}, but this is a cut of {self.job}: batches of two jobs don't correspond.",
                hint=f"Open another cut for it: pond.cut({name!r}).",
                table=name,
                job=table.job,
            )
        return table.read_by(self._reads)
