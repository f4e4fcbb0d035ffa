"""A server's tables, with the reads of a local pond.

There are two kinds, whose reads use the same exchanges: `connect` gives blocking reads,
`connect_async` reads to be awaited.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import wraps
from html import escape
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from millpond.client.exchange import Exchange
from millpond.client.reads import ServerReads, TableReads
from millpond.client.transport import Async, Waiting
from millpond.errors import MillpondError
from millpond.schema.definition.table import TableDefinition
from millpond.settings import ClientSettings
from millpond.tables.answer import Answer
from millpond.tables.forms.html import columns_text, html_tables
from millpond.tables.forms.protocols import ShownTable
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.cut_token import CutToken, cut_not_open
from millpond.tables.sql.subscribe import (
    AnswerAt,
    NextBatch,
    Pause,
    SqlChanges,
    Step,
    run_steps,
    run_steps_awaited,
    subscribe,
)
from millpond.wire.answers import OperationAnswer
from millpond.wire.questions import AsOf

_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.05, 2.0
P = ParamSpec("P")
R = TypeVar("R")
OfTable = Callable[Concatenate[TableReads, P], Exchange[R]]
OfServer = Callable[Concatenate[ServerReads, P], Exchange[R]]


def connect(url: str, *, token: str | None = None, verify: Any = True, settings: ClientSettings | None = None) -> RemotePond:
    """The tables of the server at `url`.  This sends no request yet.

    token:   a token that `millpond token` made
    verify:  False to accept any certificate, or an ssl.SSLContext that accepts the server's
    Raises:  INVALID_REQUEST if the URL isn't one.
    """
    return RemotePond(Waiting(url, token, verify, settings or ClientSettings()))


def connect_async(
    url: str, *, token: str | None = None, verify: Any = True, settings: ClientSettings | None = None
) -> AsyncRemotePond:
    """The same for programs on an event loop.  Raises as `connect`."""
    return AsyncRemotePond(Async(url, token, verify, settings or ClientSettings()))


class _Table:
    """A server's table in one state: the newest batch or an earlier one."""

    _reads: TableReads

    @property
    def name(self) -> str:
        """The table's name."""
        return self._reads.name

    def live(self) -> Self:
        """As `Table.live`; sends no request yet."""
        return self._by(self._reads.live())

    def with_closed(self) -> Self:
        """As `Table.with_closed`; sends no request yet."""
        return self._by(self._reads.with_closed())

    def _as_of_batch(self, batch: int) -> Self:
        return self._by(self._reads.as_of(AsOf(batch=batch)))

    def _as_of_cut(self, token: str) -> Self:
        return self._by(self._reads.as_of(AsOf(cut=token)))

    def _by(self, reads: TableReads) -> Self:
        other = copy(self)
        other._reads = reads
        return other


def _pauses(timeout_seconds: float) -> Iterator[float]:
    """How long to wait between two looks at an operation; it ends after the timeout."""
    pause, deadline = _FIRST_LOOK_SECONDS, time.monotonic() + timeout_seconds
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 2, _LAST_LOOK_SECONDS)


# ---------------------------------------------------------------- waiting


def _of_table(read: OfTable[P, R]) -> Callable[Concatenate[RemoteTable, P], R]:
    @wraps(read)
    def wait(self: RemoteTable, /, *args: P.args, **options: P.kwargs) -> R:
        return self._transport.run(read(self._reads, *args, **options))

    return wait


def _of_server(read: OfServer[P, R]) -> Callable[Concatenate[RemotePond, P], R]:
    @wraps(read)
    def wait(self: RemotePond, /, *args: P.args, **options: P.kwargs) -> R:
        return self._transport.run(read(ServerReads(), *args, **options))

    return wait


class RemoteTable(_Table, ShownTable):
    """A server's table; its reads are those of `millpond.Table`."""

    def __init__(self, name: str, transport: Waiting) -> None:
        self._reads = TableReads(name, transport.settings)
        self._transport = transport
        self.load()

    get = _of_table(TableReads.get)
    get_all = _of_table(TableReads.get_all)
    scan = _of_table(TableReads.scan)
    range = _of_table(TableReads.range)
    top = _of_table(TableReads.top)
    windows = _of_table(TableReads.windows)
    count = _of_table(TableReads.count)
    to_arrow = _of_table(TableReads.to_arrow)
    changes = _of_table(TableReads.changes)
    history = _of_table(TableReads.history)
    find_event = _of_table(TableReads.find_event)
    total = _of_table(TableReads.total)
    series = _of_table(TableReads.series)
    cut = _of_table(TableReads.cut)
    load = _of_table(TableReads.load)

    def _columns_text(self) -> str:
        return columns_text(self._reads.known_definition) if self._reads.known_definition else "not asked yet"

    def at(self, *, batch: int | None = None, time: dt.datetime | str | None = None, cut: str | None = None) -> Self:
        """As `Table.at`; asks at once whether the server has that batch, and turns a time into a batch."""
        return self._by(self._transport.run(self._reads.at(batch=batch, time=time, cut=cut)))

    @property
    def job(self) -> str:
        """The name of the job whose state this is; each use asks the server."""
        return self.get_all(()).cut.job

    @property
    def definition(self) -> TableDefinition:
        """The table's definition."""
        return self.load().definition

    @property
    def columns(self) -> tuple[str, ...]:
        """All column names, key first."""
        return self.definition.columns

    @property
    def key_order(self) -> tuple[str, ...]:
        """The key columns in the order rows are sorted by."""
        return self.load().keys.order


class _RemoteCut(Answer):
    """One batch of one job, which the server keeps readable for a while."""

    def __init__(self, name: str, bounds: Bounds | None) -> None:
        self._name = name
        self._bounds = bounds
        self._kept_cut: CutToken | None = None

    @property
    def job(self) -> str:
        """The job's name."""
        return self.cut.job

    def _begin(self, cut: CutToken) -> Self:
        self._kept_cut, self.cut = cut, cut.cut
        return self

    @property
    def _token(self) -> str:
        if self._kept_cut is None:
            raise cut_not_open("server")
        return self._kept_cut.token


class RemoteCut(_RemoteCut):
    """The tables of one job at one batch: a context manager, from `server.cut`.

    As `millpond.tables.cut.PondCut`.
    """

    def __init__(self, pond: RemotePond, name: str, bounds: Bounds | None) -> None:
        super().__init__(name, bounds)
        self._pond = pond

    def __enter__(self) -> Self:
        return self._begin(self._pond[self._name].cut(bounds=self._bounds))

    def __exit__(self, *_error: object) -> None:
        self._kept_cut = None

    def __getitem__(self, name: str) -> RemoteTable:
        """A table of this job as of this batch.  Raises UNKNOWN_TABLE, OTHER_JOB, CUT_EXPIRED."""
        return self._pond[name].at(cut=self._token)


class RemotePond:
    """Tables by name: `server["page_views"]`.  A context manager; `close` ends its connections."""

    def __init__(self, transport: Waiting) -> None:
        self._transport = transport
        self._tables: dict[str, RemoteTable] = {}

    tables = _of_server(ServerReads.tables)
    sql = _of_server(ServerReads.sql)
    ready = _of_server(ServerReads.ready)
    versions = _of_server(ServerReads.versions)
    savepoints = _of_server(ServerReads.savepoints)
    savepoint = _of_server(ServerReads.savepoint)
    create_savepoint = _of_server(ServerReads.create_savepoint)
    verify_savepoint = _of_server(ServerReads.verify_savepoint)
    operation = _of_server(ServerReads.operation)

    def wait_for_operation(self, operation: str, timeout_seconds: float = 600.0) -> OperationAnswer:
        """An operation when it has ended, done or failed; after the timeout, as far as it is.

        Raises:  UNKNOWN_OPERATION, NOT_ALLOWED.
        """
        pauses = _pauses(timeout_seconds)
        while (found := self.operation(operation)).state == "running" and (pause := next(pauses, None)) is not None:
            time.sleep(pause)
        return found

    @property
    def uri(self) -> str:
        """The server's address."""
        return self._transport.url

    def __getitem__(self, name: str) -> RemoteTable:
        """The table of that name.  Raises UNKNOWN_TABLE, NOT_ALLOWED, AMBIGUOUS_TABLE, REPLICA_BUILDING, …"""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = RemoteTable(name, self._transport)
        return table

    def wait_for_table(self, name: str, timeout_seconds: float = 60.0) -> RemoteTable:
        """The table of that name, as soon as the server has it and its first batch.

        Raises:  UNKNOWN_TABLE, … after the timeout.
        """
        self._transport.run(TableReads(name, self._transport.settings).wait(timeout_seconds))
        return self[name]

    def __repr__(self) -> str:
        return f"<RemotePond {self.uri}>"

    def _repr_html_(self) -> str:
        try:
            tables = self._transport.run(ServerReads().described())
        except MillpondError as error:
            return f"<p>{escape(repr(self))}</p><p>{escape(str(error))}</p>"
        return html_tables(((table["table"], table.get("job", ""), _columns_of(table)) for table in tables), self.uri)

    def cut(self, name: str, *, bounds: Bounds | None = None) -> RemoteCut:
        """One batch of one job for several reads and tables.

            with server.cut("page_views") as cut:
                cut["hosts"].get(host="example.org")

        name:    of one of the job's tables
        Raises:  on entering the context: as a table's reads.
        """
        return RemoteCut(self, name, bounds)

    def subscribe(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None, *, key: Sequence[str] | None = None
    ) -> Iterator[SqlChanges]:
        """As `Pond.subscribe`: the server is asked again when it has another batch."""

        def do(step: Step) -> Any:
            match step:
                case AnswerAt():
                    return self.sql(statement, parameters, at=step.batch)
                case NextBatch():
                    return self[step.table].get_all((), bounds=Bounds(min_batch=step.batch, wait_seconds=step.seconds))
                case Pause():
                    return time.sleep(step.seconds)

        return run_steps(subscribe(key), do)

    def at(self, tables: Iterable[str], *, offsets: Mapping[str, Any] | None = None) -> dict[str, RemoteTable]:
        """Tables of several jobs as of the same point of their input, by name.  As `Pond.at`."""
        batches = self._transport.run(ServerReads().at(tables, offsets=offsets))
        return {name: self[name]._as_of_batch(batch) for name, batch in batches.items()}

    def __contains__(self, name: object) -> bool:
        return name in self.tables()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> RemotePond:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


# ---------------------------------------------------------------- awaited


def _awaited_of_table(read: OfTable[P, R]) -> Callable[Concatenate[AsyncRemoteTable, P], Awaitable[R]]:
    @wraps(read)
    async def ask(self: AsyncRemoteTable, /, *args: P.args, **options: P.kwargs) -> R:
        return await self._transport.run(read(self._reads, *args, **options))

    return ask


def _awaited_of_server(read: OfServer[P, R]) -> Callable[Concatenate[AsyncRemotePond, P], Awaitable[R]]:
    @wraps(read)
    async def ask(self: AsyncRemotePond, /, *args: P.args, **options: P.kwargs) -> R:
        return await self._transport.run(read(ServerReads(), *args, **options))

    return ask


class AsyncRemoteTable(_Table):
    """A server's table, whose reads are awaited; `load`, or the first read, gets its definition."""

    def __init__(self, name: str, transport: Async) -> None:
        self._reads = TableReads(name, transport.settings)
        self._transport = transport

    get = _awaited_of_table(TableReads.get)
    get_all = _awaited_of_table(TableReads.get_all)
    scan = _awaited_of_table(TableReads.scan)
    range = _awaited_of_table(TableReads.range)
    top = _awaited_of_table(TableReads.top)
    windows = _awaited_of_table(TableReads.windows)
    count = _awaited_of_table(TableReads.count)
    to_arrow = _awaited_of_table(TableReads.to_arrow)
    to_pandas = _awaited_of_table(TableReads.to_pandas)
    to_polars = _awaited_of_table(TableReads.to_polars)
    changes = _awaited_of_table(TableReads.changes)
    history = _awaited_of_table(TableReads.history)
    find_event = _awaited_of_table(TableReads.find_event)
    total = _awaited_of_table(TableReads.total)
    series = _awaited_of_table(TableReads.series)
    cut = _awaited_of_table(TableReads.cut)
    load = _awaited_of_table(TableReads.load)

    def __repr__(self) -> str:
        known = self._reads.known_definition
        return f"<AsyncRemoteTable {self.name}: {columns_text(known) if known else 'not asked yet'}>"

    async def at(self, *, batch: int | None = None, time: dt.datetime | str | None = None, cut: str | None = None) -> Self:
        """As `RemoteTable.at`."""
        return self._by(await self._transport.run(self._reads.at(batch=batch, time=time, cut=cut)))


class AsyncRemoteCut(_RemoteCut):
    """The same as an asynchronous context manager: `async with server.cut("page_views") as cut`."""

    def __init__(self, pond: AsyncRemotePond, name: str, bounds: Bounds | None) -> None:
        super().__init__(name, bounds)
        self._pond = pond

    async def __aenter__(self) -> Self:
        return self._begin(await self._pond[self._name].cut(bounds=self._bounds))

    async def __aexit__(self, *_error: object) -> None:
        self._kept_cut = None

    def __getitem__(self, name: str) -> AsyncRemoteTable:
        """A table as of this batch; its first read checks that it is one of this job."""
        return self._pond[name]._as_of_cut(self._token)


class AsyncRemotePond:
    """Tables by name: `await server["page_views"].get(page="/")`.  An asynchronous context manager."""

    def __init__(self, transport: Async) -> None:
        self._transport = transport
        self._tables: dict[str, AsyncRemoteTable] = {}

    tables = _awaited_of_server(ServerReads.tables)
    sql = _awaited_of_server(ServerReads.sql)
    ready = _awaited_of_server(ServerReads.ready)
    versions = _awaited_of_server(ServerReads.versions)
    savepoints = _awaited_of_server(ServerReads.savepoints)
    savepoint = _awaited_of_server(ServerReads.savepoint)
    create_savepoint = _awaited_of_server(ServerReads.create_savepoint)
    verify_savepoint = _awaited_of_server(ServerReads.verify_savepoint)
    operation = _awaited_of_server(ServerReads.operation)

    async def wait_for_operation(self, operation: str, timeout_seconds: float = 600.0) -> OperationAnswer:
        """As `RemotePond.wait_for_operation`."""
        pauses = _pauses(timeout_seconds)
        while (found := await self.operation(operation)).state == "running" and (pause := next(pauses, None)) is not None:
            await asyncio.sleep(pause)
        return found

    @property
    def uri(self) -> str:
        """The server's address."""
        return self._transport.url

    def __getitem__(self, name: str) -> AsyncRemoteTable:
        """The table of that name; whether there is one, its first read says."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = AsyncRemoteTable(name, self._transport)
        return table

    async def wait_for_table(self, name: str, timeout_seconds: float = 60.0) -> AsyncRemoteTable:
        """As `RemotePond.wait_for_table`."""
        table = self[name]
        await self._transport.run(table._reads.wait(timeout_seconds))
        return table

    def __repr__(self) -> str:
        return f"<AsyncRemotePond {self.uri}>"

    def cut(self, name: str, *, bounds: Bounds | None = None) -> AsyncRemoteCut:
        """As `RemotePond.cut`."""
        return AsyncRemoteCut(self, name, bounds)

    def subscribe(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None, *, key: Sequence[str] | None = None
    ) -> AsyncIterator[SqlChanges]:
        """As `RemotePond.subscribe`: `async for changes in server.subscribe(…)`."""

        async def do(step: Step) -> Any:
            match step:
                case AnswerAt():
                    return await self.sql(statement, parameters, at=step.batch)
                case NextBatch():
                    bounds = Bounds(min_batch=step.batch, wait_seconds=step.seconds)
                    return await self[step.table].get_all((), bounds=bounds)
                case Pause():
                    return await asyncio.sleep(step.seconds)

        return run_steps_awaited(subscribe(key), do)

    async def at(self, tables: Iterable[str], *, offsets: Mapping[str, Any] | None = None) -> dict[str, AsyncRemoteTable]:
        """As `RemotePond.at`."""
        batches = await self._transport.run(ServerReads().at(tables, offsets=offsets))
        return {name: self[name]._as_of_batch(batch) for name, batch in batches.items()}

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self.tables():
            yield name

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncRemotePond:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


def _columns_of(table: Mapping[str, Any]) -> str:
    """As `columns_text`, of a server's description; of a table that can't be read, why."""
    if "error" in table:
        return f"{table['error']['condition']}: {table['error']['message']}"
    return ", ".join(f"{column['name']} {column['type']}{' (key)' if column['key'] else ''}" for column in table["columns"])
