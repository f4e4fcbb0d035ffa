"""A server of one benchmark: started, there, and ended with it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from signal import SIGTERM, Signals
from typing import Any


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def running(
    what: str,
    command: list[str],
    is_there: Callable[[], bool],
    *,
    said: bytes = b"",
    ended_by: Signals = SIGTERM,
    **options: Any,
) -> Iterator[int]:
    """The process id of a server, as soon as it is there.

    said:      its standard input
    ended_by:  the signal that ends it
    options:   of Popen

    It ends the program if the server ends by itself or takes too long.
    """
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, **options) as server:
        try:
            assert server.stdin is not None
            server.stdin.write(said)
            server.stdin.close()
            _wait_for(what, is_there, server)
            yield server.pid
        finally:
            server.send_signal(ended_by)
            server.wait(60)


def _wait_for(what: str, is_there: Callable[[], bool], server: subprocess.Popen[bytes], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not is_there():
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{what} isn't there; exit code {server.poll()}")
        time.sleep(0.05)


def listens(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def answers(url: str) -> bool:
    """Whether a URL is answered."""
    import httpx

    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=5).status_code == 200
    return False
