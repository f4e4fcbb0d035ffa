"""`python -m soak --kills 1000 --seed 7`: run a soak, print its seed, and write the result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from soak.checks import Counts
from soak.storm import Soak

_DISK_BYTES = 256 << 20
_TESTS = Path(__file__).parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak; returns 0 if every answer was right."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--folder", type=Path, help="an empty folder; left as it is where something was wrong")
    parser.add_argument("--result", type=Path, help="a JSON file for what it came to")
    parser.add_argument("--home", type=Path, help="for replicas: a small file system that may be filled")
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="millpond-soak-"))
    if given.home is None:
        (folder / "home").mkdir()
        again = [*(sys.argv[1:] if arguments is None else arguments), "--seed", str(given.seed), "--folder", str(folder)]
        _mount_and_run(folder / "home", again)
    home = given.home or folder / "home"
    print(f"seed {given.seed}, {given.kills} kills, in {folder}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # all processes end, as after an error
    began = time.monotonic()
    soak = Soak(folder, home, seed=given.seed, can_fill=given.home is not None)
    try:
        soak.run(given.kills)
    except AssertionError as wrong:
        soak.wrong = soak.wrong or [str(wrong)]  # the log already has all wrong answers
    planned = [
        {batch: [found.file, found.watermark_ms, found.started_ms] for batch, found in run.planned.items()}
        for run in soak.oracle.runs
    ]
    (folder / "planned.json").write_text(json.dumps(planned))
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()},
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "seed": given.seed,
        "seconds": round(time.monotonic() - began),
        "kills": soak.storm.kills.total(),
        "killed": dict(soak.storm.kills),
        "paused": dict(soak.storm.pauses),
        "job_replaced": soak.storm.replaced,
        "without_follower": soak.storm.outages,
        "disk_can_be_filled": given.home is not None,
        "disk_filled": soak.storm.full,
        "batches": [len(run.planned) for run in soak.oracle.runs],
        **{name: getattr(soak.counts, name) for name in Counts.__slots__},
        "wrong": soak.wrong[:20],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.result is not None:
        given.result.write_text(text + "\n")
    return 1 if soak.wrong else 0


def _mount_and_run(home: Path, arguments: Sequence[str]) -> None:
    """Run the same program again in a mount namespace, with a small file system at `home`; returns only if that is impossible."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    mount = 'mount -t tmpfs -o "size=$1" none "$2" && shift 2 && exec "$@"'
    shell = [*unshare, "sh", "-c", mount, "sh", str(_DISK_BYTES), str(home)]
    try:
        if subprocess.run([*shell, "true"], capture_output=True, check=False).returncode:
            return
    except FileNotFoundError:
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, "-m", "soak", *arguments, "--home", str(home)]
    os.execvp(shell[0], [*shell, *program])


if __name__ == "__main__":
    sys.exit(main())
