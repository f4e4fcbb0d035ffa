"""Requests that wait for a batch or a table, and streams of changes, with one poll for all.

For each job with waiting requests, or each table of several servers, one thread looks for a new
batch, and wakes all.  Until then, a waiting request costs nothing of its own.  The changes for
streams of one table are read and written once for all streams at the same place.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool

from millpond.catalogue import ARRIVAL_SECONDS
from millpond.errors import MillpondError, RequestError
from millpond.replica.replica import Replica

Result = TypeVar("Result")
# The time between two polls; a replica that this process follows wakes sooner.
_LOOK_SECONDS = 0.05
# A watch continues for so long after the last request that waited.
_QUIET_SECONDS = 2.0


class BatchSource(Protocol):
    """Batches to look for.  Those that are equal have one watch."""

    def look(self, last: int | None) -> tuple[int | None, str]:
        """The newest batch that can be read, None if none can; and of what, or why none.

        It may wait for a moment for a batch after the last one.
        """

    def pause(self) -> None:
        """Wait until it is time for another look."""


@dataclass(frozen=True, slots=True)
class ReplicaBatches:
    """The batches of a replica of this process, or of another one of this machine."""

    replica: Replica

    def look(self, last: int | None) -> tuple[int | None, str]:  # noqa: ARG002 - see `pause`
        """As `BatchSource.look`."""
        try:
            with self.replica.snapshot() as view:
                return view.record.batch, view.generation
        except MillpondError as error:
            return None, error.condition

    def pause(self) -> None:
        """As `BatchSource.pause`: the follower of this process ends it."""
        self.replica.wait_for_step(_LOOK_SECONDS)


class Watch:
    """Batches for which requests wait.

    count:  grows with each new batch, and whenever none can be read any more, or again
    batch:  the newest that can be read, None if none can
    """

    def __init__(self, source: BatchSource) -> None:
        self.count = 0
        self.batch: int | None = None
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._pages: dict[Hashable, asyncio.Task[Any]] = {}

    @property
    def is_used(self) -> bool:
        """Whether a request waits, or did a moment ago."""
        return self._thread is not None

    def is_below(self, batch: int | None) -> bool:
        """Whether the newest batch is known, and comes before that one."""
        return batch is not None and self.batch is not None and self.batch < batch

    async def beyond(self, count: int, seconds: float) -> None:
        """Return when `count` has changed, or after so many seconds."""
        if self.count != count:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="millpond-waits", daemon=True)
            self._thread.start()
        news = self._news
        self._waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await news.wait()
        finally:
            self._waiting -= 1

    async def once(self, key: Hashable, make: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `make`, made once per key until the next batch."""
        task = self._pages.get(key)
        if task is None:
            task = self._pages[key] = asyncio.ensure_future(make())
            task.add_done_callback(functools.partial(self._made, key))
        found: Result = await asyncio.shield(task)
        return found

    def forget(self, key: Hashable) -> None:
        """Make the result of that key again when it is asked for the next time."""
        self._pages.pop(key, None)

    def _made(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._pages.get(key) is task:
            self.forget(key)

    def _wake(self, batch: int | None) -> None:
        self.count += 1
        self.batch = batch
        self._pages.clear()
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _ended(self) -> None:
        self._thread = None
        self._wake(None)  # from here on, the known batch is out of date

    def _run(self) -> None:
        last: tuple[int | None, str] = (None, "")
        used = time.monotonic()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            try:
                while self._waiting or time.monotonic() - used < _QUIET_SECONDS:
                    used = time.monotonic() if self._waiting else used
                    found = self._source.look(last[0])
                    if found != last:
                        last = found
                        self._loop.call_soon_threadsafe(self._wake, found[0])
                    self._source.pause()
            finally:
                self._loop.call_soon_threadsafe(self._ended)


class Watches:
    """One watch for all that wait for the same batches."""

    def __init__(self) -> None:
        self._watches: dict[BatchSource, Watch] = {}

    def of(self, source: BatchSource) -> Watch:
        """The watch of these batches."""
        watch = self._watches.get(source)
        if watch is None:
            self._watches = {each: w for each, w in self._watches.items() if w.is_used}
            watch = self._watches[source] = Watch(source)
        return watch


class Arrivals:
    """Requests that wait for a table that doesn't exist yet, with one poll of the catalogue for all.

    look:  returns the names of all tables; may take long
    """

    def __init__(self, look: Callable[[], set[str]]) -> None:
        self._look = look
        self._names: asyncio.Task[set[str]] | None = None

    async def next(self, seconds: float, name: str) -> bool:
        """Whether the next poll finds a table; False if that takes longer than so many seconds."""
        if self._names is None or self._names.done():
            self._names = asyncio.ensure_future(self._next())
            self._names.add_done_callback(_take_error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return name in await asyncio.shield(self._names)
        return False

    async def _next(self) -> set[str]:
        await asyncio.sleep(ARRIVAL_SECONDS)
        return await run_in_threadpool(self._look)


class Turns:
    """Limits parallel work: further work waits, and clients with the least running work go first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()
        # The client of each turn, in the order in which they came.
        self._line: dict[asyncio.Future[None], str] = {}

    def use(self, most: int) -> None:
        """Allow so many from here on; running ones continue."""
        self._most = most
        self._go_on()

    @contextlib.asynccontextmanager
    async def turn(self, asker: str, seconds: float) -> AsyncIterator[None]:
        """A context that waits for a turn.  Raises TOO_MANY_ANSWERS if it doesn't come in so many seconds."""
        await self._come(asker, seconds)
        try:
            yield
        finally:
            self._leave(asker)

    async def come(self, asker: str, seconds: float) -> Callable[[], None]:
        """Wait for a turn, which the returned function ends.  Raises as `turn`."""
        await self._come(asker, seconds)
        return functools.partial(self._leave, asker)

    async def _come(self, asker: str, seconds: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._line[turn] = asker
        self._go_on()
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as ended:
            if self._line.pop(turn, None) is None:  # its turn came at that moment
                self._leave(asker)
            if not isinstance(ended, TimeoutError):
                raise
            raise RequestError(
                "TOO_MANY_ANSWERS",
                f"The server makes {self._most} large answers at one time, and this one waited {seconds:g} seconds for its turn.",
                hint="Try again later, or ask for fewer rows; the server's operator sets --max-large-answers.",
                maximum=self._most,
                retry_after_seconds=1.0,
            ) from None

    def _leave(self, asker: str) -> None:
        self._taken[asker] -= 1
        if not self._taken[asker]:
            del self._taken[asker]
        self._go_on()

    def _go_on(self) -> None:
        while self._line and self._taken.total() < self._most:
            turn = min(self._line, key=lambda turn: self._taken[self._line[turn]])
            asker = self._line.pop(turn)
            self._taken[asker] += 1
            if turn.cancelled():  # the waiting request is about to leave, and will find its turn gone
                continue
            turn.set_result(None)


class Looks:
    """Work that is done once at a time for each key: further requests wait here, before they take a turn."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def alone(self, key: Hashable, seconds: float) -> AsyncIterator[None]:
        """A context that nobody else has with this key.  Raises TOO_MANY_ANSWERS if others have it for so many seconds."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError:
            raise RequestError(
                "TOO_MANY_ANSWERS",
                f"Others ask the same, and this request waited {seconds:g} seconds for their answer.",
                hint="Try again later.",
                retry_after_seconds=1.0,
            ) from None
        try:
            yield
        finally:
            lock.release()


class Quota:
    """Limits how many of something there may be at one time, in all and per client; none before `use`.

    condition:  of the error for one too many
    what:       a name of these things, for people
    option:     the option that sets the limit
    """

    def __init__(self, condition: str, what: str, *, option: str) -> None:
        self._most = self._per_client = 0
        self._condition, self._what, self._option = condition, what, option
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._taken.total()

    def use(self, most: int, per_client: int) -> None:
        """Allow so many from here on; existing ones stay."""
        self._most, self._per_client = most, per_client

    @contextlib.contextmanager
    def taken(self, asker: str) -> Iterator[None]:
        """A context that counts one more.  Raises the quota's condition."""
        of_client = self._taken[asker] >= self._per_client
        if of_client or len(self) >= self._most:
            most = self._per_client if of_client else self._most
            raise RequestError(
                self._condition,
                f"There may be {most} {self._what} at one time{' for each client' if of_client else ''}.",
                hint=f"End some, or try again later; the server's operator sets {self._option}.",
                maximum=most,
                retry_after_seconds=1.0,
            )
        self._taken[asker] += 1
        try:
            yield
        finally:
            self._taken[asker] -= 1
            if not self._taken[asker]:
                del self._taken[asker]


class Room:
    """Limits the bytes of what requests keep, in all and for each client; none before `use`."""

    def __init__(self) -> None:
        self._most = 0
        self._taken: Counter[str] = Counter()

    def use(self, most: int) -> None:
        """Allow so many from here on: to all, and half of them to one client."""
        self._most = most

    def keep(self, asker: str, before: int, size: int) -> None:
        """Count so many bytes in place of those before.  Raises ANSWER_TOO_LARGE."""
        is_too_much = self._taken.total() - before + size > self._most or self._taken[asker] - before + size > self._most // 2
        if size > before and is_too_much:
            raise RequestError(
                "ANSWER_TOO_LARGE",
                f"The answers of subscriptions may take {self._most} bytes in all, and half of that for each client.",
                hint="Subscribe to fewer rows, by a filter or by groups; the server's operator sets --max-answer-bytes.",
                maximum_bytes=self._most,
            )
        self._taken[asker] += size - before
        if not self._taken[asker]:
            del self._taken[asker]


def _take_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
