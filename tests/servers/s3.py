"""An S3 server for tests (moto's), a process of its own."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from millpond.settings import ReplicaSettings
from millpond.storage import open_storage
from servers.ports import free_port
from suite.waiting import wait_until

BUCKET = "millpond"
# The number of names on a page of a listing; S3 itself has 1000.
PAGE = 20


@dataclass(frozen=True)
class Moto:
    """A server, until this process ends.

    url:  its address
    log:  with a line for each request, `"PUT /bucket/name?query HTTP/1.1" 200 -`, among others
    """

    url: str
    log: Any


def moto_server(page: int = PAGE) -> str:
    """The address of an S3 server with one bucket, and so many names on a page; one for each process that runs tests."""
    return moto(page).url


@cache
def moto(page: int) -> Moto:
    """A server of its own.

    page:  the number of names on a page of a listing
    """
    port = free_port()
    log = tempfile.NamedTemporaryFile(prefix="moto-", suffix=".log")  # noqa: SIM115 - it lives as long as the server
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(page)})
    atexit.register(_end, server)
    url = f"http://127.0.0.1:{port}"
    wait_until(
        lambda: urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=60),
        "the server's bucket",
        unless=lambda: server.poll() is not None and (Path(log.name).read_text() or "nothing said"),
        ignoring=(OSError,),
    ).close()
    return Moto(url, log)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(20)
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
        "MILLPOND_REQUEST_SECONDS": "60",
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
