"""What a read returns: rows, and the batch that they were read from.

Every answer names its batch, so that a caller can tell how old it is.  Rows are dicts with that
added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from millpond.checkpoint.position import Position
from millpond.errors import MillpondError
from millpond.replica.record import ReplicaRecord
from millpond.replica.row_stamp import changed_batch, is_final
from millpond.tables.failed import FailingValues
from millpond.tables.forms.html import ROWS, html_rows

_SHOWN_ROWS = 20


# msgspec structs, since one of each is made per answer: a frozen dataclass takes longer to make.
class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far an answer is behind: four numbers, because a single one isn't enough.

    behind_batches:     batches that the job has committed and the replica hasn't applied
    behind_seconds:     age of the oldest of these commits; 0.0 when caught up
    age_seconds:        since the newest applied commit
    age_from:           `commit` if the age counts from the commit file's time; `batch_start` if
                        that file was copied and so has another time
    event_lag_seconds:  now less the watermark, None if the job has no watermark
    """

    behind_batches: int
    behind_seconds: float
    age_seconds: float
    age_from: str
    event_lag_seconds: float | None


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Where an answer comes from: one consistent cut through all partitions and tables of one job.

    job:        the job's name
    position:   batch, source offsets, watermark, times
    lag:        the four numbers
    job_state:  running, stopped or unknown
    generation: which build of the replica answered, None without a replica; another build may keep
    other expired rows
    judged_ms:  rows whose TTL had passed at this time are left out; None if the table has no TTL
    hidden:     tells answers without hidden buckets from answers with them; empty if none are hidden
    """

    job: str
    position: Position
    lag: Lag
    job_state: str
    generation: str = ""
    judged_ms: int | None = None
    hidden: str = ""


class CutFrame(msgspec.Struct, frozen=True):
    """What the cuts of one batch have in common for a moment; only their ages differ.

    oldest_commit_ns:  of the batches that the replica is behind, None if it is caught up
    """

    job: str
    record: ReplicaRecord
    position: Position
    behind_batches: int
    oldest_commit_ns: int | None
    job_state: str
    generation: str

    def at(self, now: float) -> Cut:
        """The cut of an answer that is given now, in seconds since 1970."""
        record, oldest = self.record, self.oldest_commit_ns
        age_seconds, age_from = record.age(now)
        lag = Lag(
            behind_batches=self.behind_batches,
            behind_seconds=max(0.0, now - oldest / 1e9) if oldest is not None else 0.0,
            age_seconds=age_seconds,
            age_from=age_from,
            event_lag_seconds=None if record.watermark_ms is None else now - record.watermark_ms / 1000,
        )
        return Cut(job=self.job, position=self.position, lag=lag, job_state=self.job_state, generation=self.generation)


class Answer:
    """What every answer carries beside its rows.

    cut:  the batch and job that the answer names, with the four numbers of lag
    """

    cut: Cut

    @property
    def batch(self) -> int:
        """The batch that the answer reflects."""
        return self.cut.position.batch

    @property
    def position(self) -> Position:
        """Batch, source offsets, watermark and times."""
        return self.cut.position

    @property
    def lag(self) -> Lag:
        """The four numbers of lag."""
        return self.cut.lag

    @property
    def behind_seconds(self) -> float:
        """Age of the oldest commit that isn't applied yet; 0.0 when caught up."""
        return self.cut.lag.behind_seconds

    @property
    def job_state(self) -> str:
        """running, stopped or unknown."""
        return self.cut.job_state


class Row(dict[str, Any], Answer):
    """One row by column name, key columns first.

    If the table has no such row, the answer is empty and false, and names its batch as well.

    If a value can't be computed, reading it raises its error; the other values can be read.

    evicted:  of an empty answer: True if the row has expired, False if it never existed or was
              deleted, None if Millpond no longer knows
    """

    __slots__ = ("_cut", "_stored", "evicted")

    def __init__(
        self,
        values: Iterable[tuple[str, Any]] | dict[str, Any],
        cut: Cut,
        stored: bytes | None = None,
        *,
        evicted: bool | None = False,
    ) -> None:
        super().__init__(values)
        self._cut: Cut | tuple[CutFrame, float] = cut
        self.evicted = evicted
        self._stored = stored
        if type(values) is FailingValues:
            # Only such rows check each value that is read, since that takes time.
            self.__class__ = FailingRow

    @property
    def cut(self) -> Cut:  # type: ignore[override]
        """The batch and job that the answer names, with the four numbers of lag when it was given."""
        cut = self._cut
        if type(cut) is tuple:  # by compiled code
            cut = self._cut = cut[0].at(cut[1])
        return cast(Cut, cut)

    def __repr__(self) -> str:
        """`Row({'page': '/', 'hits': 3}, batch=41)`, or `Row(not there, batch=41)`."""
        why = {False: "not there", True: "expired", None: "not there, perhaps expired"}[self.evicted]
        return f"Row({dict.__repr__(self) if self else why}, batch={self.batch})"

    def __str__(self) -> str:
        return dict.__repr__(self)

    def _repr_html_(self) -> str:
        return html_rows([self] if self else [], f"batch {self.batch}" if self else repr(self))

    @property
    def found(self) -> bool:
        """Whether the table has this row."""
        return bool(self)

    @property
    def errors(self) -> dict[str, MillpondError]:
        """The errors of values that can't be computed, by column: reading such a value raises its error."""
        return {}

    @property
    def final(self) -> bool:
        """Whether the row has expired, so that these are its last values."""
        return self._stored is not None and is_final(self._stored)

    @property
    def changed_batch(self) -> int | None:
        """The batch that last wrote or removed the row; None if that was before the replica was built."""
        return None if self._stored is None else changed_batch(self._stored)


class FailingRow(FailingValues, Row):
    """A row with values that can't be computed."""

    __slots__ = ()


class Rows(list[Row], Answer):
    """Rows of one cut.

    more:   whether the limit cut off further rows
    token:  asks for the next page; None after the last page
    """

    def __init__(self, rows: Iterable[Row], cut: Cut, *, more: bool = False, token: str | None = None) -> None:
        super().__init__(rows)
        self.cut = cut
        self.more = more
        self.token = token

    def __repr__(self) -> str:
        """The first rows, a line each, and how many rows there are."""
        more = f", {len(self) - _SHOWN_ROWS} more here" if len(self) > _SHOWN_ROWS else ""
        facts = f"batch={self.batch}{', more=True' if self.more else ''}{more}"
        return "\n".join(["Rows([", *(f"  {dict.__repr__(row)}," for row in self[:_SHOWN_ROWS]), f"], {facts})"])

    def _repr_html_(self) -> str:
        cut_off = " and more" if self.more or len(self) > ROWS else ""
        return html_rows(self, f"batch {self.batch} of {self.cut.job}: {len(self)} rows{cut_off}")


class Count(int):
    """A number of rows, with the cut in which they were counted."""

    cut: Cut

    def __new__(cls, value: int, cut: Cut) -> Count:
        """A count of `value` rows in `cut`."""
        self = super().__new__(cls, value)
        self.cut = cut
        return self

    @property
    def batch(self) -> int:
        """The batch that the count reflects."""
        return self.cut.position.batch
