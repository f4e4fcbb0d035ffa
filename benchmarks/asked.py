"""A Python process that is asked line by line and answers each line with one of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


class Process:
    """A program in a process of its own.  Its first answer comes before it is asked anything.

    within:  a command that runs the process, such as one that bounds its memory
    """

    def __init__(self, program: str, *arguments: object, within: Sequence[str] = ()) -> None:
        command = [*within, sys.executable, "-c", program, *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self.receive()

    def ask(self, line: object) -> dict[str, Any]:
        """What it answers to a line."""
        self.send(line)
        return self.receive()

    def send(self, line: object) -> None:
        """Write a line, whose answer `receive` gives."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Close its input, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)

    def receive(self) -> dict[str, Any]:
        """Its next answer."""
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
