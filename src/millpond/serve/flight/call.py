"""One call of a client, in a thread of gRPC's, with the limits that it shares with the other doors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.errors import MillpondError, RequestError
from millpond.serve.access.tokens import EVERYBODY
from millpond.serve.app import check_reader
from millpond.serve.asked import BOUNDS, bounds_of_texts
from millpond.serve.flight.errors import Cancelled, NotTaken
from millpond.serve.flight.login import NAME, Caller, find_caller
from millpond.serve.flight.tickets import Handle
from millpond.tables.table import Table

if TYPE_CHECKING:
    from millpond.serve.app import HttpDoor

Result = TypeVar("Result")
_CHECK_SECONDS = 0.5
_GONE, _FAILED = 499, 500


class Call:
    """See the module.

    is_cancelled: whether the client has cancelled it
    asker:      the client whose calls count together
    handle:     the number of the statement that it answers
    whole:      the table that it reads without a process, which counts for itself
    given_at:   when gRPC got the last record batch; None while it waits for one
    """

    def __init__(self, door: HttpDoor, loop: asyncio.AbstractEventLoop, context: Any, address: str) -> None:
        self.door, self._loop, self._context, self.address = door, loop, context, address
        self.caller = Caller(EVERYBODY, "")
        self.asker = address
        self.handle = ""
        self.whole: tuple[str, ...] = ()
        self.given_at: float | None = None
        self.resources = ExitStack()
        self._lock = threading.Lock()
        self._is_over = self.is_cancelled = False
        self._began = self._checked_at = time.monotonic()
        self._to_end: list[Callable[[], object]] = []
        self._to_leave: list[Callable[[], None]] = []
        self._has_left = False
        self._tables: set[str] = set()
        found = context.get_middleware(NAME)
        self.headers: dict[str, str] = {} if found is None else found.headers

    def admit(self) -> None:
        """Let the client in, and count its call.  Raises TOKEN_NEEDED, TOO_MANY_REQUESTS."""
        access = self.door.access
        try:
            self.caller = find_caller(access, self.headers.get("authorization"))
        except RequestError:
            access.count_failure(self.address)
            raise
        if self.caller.reader is not EVERYBODY:
            self.asker = f"reader {self.caller.reader.name}"
        access.count(self.caller.reader, self.address)

    # ------------------------------------------------------------ what it asks

    @property
    def at(self) -> int | str | None:
        """The batch or time of tables that don't name one."""
        value = self.headers.get("millpond-at", "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value or None

    @property
    def separate(self) -> bool:
        """Whether tables of several jobs may be of batches that end at different offsets."""
        return self.headers.get("millpond-separate", "").lower() in ("true", "on", "1")

    @property
    def bounds(self) -> dict[str, str]:
        """What tables must reflect, each as a text.  Raises INVALID_BOUND, INVALID_REQUEST."""
        texts = {each: self.headers.get(f"millpond-{each.replace('_', '-')}", "") for each in BOUNDS}
        given = {name: text for name, text in texts.items() if text}
        bounds_of_texts(given.get, self.door.settings)
        return given

    def table(self, name: str) -> Table:
        """The table of a name, which this call reads from here on.  Raises NOT_ALLOWED, UNKNOWN_TABLE."""
        found = self.door.named(name, self.caller.reader)
        self._tables.add(name)
        return found

    # ------------------------------------------------------------ limits

    def wait(self, coming: Awaitable[Result]) -> Result:
        """What a coroutine of the loop gives.  Raises Cancelled, and its errors."""
        future: concurrent.futures.Future[Result] = asyncio.run_coroutine_threadsafe(_run(coming), self._loop)
        self.when_cancelled(future.cancel)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Cancelled from None

    def hold(self, coming: Awaitable[Callable[[], None]]) -> None:
        """Wait for a place on the loop, and give it back when the call ends.

        coming:  gives the function that gives the place back
        Raises:  as `wait`
        """
        self.wait(self._hold(coming))

    def take(self, quota: Any) -> None:
        """Count it in a quota until it ends.  Raises the quota's condition."""

        async def enter() -> Callable[[], None]:
            stack = ExitStack()
            stack.enter_context(quota.taken(self.asker))
            return stack.close

        self.hold(enter())

    async def _hold(self, coming: Awaitable[Callable[[], None]]) -> None:
        leave = await coming
        if self._has_left:  # it was cancelled at that moment
            leave()
        else:
            self._to_leave.append(leave)

    def _leave(self) -> None:
        """On the loop, as `_hold`, so that nothing is held for ever."""
        self._has_left = True
        for leave in self._to_leave:
            leave()
        self._to_leave.clear()

    def check(self) -> None:
        """Raise Cancelled, TOKEN_NEEDED or NOT_ALLOWED if the answer may not go on."""
        if self.is_cancelled:
            raise Cancelled
        if self.door.access.needs_token and time.monotonic() - self._checked_at > _CHECK_SECONDS:
            self._checked_at = time.monotonic()
            reader = self.door.access.reader_of(self.caller.sha256)
            for name in self._tables:
                check_reader(self.door.ponds, reader, name)

    # ------------------------------------------------------------ the end

    def when_cancelled(self, end: Callable[[], object]) -> None:
        """Call a function if the client cancels; at once if it has."""
        self._to_end.append(end)
        if self.is_cancelled:
            end()

    def cancel(self) -> None:
        """End it soon, from any thread."""
        self.is_cancelled = True
        for end in list(self._to_end):
            end()

    def look(self) -> None:
        """Cancel it if its client has."""
        with self._lock:  # gRPC's context is there only until the call is over
            is_cancelled = not self._is_over and not self.is_cancelled and self._context.is_cancelled()
        if is_cancelled:
            self.cancel()

    def close(self, error: BaseException | None) -> bool:
        """Let go of all that it has.  False if that was done before."""
        with self._lock:
            if self._is_over:
                return False
            self._is_over = True
            self._context = None
        try:
            self.resources.close()
        finally:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._leave)
        status = 200
        if isinstance(error, MillpondError | NotTaken):
            status = 400
        elif error is not None:
            status = _GONE if isinstance(error, Cancelled | GeneratorExit) else _FAILED
        seconds = time.monotonic() - self._began
        count = partial(self.door.meter.count, "flight", status, seconds, tables=self.whole if status == 200 else ())
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(count)
        return True

    def handle_of(self, text: str) -> Handle:
        """A statement with all that its answer depends on.  Raises as `bounds`."""
        return Handle(
            use="prepared",
            number="",
            reader=self.caller.sha256,
            ends=0,
            text=text,
            at=self.at,
            bounds=self.bounds,
            separate=self.separate,
        )


async def _run(coming: Awaitable[Result]) -> Result:
    return await coming
