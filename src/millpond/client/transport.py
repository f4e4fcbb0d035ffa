"""Requests over HTTP, waiting (by httpcore) or not (by httpx).  The only module that imports httpx."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from millpond.client.connections import Address, Connections
from millpond.client.exchange import Exchange, Reply, Request, Retries, closed, error_of, not_a_server, unavailable
from millpond.errors import MillpondError, RequestError, StorageError, library_missing
from millpond.settings import ClientSettings

try:
    import httpx
except ModuleNotFoundError as missing:
    raise library_missing("httpx", "client") from missing

Result = TypeVar("Result")


class _Session:
    """The address and settings of both kinds of client."""

    def __init__(self, url: str, token: str | None, verify: Any, settings: ClientSettings) -> None:
        self._parsed = _parsed(url)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise RequestError(
                "INVALID_REQUEST",
                "The token has characters that no token has.",
                hint="Copy it whole, as `millpond token` has printed it.",
            )
        if token is not None and self._parsed.userinfo:
            raise RequestError(
                "INVALID_REQUEST",
                "A request has one authorization: a token, or the name and password in the address.",
                hint="Leave one of them out.",
            )
        self.url = url.rstrip("/")
        self.settings = settings
        verify = verify if url.startswith("https") else False  # loading all certificates takes longer than many reads
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.options: dict[str, Any] = {"headers": headers, "verify": verify, "trust_env": False}

    def address(self) -> Address:
        """The parts of the address."""
        url, headers = self._parsed, {"host": self._parsed.netloc.decode("ascii")}
        if url.userinfo:  # of a proxy before the server
            name, _, password = url.userinfo.partition(b":")
            basic = base64.b64encode(unquote_to_bytes(name) + b":" + unquote_to_bytes(password))
            headers["authorization"] = f"Basic {basic.decode('ascii')}"
        headers |= self.options["headers"]
        tls = httpx.create_ssl_context(verify=self.options["verify"], trust_env=False) if url.scheme == "https" else None
        path = url.raw_path.partition(b"?")[0].rstrip(b"/")
        return Address(url.raw_host.decode("ascii"), url.port or (443 if tls else 80), tls, path, headers)


class Waiting(_Session):
    """Runs exchanges and waits for them.  Threads may share it."""

    def __init__(self, url: str, token: str | None, verify: Any, settings: ClientSettings) -> None:
        super().__init__(url, token, verify, settings)
        self._connections = Connections(self.address())

    def run(self, exchange: Exchange[Result]) -> Result:
        """The result of an exchange.

        Raises:  what the server or the exchange raises; SERVER_UNAVAILABLE, NOT_A_SERVER.
        """
        try:
            request = next(exchange)
            while True:
                try:
                    reply = self._send(request)
                except MillpondError as error:
                    request = exchange.throw(error)
                else:
                    request = exchange.send(reply)
        except StopIteration as done:
            result: Result = done.value
            return result

    def _send(self, request: Request) -> Reply:
        retries = Retries(self.settings)
        while True:
            try:
                reply = self._connections.ask(request, self.settings.timeout_seconds + request.wait_seconds)
                error = error_of(reply)
            except StorageError as broken:
                error = broken
            if error is None:
                return reply
            if not request.is_read:
                raise error
            time.sleep(retries.pause(error))

    def close(self) -> None:
        """Close its connections."""
        self._connections.close()


class Async(_Session):
    """The same without waiting.  Tasks of one event loop may share it."""

    def __init__(self, url: str, token: str | None, verify: Any, settings: ClientSettings) -> None:
        super().__init__(url, token, verify, settings)
        self._http = httpx.AsyncClient(**self.options)
        self._is_closed = False

    async def run(self, exchange: Exchange[Result]) -> Result:
        """As `Waiting.run`."""
        try:
            request = next(exchange)
            while True:
                try:
                    reply = await self._send(request)
                except MillpondError as error:
                    request = exchange.throw(error)
                else:
                    request = exchange.send(reply)
        except StopIteration as done:
            result: Result = done.value
            return result

    async def _send(self, request: Request) -> Reply:
        retries = Retries(self.settings)
        while True:
            if self._is_closed:  # httpx's own error for it is a bare RuntimeError
                raise closed()
            try:
                answer = await self._http.request(
                    request.method,
                    f"{self.url}{request.path}",
                    content=request.body,
                    headers={"accept": request.accept},
                    timeout=self.settings.timeout_seconds + request.wait_seconds,
                )
                reply = Reply(answer.status_code, answer.headers, answer.content)
                error = error_of(reply)
            except httpx.HTTPError as broken:
                error = _error_of(broken)
            if error is None:
                return reply
            if not request.is_read:
                raise error
            await asyncio.sleep(retries.pause(error))

    async def close(self) -> None:
        """Close its connections."""
        self._is_closed = True
        await self._http.aclose()


def _error_of(broken: httpx.HTTPError) -> MillpondError:
    if isinstance(broken, (httpx.UnsupportedProtocol, httpx.DecodingError)):
        return not_a_server(str(broken))
    return unavailable(str(broken) or type(broken).__name__)


def _parsed(url: str) -> httpx.URL:
    """Raises INVALID_REQUEST."""
    try:
        found = httpx.URL(url)
        found.raw_host.decode("ascii").encode("idna")  # as connecting does
        is_one = url.startswith(("http://", "https://")) and found.host and (found.port is None or 0 < found.port < 1 << 16)
    except (httpx.InvalidURL, UnicodeError):
        is_one = False
    if not is_one:
        raise RequestError("INVALID_REQUEST", f"{url[:80]!r} isn't the address of a server.", hint="Write http://localhost:8642.")
    return found
