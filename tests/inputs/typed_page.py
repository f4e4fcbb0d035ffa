"""A page of the manual as a reader types it: files, commands and Python from top to bottom, with what they write.

1. Blocks with a title are files.  2. Blocks of `console` go to one shell, line by line; `&` keeps a job in the background.
3. Blocks of `pycon` go to this process.  4. `matches` compares an output with that of the page.

    PYTHONPATH=tests python -m inputs.typed_page PAGE             in an empty folder: command, output shown and real output, as JSON
    PYTHONPATH=tests python -m inputs.typed_page PAGE --to FILE   writes the page with the real output
"""

from __future__ import annotations

import argparse
import code
import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

from inputs.manual import DOCS, Block, blocks
from live_jobs.quick_java import QUICK_JAVA_ENVIRONMENT
from servers.ports import free_port
from soak.orphans import end_with_parent
from suite.waiting import TimedOut, wait_until

_PORT = "8642"
_PROMPTS = {"console": ("$ ", "> "), "pycon": (">>> ", "... ")}
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
        written, status = "", 0

        def is_done() -> bool:
            nonlocal written, status
            written, status = self._run(command)
            return not (command.startswith("curl") and status)

        with contextlib.suppress(TimedOut):  # what was written says more
            wait_until(is_done, "the server's answer to curl", seconds=_SERVER_SECONDS)
        return written.replace(self._port, _PORT)

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


def commands_of(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a block, and the output below it."""
    prompt, more = _PROMPTS[block.language]
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


def matches(output: str, came: str) -> bool:
    """Whether the real output is that of the page: `…` stands for any text, numbers before a unit of time and times of day that
    follow no date may differ."""
    masked = re.escape(output.rstrip())
    masked = masked.replace("…", r"[\s\S]*?")
    masked = re.sub(r"\d+(\\\.\d+)?(\\ )?(?=(s|ms|µs)\b)", r"[\\d.]+\\s*", masked)
    masked = re.sub(r"(?<![\dT:])(?<!\d\\ )\d{2}:\d{2}(:\d{2})?", r"[\\d:]+", masked)
    return bool(re.fullmatch(masked, came.rstrip()))


def run_page(page: str, folder: Path) -> Iterator[tuple[Block, str, str, str]]:
    """Each command of the page in order, the page's output, and the real one."""
    port = free_port()
    shell, known = Shell(folder, port), Console({"__name__": "__main__"})
    try:
        for block in blocks(page):
            if block.title:
                (folder / block.title).write_text(block.text)
            elif block.language in _PROMPTS:
                for command, output in commands_of(block):
                    came = shell.run(command) if block.language == "console" else known.type(command)
                    yield block, command, output, re.sub(r" +$", "", came, flags=re.MULTILINE)
    finally:
        for pond in [value for value in known.locals.values() if type(value).__name__ == "Pond"]:
            pond.close()
        shell.end()


def write_page(page: str, target: Path) -> None:
    """Write the page with the real output, for an author."""
    text = (DOCS / page).read_text(encoding="utf-8")
    done: dict[int, list[str]] = {}
    for block, command, _, came in run_page(page, Path.cwd()):
        prompt, more = _PROMPTS[block.language]
        done.setdefault(id(block), [block.text]).append(prompt + command.replace("\n", "\n" + more) + "\n" + came)
        print(prompt + command, came, sep="\n", flush=True)
    for before, *written in done.values():
        text = text.replace(before, "".join(written).rstrip("\n") + "\n", 1)
    target.write_text(text, encoding="utf-8")


def main() -> None:
    """Run a page."""
    end_with_parent(group=False)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", metavar="PAGE")
    parser.add_argument("--to", metavar="FILE", type=Path)
    asked = parser.parse_args()
    if asked.to is not None:
        write_page(asked.page, asked.to)
        return
    for _, *typed in run_page(asked.page, Path.cwd()):
        print(json.dumps(typed), flush=True)


if __name__ == "__main__":
    main()
