"""One request of one of several servers, as `router.servers` asks them, on connections that stay open.

1. Those that failed a moment ago come last.
2. If a server hasn't answered after a while, the next one is asked as well; the first answer
   counts, and those who were slower come last for a while.
3. Without an answer after a second, or if no server is left, the slow way has its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millpond.errors import MillpondError
from millpond.router.quick.lines import Answer, Line, Lines
from millpond.router.servers import Server, in_order
from millpond.settings import RouterSettings

_PATIENCE_SECONDS = 1.0


class QuickServers:
    """Asks servers from an event loop.

    patience_seconds:  the most time for an answer
    """

    def __init__(
        self, settings: RouterSettings, loop: asyncio.AbstractEventLoop, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self.settings = settings
        self.patience_seconds = patience_seconds
        self.loop = loop
        self._lines: dict[Server, Lines] = {}

    async def try_ask(self, servers: Sequence[Server], path: bytes, body: bytes | None) -> Answer | None:
        """The good answer of one of the servers to a read; None if there is none in time.

        path:  with the query
        body:  of a POST, in JSON; None for a GET
        """
        asking = _Asking(self, servers, path, body)
        try:
            asking.next()
            return await asking.found
        finally:
            asking.end()

    def lines(self, server: Server) -> Lines:
        """The connections to a server."""
        found = self._lines.get(server)
        if found is None:
            found = self._lines[server] = Lines(server.transport.address(), self.loop)
        return found

    def close(self) -> None:
        """End all connections."""
        for each in self._lines.values():
            each.close()


class _Asking:
    """One request, until it is answered."""

    def __init__(self, owner: QuickServers, servers: Sequence[Server], path: bytes, body: bytes | None) -> None:
        self.found: asyncio.Future[Answer | None] = owner.loop.create_future()
        self.is_done = False
        self._owner = owner
        self._left = in_order(servers) if len(servers) > 1 else list(servers)
        self._path, self._body = path, body
        self._asked: dict[Lines, tuple[Server, int]] = {}
        self._running: dict[Lines, Line | None] = {}
        self._ends = owner.loop.time() + owner.patience_seconds
        self._timer: asyncio.TimerHandle | None = None

    def next(self) -> None:
        """Ask the next server."""
        server = self._left.pop(0)
        lines = self._owner.lines(server)
        self._asked[lines] = server, server.rests
        self._running[lines] = None
        if self._timer is not None:
            self._timer.cancel()
        left = self._ends - self._owner.loop.time()
        wait = min(left, self._owner.settings.hedge_seconds) if self._left else left
        self._timer = self._owner.loop.call_later(max(0.0, wait), self._waited)
        lines.ask(self._request(lines), self)

    def _request(self, lines: Lines) -> bytes:
        address, body = lines.address, self._body
        if body is None:
            return b"GET %b%b HTTP/1.1\r\n%b\r\n" % (address.path, self._path, lines.headers)
        kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        return b"POST %b%b HTTP/1.1\r\n%b%b%b" % (address.path, self._path, lines.headers, kind, body)

    def _waited(self) -> None:
        if self._left and self._owner.loop.time() < self._ends:  # 2
            self.next()
        else:  # 3
            self._finish(None)

    def _finish(self, answer: Answer | None) -> None:
        if not self.found.done():
            self.found.set_result(answer)

    def end(self) -> None:
        """Nobody waits any more."""
        self.is_done = True
        if self._timer is not None:
            self._timer.cancel()
        for line in list(self._running.values()):
            if line is not None:
                line.leave()

    # ------------------------------------------------------------ what the connections tell

    def took(self, line: Line) -> None:
        self._running[line.lines] = line

    def answered(self, line: Line, answer: Answer) -> None:
        del self._running[line.lines]
        if answer.status != 200:
            self._finish(None)
        if self.found.done():
            return
        self.is_done = True
        server, rests = self._asked[line.lines]
        server.answered(rests)
        for slower in self._running:
            self._asked[slower][0].overtaken(self._owner.settings.rest_seconds)
        self._finish(answer)

    def lost(self, lines: Lines, error: MillpondError) -> None:
        del self._running[lines]
        self._asked[lines][0].failed(error, self._owner.settings.rest_seconds)
        if self._left:
            self.next()
        elif not self._running:
            self._finish(None)
