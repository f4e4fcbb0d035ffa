"""An S3 server for tests (moto's), a process of its own."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from millpond.settings import ReplicaSettings
from millpond.storage import open_storage

BUCKET = "millpond"
# The number of names on a page of a listing; S3 itself has 1000.
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
    """Environment variables for a program that uses that server."""
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


# Shorter than the defaults, so that tests don't wait for a poll.
QUICK = ReplicaSettings(remote_poll_seconds=0.02, remote_idle_poll_seconds=0.02, remote_silence_seconds=1.0, remote_lag_seconds=2.0)


def upload(source: Path, uri: str) -> None:
    """Copy a folder to a place on an object store, hidden files too."""
    storage = open_storage(uri)
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        storage.write(str(path.relative_to(source)), path.read_bytes())


def delete(storage: Any, path: str) -> None:
    """Delete one object.  Storages have no such call, since Millpond deletes nothing."""
    storage._obstore.delete(storage._store, storage._prefix + path)
