"""An S3 server for tests (moto's, a process of its own), and a proxy in front of it that does harm."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from millpond.settings import ReplicaSettings
from millpond.storage import Storage, open_storage
from written_checkpoint import WrittenCheckpoint

BUCKET = "millpond"
_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
# Names on a page of a listing; S3 itself has 1000.
PAGE = 20


@cache
def moto_server() -> str:
    """The address of an S3 server with one bucket; one for each process that runs tests."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tempfile.NamedTemporaryFile(prefix="moto-", suffix=".log")  # noqa: SIM115 - the server writes to it until the end
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)})
    atexit.register(_end, server)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=10).close()
            return url
        except OSError as not_yet:
            assert server.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < deadline, not_yet
            time.sleep(0.05)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()


def environment(url: str) -> dict[str, str]:
    """What a program needs to use that server."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "MILLPOND_REQUEST_SECONDS": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let this process use that server."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment(url).items():
        monkeypatch.setenv(name, value)


class Faults:
    """What a proxy does to requests.

    before:  called with each (method, path with query) before it is passed on: None to pass it on, a status to answer with instead,
             or a word: `drop` closes the connection, `cut` does so in the middle of the answer, `hang` answers after `hang_seconds`
    stale:   answer listings with what they were when this was set
    seen:    every request, with what became of it
    """

    def __init__(self) -> None:
        self.before: Callable[[str, str], int | str | None] = lambda method, path: None
        self.stale = False
        self.hang_seconds = 3.0
        self.listings: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        self.seen: list[tuple[str, str, int | str]] = []

    def count(self) -> int:
        """Requests so far."""
        return len(self.seen)


@contextlib.contextmanager
def proxy(target: str) -> Iterator[tuple[str, Faults]]:
    """A proxy in front of an S3 server: its address, and what it shall do wrong."""
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
            connection = http.client.HTTPConnection(host, timeout=30)
            try:
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "content-length")}
                if headers.get("authorization", "Bearer ") == "Bearer ":
                    headers["authorization"] = _SIGNED  # Google's client to a server of another host doesn't say who asks
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
            pass  # clients go away in the middle; that is what this is for

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# As the defaults, but sooner: tests don't wait for a poll.
QUICK = ReplicaSettings(remote_poll_seconds=0.02, remote_idle_poll_seconds=0.02, remote_silence_seconds=1.0, remote_lag_seconds=2.0)


class UploadedCheckpoint(WrittenCheckpoint):
    """A checkpoint that is written straight to a bucket, past any proxy."""

    def __init__(self, storage: Storage, job_id: str = "job-1") -> None:
        self.storage = storage
        super().__init__(None, job_id)  # type: ignore[arg-type] # no path: `write` needs none

    def write(self, name: str, data: bytes, at: float | None = None) -> None:
        if at is not None:
            raise ValueError("an object's time is the store's own")
        self.storage.write(name, data)

    def batch(self, changes: list[tuple[str, int | None]], *, snapshot: bool = False) -> None:
        self.plan(changes, snapshot=snapshot)
        self.commit()


def upload(source: Path, uri: str) -> None:
    """Copy a folder to a place on an object store, hidden files too."""
    storage = open_storage(uri)
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        storage.write(str(path.relative_to(source)), path.read_bytes())


def delete(storage: Any, path: str) -> None:
    """Delete one object: storages have no such call, since Millpond deletes nothing."""
    storage._obstore.delete(storage._store, storage._prefix + path)
