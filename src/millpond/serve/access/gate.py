"""The gate for every request: reader, rate, and the count of answers."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from urllib.parse import quote, unquote, unquote_to_bytes

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond.errors import MillpondError
from millpond.serve.access.access import Access
from millpond.serve.access.tokens import EVERYBODY
from millpond.serve.answers import replies
from millpond.serve.console import files
from millpond.serve.metrics.counts import Meter
from millpond.serve.routes import ROUTES

# The counted status if the client left before the answer; it isn't sent.
_GONE = 499
_OPEN = frozenset(route.path for route in ROUTES if route.open and not route.names_in_path)
_READS = frozenset(route.endpoint for route in ROUTES if route.reads_rows)
# The console's page and files say nothing of the server's tables: a browser must have them before it can send a token.
_CONSOLE = "/console/"


def gate(app: ASGIApp, access: Access, meter: Meter) -> ASGIApp:
    """The application behind its gate.

    `scope["reader"]` is the reader, `scope["asker"]` the client whose requests count together;
    `scope["resources"]` ends with the request.
    """

    async def pass_through(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began, status = time.perf_counter(), 0
        client = (scope.get("client") or ("",))[0]
        resources = ExitStack()
        scope = {**scope, "reader": EVERYBODY, "asker": client, "resources": resources}

        async def note_status(message: Message) -> None:
            nonlocal status
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]

        try:
            try:
                _canonical_path(scope)
                headers = dict(scope["headers"])
                path = scope["path"]
                if path in _OPEN or path.startswith(_CONSOLE) or (access.console and files.is_page(path, headers)):
                    access.check_host(headers.get(b"host"))
                else:
                    reader = scope["reader"] = access.admit(headers, client)
                    scope["asker"] = client if reader is EVERYBODY else f"reader {reader.name}"
                await app(scope, receive, note_status)
            except MillpondError as error:
                await replies.answer_error(None, error)(scope, receive, note_status)
        except (asyncio.CancelledError, ClientDisconnect, OSError):
            status = status or _GONE
            raise
        finally:
            resources.close()
            route = getattr(scope.get("endpoint"), "__name__", "none")
            name = scope.get("path_params", {}).get("table") if route in _READS and status == 200 else None
            tables = () if name is None else (unquote(name, errors="surrogateescape"),)
            meter.count(route, status or 500, time.perf_counter() - began, tables=tables)

    return pass_through


def _canonical_path(scope: Scope) -> None:
    """Route by the raw path with each segment in one canonical encoding, which the endpoints decode."""
    raw = scope.get("raw_path")
    if raw is not None and b"%" in raw:
        segments = [quote(unquote_to_bytes(part), safe=":@!$&'()*+,;=~") for part in raw.split(b"/")]
        scope["path"] = "/".join(segments)
