"""Programs of Debian's packages, unpacked into the user's cache folder, for which nobody needs to be root."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest


def cache() -> Path:
    """The folder of what tests fetch once."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millpond-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unpacked(package: str, reason: str, *, with_others: bool = False) -> Path:
    """The folder into which a package is unpacked.  Skips the test, with the reason, where it can't be fetched.

    with_others:  also the packages that it needs and this machine doesn't have
    """
    kept = cache() / package
    if kept.is_dir():
        return kept
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        try:
            packages = _missing(package) if with_others else [package]
            _run(["apt-get", "download", "-q", *packages], folder, 400)
            for archive in sorted(Path(folder).glob("*.deb")):
                _run(["dpkg-deb", "-x", str(archive), "unpacked"], folder, 100)
        except (OSError, ValueError, subprocess.SubprocessError):
            pytest.skip(reason)
        with contextlib.suppress(OSError):  # another process was first
            (Path(folder) / "unpacked").rename(kept)
    return kept


def _missing(package: str) -> list[str]:
    words = ["apt-get", "-s", "-q", "install", "--no-install-recommends", package]
    found = [line.split()[1] for line in _run(words, ".", 100).splitlines() if line.startswith("Inst ")]
    return found or [package]


def _run(words: Sequence[str], folder: str, seconds: float) -> str:
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True, timeout=seconds).stdout
