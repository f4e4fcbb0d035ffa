"""File systems of a test's own."""

from __future__ import annotations

import subprocess

import pytest


def skip_without_mounts() -> None:
    """Skip the test if this system lets no process mount a file system for itself."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting isn't allowed here")
