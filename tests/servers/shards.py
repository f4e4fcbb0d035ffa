"""Servers that each follow a shard, every copy with replicas of its own, as on a machine of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from servers.ports import free_port
from suite.programs import started


@dataclass(slots=True)
class ShardServer:
    """`millpond serve --shard`, which can be killed and started again at the same port."""

    folder: Path | str
    shard: str
    home: Path
    options: tuple[str, ...] = ()
    port: int = field(default=0)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; returns when it listens."""
        self.port = self.port or free_port()
        command = [sys.executable, "-m", "millpond.cli", "serve", str(self.folder), "--port", str(self.port), "--json"]
        command += [*(("--shard", self.shard) if self.shard else ()), "--no-sql", *self.options]
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "log").open("ab") as log:
            environment = {**os.environ, "MILLPOND_HOME": str(self.home)}
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        assert ready["url"] == self.url
        assert ready.get("shard", "") == self.shard

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self._ended()

    def stop(self) -> None:
        """End it as a service manager does."""
        if self.process is not None:
            self.process.terminate()
            self._ended()

    def _ended(self) -> None:
        assert self.process is not None
        self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None


@contextlib.contextmanager
def shard_servers(folder: Path | str, shards: list[str], home: Path, *options: str, copies: int = 1) -> Iterator[list[ShardServer]]:
    """A server for each copy of each shard, all started."""
    servers = [
        ShardServer(folder, shard, home / f"shard-{number}-{copy}", options)
        for number, shard in enumerate(shards)
        for copy in range(copies)
    ]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()


@contextlib.contextmanager
def routing(*words: str) -> Iterator[str]:
    """`millpond route`: yields its address."""
    command = [sys.executable, "-m", "millpond.cli", "route", *words, "--port", "0", "--json"]
    with started(command, stdout=subprocess.PIPE) as router:
        try:
            assert router.stdout is not None
            yield json.loads(router.stdout.readline())["url"]
        finally:
            router.terminate()
            assert router.wait(60) == 0
