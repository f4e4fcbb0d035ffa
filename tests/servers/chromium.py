"""Debian's Chromium without a window, driven by Playwright; and axe-core, which looks for what keeps people out of a page.

Both are fetched once, without root: Chromium by apt-get with the libraries that this machine lacks,
axe-core from npm's registry, by its hash.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from servers.debian import cache, unpacked

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REASON = "there is no Chromium, and apt-get can't fetch Debian's package of it"
_PACKAGE = "chromium-headless-shell"
_INSTALLED = (_PACKAGE, "chromium", "chromium-browser", "google-chrome")
_AXE = "https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz"
_AXE_SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
# Chromium's own sandbox needs rights that containers don't give; these tests load nothing but our own pages.
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb", "--font-render-hinting=none"]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser.  Skips the test where there is none, and none can be fetched."""
    from playwright.sync_api import sync_playwright

    program, libraries = _program()
    variables = {**os.environ, **({"LD_LIBRARY_PATH": libraries} if libraries else {})}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_OPTIONS, env=variables)
        try:
            yield browser
        finally:
            browser.close()


def _program() -> tuple[str, str]:
    """The browser's path, and where libraries lie that this machine lacks."""
    found = next((path for name in _INSTALLED if (path := shutil.which(name))), None)
    if found is not None:
        return found, ""
    root = unpacked(_PACKAGE, REASON, with_others=True)
    folders = [path for path in root.glob("usr/lib/*-linux-gnu*") if path.is_dir()]
    return str(root / "usr/lib/chromium" / _PACKAGE), os.pathsep.join(
        str(f) for path in folders for f in (path, path / "pulseaudio")
    )


def axe_core() -> str:
    """The program of axe-core.  Skips the test where it can't be fetched."""
    kept = cache() / Path(_AXE).name.replace(".tgz", ".js")
    if not kept.exists():
        try:
            with urllib.request.urlopen(_AXE, timeout=60) as answer:
                packed = answer.read()
        except OSError:
            pytest.skip("axe-core can't be fetched from npm's registry")
        assert base64.b64encode(hashlib.sha512(packed).digest()).decode() == _AXE_SHA512
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            begun = kept.with_suffix(f".{os.getpid()}")
            begun.write_bytes(member.read())
            begun.rename(kept)
    return kept.read_text()


def obstacles(page: Page) -> list[str]:
    """What axe-core finds wrong with a page, for people who see, hear or move otherwise."""
    # The debugger's own world isn't bound by the page's content policy.
    found: dict[str, Any] = page.evaluate(f"async () => {{ {axe_core()}; return await window.axe.run(document); }}")
    assert found["passes"]
    return [f"{each['id']}: {each['help']}: {node['html'][:200]}" for each in found["violations"] for node in each["nodes"]]
