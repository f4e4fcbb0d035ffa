"""Runs the router's door in one process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
from collections.abc import Callable

from millpond.router.door import RouterDoor
from millpond.router.pond import ShardedPond
from millpond.router.quick.asking import QuickServers
from millpond.serve.access.access import Access
from millpond.serve.connections.pool import Connections
from millpond.serve.metrics.counts import Meter
from millpond.serve.process.server import check_libraries, note_load, open_certificate
from millpond.serve.process.signals import ENDING, say_end
from millpond.settings import ServeSettings


class _NothingHot:
    """A router has no rows of its own, so that each request goes through the application."""

    def plain(self, _headers: object) -> dict[bytes, bytes] | None:
        """See `Hot`."""
        return None

    def answer(self, _url: bytes, _headers: object, _client: str) -> bytes | None:
        """None: the application must answer."""
        return None

    def answer_sql(self, _headers: object, _body: bytes, _client: str) -> bytes | None:
        """The same."""
        return None


def route_http(pond: ShardedPond, listener: socket.socket, settings: ServeSettings, *, on_ready: Callable[[], None]) -> None:
    """Answer requests; running ones then have `drain_seconds` to end.

    Raises:  LIBRARY_MISSING without `millpond[serve]`; INVALID_TOKENS, INVALID_CERTIFICATE.
    """
    check_libraries()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_answer(pond, listener, settings, on_ready))


async def _answer(pond: ShardedPond, listener: socket.socket, settings: ServeSettings, on_ready: Callable[[], None]) -> None:
    meter = Meter(None, log_requests=settings.log_requests)
    access, ending = Access(settings), asyncio.Event()
    quick = QuickServers(pond.settings, asyncio.get_running_loop())
    door = RouterDoor(pond, settings, access, meter, quick)
    app = door.app()
    refused = functools.partial(meter.count, "none", seconds=0.0)
    connections = Connections(app, _NothingHot(), settings, tls=open_certificate(settings), count=refused)
    meter.note_load = functools.partial(note_load, connections, door.patience)

    def end(number: int) -> None:
        if not ending.is_set():
            say_end(number)
        door.is_ending = True
        ending.set()

    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(signal.SIGHUP, access.reload)
    with listener:
        connections.start(listener)
        on_ready()
        await ending.wait()
        connections.stop_taking()
    await connections.close(settings.drain_seconds)
    quick.close()
    await asyncio.to_thread(door.statements.close)
