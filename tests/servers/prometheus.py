"""Prometheus' own programs, from Debian's package, unpacked into the user's cache folder."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from servers.debian import unpacked
from servers.ports import free_port

REASON = "there is no promtool, and apt-get can't fetch Debian's package of Prometheus"


def program(name: str) -> str:
    """The path of `promtool` or `prometheus`.  Skips the test where there is none, and none can be fetched."""
    found = shutil.which(name)
    if found is not None:
        return found
    return str(unpacked("prometheus", REASON) / "usr/bin" / name)


@contextlib.contextmanager
def prometheus(config: Path, folder: Path) -> Iterator[str]:
    """The address of a server with this configuration, its data below the folder."""
    port = free_port()
    words = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen([program("prometheus"), *words], stdout=log, stderr=log, cwd=folder)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)
