"""Run the HTTP door: take the port, announce the address, drain at SIGTERM.

The socket is bound before anything else is started, so that a taken port costs no bootstrap.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.errors import SetupError, library_missing
from millpond.serve.meter import Meter
from millpond.settings import ServeSettings

if TYPE_CHECKING:
    from millpond.serve.ponds import Ponds

_BACKLOG = 2048
_SWITCH_SECONDS = 0.0002
# How often a process leaves its counts for the others.
_METER_SECONDS = 1.0


def open_listener(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket.  `port` 0 takes a free one.

    shared:  others of this program may listen at the same address; the system shares connections out
    Raises:  PORT_TAKEN where the address is in use, or can't be had on this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG, reuse_port=shared)
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


def address_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The URL of a listening socket."""
    scheme = "https" if tls else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_libraries() -> None:
    """Raises LIBRARY_MISSING without `millpond[serve]`."""
    for library in ("starlette", "uvicorn", "httptools", "uvloop", "prometheus_client"):
        try:
            __import__(library)
        except ModuleNotFoundError as missing:
            raise library_missing(library.replace("_", "-"), "serve") from missing


def check_certificate(settings: ServeSettings) -> None:
    """Raises INVALID_CERTIFICATE where TLS is asked for and can't be had."""
    import ssl

    if settings.tls_cert is None and settings.tls_key is None:
        return
    try:
        if settings.tls_cert is None or settings.tls_key is None:
            raise ValueError("certificate and key go together")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except (OSError, ValueError) as wrong:
        raise SetupError(
            "INVALID_CERTIFICATE",
            f"TLS can't be offered: {wrong}.",
            hint="Name PEM files that belong together with --tls-cert and --tls-key; the key has no password.",
        ) from wrong


def serve_http(
    ponds: Ponds,
    listener: socket.socket,
    *,
    settings: ServeSettings | None = None,
    shared: Path | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; requests that run then are answered within `drain_seconds`.

    shared:    the folder where processes of one server leave what the others need, None where there is one process
    on_ready:  called once, when requests are answered
    Raises:    LIBRARY_MISSING without `millpond[serve]`; INVALID_TOKENS.
    """
    check_libraries()
    import uvicorn

    from millpond.serve.access import Access
    from millpond.serve.app import HttpDoor, create_app
    from millpond.serve.hot import HotRows, hot_protocol
    from millpond.serve.neighbours import Neighbours

    settings, counts = settings or ServeSettings(), Meter(shared, log_requests=settings.log_requests)
    drain_seconds, neighbours = settings.drain_seconds, Neighbours(shared, settings.max_seconds)
    door = HttpDoor(ponds, settings, counts, Access(settings, shared), neighbours)
    app, behind_gate = create_app(door)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await neighbours.listen(behind_gate)
            await super().startup(sockets=sockets)
            if counts.is_shared:
                self._writing = asyncio.get_running_loop().create_task(_write_counts(counts))
            on_ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets=sockets)
            await neighbours.close(drain_seconds)

    config = uvicorn.Config(
        app,
        http=hot_protocol(HotRows(door)),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,  # as all of this process: see `logs`
        access_log=False,  # keys stand in URLs, and keys are nobody's business
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.drain_seconds,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    # Whoever follows in this process needs Python's lock for each of its steps, and would wait 5 ms for each while requests come.
    sys.setswitchinterval(_SWITCH_SECONDS)
    server = Server(config)
    door.is_ending = lambda: server.should_exit
    with _ending_at_sigterm(), contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    counts.write()


async def _write_counts(meter: Meter) -> None:
    while True:
        await asyncio.sleep(_METER_SECONDS)
        meter.write()


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
