"""A server under attack: raw connections to it, its memory, and an honest client that asks meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from suite.waiting import PATIENCE_SECONDS, wait_until


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as it came: its status, its headers and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def condition(self) -> str:
        """The condition of this error."""
        return json.loads(self.body)["error"]["condition"]


class Victim:
    """A server under attack."""

    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self.pid = pid
        place = urlsplit(address)
        self._place = (place.hostname, place.port)
        self._tls = place.scheme == "https"

    def connect(self, seconds: float = PATIENCE_SECONDS) -> socket.socket:
        """A connection."""
        plain = socket.create_connection(self._place, timeout=seconds)
        if not self._tls:
            return plain
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(plain)

    def ask(self, request: bytes) -> Answered:
        """The first answer to these bytes."""
        with self.connect() as connection:
            return exchange(connection, request)

    def is_closed(self, connection: socket.socket, seconds: float = PATIENCE_SECONDS) -> bool:
        """Whether the server ends a connection within so many seconds."""
        connection.settimeout(seconds)
        try:
            while connection.recv(65_536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def memory_mib(self) -> float:
        """Its memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> int:
        """Its open files."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def metrics(self, **headers: str) -> dict[str, float]:
        """Its metrics, by name and labels."""
        text = httpx.get(f"{self.address}/metrics", headers=headers, timeout=PATIENCE_SECONDS).text
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    @contextlib.contextmanager
    def watched(self, *, mib: float) -> Iterator[None]:
        """Around an attack: the server's memory grows by no more than this, and an honest client gets every answer."""
        begin, most, answered, problems = self.memory_mib(), 0.0, 0, []
        ending = threading.Event()

        def ask_honestly() -> None:
            nonlocal most, answered
            while not ending.wait(0.1):
                try:
                    most = max(most, self.memory_mib() - begin)
                    assert httpx.get(f"{self.address}/livez", timeout=PATIENCE_SECONDS, verify=False).status_code == 200
                    answered += 1
                except Exception as problem:  # noqa: BLE001 - told below
                    problems.append(problem)

        asking = threading.Thread(target=ask_honestly)
        asking.start()
        try:
            yield
            wait_until(lambda: answered > 0 or bool(problems), "an answer to the honest client")
        finally:
            ending.set()
            asking.join()
        assert problems == []
        assert most < mib, f"{most:.0f} MiB"


def exchange(connection: socket.socket, request: bytes = b"") -> Answered:
    """Send a request and read one answer, which has a length."""
    with contextlib.suppress(OSError):  # the server may refuse it before all of it is sent
        connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        assert part, f"no answer but {data!r:.200}"
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, Any] = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers["content-length"]):
        part = connection.recv(65_536)
        assert part, "half an answer"
        body += part
    return Answered(int(status.split()[1]), headers, body)
