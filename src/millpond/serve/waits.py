"""Requests that wait for a batch or a table, and streams of changes, with one poll for all.

For each job with waiting requests, one thread polls for a new batch, and wakes all.  Until then,
waiting costs nothing.  The changes for streams of one table are read and written once for all
streams at the same place.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from millpond.catalogue import ARRIVAL_SECONDS
from millpond.errors import MillpondError, RequestError
from millpond.replica.replica import Replica

Result = TypeVar("Result")
# The time between two polls; a replica that this process follows wakes sooner.
_LOOK_SECONDS = 0.05
# A watch continues for so long after the last request that waited.
_QUIET_LOOKS = 40


class Watch:
    """The batches of one job, for those that wait.

    count:  grows with each new batch, and whenever the job becomes unreadable or readable again
    batch:  the newest that can be read, None if none can
    """

    def __init__(self, replica: Replica) -> None:
        self.count = 0
        self.batch: int | None = None
        self._replica = replica
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
            task.add_done_callback(_take_error)
        found: Result = await asyncio.shield(task)
        return found

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
        last: object = None
        quiet = 0
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while quiet < _QUIET_LOOKS:
                quiet = 0 if self._waiting else quiet + 1
                batch, state = self._look()
                if (batch, state) != last:
                    last = batch, state
                    self._loop.call_soon_threadsafe(self._wake, batch)
                self._replica.wait_for_step(_LOOK_SECONDS)
            self._loop.call_soon_threadsafe(self._ended)

    def _look(self) -> tuple[int | None, str]:
        try:
            with self._replica.snapshot() as view:
                return view.record.batch, view.generation
        except MillpondError as error:
            return None, error.condition


def _take_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class Watches:
    """A watch for each job with waiting requests."""

    def __init__(self) -> None:
        self._watches: dict[Replica, Watch] = {}

    def of(self, replica: Replica) -> Watch:
        """The watch of a job's replica."""
        watch = self._watches.get(replica)
        if watch is None:
            self._watches = {r: w for r, w in self._watches.items() if w.is_used}
            watch = self._watches[replica] = Watch(replica)
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
