"""Connections of the client that waits, by httpcore.  The only module that imports it.

httpx is built on httpcore, and does more for each request than a small read needs.
"""

from __future__ import annotations

import gzip
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from millpond.client.exchange import Reply, Request, closed, not_a_server, unavailable
from millpond.errors import library_missing

try:
    import httpcore
except ModuleNotFoundError as missing:
    raise library_missing("httpcore", "client") from missing

_IDLE_SECONDS = 5.0
_BROKEN = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, httpcore.ConnectionNotAvailable)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens.

    tls:      None without TLS
    path:     of the server, which comes before that of a request
    headers:  that each request has, by name
    """

    host: str
    port: int
    tls: ssl.SSLContext | None
    path: bytes
    headers: Mapping[str, str]


class Connections:
    """Connections to a server, of which the one that was used last is used next.  Threads may share them."""

    def __init__(self, address: Address) -> None:
        self._scheme = b"https" if address.tls is not None else b"http"
        self._origin = httpcore.Origin(self._scheme, address.host.encode("ascii"), address.port)
        self._tls, self._path = address.tls, address.path
        self._headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in address.headers.items()]
        self._headers += [(b"accept-encoding", b"gzip"), (b"user-agent", f"millpond/{version('millpond')}".encode("ascii"))]
        self._free: list[httpcore.HTTPConnection] = []
        self._is_closed = False

    def ask(self, request: Request, seconds: float) -> Reply:
        """The reply to a request.

        seconds:  for each step: to connect, to send, to wait for the next bytes
        Raises:   SERVER_UNAVAILABLE, NOT_A_SERVER, REPLICA_CLOSED.
        """
        headers = [*self._headers, (b"accept", request.accept.encode("ascii"))]
        if request.body is not None:
            headers.append((b"content-length", b"%d" % len(request.body)))
        target = self._path + request.path.encode("ascii")
        url = httpcore.URL(scheme=self._scheme, host=self._origin.host, port=self._origin.port, target=target)
        timeout = {"connect": seconds, "read": seconds, "write": seconds}
        asked = httpcore.Request(request.method, url, headers=headers, content=request.body, extensions={"timeout": timeout})
        connection = self._take()
        try:
            answer = connection.handle_request(asked)
            try:
                body = answer.read()
            finally:
                answer.close()
        except _BROKEN as broken:
            raise unavailable(str(broken) or type(broken).__name__) from None
        finally:
            self._give_back(connection)
        found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
        return Reply(answer.status, found, _unpacked(body, found.get("content-encoding", "")))

    def close(self) -> None:
        """Close them; those in use are closed by their threads."""
        self._is_closed = True
        while self._free:
            self._free.pop().close()

    def _take(self) -> httpcore.HTTPConnection:
        while not self._is_closed:
            try:
                connection = self._free.pop()
            except IndexError:
                return httpcore.HTTPConnection(self._origin, ssl_context=self._tls, keepalive_expiry=_IDLE_SECONDS)
            if not connection.has_expired():
                return connection
            connection.close()
        raise closed()

    def _give_back(self, connection: httpcore.HTTPConnection) -> None:
        if connection.is_idle():
            self._free.append(connection)
        else:
            connection.close()
        if self._is_closed:
            self.close()


def _unpacked(body: bytes, encoding: str) -> bytes:
    """Raises NOT_A_SERVER."""
    kind = encoding.strip().lower()
    if kind in ("", "identity"):
        return body
    if kind not in ("gzip", "x-gzip"):
        raise not_a_server(f"it answers in the encoding {encoding[:40]!r}, for which nobody has asked")
    try:
        return gzip.decompress(body)
    except (OSError, EOFError, zlib.error) as wrong:
        raise not_a_server(f"its answer can't be unpacked: {wrong}") from None
