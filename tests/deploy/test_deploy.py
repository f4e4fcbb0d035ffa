"""The files of `deploy/` are valid, and use options that the command has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from millpond.cli import main
from millpond.serve.console.files import FILES

DEPLOY = Path(__file__).parents[2] / "deploy"


def _served(words: list[str]) -> dict[str, object]:
    """The parameters of `millpond serve` with these words.  Raises for an unknown one."""
    assert words[0] == "serve"
    return main.named("serve").make_context("millpond", words[1:]).params


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine has no systemd-analyze")
    text = (DEPLOY / "millpond.service").read_text()
    # The program that the unit runs isn't installed here.
    (tmp_path / "millpond.service").write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", text))
    done = subprocess.run(["systemd-analyze", "verify", str(tmp_path / "millpond.service")], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "millpond.service" in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_unit_runs_a_command_that_there_is() -> None:
    text = (DEPLOY / "millpond.service").read_text()
    (command,) = re.findall(r"(?m)^ExecStart=\S+ (.*)$", text)
    assert _served(command.split())["workers"] == 2


def test_the_container_file_has_nothing_that_hadolint_complains_of() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, str(DEPLOY / "Containerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.long
def test_the_container_has_all_that_the_package_is_built_of(tmp_path: Path) -> None:
    """A build from only those files that the Containerfile copies."""
    for copied in re.findall(r"(?m)^COPY ((?!--from).*)$", (DEPLOY / "Containerfile").read_text()):
        *sources, target = copied.split()
        for source in sources:
            place = DEPLOY.parent / source
            if place.is_dir():
                shutil.copytree(place, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(place, tmp_path / target)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("libmillpond.so") for name in names)
    console = {name.rpartition("/")[2] for name in names if "/serve/console/" in name}
    assert {*FILES, "index.html", "LICENSE"} <= console


def test_the_container_asks_for_tokens_before_it_opens_itself() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    (words,) = re.findall(r"(?m)^CMD (\[\"serve.*\])$", text)
    parameters = _served(json.loads(words))
    assert (parameters["host"], parameters["tokens"], parameters["insecure"]) == ("0.0.0.0", None, False)
    with pytest.raises(click.NoSuchOption):
        _served(["serve", "/pond", "--no-such-option"])
