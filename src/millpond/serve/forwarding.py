"""Doors of one server answer for each other, if only one of them can read a batch.

Every process can read the newest batch.  Only the process that keeps an earlier batch, of a page or
a cut, can read that; the token names the process (`tables.job.held_views.HOLDER`).  A door that
can't read a token's batch forwards the request there.

1. The first door checks who asks and what that reader may read.  The request keeps its reader, and
   isn't counted twice.
2. A request is forwarded once at most.  If nobody listens there any more, the batch is gone, and
   the first door says so.

Wire:  a Unix socket for each door, in a folder that this user alone may enter.  A message is a
       length (4 bytes, big-endian) and so many bytes.  A request is one message,
       `ForwardedRequest`.  An answer is one `Answered`, chunks of its body, and an empty message.
       An answer that ends without it was broken off.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

from millpond.errors import ReplicaError
from millpond.logs import EventLog
from millpond.schema.prepared import ready
from millpond.serve.access.tokens import EVERYBODY, Reader, SavepointRight
from millpond.serve.answers.replies import ChunkedResponse
from millpond.tables.job.held_views import HOLDER

log = EventLog(__name__)
_LENGTH = struct.Struct(">I")
_HOLDER = re.compile(r"[0-9a-f]{8}")
# The extra time for a neighbour's message, beyond the time of a read.
_SLACK_SECONDS = 5.0


class ForwardedRequest(msgspec.Struct, array_like=True):
    """A request that another door continues."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    reader: tuple[str, list[str], bool, SavepointRight | None]


class Answered(msgspec.Struct, array_like=True):
    """The beginning of its answer."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Neighbours:
    """The other doors of this server.

    folder:       where their sockets are, None if there is one door
    read_seconds: how long a read may take
    """

    def __init__(self, folder: Path | None, read_seconds: float) -> None:
        self._folder = folder
        self._wait_seconds = read_seconds + _SLACK_SECONDS
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def listen(self, app: ASGIApp) -> None:
        """Answer the other doors with `app` from here on.

        If this door can't listen, only it can read its batches.
        """
        if self._folder is None:
            return

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._answering.add(task)
            try:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, ClientDisconnect):
                    await _answer(app, reader, writer)
            finally:
                writer.close()
                self._answering.discard(task)

        try:
            self._server = await asyncio.start_unix_server(answer, self._socket(HOLDER))
        except OSError as refused:
            log.warning("neighbours.unreachable", message=f"other doors can't read pages and cuts of this one: {refused}")

    async def close(self, seconds: float) -> None:
        """Accept no more requests; running ones may take so long."""
        if self._server is not None:
            self._server.close()
            self._socket(HOLDER).unlink(missing_ok=True)
        if self._answering:
            await asyncio.wait(self._answering, timeout=seconds)

    async def try_ask(self, holder: object, scope: Scope) -> Response | None:
        """The answer of the door of that name; None if there is none.

        holder:  the name in a token, which may be anything
        scope:   of the request; its body is under `asked_body`
        """
        if self._folder is None or not isinstance(holder, str) or holder == HOLDER or not _HOLDER.fullmatch(holder):
            return None
        try:
            return await self._ask(holder, scope)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return None

    async def _ask(self, holder: str, scope: Scope) -> Response:
        reader, writer = await asyncio.open_unix_connection(self._socket(holder))
        try:
            _send(writer, msgspec.msgpack.encode(_forwarded(scope)))
            async with asyncio.timeout(self._wait_seconds):
                await writer.drain()
                begin = msgspec.msgpack.decode(await _receive(reader), type=ready(Answered))
        except BaseException:
            writer.close()
            raise
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in begin.headers}
        return ChunkedResponse(self._pieces(reader, writer), status_code=begin.status, headers=headers)

    async def _pieces(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
        try:
            while True:
                async with asyncio.timeout(self._wait_seconds):
                    piece = await _receive(reader)
                if not piece:
                    return
                yield piece
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            raise ReplicaError("REPLICA_CLOSED", "The door that answered is gone.", hint="Ask again.") from None
        finally:
            writer.close()

    def _socket(self, holder: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{holder}.sock"


def _forwarded(scope: Scope) -> ForwardedRequest:
    reader: Reader = scope["reader"]
    return ForwardedRequest(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"],
        headers=list(scope["headers"]),
        body=scope.get("asked_body", b""),
        reader=(reader.name, list(reader.tables), reader.metrics, reader.savepoints),
    )


async def _answer(app: ASGIApp, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = msgspec.msgpack.decode(await _receive(reader), type=ready(ForwardedRequest))
    name, tables, metrics, savepoints = request.reader
    known = Reader(name, tuple(tables), metrics, savepoints)
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},  # answers in pieces need no message about a client that has left
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode("latin-1", "replace"),
        "root_path": "",
        "query_string": request.query,
        "headers": request.headers,
        "reader": EVERYBODY if known == EVERYBODY else known,
        "asker": f"reader {name}",
        "is_neighbours": True,
    }
    is_received = False

    async def receive() -> Message:
        nonlocal is_received
        if is_received:
            await asyncio.Event().wait()
        is_received = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            _send(writer, msgspec.msgpack.encode(Answered(message["status"], list(message["headers"]))))
            return
        if message.get("body"):
            _send(writer, message["body"])
        if not message.get("more_body", False):
            _send(writer, b"")
        await writer.drain()

    with ExitStack() as scope["resources"]:
        await app(scope, receive, send)


def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(_LENGTH.pack(len(data)))
    writer.write(data)


async def _receive(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(length)
