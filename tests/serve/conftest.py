"""Servers for the tests of the HTTP door: `millpond serve`, each a process of its own on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Serve = Callable[..., contextlib.AbstractContextManager[tuple[str, "subprocess.Popen[bytes]"]]]
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serve a folder with these options; gives the address and the process, which is ended at the end."""

    @contextlib.contextmanager
    def serving(folder: Path | str, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
        command = [sys.executable, "-m", "millpond.cli", "serve", str(folder), "--port", "0", "--json", *options]
        environment = {**os.environ, "MILLPOND_HOME": str(tmp_path / "home")}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as server:
            try:
                assert server.stdout is not None
                yield json.loads(server.stdout.readline())["url"], server
            finally:
                server.terminate()
                server.wait(30)

    return serving


@pytest.fixture
def odd_names(tmp_path: Path) -> Path:
    """The pond of types with columns that look like something else: table long is keyed by `_limit`, string by `k__isnull`."""
    pond = tmp_path / "odd"
    shutil.copytree(GOLDEN / "types", pond)
    for table, name in (("long", "_limit"), ("string", "k__isnull"), ("date", "a b&c=ü/%41")):
        _rename_key(pond / "jobs" / table / "tables" / f"{table}.json", name)
    return pond


def _rename_key(path: Path, name: str) -> None:
    definition: dict[str, Any] = json.loads(path.read_text())
    definition["key"][0]["name"] = name
    path.write_text(json.dumps(definition))
