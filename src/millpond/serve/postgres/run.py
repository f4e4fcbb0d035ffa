"""A statement that a process answers, begun and read piece by piece for one connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import structs
from starlette.concurrency import run_in_threadpool

from millpond.errors import MillpondError
from millpond.serve.access.tokens import Reader
from millpond.serve.answers import replies
from millpond.serve.postgres.catalogue import Catalogue
from millpond.serve.postgres.errors import QUERY_CANCELED, PgError
from millpond.serve.sql import messages as say
from millpond.serve.sql.process import SqlSession
from millpond.tables.answer import Cut
from millpond.tables.job.bounds import Bounds
from millpond.tables.sql.end import SqlLimits
from millpond.tables.sql.reading.opened import OpenedTables, open_tables
from millpond.tables.sql.statement import TableName
from millpond.tables.table import Table

if TYPE_CHECKING:
    from millpond.serve.app import HttpDoor

_COUNT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A statement with all that its answer depends on.

    asker:  the client whose statements count together
    """

    text: str
    values: list[Any]
    wanted: say.Postgres
    reader: Reader
    asker: str
    database: str
    at: int | str | None
    bounds: Bounds | None
    separate: bool
    most_seconds: float | None


@dataclass(frozen=True, slots=True)
class _Tables:
    now: Callable[[str], Table]


@dataclass(slots=True)
class Run:
    """One statement.

    head:    of its answer, when `begin` has returned
    is_over: whether all of the answer has been taken
    """

    door: HttpDoor
    catalogue: Catalogue
    question: Question
    head: say.PostgresHead | None = None
    is_over: bool = False
    _session: SqlSession | None = None
    _close: Callable[[], None] | None = None
    _leave: Callable[[], None] | None = None
    _coming: asyncio.Future[Any] | None = None
    _rest: bytes = b""
    _rest_rows: int = 0
    _bytes: int = 0
    _is_cancelled: bool = False
    _has_expired: bool = False
    _ending: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _held: ExitStack = field(default_factory=ExitStack)
    _is_counted: bool = False

    async def begin(self) -> say.PostgresHead:
        """Wait for a process and the head of the answer.

        Raises:  PgError if it was cancelled; as `run_sql`; TOO_MANY_ANSWERS, SQL_ENDED.
        """
        door, question = self.door, self.question
        seconds = door.settings.max_seconds
        if question.most_seconds is not None:
            seconds = min(seconds, question.most_seconds)
        self._coming = asyncio.ensure_future(door.patience.statements.come(question.asker, seconds))
        try:
            self._leave = await self._coming
        except asyncio.CancelledError:
            raise self._cancelled() from None
        self._check()

        def begin() -> None:
            self._session, self._close = door.statements.begin(
                lambda number: self._ask(number, seconds),
                self._open,
                door.settings,
                lambda: self.catalogue.json(question.reader, question.database),
            )
            if self.is_over and self._close is not None:  # its client left meanwhile, and `close` may not have seen it
                self._close()

        await run_in_threadpool(begin)
        if self._is_cancelled:  # meanwhile, when there was no process to tell
            self.cancel()
        await self._read()
        assert self._session is not None
        head = self._session.head
        assert isinstance(head, say.PostgresHead)
        self.head = head
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)
        return head

    async def take(self, most_rows: int) -> tuple[bytes, int, bool]:
        """Messages DataRow of at most so many rows (0: of one piece), how many they are, and whether more may follow.

        Raises:  as `begin`; ANSWER_TOO_LARGE.
        """
        self._check_time()
        if not self._rest and not self.is_over:
            await self._read()
            self._check_time()
        if not self._rest:
            return b"", 0, False
        data, count = self._rest, self._rest_rows
        if most_rows and count > most_rows:
            end = 0
            for _ in range(most_rows):
                end += 1 + int.from_bytes(data[end + 1 : end + 5])
            self._rest, self._rest_rows = data[end:], count - most_rows
            return data[:end], most_rows, True
        self._rest, self._rest_rows = b"", 0
        return data, count, not self.is_over

    async def settle(self) -> int:
        """After `begin`, see whether the answer has one piece: then give its process back.  The bytes of rows that wait here.

        Raises:  as `take`; TOO_MANY_DOWNLOADS.
        """
        if not self.is_over:
            first, count = self._rest, self._rest_rows
            await self._read()
            if not self.is_over:
                self._rest, self._rest_rows = first + self._rest, count + self._rest_rows
                self.count_as_large()
        if self.is_over:
            await self.give_back()
        return len(self._rest)

    def count_as_large(self) -> None:
        """Its client reads slowly, or left rows for later: so few may do that.  Raises TOO_MANY_DOWNLOADS."""
        if not self._is_counted:
            self._is_counted = True
            self._held.enter_context(self.door.patience.statements_read.taken(self.question.asker))

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The batches that it reads."""
        return () if self._session is None else self._session.tables.cuts

    def cancel(self) -> None:
        """End it soon."""
        self._is_cancelled = True
        if self._coming is not None and not self._coming.done():
            self._coming.cancel()
        if self._session is not None and not self.is_over:
            self._session.end()

    async def close(self) -> None:
        """End it, and give back its process."""
        self.is_over = True
        self._rest = b""
        await self.give_back()

    async def give_back(self) -> None:
        """Give back its process; rows that have come stay."""
        if self._timer is not None:
            self._timer.cancel()
        self._held.close()
        close, leave = self._close, self._leave
        self._close = self._leave = None
        try:
            if close is not None:
                await run_in_threadpool(close)
        finally:
            if leave is not None:
                leave()

    async def _read(self) -> None:
        """Take the next piece."""
        assert self._session is not None
        try:
            piece = await run_in_threadpool(self._session.next)
        except MillpondError as error:
            self.is_over = True
            if error.condition == "READ_TOO_LONG" and self._is_cancelled:
                raise self._cancelled() from None
            if error.condition == "READ_TOO_LONG" and self.question.most_seconds is not None:
                raise PgError(QUERY_CANCELED, "canceling statement due to statement timeout") from None
            raise
        if piece is None:
            self.is_over = True
            return
        self._rest_rows, self._rest = int.from_bytes(piece[:_COUNT_BYTES]), piece[_COUNT_BYTES:]
        self._bytes += len(piece)
        if self._bytes > self.door.settings.max_answer_bytes:
            raise replies.too_large(self.door.settings, "Add LIMIT, name fewer columns, or group the rows.")

    def _check(self) -> None:
        """Raise PgError if it was cancelled."""
        if self._is_cancelled:
            raise self._cancelled()

    def _expire(self) -> None:
        """Rows that are left for later aren't left for ever: the process is for others now."""
        if not self.is_over and self._session is not None:
            self._has_expired = True
            self._session.end()
            self._ending = asyncio.get_running_loop().create_task(self.close())

    def _check_time(self) -> None:
        """Raise PgError if its time is over."""
        if self._has_expired:
            raise PgError(QUERY_CANCELED, "The time of the statement is over.", hint="Read its rows sooner, or ask for fewer.")

    def _cancelled(self) -> PgError:
        return PgError(QUERY_CANCELED, "canceling statement due to user request")

    def _ask(self, number: int, seconds: float) -> say.Ask:
        question, settings = self.question, self.door.settings
        asked = json.dumps([question.text, question.values])
        return say.Ask(
            number, asked, "postgres", settings.max_rows, settings.max_answer_bytes, seconds, question.at, question.wanted
        )

    def _open(self, names: list[TableName], *, is_dry: bool) -> OpenedTables:
        """Open tables.  Raises NOT_ALLOWED, and as `open_tables`."""
        question, bounds = self.question, self.question.bounds
        if bounds is not None:
            bounds = structs.replace(bounds, wait_seconds=min(bounds.wait_seconds, self.door.settings.max_seconds))
        return open_tables(
            _Tables(lambda name: self.door.named(name, question.reader)),
            names,
            bounds=bounds,
            separate=question.separate,
            is_dry=is_dry,
            cache_bytes=SqlLimits().cache_bytes,
        )
