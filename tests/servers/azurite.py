"""Azurite, Microsoft's emulator of Azure's blobs, a process of its own.  npm fetches it once into the user's cache folder."""

from __future__ import annotations

import atexit
import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import subprocess
import tempfile
import urllib.request
from email.utils import formatdate
from functools import cache
from pathlib import Path

import pytest

from servers.ports import free_port
from suite.waiting import wait_until

VERSION = "3.35.0"
CONTAINER = "millpond"
# The account of every Azurite, and its key, from Microsoft's manual.
ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_API = "2023-11-03"


@cache
def azurite_server() -> str:
    """The address of an emulator with one container.  Skips the test if npm can't fetch it."""
    program = _program()
    port = free_port()
    folder = tempfile.mkdtemp(prefix="azurite-")
    command = [str(program), "--blobPort", str(port), "--location", folder, "--silent", "--disableTelemetry"]
    command.append("--skipApiVersionCheck")  # the library may ask for a newer one than the emulator's
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(_end, server)
    url = f"http://127.0.0.1:{port}"
    wait_until(
        lambda: _create_container(url),
        "the emulator's container",
        unless=lambda: server.poll() is not None,
        ignoring=(OSError,),
    )
    return url


def use_azurite(monkeypatch: pytest.MonkeyPatch, url: str) -> str:
    """Let this process use that server; returns the URI of its container."""
    for name in [n for n in os.environ if n.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", url)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _KEY)
    return f"abfss://{CONTAINER}"


def _program() -> Path:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm on the PATH to fetch Azurite with")
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache_folder / "millpond-tests" / f"azurite-{VERSION}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        # Install beside the final place, then rename: an interrupted or a second installation would leave half of one.
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = tempfile.mkdtemp(prefix="azurite-", dir=folder.parent)
        atexit.register(shutil.rmtree, beside, ignore_errors=True)
        command = [npm, "install", "--prefix", beside, "--ignore-scripts", "--no-audit", "--no-fund", f"azurite@{VERSION}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("npm didn't fetch Azurite in five minutes")
        if done.returncode != 0:
            pytest.skip(f"npm can't fetch Azurite: {done.stderr[-500:]}")
        with contextlib.suppress(OSError):  # another process was first
            os.rename(beside, folder)
    return program


def _create_container(url: str) -> bool:
    """Create the container by a PUT, signed with the account's key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _API}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    # The verb, eleven absent headers, our headers, and the resource; an emulator repeats the account in the path.
    text = "PUT" + 12 * "\n" + named + f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signed = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signed}"}
    place = f"{url}/{ACCOUNT}/{CONTAINER}?restype=container"
    urllib.request.urlopen(urllib.request.Request(place, method="PUT", headers=headers), timeout=60).close()
    return True


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
