"""Sends a table's changes to a target, batch by batch, each change exactly once where the target allows it.

One step:

1. Open the target: it returns the position that it stored with its last commit.
2. If it has none: send the whole table, in one transaction, with the position of that batch.
3. Else read a page of changes after the position.  Commit only where a batch ends.
4. After an error close the target, wait, and begin at 1.  The target says what was committed.

If history is gone, because the sender was away for longer than it is kept, or the job was replaced,
the sender ends with HISTORY_GONE: there would be a gap.  With `resync` it goes to 2 instead.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.logs import EventLog, Trouble
from millpond.sending.address import open_target
from millpond.sending.source import PAGE_ROWS, SentTable, as_changes, definition_of, iter_whole
from millpond.sending.target import Part, SentPosition, Shape, Target, mismatch
from millpond.settings import RetentionWords
from millpond.tables.answer import Rows
from millpond.tables.history.changes import Changes, RowChange
from millpond.tables.pond import open as open_pond
from millpond.wire.rows import typed_columns

log = EventLog(__name__)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}")
Begin = Literal["start", "now"]
# These don't pass by themselves, and to go on would be wrong.
_FATAL = frozenset(
    {
        "HISTORY_GONE", "INVALID_TOKEN", "INVALID_REQUEST", "WRONG_TYPE", "LIBRARY_MISSING", "TARGET_MISMATCH", "TARGET_TAKEN",
        "DEFINITION_MISMATCH", "REPLICA_CLOSED",
    }
)  # fmt: skip
# There would be a gap.  A token is of another table if the new job keeps it elsewhere.
_GAPS = frozenset({"HISTORY_GONE", "INVALID_TOKEN", "VERSION_CHANGED"})
# How long one read waits for changes: also how long `stop` may take.
_WAIT_SECONDS = 0.5
# How often to move the position of a target to which nothing was sent, so that it stays within history.
_IDLE_SECONDS = 20.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 10.0
# How often `once` tries again after an error that may pass.
_ONCE_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStatus:
    """How far a sender has come.

    target, table:   where to, and whose changes
    state:           following, waiting (the target or the table fails; it tries again), ended
    batch:           all changes up to this batch are at the target; None if nothing is
    newest:          the newest committed batch that was seen; None before the first look
    behind_batches:  committed and not sent yet
    behind_seconds:  for how long there have been such batches; 0 if there are none
    lag_seconds:     from commit to sent, of the newest batch that this sender sent; None if it has
                     sent none
    changes:         changes sent since it began, and rows of whole reads
    transactions:    commits at the target since it began
    whole_reads:     how often the whole table was sent since it began
    errors:          how often a step failed
    last_error:      the error of the last step; None if it went well
    """

    target: str
    table: str
    state: str
    batch: int | None
    newest: int | None
    behind_batches: int
    behind_seconds: float
    lag_seconds: float | None
    changes: int
    transactions: int
    whole_reads: int
    errors: int
    last_error: MillpondError | None


class Sender:
    """Sends the changes of one table, in a thread of its own; also a context manager, which stops it."""

    def __init__(
        self,
        table: SentTable,
        to: str,
        *,
        name: str | None = None,
        begin: Begin = "start",
        resync: bool = False,
        keep_expired: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """As `send`, of an open table, without starting."""
        if begin not in ("start", "now"):
            raise RequestError("INVALID_REQUEST", f"A sender can't begin at {begin!r:.40}.", hint="Write start or now.")
        if not _NAME.fullmatch(name or table.name):
            raise RequestError(
                "INVALID_NAME", f"A sender can't have the name {name!r:.140}.", hint="Use up to 100 letters, digits, _, . and -."
            )
        self._table = table
        self._shape = Shape(definition_of(table), name or table.name, keep_expired)
        self.target: Target = open_target(to, self._shape, options or {})
        self._from_now, self._resync = begin == "now", resync
        self._is_open = False
        self._position: SentPosition | None = None
        self._token = ""
        self._newest: int | None = None
        self._behind_since: float | None = None
        self._lag: float | None = None
        self._committed_at = 0.0
        self._counts: Counter[str] = Counter()
        self._trouble = Trouble(log, "sender", table=table.name, target=self.target.uri)
        self._stop = threading.Event()
        self._stepped = threading.Condition()
        self._thread: threading.Thread | None = None
        self._owned = ExitStack()
        self.last_error: MillpondError | None = None

    def start(self) -> Sender:
        """Begin, in a daemon thread; returns itself."""
        self._thread = threading.Thread(target=self.run, name="millpond-sender", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End after the transaction that is being sent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._owned.close()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def wait_for_batch(self, batch: int, timeout_seconds: float = 60.0) -> None:
        """Return when all changes up to a batch are at the target.

        Raises:  NOT_UP_TO_BOUND after the timeout; the error that ended the sender.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._stepped:
            while self._position is None or self._position.batch < batch:
                ended = self._thread is not None and not self._thread.is_alive()
                if ended and self.last_error is not None:
                    raise self.last_error
                left = deadline - time.monotonic()
                if left <= 0 or ended:
                    raise ReplicaError(
                        "NOT_UP_TO_BOUND",
                        f"Batch {batch} isn't sent after {timeout_seconds:g} s."
                        + (f" The last error: {self.last_error}" if self.last_error is not None else ""),
                        hint="Wait for longer, and look at the sender's status.",
                        batch=batch,
                    )
                self._stepped.wait(min(left, 0.1))

    def status(self) -> SenderStatus:
        """How far it has come."""
        position, newest, since = self._position, self._newest, self._behind_since
        ended = self._stop.is_set() or (self._thread is not None and not self._thread.is_alive())
        behind = 0 if newest is None else max(0, newest - position.batch) if position is not None else newest + 1
        return SenderStatus(
            target=self.target.uri,
            table=self._shape.table,
            state="ended" if ended else "waiting" if self.last_error is not None else "following",
            batch=None if position is None else position.batch,
            newest=newest,
            behind_batches=behind,
            behind_seconds=time.monotonic() - since if since is not None and behind else 0.0,
            lag_seconds=self._lag,
            changes=self._counts["changes"],
            transactions=self._counts["transactions"],
            whole_reads=self._counts["whole_reads"],
            errors=self._counts["errors"],
            last_error=self.last_error,
        )

    # ------------------------------------------------------------ the loop

    def run(self, *, once: bool = False) -> None:
        """Send until `stop`; this is what the thread does.

        once:    return when all that is committed is sent, and raise an error that lasts
        Raises:  HISTORY_GONE, TARGET_TAKEN, TARGET_MISMATCH and others that don't pass, unless a
                 thread of its own does it.
        """
        failures = 0
        try:
            while not self._stop.is_set():
                try:
                    is_done = self.step(0.0 if once else _WAIT_SECONDS)
                    failures, self.last_error = 0, None
                    self._trouble.over()
                    if once and is_done:
                        return
                except Exception as raised:
                    error = raised if isinstance(raised, MillpondError) else _unexpected(raised)
                    self._failed(error, raised)
                    if error.condition in _FATAL or (once and failures >= _ONCE_TRIES):
                        if threading.current_thread() is self._thread:
                            return
                        raise error from raised
                    self._look()
                    self._stop.wait(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures, 10)))
                    failures += 1
                with self._stepped:
                    self._stepped.notify_all()
        finally:
            self._close()
            with self._stepped:
                self._stepped.notify_all()

    def step(self, wait_seconds: float = 0.0) -> bool:
        """Send a page of changes, or the whole table; returns whether all that is committed is sent.

        wait_seconds:  how long to wait for changes
        Raises:        what reading the table raises; what the target raises.
        """
        if not self._is_open:
            position = self.target.open(resync=self._resync)  # 1
            self._is_open = True
            self._position, self._token = position, "" if position is None else position.token
        if typed_columns(definition_of(self._table)) != typed_columns(self._shape.definition):
            raise mismatch(self.target.uri, f"the columns of {self._shape.table} have changed since the sender began")
        if self._position is None:
            if self._from_now:
                self._send_nothing()
            else:
                self._send_whole(0)  # 2
            return False
        try:
            return self._send_changes(self._position, wait_seconds)  # 3
        except MillpondError as error:
            if error.condition not in _GAPS:
                raise
            if not self._resync:
                raise _gone(error, self._shape.table, self.target.uri) from None
            log.warning("sender.resyncs", table=self._shape.table, target=self.target.uri, message=error.message)
            run = self._position.run
        self._close()  # a transaction may be open
        self.target.open(resync=True)
        self._is_open = True
        self._send_whole(run + 1)
        return False

    def _send_nothing(self) -> None:
        """Begin with the changes from now on."""
        now = self._table.changes()
        self.target.begin(Part(batch=now.batch, run=0))
        self._token = now.token
        self._commit(SentPosition(table=self._shape.table, token=now.token, sent_through=None, batch=now.batch, run=0), now)

    def _send_whole(self, run: int) -> None:
        begun, batch = self._table.changes(), -1
        for page in iter_whole(self._table, keep_expired=self._shape.keep_expired):
            if batch < 0:
                batch = page.batch
                self._seen(page)
                self.target.begin(Part(batch=batch, run=run, whole=True))
            self._add(as_changes(page))
        self._token = begun.token
        self._commit(SentPosition(table=self._shape.table, token=begun.token, sent_through=batch, batch=batch, run=run), page)
        self._counts["whole_reads"] += 1

    def _send_changes(self, start: SentPosition, wait_seconds: float) -> bool:
        """Send changes until there are no more, so that no batch is half sent; returns whether the job has none either."""
        through, pending, at = start.sent_through, 0, -1
        while True:
            before = self._token
            page = self._table.changes(before, limit=PAGE_ROWS, wait_seconds=wait_seconds)
            wait_seconds = 0.0
            self._seen(page)
            waiting: list[RowChange] = []
            for change in page:
                if through is not None and change.batch <= through:
                    continue
                if at >= 0 and change.batch != at and (self.target.one_batch or pending >= PAGE_ROWS):
                    self._add(waiting)
                    self._commit(_moved(start, before, at, at), page)
                    waiting, pending, at = [], 0, -1
                if at < 0:
                    self.target.begin(Part(batch=change.batch, run=start.run))
                at = change.batch
                waiting.append(change)
                pending += 1
            self._add(waiting)
            self._token = page.token
            if not page.more:
                break
            if self._stop.is_set():
                return False  # closing the target drops what isn't committed
        position = _moved(start, page.token, through if through is not None and page.batch < through else None, page.batch)
        if at >= 0:
            self._commit(position, page)
        elif position.batch > start.batch and time.monotonic() - self._committed_at >= _IDLE_SECONDS:
            self.target.begin(Part(batch=position.batch, run=start.run))
            self._commit(position, page)
        else:
            self._position = position  # these batches changed no row
        self._judge()
        return not page.lag.behind_batches

    def _add(self, changes: list[RowChange]) -> None:
        if changes:
            self.target.add(changes)
            self._counts["open"] += len(changes)

    def _commit(self, position: SentPosition, page: Changes | Rows) -> None:
        self.target.commit(position)
        self._position, self._committed_at = position, time.monotonic()
        self._counts["transactions"] += 1
        self._counts["changes"] += self._counts.pop("open", 0)
        self._lag = max(0.0, time.time() - page.position.committed_ns / 1e9)
        self._judge()

    def _seen(self, page: Changes | Rows) -> None:
        self._newest = page.batch + page.lag.behind_batches
        self._judge()

    def _judge(self) -> None:
        """Note since when there are batches to send."""
        is_behind = self._newest is not None and (self._position is None or self._newest > self._position.batch)
        if not is_behind:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = time.monotonic()

    def _failed(self, error: MillpondError, raised: Exception) -> None:
        self.last_error = error
        self._counts["errors"] += 1
        self._trouble.met(raised)
        self._close()

    def _look(self) -> None:
        """See how far the job is, while the target fails."""
        with suppress(Exception):
            self._seen(self._table.changes())

    def _close(self) -> None:
        self._is_open = False
        self._counts.pop("open", None)
        self.target.close()


def send(
    pond: str | Path | Any,
    table: str,
    *,
    to: str,
    name: str | None = None,
    begin: Begin = "start",
    resync: bool = False,
    keep_expired: bool = False,
    options: Mapping[str, str] | None = None,
    history: str | None = None,
) -> Sender:
    """Send the changes of a table to a target, each batch as it commits, in a thread until `stop`.

        with mp.send("./pond", "page_views", to="sqlite:///views.db") as sender:
            sender.wait_for_batch(17)

    The target stores the position with the changes, so that after a crash nothing is missing and
    nothing is there twice.

    pond:          a pond's place, or an open pond, or a server from `connect`
    to:            `kafka://HOST:PORT/TOPIC`, `file:///FOLDER?format=ndjson`,
                   `postgresql://HOST/DATABASE`, `sqlite:///FILE`, `https://…` for a webhook
    name:          of the sender, under which the target keeps its position; by default the table's
    begin:         what a target without a position gets first: `start`, the whole table; `now`,
                   only changes from now on
    resync:        send the whole table again if history is gone or the job was replaced, and
                   replace rows that the target has without a position
    keep_expired:  whether the target keeps expired rows
    options:       of the target: client properties, passwords; see docs/send.md
    history:       of a pond by its place: which changes to keep, as in `Retention.parse`, if this
                   process follows the job
    Raises:        INVALID_REQUEST, LIBRARY_MISSING; as `open`.
    """
    with ExitStack() as owned:
        if isinstance(pond, str | Path):
            kept = None if history is None else {table: RetentionWords(history=history)}
            pond = owned.enter_context(closing(open_pond(pond, retention=kept)))
        sender = Sender(pond[table], to, name=name, begin=begin, resync=resync, keep_expired=keep_expired, options=options)
        sender._owned = owned.pop_all()
    return sender.start()


def _moved(start: SentPosition, token: str, through: int | None, batch: int) -> SentPosition:
    return SentPosition(table=start.table, token=token, sent_through=through, batch=batch, run=start.run)


def _gone(error: MillpondError, table: str, uri: str) -> ReplicaError:
    return ReplicaError(
        "HISTORY_GONE",
        f"{uri} can't be brought up to date: {error.message}",
        hint="Send the whole table again, with --resync; keep history for longer than a sender may be away.",
        table=table,
        uri=uri,
    )


def _unexpected(raised: Exception) -> MillpondError:
    return MillpondError(
        "INTERNAL_ERROR", f"{type(raised).__name__}: {raised}.", hint="Report this with the log.", error=repr(raised)
    )
