"""What the programs of storms share: their options, a small disk for replicas, and the facts of each result."""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.mounts import run_again_with_disk


@dataclass(frozen=True, slots=True)
class Given:
    """What a program was asked for.

    folder:    left as it is where something was wrong
    home:      for replicas
    can_fill:  whether that is a small file system
    options:   all options, those of one program too
    """

    kills: int
    seed: int
    folder: Path
    home: Path
    can_fill: bool
    result: Path | None
    options: argparse.Namespace
    began: float

    def facts(self) -> dict[str, Any]:
        """The facts of any result."""
        return {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()},
            "load_average": [round(load, 1) for load in os.getloadavg()],
            "seed": self.seed,
            "seconds": round(time.monotonic() - self.began),
        }


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *, kills: int, disk_bytes: int) -> Given:
    """Read the options, print the seed, and begin again in a mount namespace if replicas may have a small disk there."""
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--folder", type=Path, help="an empty folder; left as it is where something was wrong")
    parser.add_argument("--result", type=Path, help="a JSON file for what it came to")
    parser.add_argument("--home", type=Path, help="for replicas: a small file system that may be filled")
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"millpond-{parser.prog}-"))
    if given.home is None:
        (folder / "home").mkdir()
        again = [*(sys.argv[1:] if arguments is None else arguments), "--seed", str(given.seed), "--folder", str(folder)]
        run_again_with_disk(parser.prog, again, folder / "home", disk_bytes)
    print(f"seed {given.seed}, {given.kills} kills, in {folder}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # all processes end, as after an error
    return Given(
        kills=given.kills,
        seed=given.seed,
        folder=folder,
        home=given.home or folder / "home",
        can_fill=given.home is not None,
        result=given.result,
        options=given,
        began=time.monotonic(),
    )
