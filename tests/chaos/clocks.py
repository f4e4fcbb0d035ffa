"""Clocks that jump, each of one process: by a library that is preloaded, and compiled here."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_JUMPS = (0, 0, -2, 5, -45, 90, -3_600, 7_200, 172_800)


class Clocks:
    """A file for each process, which has how many seconds its clock is off.

    missing:  why this machine can't do that; empty if it can
    jumps:    how many there were
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._files = folder, dict[str, Path]()
        self._library = folder / "clock.so"
        self.jumps = 0
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.missing = done.stderr[-500:] if done.returncode else ""
        except FileNotFoundError:
            self.missing = "there is no C compiler (cc)"

    @property
    def is_there(self) -> bool:
        """Whether clocks can jump here."""
        return not self.missing

    def environment(self, name: str) -> dict[str, str]:
        """Variables for a process whose clock may jump; its monotonic clock never does."""
        if not self.is_there:
            return {}
        self._files[name] = self._folder / name
        self._files[name].write_bytes(struct.pack("=q", 0))
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._files[name])}

    def jump(self, chance: random.Random) -> str:
        """Let the clock of one process jump; returns its name."""
        name = chance.choice(list(self._files))
        self.set(name, chance.choice(_JUMPS))
        self.jumps += 1
        return name

    def right(self) -> None:
        """All clocks are right again."""
        for name in self._files:
            self.set(name, 0)

    def set(self, name: str, seconds: int) -> None:
        """Let the clock of one process be so far off, at once."""
        with self._files[name].open("r+b") as file:
            file.write(struct.pack("=q", seconds))
