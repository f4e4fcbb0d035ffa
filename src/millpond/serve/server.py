"""Run the HTTP door: take the port, announce the address, drain at SIGTERM.

The socket is bound before anything else is started, so that a taken port costs no bootstrap.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from millpond.errors import SetupError, library_missing
from millpond.settings import ServeSettings

if TYPE_CHECKING:
    from millpond.tables.pond import Pond

_BACKLOG = 2048


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket.  `port` 0 takes a free one.

    Raises:  PORT_TAKEN where the address is in use, or can't be had on this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as refused:
        taken = isinstance(refused, OSError) and refused.errno == errno.EADDRINUSE
        reason = "is taken by another program" if taken else f"can't be had: {refused}"
        raise SetupError(
            "PORT_TAKEN",
            f"The address {host}:{port} {reason}.",
            hint="Name another with --host and --port; --port 0 takes a free one.",
            host=host,
            port=port,
        ) from refused
    # Connections inherit it.  asyncio sets it only on sockets whose protocol number is given; without it, head and body of an
    # answer are two packets, and the second waits 40 ms for the acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_http(
    pond: Pond, listener: socket.socket, *, settings: ServeSettings | None = None, on_ready: Callable[[], None] = lambda: None
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; requests that run then are answered within `drain_seconds`.

    on_ready:  called once, when requests are answered
    Raises:    LIBRARY_MISSING without `millpond[serve]`.
    """
    try:
        import uvicorn

        from millpond.serve.app import create_app
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library not in ("uvicorn", "starlette"):
            raise
        raise library_missing(library, "serve") from missing
    settings = settings or ServeSettings()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            on_ready()

    config = uvicorn.Config(
        create_app(pond, settings=settings),
        lifespan="off",
        log_level="warning",
        access_log=False,  # keys stand in URLs, and keys are nobody's business
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    with _ending_at_sigterm(), contextlib.suppress(KeyboardInterrupt):
        Server(config).run(sockets=[listener])


@contextlib.contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """uvicorn drains at SIGTERM, then raises the signal again for whoever had it before; here, that was all there is to do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
