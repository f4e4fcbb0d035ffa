"""Requests over HTTP, waiting or not.  The only module that imports httpx."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

from millpond.client.exchange import Exchange, Reply, Request, Retries, error_of, not_a_server, unavailable
from millpond.errors import MillpondError, RequestError, library_missing
from millpond.settings import ClientSettings

try:
    import httpx
except ModuleNotFoundError as missing:
    raise library_missing("httpx", "client") from missing

Result = TypeVar("Result")


class _Session:
    """The address and settings of both kinds of client."""

    def __init__(self, url: str, token: str | None, verify: Any, settings: ClientSettings) -> None:
        if not url.startswith(("http://", "https://")):
            raise RequestError(
                "INVALID_REQUEST", f"{url[:80]!r} isn't the address of a server.", hint="Write http://localhost:8642."
            )
        self.url = url.rstrip("/")
        self.settings = settings
        verify = verify if url.startswith("https") else False  # loading all certificates takes longer than many reads
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.options: dict[str, Any] = {"headers": headers, "verify": verify, "trust_env": False}

    def arguments(self, request: Request) -> dict[str, Any]:
        """The arguments of httpx's `request`."""
        timeout = self.settings.timeout_seconds + request.wait_seconds
        return {
            "method": request.method,
            "url": f"{self.url}{request.path}",
            "content": request.body,
            "headers": {"accept": request.accept},
            "timeout": timeout,
        }


class Waiting(_Session):
    """Runs exchanges and waits for them.  Threads may share it."""

    def __init__(self, url: str, token: str | None, verify: Any, settings: ClientSettings) -> None:
        super().__init__(url, token, verify, settings)
        self._http = httpx.Client(**self.options)

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
                answer = self._http.request(**self.arguments(request))
                reply = Reply(answer.status_code, answer.headers, answer.content)
                error = error_of(reply)
            except httpx.HTTPError as broken:
                error = _error_of(broken)
            if error is None:
                return reply
            if not request.is_read:
                raise error
            time.sleep(retries.pause(error))

    def close(self) -> None:
        """Close its connections."""
        self._http.close()


class Async(_Session):
    """The same without waiting.  Tasks of one event loop may share it."""

    def __init__(self, url: str, token: str | None, verify: Any, settings: ClientSettings) -> None:
        super().__init__(url, token, verify, settings)
        self._http = httpx.AsyncClient(**self.options)

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
            try:
                answer = await self._http.request(**self.arguments(request))
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
        await self._http.aclose()


def _error_of(broken: httpx.HTTPError) -> MillpondError:
    if isinstance(broken, (httpx.UnsupportedProtocol, httpx.DecodingError)):
        return not_a_server(str(broken))
    return unavailable(str(broken) or type(broken).__name__)
