"""A table's reads besides its newest rows: expired rows, earlier batches, changes, one event."""

from __future__ import annotations

import datetime as dt
import os
import time
from abc import ABC, abstractmethod
from copy import copy
from typing import Any, Self

from millpond.errors import MillpondError, RequestError
from millpond.replica.history.as_of import check_kept, kept_of
from millpond.schema.definition.table import TableDefinition
from millpond.schema.moment import time_micros
from millpond.tables.history.changes import Changes, read_changes
from millpond.tables.history.find_event import EventAnswer, find_event
from millpond.tables.history.versions import Versions, read_versions
from millpond.tables.job.as_of import EarlierReads, batch_of
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.cut_token import CutToken, TokenReads, begin_cut
from millpond.tables.job.other_versions import OtherVersions
from millpond.tables.job.reads import JobReads, Reads
from millpond.tables.job.shards import TableState, check_same_shard, shard_state
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.key_range import range_span
from millpond.tables.scan.keys import Key, KeyReader
from millpond.tables.scan.open_read import OpenRead


class PastReads(ABC):
    """The reads of a table besides its newest rows.  `Table` is the only subclass."""

    definition: TableDefinition
    _reads: Reads
    _keys: KeyReader
    _closed: bool | None
    versions: OtherVersions | None

    @abstractmethod
    def read_by(self, reads: Reads) -> Self:
        """The same table, read by other views of its job."""

    def deadline(self) -> Deadline:
        """When a read that begins now must end."""
        return Deadline(self.definition.table, self.job_reads.settings.read_deadline_seconds)

    @abstractmethod
    def begin(self, bounds: Bounds | None = None, *, is_checked: bool = False) -> OpenRead:
        """Begin a read, which the caller ends."""

    def live(self) -> Self:
        """The same table without expired rows.

        It shows only rows in Spark's state whose TTL, if they have one, hasn't passed.
        """
        other = copy(self)
        other._closed = False
        return other

    def with_closed(self) -> Self:
        """The same table with expired rows, as long as they are kept, marked `final`.

        That includes rows whose TTL has passed before Spark has removed them.  No other read shows
        these.  Tables of windows, sessions among them, show expired rows by default.
        """
        other = copy(self)
        other._closed = True
        return other

    @property
    def job_reads(self) -> JobReads:
        """The table's job as it is now."""
        return self._reads.job

    def at(self, *, batch: int | None = None, time: dt.datetime | str | None = None, cut: str | None = None) -> Self:
        """The same table as of a batch, or of the newest batch that was committed by a time.

        Every read of it is of that batch.

        It hides rows whose TTL had passed when the batch was planned, or at the given time.

        cut:     a token of `cut`: reads its batch in any process that can still read it
        Raises:  HISTORY_GONE if the batch isn't kept (see `Retention`); NOT_UP_TO_BOUND if it is
                 still to come; WRONG_TYPE; for a cut INVALID_TOKEN and OTHER_JOB, and at each read
                 CUT_EXPIRED.
        """
        check_when(batch, time, cut)
        if cut is not None:
            return self._of_cut(cut)
        with self.begin(is_checked=True) as read:
            when, store = time if batch is None else batch, read.binding.table
            assert when is not None, "it isn't a cut"
            wanted, asked_ms = batch_of(read.view, when), None if time is None else time_micros(time) // 1000
            check_kept(read.view.record, store, wanted, table=self.definition.table)
        return self.read_by(EarlierReads(self._reads, store, self.definition.table, wanted, asked_ms))

    def _of_cut(self, cut: str) -> Self:
        try:
            return self.read_by(TokenReads(self.job_reads, cut, self.definition.table))
        except RequestError as error:
            other = None if self.versions is None or error.condition != "OTHER_JOB" else self.versions.owner_of(cut)
            if other is None:
                raise
            return other.read_by(TokenReads(other.job_reads, cut, self.definition.table))  # type: ignore[return-value]

    def cut(self, *, bounds: Bounds | None = None) -> CutToken:
        """Keep the newest batch readable for a while.

        The token opens it with `at`, for this table and others of the job.

        Raises:  as `get`.
        """
        with self.begin(bounds, is_checked=True) as read:
            if bounds is not None and bounds.shard:
                check_same_shard(read.view, read.binding, bounds)
            return begin_cut(self._reads.job, read.view.hand_on(), read.cut, shard_state(read.view, read.binding))

    @property
    def shard(self) -> str | None:
        """The partitions that its replica follows; None for all."""
        shard = self.job_reads.replica.shard
        return None if shard is None else shard.text

    @property
    def here(self) -> Bounds | None:
        """The bound that reads the rows of these partitions alone; None if there are no others."""
        return None if self.shard is None else Bounds(shard=self.shard)

    def state(self) -> TableState:
        """Which rows are here, of which batch.  Raises as `get`."""
        with self.begin(is_checked=True) as read:
            return TableState(read.cut, shard_state(read.view, read.binding))

    def changes(
        self,
        since: str | int | None = None,
        *,
        limit: int | None = None,
        wait_seconds: float = 0.0,
        bounds: Bounds | None = None,
    ) -> Changes:
        """The changes of rows since a token or a batch, in order, without loss or repetition.

        since:         `token` of an earlier answer; a batch's number, for all changes after it;
                       None to begin now
        limit:         at most so many changes; ask for the next ones with the answer's `token`
        wait_seconds:  how long to wait if there are no changes yet
        Raises:        HISTORY_GONE if they aren't kept, with how to start over; VERSION_CHANGED if
                       the token is of another version; INVALID_TOKEN, INVALID_LIMIT;
                       READ_TOO_LONG; as `scan`.
        """
        check_limit(limit)
        deadline = time.monotonic() + wait_seconds
        while True:
            found = self._changes(since, limit, bounds)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            since = found.token
            self.job_reads.replica.wait_for_step(left)

    def _changes(self, since: str | int | None, limit: int | None, bounds: Bounds | None) -> Changes:
        if self.versions is not None:
            self.versions.check_current(self.job_reads.folder.job)
        try:
            with self.begin(bounds) as read:
                return read_changes(read, since, limit, self.deadline())
        except MillpondError as error:
            if self.versions is not None and isinstance(since, str) and error.condition in ("HISTORY_GONE", "INVALID_TOKEN"):
                self.versions.check_token(since, self.job_reads.folder.job)
            raise

    def history(
        self,
        key: Any = None,
        /,
        *,
        start: Key | None = None,
        end: Key | None = None,
        since: int | dt.datetime | str | None = None,
        until: int | dt.datetime | str | None = None,
        limit: int | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Versions:
        """Every version of a row, or of the rows of a range of keys, between two batches or times.

        key, start, end:  which rows, as for `range`
        since, until:     only versions that were current at some time between these: batch numbers,
                          datetimes or ISO texts; by default all that are kept
        Raises:           HISTORY_GONE if `since` is no longer kept; as `range`.
        """
        check_limit(limit)
        prefix = self._keys.stored(self._keys.given(key, columns))
        low, high = (self._keys.stored(limit_) if limit_ else None for limit_ in (start, end))
        with self.begin(bounds) as read:
            view, binding = read.view, read.binding
            span = range_span(binding.definition, binding.codec, self._keys.order, prefix, low, high)
            first = kept_of(view.record, binding.table).history_from
            begin = (view.record.batch if first is None else first - 1) if since is None else batch_of(view, since)
            last = view.record.batch if until is None else batch_of(view, until)
            return read_versions(read, span, begin, last, limit, self.deadline())

    def find_event(
        self,
        *,
        offset: str | None = None,
        file: str | os.PathLike[str] | None = None,
        line: int | None = None,
        key: Any = None,
        event_time: dt.datetime | str | None = None,
        bounds: Bounds | None = None,
    ) -> EventAnswer:
        """Where one event is: which batch read it, whether that batch is applied, whether it was late.

        offset:      the event's own offset, as a Kafka producer gets it: "views:0:11170"
        file:        for a file source, the event's file
        line:        for the source `accesslog`, the event's line in that file, from 1.  Spark's own
                     file source reads a whole file in one batch, so it ignores the line
        key:         the key of the row to which the event belongs, with the window's columns
        event_time:  the event's own time, if the key isn't known
        Raises:      INVALID_BOUND, UNKNOWN_OFFSET; KEY_MISSING, WRONG_TYPE; as `get`.
        """
        if (offset is None) == (file is None):
            raise RequestError(
                "INVALID_REQUEST", "The event needs an offset or a file.", hint='Write find_event(offset="views:0:7").'
            )
        if line is not None and (file is None or isinstance(line, bool) or not isinstance(line, int) or line < 1):
            raise RequestError("INVALID_REQUEST", f"The line is {line!r:.40}.", hint="Give a file, and a line of it from 1 up.")
        wanted = Bounds(contains_offset=offset, contains_file=file)
        columns = self._keys.stored(self._keys.given(key)) if key is not None else None
        with self.begin(bounds) as read:
            row = self._keys.row(columns) if columns else None
            moment = None if event_time is None else time_micros(event_time)
            return find_event(read, self.job_reads.reader_of(wanted, line), row, moment)


def check_when(batch: int | None, time: dt.datetime | str | None, cut: str | None) -> None:
    """Raise INVALID_REQUEST if `at` has no batch, time or cut, or a cut with one of the others."""
    if (cut is None) == (batch is None and time is None):
        raise RequestError("INVALID_REQUEST", "Give a batch, a time or one cut.", hint="Write table.at(batch=41).")


def check_limit(limit: int | None) -> None:
    """Raise INVALID_LIMIT if the limit isn't a number of rows."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise RequestError("INVALID_LIMIT", f"The limit is {limit!r}.", hint="Give a whole number from 1 up.", limit=str(limit))
