"""File systems of a test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent.parent


def skip_without_mounts() -> None:
    """Skip the test if this system lets no process mount a file system for itself."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting isn't allowed here")


def run_again_with_disk(module: str, arguments: Sequence[str], home: Path, size_bytes: int) -> None:
    """Run a module again in this process, with `--home HOME`, a small file system; returns only if that is impossible."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    mount = 'mount -t tmpfs -o "size=$1" none "$2" && shift 2 && exec "$@"'
    shell = [*unshare, "sh", "-c", mount, "sh", str(size_bytes), str(home)]
    try:
        if subprocess.run([*shell, "true"], capture_output=True, check=False).returncode:
            return
    except FileNotFoundError:
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, "-m", module, *arguments, "--home", str(home)]
    os.execvp(shell[0], [*shell, *program])
