"""A proxy in front of an S3 server, which does harm."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Faults:
    """What a proxy does to requests.

    before:  called with (method, path with query) of each request.  Returns None to pass it on, a status to answer with, or a word:
             `drop` closes the connection, `cut` closes it in the middle of the answer, `hang` closes it after `hang_seconds`
    stale:   give the listings as they were when this was set
    seen:    every request, and its outcome
    """

    def __init__(self) -> None:
        self.before: Callable[[str, str], int | str | None] = lambda method, path: None
        self.stale = False
        self.hang_seconds = 3.0
        self.listings: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        self.seen: list[tuple[str, str, int | str]] = []

    def count(self) -> int:
        """The number of requests so far."""
        return len(self.seen)


@contextlib.contextmanager
def proxy(target: str) -> Iterator[tuple[str, Faults]]:
    """A proxy in front of an S3 server: its address, and its faults."""
    faults = Faults()
    host = target.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = faults.before(self.command, self.path)
            if fault == "hang":
                time.sleep(faults.hang_seconds)
            if fault in ("hang", "drop"):
                faults.seen.append((self.command, self.path, fault))
                self._drop()
                return
            if isinstance(fault, int):
                code = {503: "SlowDown", 403: "AccessDenied", 404: "NoSuchKey"}.get(fault, "InternalError")
                answer = (fault, [("Content-Type", "application/xml")], f"<Error><Code>{code}</Code></Error>".encode())
            else:
                answer = self._ask(body)
            faults.seen.append((self.command, self.path, fault or answer[0]))
            status, headers, content = answer
            self.send_response(status)
            length = len(content)
            for name, value in headers:
                if name.lower() == "content-length":
                    length = int(value)
                elif name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
            if fault == "cut":
                self._drop()

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            listing = self.command == "GET" and "list-type=2" in self.path
            if listing and faults.stale and self.path in faults.listings:
                return faults.listings[self.path]
            connection = http.client.HTTPConnection(host, timeout=60)
            try:
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "content-length")}
                if headers.get("authorization", "Bearer ") == "Bearer ":
                    headers["authorization"] = _SIGNED  # Google's client sends no credentials to a server of another host
                connection.request(self.command, self.path, body or None, headers)
                answer = connection.getresponse()
                found = (answer.status, answer.getheaders(), answer.read())
            finally:
                connection.close()
            if listing and not faults.stale:
                faults.listings[self.path] = found
            return found

        def _drop(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *_: Any) -> None:
            pass

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _pass  # noqa: N815 - the library's names

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # clients are meant to go away in the middle

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
