"""The tables of several servers for programs on an event loop: the reads of `connect_shards`, awaited.

1. Each read runs in one of a few threads.  Further ones wait for their turn.
2. A read whose caller was cancelled ends by itself: its answer belongs to that call alone.  Before
   its turn, it isn't made at all.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from millpond.client.exchange import unavailable
from millpond.router.pond import ShardedCut, ShardedPond, connect_shards
from millpond.router.reads.table import ShardedTable
from millpond.settings import RouterSettings
from millpond.tables.answer import Answer
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.cut_token import cut_not_open
from millpond.tables.sql.end import SqlLimits
from millpond.tables.sql.subscribe import AnswerAt, NextBatch, Pause, SqlChanges, Step, run_steps_awaited, subscribe

_THREADS = 64
P = ParamSpec("P")
R = TypeVar("R")


def connect_shards_async(
    urls: Iterable[str], *, token: str | None = None, verify: Any = True, settings: RouterSettings | None = None
) -> AsyncShardedPond:
    """As `connect_shards`, for programs on an event loop.  Raises as it does."""
    return AsyncShardedPond(connect_shards(urls, token=token, verify=verify, settings=settings))


def _of_table(read: Callable[Concatenate[ShardedTable, P], R]) -> Callable[Concatenate[AsyncShardedTable, P], Awaitable[R]]:
    @wraps(read)
    async def ask(self: AsyncShardedTable, /, *args: P.args, **options: P.kwargs) -> R:
        return await self._pond.run(lambda: read(self._there(), *args, **options))

    return ask


def _of_pond(read: Callable[Concatenate[ShardedPond, P], R]) -> Callable[Concatenate[AsyncShardedPond, P], Awaitable[R]]:
    @wraps(read)
    async def ask(self: AsyncShardedPond, /, *args: P.args, **options: P.kwargs) -> R:
        return await self.run(lambda: read(self.waiting, *args, **options))

    return ask


class AsyncShardedTable:
    """A table of several servers, whose reads are awaited; the first one says whether there is such a table."""

    def __init__(self, name: str, pond: AsyncShardedPond, find: Callable[[], ShardedTable]) -> None:
        self._name, self._pond, self._find = name, pond, find
        self._found: ShardedTable | None = None

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    def _there(self) -> ShardedTable:
        found = self._found
        if found is None:
            found = self._found = self._find()
        return found

    get = _of_table(ShardedTable.get)
    get_all = _of_table(ShardedTable.get_all)
    scan = _of_table(ShardedTable.scan)
    range = _of_table(ShardedTable.range)
    top = _of_table(ShardedTable.top)
    windows = _of_table(ShardedTable.windows)
    count = _of_table(ShardedTable.count)
    to_arrow = _of_table(ShardedTable.to_arrow)
    to_pandas = _of_table(ShardedTable.to_pandas)
    to_polars = _of_table(ShardedTable.to_polars)
    changes = _of_table(ShardedTable.changes)
    history = _of_table(ShardedTable.history)
    find_event = _of_table(ShardedTable.find_event)
    total = _of_table(ShardedTable.total)
    series = _of_table(ShardedTable.series)
    cut = _of_table(ShardedTable.cut)
    load = _of_table(ShardedTable.load)

    def live(self) -> Self:
        """As `Table.live`; sends no request yet."""
        return self._as(lambda: self._there().live())

    def with_closed(self) -> Self:
        """As `Table.with_closed`; sends no request yet."""
        return self._as(lambda: self._there().with_closed())

    async def at(self, *, batch: int | None = None, time: dt.datetime | str | None = None, cut: str | None = None) -> Self:
        """As `ShardedTable.at`."""
        found = await self._pond.run(lambda: self._there().at(batch=batch, time=time, cut=cut))
        return self._as(lambda: found)

    def _as(self, find: Callable[[], ShardedTable]) -> Self:
        return type(self)(self._name, self._pond, find)

    def __repr__(self) -> str:
        return f"<AsyncShardedTable {self.name}>"


class AsyncShardedCut(Answer):
    """As `ShardedCut`, as an asynchronous context manager: `async with pond.cut("page_views") as cut`."""

    def __init__(self, pond: AsyncShardedPond, cut: ShardedCut) -> None:
        self._pond, self._kept, self._is_open = pond, cut, False

    async def __aenter__(self) -> Self:
        await self._pond.run(self._kept.__enter__)
        self.cut, self._is_open = self._kept.cut, True
        return self

    async def __aexit__(self, *error: object) -> None:
        self._is_open = False
        self._kept.__exit__(*error)

    @property
    def job(self) -> str:
        """The job's name."""
        return self.cut.job

    def __getitem__(self, name: str) -> AsyncShardedTable:
        """A table as of this batch; its first read checks that it is one of this job."""
        if not self._is_open:
            raise cut_not_open("pond")
        return AsyncShardedTable(name, self._pond, lambda: self._kept[name])


class AsyncShardedPond:
    """Tables by name: `await pond["page_views"].get(page="/")`.  An asynchronous context manager.

    waiting:  the same pond with reads that block
    """

    def __init__(self, waiting: ShardedPond) -> None:
        self.waiting = waiting
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="millpond-awaited")
        self._tables: dict[str, AsyncShardedTable] = {}
        self._is_closed = False

    async def run(self, read: Callable[[], R]) -> R:
        """The result of a read, in one of the threads.

        Raises:  SERVER_UNAVAILABLE if this pond is closed; what the read raises.
        """
        if self._is_closed:
            raise _closed()

        def ask() -> R:
            if self._is_closed:
                raise _closed()
            try:
                return read()
            except (CancelledError, RuntimeError) as error:  # its connections were closed meanwhile
                if self._is_closed:
                    raise _closed() from error
                raise

        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    def __getitem__(self, name: str) -> AsyncShardedTable:
        """The table of that name; whether there is one, its first read says."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = AsyncShardedTable(name, self, partial(self.waiting.__getitem__, name))
        return table

    tables = _of_pond(ShardedPond.tables)
    shards = _of_pond(ShardedPond.shards)
    sql = _of_pond(ShardedPond.sql)
    ready = _of_pond(ShardedPond.ready)

    def subscribe(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        key: Sequence[str] | None = None,
        limits: SqlLimits | None = None,
    ) -> AsyncIterator[SqlChanges]:
        """As `ShardedPond.subscribe`: `async for changes in pond.subscribe(…)`."""

        async def do(step: Step) -> Any:
            match step:
                case AnswerAt():
                    return await self.sql(statement, parameters, limits=limits, at=step.batch)
                case NextBatch():
                    bounds = Bounds(min_batch=step.batch, wait_seconds=step.seconds)
                    return await self.run(lambda: self.waiting[step.table].common_batch(bounds))
                case Pause():
                    return await asyncio.sleep(step.seconds)

        return run_steps_awaited(subscribe(key), do)

    def cut(self, name: str, *, bounds: Bounds | None = None) -> AsyncShardedCut:
        """As `ShardedPond.cut`."""
        return AsyncShardedCut(self, self.waiting.cut(name, bounds=bounds))

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self.tables():
            yield name

    async def close(self) -> None:
        """Close the connections.  Threads end with the reads that they make."""
        self._is_closed = True
        self._threads.shutdown(wait=False)
        await asyncio.to_thread(self.waiting.close)

    async def __aenter__(self) -> AsyncShardedPond:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self.waiting).replace("<", "<Async", 1)


def _closed() -> Exception:
    return unavailable("this client is closed")
