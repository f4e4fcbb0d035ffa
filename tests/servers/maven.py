"""Jars that tests need, fetched once by Maven into the user's cache folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>millpond</groupId><artifactId>tests</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def dependency(coordinates: str, *, alone: bool = False) -> str:
    """group:artifact:version in the form of a pom; `alone` leaves out its own dependencies."""
    group, artifact, version = coordinates.split(":")
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{_ALONE if alone else ''}</dependency>"
    )


def fetched_jars(name: str, dependencies: list[str], *, wanted: Callable[[str], bool] = lambda _: True) -> Path:
    """A folder with these jars and those that they need.  Skips the test if there is no Maven, or it can't fetch them.

    name:    the folder's name, which must change with the versions
    wanted:  returns whether to keep the jar of that name
    """
    maven = shutil.which("mvn")
    if maven is None:
        reason = f"there is no Maven (mvn) on the PATH to fetch the jars of {name} with"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = cache / "millpond-tests" / name
    if jars.is_dir():
        return jars
    fetched = jars.with_name(f"{name}.{uuid.uuid4().hex}")
    (fetched / "lib").mkdir(parents=True)
    (fetched / "pom.xml").write_text(_POM.format(dependencies="\n".join(dependencies)))
    command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={fetched / 'lib'}"]
    done = subprocess.run(command, cwd=fetched, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        shutil.rmtree(fetched)
        reason = f"Maven can't fetch the jars of {name}: {done.stdout[-500:]}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    for jar in (fetched / "lib").iterdir():
        if not wanted(jar.name):
            jar.unlink()
    with contextlib.suppress(OSError):  # another process was first
        (fetched / "lib").rename(jars)
    shutil.rmtree(fetched)
    return jars
