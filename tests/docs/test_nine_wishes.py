"""docs/nine-wishes.md, typed from top to bottom in a process of its own: each output is the one that the page shows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inputs.manual import DOCS, blocks
from inputs.typed_page import commands_of, matches
from live_jobs.quick_java import QUICK_JAVA_ENVIRONMENT

PAGE = "nine-wishes.md"
WISHES = (
    "Queryable",
    "Reprocessable",
    "Versionable",
    "Composable",
    "Unlimited updates",
    "Sending updates",
    "Retention times",
    "Downsampling",
    "An end-to-end guarantee",
)
_LONG_SECONDS = 400.0


@pytest.mark.spark
@pytest.mark.long
def test_a_reader_sees_what_stands_on_the_page(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, **QUICK_JAVA_ENVIRONMENT, "PYTHONPATH": paths, "MILLPOND_HOME": str(tmp_path / "home")}
    out, err = tmp_path / "out", tmp_path / "err"
    folder = tmp_path / "empty"
    folder.mkdir()
    with out.open("wb") as written, err.open("wb") as errors:
        command = [sys.executable, "-m", "inputs.typed_page", PAGE]
        typing = subprocess.Popen(command, cwd=folder, env=env, stdout=written, stderr=errors, start_new_session=True)
        try:
            ended = typing.wait(_LONG_SECONDS)
        finally:
            # Spark's JVM is in the same group.
            os.killpg(typing.pid, signal.SIGKILL)
            typing.wait(30)
    typed = [json.loads(line) for line in out.read_text().splitlines()]
    for command_of_page, output, came in typed:
        assert matches(output, came), f"{command_of_page}\nis to write\n{output}\nand writes\n{came}"
    assert ended == 0, err.read_text()[-3000:]
    shown = [pair for block in blocks(PAGE) for pair in commands_of(block)]
    assert [tuple(pair) for *pair, _ in typed] == shown


def test_each_wish_has_at_most_five_statements_and_shows_an_output() -> None:
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    headings = re.findall(r"^## (\d) (.*)$", text, re.MULTILINE)
    assert headings == [(str(n), wish) for n, wish in enumerate(WISHES, start=1)]
    for number, part in enumerate(re.split(r"^## \d .*$", text, flags=re.MULTILINE)[1:], start=1):
        lines = re.findall(r"^(?:>>> |\.\.\. |\$ )\S.*$", part, re.MULTILINE)
        assert 1 <= len(lines) <= 6, (number, lines)
        outputs = re.findall(r"^```(?:pycon|console)\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        assert any(not line.startswith((">>> ", "...", "$ ")) for block in outputs for line in block.splitlines()), number


def test_another_output_than_the_page_s_fails() -> None:
    shown = [output for block in blocks(PAGE) for _, output in commands_of(block) if output.strip()]
    assert len(shown) >= len(WISHES)
    for output in shown:
        assert matches(output, output)
        assert not matches(output, "1" + output)
        assert not matches(output, "")
