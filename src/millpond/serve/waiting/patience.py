"""Reads in threads, and requests that wait for a table, a batch, or their turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from msgspec import structs
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from millpond.errors import MillpondError
from millpond.serve.waiting.waits import Arrivals, Looks, Quota, ReplicaBatches, Room, Turns, Watch, Watches
from millpond.settings import ServeSettings
from millpond.tables.job.bounds import ARRIVING, Bounds, after, is_of_stopped, may_pass
from millpond.tables.table import Table

Result = TypeVar("Result")
# How often a waiting request checks whether it still may wait, and whether a bound of time holds.
_TICK_SECONDS = 1.0


class Patience:
    """Waits, reads and downloads, and how many of each may run at once.

    known_names:  returns the names of all tables; may take long
    check:        raises if the request of a scope may no longer read the table of a name
    """

    def __init__(self, settings: ServeSettings, known_names: Callable[[], set[str]], check: Callable[[Scope, str], None]) -> None:
        self.watches = Watches()
        self._arrivals = Arrivals(known_names)
        self._check = check
        self.streams = Quota("TOO_MANY_STREAMS", "streams of events", option="--max-streams")
        self.waits = Quota("TOO_MANY_WAITS", "requests that wait", option="--max-waits")
        self.downloads = Quota("TOO_MANY_DOWNLOADS", "large answers in pieces", option="--max-downloads")
        self._turns = Turns(settings.max_large_answers)
        self._looks = Looks()
        self.statements = Turns(settings.sql_processes)
        self.statements_read = Quota("TOO_MANY_DOWNLOADS", "large answers of statements in pieces", option="--sql-processes")
        self.subscribed = Room()
        self.use(settings)

    def use(self, settings: ServeSettings) -> None:
        """Use these settings from here on."""
        self._settings = settings
        self.streams.use(settings.max_streams, settings.max_streams_per_client)
        self.waits.use(settings.max_waits, settings.max_waits_per_client)
        self.downloads.use(settings.max_downloads, settings.max_downloads_per_client)
        self._turns.use(settings.max_large_answers)
        self.statements.use(settings.sql_processes)
        self.subscribed.use(settings.max_answer_bytes)
        # A client that reads slowly keeps a process: one of them stays for others.
        self.statements_read.use(max(1, settings.sql_processes - 1), max(1, settings.sql_processes // 2))

    def watch(self, table: Table) -> Watch:
        """The batches of a table's job."""
        return self.watches.of(ReplicaBatches(table.job_reads.replica))

    def is_large(self, rows: int | None) -> bool:
        """Whether an answer of so many rows, or of all, must wait for its turn."""
        return rows is None or rows > self._settings.limit_rows

    async def until_there(self, scope: Scope, name: str, look: Callable[[], Result], wait_seconds: float) -> Result:
        """The table that `look` finds; if nobody has defined it yet, wait at most so many seconds.

        Later waits of the request share these seconds.
        Raises:  TOO_MANY_WAITS; as `look`.
        """
        try:
            return look()
        except MillpondError as error:
            if not wait_seconds or error.condition not in ARRIVING:
                raise
        began = scope["asked_at"] = time.monotonic()
        while (left := began + wait_seconds - time.monotonic()) > 0:
            self.take_seat(scope, scope["resources"])
            is_there = await self._arrivals.next(min(left, _TICK_SECONDS), name)
            self._check(scope, name)
            if is_there:
                break
        return look()

    async def read(self, asker: str, read: Callable[[], Result], *, is_large: bool) -> Result:
        """The result of a read in a thread; a large answer waits for its turn.  Raises TOO_MANY_ANSWERS."""
        if not is_large:
            return await run_in_threadpool(read)
        async with self._turns.turn(asker, self._settings.max_seconds):
            return await run_in_threadpool(read)

    async def look(self, asker: str, key: Hashable, read: Callable[[], Result]) -> Result:
        """As `read` of a large answer that is kept for those that ask the same: they wait without a turn."""
        async with self._looks.alone(key, self._settings.max_seconds):
            return await self.read(asker, read, is_large=True)

    async def read_within(
        self,
        scope: Scope,
        name: str,
        table: Table,
        bounds: Bounds | None,
        read: Callable[[Bounds | None], Result],
        *,
        is_large: bool = False,
    ) -> Result:
        """The result of a read in a thread; while it waits for bounds, it reads again with each new batch."""
        asker = scope["asker"]
        if bounds is None or not bounds.wait_seconds:
            return await self.read(asker, partial(read, bounds), is_large=is_large)
        wait_seconds, bounds = bounds.wait_seconds, structs.replace(bounds, wait_seconds=0.0)
        began, stopped_at = scope.get("asked_at", time.monotonic()), None
        watch, settle_seconds = self.watch(table), table.job_reads.settle_seconds
        with ExitStack() as seat:
            while True:
                count = watch.count
                try:
                    return await self.read(asker, partial(read, bounds), is_large=is_large)
                except MillpondError as error:
                    if not may_pass(error):
                        raise
                    now = time.monotonic()
                    left = began + wait_seconds - now
                    stopped_at = (stopped_at or now) if is_of_stopped(error) else None
                    if left <= 0 or (stopped_at is not None and now - stopped_at >= settle_seconds):
                        raise after(error, min(wait_seconds, round(now - began, 3))) from None
                if stopped_at is None:
                    await self.worth_a_read(scope, name, seat, watch, count, left, bounds.min_batch)
                else:
                    await self.next_batch(scope, name, seat, watch, count, min(left, settle_seconds))

    async def worth_a_read(
        self, scope: Scope, name: str, seat: ExitStack, watch: Watch, count: int, seconds: float, batch: int | None
    ) -> None:
        """Wait for the next batch that may meet a bound.

        Until there is such a batch, it returns only now and then, to see whether the job has stopped.

        batch:   which is to be met; None if any may do
        Raises:  as `next_batch`.
        """
        ends = time.monotonic() + min(seconds, _TICK_SECONDS)
        await self.next_batch(scope, name, seat, watch, count, seconds)
        while watch.is_below(batch) and (left := ends - time.monotonic()) > 0:
            await self.next_batch(scope, name, seat, watch, watch.count, left)

    async def next_batch(self, scope: Scope, name: str, seat: ExitStack, watch: Watch, count: int, seconds: float) -> None:
        """Wait for the next batch.  Raises TOO_MANY_WAITS; as `check`."""
        self.take_seat(scope, seat)
        await watch.beyond(count, min(seconds, _TICK_SECONDS))
        self._check(scope, name)

    def take_seat(self, scope: Scope, seat: ExitStack) -> None:
        """Count the request among the waiting ones, once.  Raises TOO_MANY_WAITS."""
        if "waits" not in scope:
            scope["waits"] = True
            seat.enter_context(self.waits.taken(scope["asker"]))
