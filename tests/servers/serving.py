"""`millpond serve` for tests, each a process of its own on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

from suite.programs import started
from suite.waiting import wait_until

Serve = Callable[..., contextlib.AbstractContextManager[tuple[str, "subprocess.Popen[bytes]"]]]


@contextlib.contextmanager
def serving(
    folder: Path | str, *options: str, home: Path, stderr: IO[bytes] | None = None, apart: bool = False, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve a folder with these options: yields the address and the process, and ends the process.

    apart:  the process gets its own session and process group
    """
    command = [sys.executable, "-m", "millpond.cli", "serve", str(folder), "--port", "0", "--json", *options]
    variables = {**os.environ, "MILLPOND_HOME": str(home), **environment}
    with started(command, stdout=subprocess.PIPE, stderr=stderr, env=variables, start_new_session=apart) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"], server
        finally:
            server.terminate()
            server.wait(60)


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate of 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("this machine has no openssl")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


def wait_until_ready(client: httpx.Client) -> None:
    """Return when /readyz says yes."""
    wait_until(lambda: client.get("/readyz").status_code == 200, "the server's yes at /readyz")
