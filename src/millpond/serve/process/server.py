"""Runs the HTTP door: bind the port, print the address, drain at SIGTERM, read files again at SIGHUP.

The socket is bound first, so that a taken port costs no build.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from millpond.errors import MillpondError, RequestError, SetupError, library_missing
from millpond.logs import EventLog
from millpond.serve.metrics.counts import Meter, Process
from millpond.serve.process.signals import ENDING, Terminal, say_end, unblock_hangups
from millpond.settings import ServeSettings

if TYPE_CHECKING:
    from millpond.serve.connections.beside import DoorBeside, Listeners
    from millpond.serve.connections.pool import Connections
    from millpond.serve.ponds import Ponds
    from millpond.serve.waiting.patience import Patience

log = EventLog(__name__)
_BACKLOG = 2048
_SWITCH_SECONDS = 0.0002
# How often a process writes its counts for the others.
_METER_SECONDS = 1.0
# OpenTelemetry's own variable and default for the time between two pushes.
_PUSH_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"
_PUSH_MS = 60_000
# Settings that can't change while the server runs, since something was bound, opened or started by
# them.
_STAYING = (
    "host",
    "port",
    "redis_port",
    "postgres_port",
    "flight_port",
    "workers",
    "tls_cert",
    "tls_key",
    "max_seconds",
    "log_level",
    "log_format",
    "log_requests",
    "otlp",
)


def open_listener(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket.  `port` 0 takes a free one.

    shared:  whether other processes of the server may listen at the same address; the system
             distributes connections
    Raises:  PORT_TAKEN if the address is in use, or isn't available on this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG, reuse_port=shared)
    except (OSError, OverflowError) as refused:
        taken = isinstance(refused, OSError) and refused.errno == errno.EADDRINUSE
        reason = "is taken by another program" if taken else f"isn't available: {refused}"
        raise SetupError(
            "PORT_TAKEN",
            f"The address {host}:{port} {reason}.",
            hint="Name another with --host and --port; --port 0 takes a free one.",
            host=host,
            port=port,
        ) from refused
    # Connections inherit it. asyncio sets it only on sockets whose protocol number is given;
    # without it, head and body of an answer are two packets, and the second waits 40 ms for the
    # acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The URL of a listening socket."""
    scheme = "https" if tls else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_libraries() -> None:
    """Raises LIBRARY_MISSING without `millpond[serve]`."""
    for library in ("starlette", "httptools", "uvloop", "prometheus_client"):
        try:
            __import__(library)
        except ModuleNotFoundError as missing:
            raise library_missing(library.replace("_", "-"), "serve") from missing


def check_flight() -> None:
    """Raises LIBRARY_MISSING without `millpond[flight]`."""
    try:
        import pyarrow.flight  # noqa: F401
    except ImportError as missing:
        raise library_missing("pyarrow", "flight") from missing
    try:
        import google.protobuf  # noqa: F401
    except ImportError as missing:
        raise library_missing("protobuf", "flight") from missing


def check_otlp(endpoint: str) -> float:
    """The seconds between two pushes of metrics.

    Raises:  LIBRARY_MISSING without `millpond[otlp]`; INVALID_REQUEST if the endpoint is no http
             address, or OTEL_METRIC_EXPORT_INTERVAL isn't a number of milliseconds.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http.metric_exporter  # noqa: F401
    except ImportError as missing:
        raise library_missing("opentelemetry-exporter-otlp-proto-http", "otlp") from missing
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise RequestError(
            "INVALID_REQUEST",
            f"{endpoint!r:.200} isn't the address of a collector.",
            hint="Name its OTLP/HTTP endpoint: --otlp http://localhost:4318",
        )
    text = os.environ.get(_PUSH_VARIABLE, "") or str(_PUSH_MS)
    if not text.isdecimal() or not 0 < int(text) < 1 << 40:
        raise RequestError(
            "INVALID_REQUEST",
            f"{_PUSH_VARIABLE} is {text!r:.50}.",
            hint="Give a number of milliseconds, such as 60000, or unset it.",
        )
    return int(text) / 1000


def open_certificate(settings: ServeSettings, *, protocol: str = "http/1.1") -> ssl.SSLContext | None:
    """The TLS context; None without TLS.  Raises INVALID_CERTIFICATE if the files can't be used.

    protocol:  that connections speak (ALPN)
    """
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    _load_certificate(context, settings)
    return context


def _load_certificate(context: ssl.SSLContext, settings: ServeSettings) -> None:
    try:
        if settings.tls_cert is None or settings.tls_key is None:
            raise ValueError("certificate and key are needed together")
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except (OSError, ValueError) as wrong:
        raise SetupError(
            "INVALID_CERTIFICATE",
            f"TLS isn't possible: {wrong}.",
            hint="Give PEM files that belong together with --tls-cert and --tls-key; the key must have no password.",
        ) from wrong


def serve_http(
    ponds: Ponds,
    listeners: Listeners,
    *,
    settings: ServeSettings | None = None,
    shared: Path | None = None,
    read_again: Callable[[], ServeSettings] | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; running requests then have `drain_seconds` to end.

    shared:    the folder that the processes of one server share; None for a single process
    read_again: returns the present settings, for SIGHUP; None if they don't change
    on_ready:  called once, when the door answers requests
    Raises:    LIBRARY_MISSING without `millpond[serve]`; INVALID_TOKENS, INVALID_CERTIFICATE.
    """
    check_libraries()
    import uvloop

    # A follower in this process needs Python's lock for each of its steps, and would wait 5 ms each
    # time while requests arrive.
    sys.setswitchinterval(_SWITCH_SECONDS)
    door = _Door(ponds, settings or ServeSettings(), shared, read_again)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(door.answer(listeners, on_ready))


class _Door:
    """The door of one process."""

    def __init__(
        self, ponds: Ponds, settings: ServeSettings, shared: Path | None, read_again: Callable[[], ServeSettings] | None
    ) -> None:
        from millpond.serve.access.access import Access
        from millpond.serve.app import HttpDoor, create_app
        from millpond.serve.forwarding import Neighbours
        from millpond.serve.operations import Operations

        self._settings, self._shared = settings, shared
        self._counts = Meter(shared, log_requests=settings.log_requests)
        ponds.reads = self._counts.reads
        self._access = Access(settings, shared)
        self._neighbours = Neighbours(shared, settings.max_seconds)
        self._operations = Operations(ponds, settings, shared)
        self._door = HttpDoor(ponds, settings, self._counts, self._access, self._neighbours, self._operations)
        self._app, self._behind_gate = create_app(self._door)
        self._tls = open_certificate(settings)
        self._flight_tls: ssl.SSLContext | None = None
        self._read_again = read_again
        self._ending: asyncio.Event
        self._connections: Connections

    async def answer(self, listeners: Listeners, on_ready: Callable[[], None]) -> None:
        """Answer until the server ends, then drain."""
        from millpond.serve.connections.pool import Connections
        from millpond.serve.hot.protocol import HotRows

        self._ending = asyncio.Event()
        await self._neighbours.listen(self._behind_gate)
        refused = functools.partial(self._counts.count, "none", seconds=0.0)
        connections = self._connections = Connections(self._app, HotRows(self._door), self._settings, tls=self._tls, count=refused)
        self._counts.note_load = functools.partial(note_load, connections, self._door.patience)
        self._mind_signals()
        with listeners.http:
            connections.start(listeners.http)
            beside = await self._open_beside(listeners)
            writing = asyncio.create_task(_write_counts(self._counts)) if self._counts.is_shared else None
            on_ready()
            with nullcontext() if self._counts.is_shared else pushing(self._door.ponds, self._counts, self._settings):
                await self._ending.wait()
                connections.stop_taking()
        self._door.end()
        await asyncio.to_thread(self._operations.close, self._settings.drain_seconds)
        await asyncio.gather(*(each.close(self._settings.drain_seconds) for each in beside))
        await connections.close(self._settings.drain_seconds)
        await self._neighbours.close(self._settings.drain_seconds)
        await asyncio.to_thread(self._door.statements.close)
        if writing is not None:
            writing.cancel()
        self._counts.write()

    async def _open_beside(self, listeners: Listeners) -> list[DoorBeside[Any]]:
        """The doors beside HTTP's, which answer from here on."""
        opened: list[DoorBeside[Any]] = []
        if listeners.redis is not None:
            from millpond.serve.redis.door import RedisDoor

            opened.append(RedisDoor(self._door))
            await opened[-1].start(listeners.redis, self._tls)
        if listeners.postgres is not None:
            from millpond.serve.postgres.door import PostgresDoor

            opened.append(PostgresDoor(self._door, self._tls, self._shared))
            await opened[-1].start(listeners.postgres)
        if listeners.flight is not None:
            from millpond.serve.flight.door import FlightDoor

            self._flight_tls = open_certificate(self._settings, protocol="h2")
            opened.append(FlightDoor(self._door, self._shared))
            await opened[-1].start(listeners.flight, self._flight_tls)
        return opened

    def _mind_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload, Terminal())
        unblock_hangups()

    def _end(self, number: int) -> None:
        if not self._counts.is_shared and not self._ending.is_set():
            say_end(number)  # of several processes, the parent says it
        self._ending.set()

    def _reload(self, terminal: Terminal) -> None:
        if terminal.is_gone:
            self._end(signal.SIGHUP)
            return
        try:
            if self._read_again is not None:
                self._use(self._read_again())
        except MillpondError as wrong:
            log.error("config.unreadable", condition=wrong.condition, message=wrong.message, hint=wrong.hint)
        self._access.reload()
        for context in (self._tls, self._flight_tls):
            if context is None:
                continue
            try:
                _load_certificate(context, self._settings)
            except SetupError as wrong:
                log.error("certificate.unreadable", condition=wrong.condition, message=wrong.message, hint=wrong.hint)

    def _use(self, now: ServeSettings) -> None:
        """Use those of these settings that can change.  Raises OPEN_TO_ALL, INVALID_TOKENS."""
        from millpond.serve.access.access import check_exposure

        before = self._settings
        staying = {name: getattr(before, name) for name in _STAYING}
        wanting = [name for name, value in staying.items() if value != getattr(now, name)]
        if wanting:
            log.warning("config.waits", settings=wanting, message="these apply from the next start on")
        settings = replace(now, **staying)
        check_exposure(settings)
        self._access.use(settings)
        self._settings = settings
        self._door.use(settings)
        self._connections.use(settings)


def note_load(connections: Connections, patience: Patience, process: Process) -> None:
    """How much this process has open now: for `Meter.note_load`."""
    process.connections, process.streams, process.waits = len(connections), len(patience.streams), len(patience.waits)


def pushing(ponds: Ponds, meter: Meter, settings: ServeSettings) -> AbstractContextManager[object]:
    """Pushes the metrics of these ponds and counts to the collector, if the settings name one."""
    if settings.otlp is None:
        return nullcontext()
    seconds = check_otlp(settings.otlp)
    from millpond.serve.metrics.otlp import Push
    from millpond.serve.metrics.prometheus import collectors

    def families() -> Iterator[Any]:
        statistics = ponds.statistics()
        meter.note_followers(statistics)
        counts = meter.total()
        for part in collectors(ponds.with_reads(statistics, dict(counts.reads)), counts, ponds.samples()):
            yield from part.collect()

    return Push(settings.otlp, families, seconds=seconds, started=meter.counts.process.started)


async def _write_counts(meter: Meter) -> None:
    while True:
        await asyncio.sleep(_METER_SECONDS)
        meter.write()
