"""The tutorial of docs/upgrades.md, followed word by word: its files, its commands, and what they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "upgrades.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
@pytest.mark.long
def test_the_tutorial_shows_what_it_says(tmp_path: Path) -> None:
    tutorial = PAGE.read_text().partition("### A tutorial")[2]
    commands = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "MILLPOND_HOME": str(tmp_path / "home")}
    shown = ""
    compared = 0
    for language, text in _BLOCK.findall(tutorial):
        if language == "python":
            (tmp_path / text.split()[1]).write_text(text)
        elif text.startswith("page "):
            assert [line.split() for line in shown.splitlines()[-2:]] == [line.split() for line in text.splitlines()]
            compared += 1
        else:
            with (tmp_path / "errors").open("wb") as errors:
                run = ["bash", "-e", "-c", text]
                done = subprocess.run(
                    run, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=errors, timeout=300, check=False
                )
            shown = done.stdout.decode()
            assert done.returncode == 0, shown + (tmp_path / "errors").read_text(errors="replace")[-3000:]
    assert compared == 2
