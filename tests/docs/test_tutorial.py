"""docs/tutorial.md as a reader runs it: its job, commands and Python give the output that the page shows.

1. Blocks with a title are files.  2. Blocks of `console` go to one shell, line by line; `&` keeps a job in the background.
3. Blocks of `pycon` go to this process.  4. The output must equal that of the page, up to what `_pattern` lets differ.
`python test_tutorial.py FILE` writes the page with the new output.
"""

from __future__ import annotations

import code
import contextlib
import io
import os
import pty
import re
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inputs.manual import Block, blocks
from live_jobs.quick_java import QUICK_JAVA_ENVIRONMENT

pytestmark = pytest.mark.long

_PORT = "8642"
_END = "the command has ended"
_SERVER_SECONDS = 180.0


class Shell:
    """A shell in a folder, on a terminal of its own; its jobs are killed with it."""

    def __init__(self, folder: Path, port: int) -> None:
        self._port = str(port)
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {**os.environ, **QUICK_JAVA_ENVIRONMENT, "PATH": programs, "TERM": "dumb", "SPARK_LOCAL_DIRS": str(folder)}
        ours, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (50, 100))
        command = ["bash", "--noprofile", "--norc"]
        self._process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=terminal, stderr=terminal, text=True, start_new_session=True
        )
        os.close(terminal)
        self._written = os.fdopen(ours, encoding="utf-8")
        self.run("set -m")

    def run(self, command: str) -> str:
        """The output of one command.  Repeats a `curl` until its server is there."""
        command = command.replace(_PORT, self._port)
        deadline = time.monotonic() + _SERVER_SECONDS
        while True:
            written, status = self._run(command)
            if not (command.startswith("curl") and status and time.monotonic() < deadline):
                return written.replace(self._port, _PORT)
            time.sleep(0.2)

    def _run(self, command: str) -> tuple[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\nstatus=$?; echo; echo {_END} $status\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._written:
            if line.startswith(_END):
                # Bash's lines about its own jobs aren't a command's output.
                written = "".join(one for one in lines if not one.startswith("bash: line"))
                return written.removesuffix("\n"), int(line.split()[-1])
            lines.append(line)
        raise AssertionError(f"the shell has ended at {command}")

    def end(self) -> None:
        self._run("kill -9 $(jobs -p) 2> /dev/null; wait")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._written.close()


class Console(code.InteractiveConsole):
    """Python as a reader types it: gives a statement's output or value; an error fails the test."""

    def type(self, statement: str) -> str:
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            assert not self.runsource(statement + "\n"), f"{statement!r} goes on"
        assert "Traceback" not in written.getvalue(), written.getvalue()
        return written.getvalue()


def _commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a block, and the output below it."""
    prompt, more = ("$ ", "> ") if block.language == "console" else (">>> ", "... ")
    command, output = "", ""
    for line in block.text.splitlines(keepends=True):
        if line.startswith(prompt):
            if command:
                yield command, output
            command, output = line.removeprefix(prompt).rstrip("\n"), ""
        elif line.startswith(more) and not output:
            command += "\n" + line.removeprefix(more).rstrip("\n")
        else:
            output += line
    yield command, output


def _pattern(output: str) -> str:
    """The pattern of an output: `…` stands for any text, and numbers before a unit of time or in a time of day may differ."""
    masked = re.escape(output.rstrip())
    masked = masked.replace("…", r"[\s\S]*?")
    masked = re.sub(r"\d+(\\\.\d+)?(\\ )?(?=(s|ms|µs)\b)", r"[\\d.]+\\s*", masked)
    return re.sub(r"\d{2}:\d{2}(:\d{2})?", r"[\\d:]+", masked)


def _run_page(folder: Path) -> Iterator[tuple[Block, str, str, str]]:
    """Each command of the page in order, the page's output, and the real one."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    shell, known = Shell(folder, port), Console({"__name__": "__main__"})
    try:
        for block in blocks("tutorial.md"):
            if block.title:
                (folder / block.title).write_text(block.text)
                continue
            for command, output in _commands(block):
                came = shell.run(command) if block.language == "console" else known.type(command)
                yield block, command, output, re.sub(r" +$", "", came, flags=re.MULTILINE)
    finally:
        for pond in [value for value in known.locals.values() if type(value).__name__ == "Pond"]:
            pond.close()
        shell.end()


@pytest.mark.spark
def test_a_reader_sees_what_stands_in_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    for _, command, output, came in _run_page(tmp_path):
        assert re.fullmatch(_pattern(output), came.rstrip()), f"{command}\nis to write\n{output}\nand writes\n{came}"


@pytest.mark.parametrize(
    ("output", "came", "matches"),
    [
        ("batch 2 · committed 3.1 s ago", "batch 2 · committed 21.5 s ago", True),
        ("batch 2 · committed 3.1 s ago", "batch 3 · committed 3.1 s ago", False),
        ('{"a":1,…}', '{"a":1,"b":2}', True),
        ("12:01", "03:59", True),
        ("12 rows", "13 rows", False),
        ("", "more", False),
    ],
)
def test_only_times_and_what_is_left_out_may_differ(output: str, came: str, matches: bool) -> None:
    assert bool(re.fullmatch(_pattern(output), came)) == matches


def _write(target: Path) -> None:
    """Write the page with the real output, for an author."""
    page: Any = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
    done: dict[int, list[str]] = {}
    for block, command, _, came in _run_page(Path.cwd()):
        prompt, more = ("$ ", "> ") if block.language == "console" else (">>> ", "... ")
        done.setdefault(id(block), [block.text]).append(prompt + command.replace("\n", "\n" + more) + "\n" + came)
        print(prompt + command, came, sep="\n", flush=True)
    for before, *written in done.values():
        page = page.replace(before, "".join(written).rstrip("\n") + "\n", 1)
    target.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
