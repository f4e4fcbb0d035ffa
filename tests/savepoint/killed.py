"""Runs a command until its n-th step with files, and is killed there: `python -m savepoint.killed N POND COMMAND …`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

NO_EXCHANGE = "MILLPOND_TEST_NO_EXCHANGE"
"""set for a file system where two names can't be exchanged"""
_STEPS = frozenset({"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.scandir", "ctypes.dlsym"})


def run_killed(step: int, pond: Path, *command: str) -> int:
    """Run it in a process of its own; returns how many steps it took, or -1 if it was killed."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "savepoint.killed", str(step), str(pond), *command],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == -signal.SIGKILL:
        return -1
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def main(step: int, pond: str, command: str, *arguments: str) -> None:
    """Plan, and then run to that step."""
    import millpond
    from millpond.ownership import take_over

    if os.environ.get(NO_EXCHANGE):
        take_over.try_exchange = lambda _one, _other: False  # type: ignore[assignment]
    if command == "rescale":
        plan: Any = millpond.plan_rescale(pond, int(arguments[0]))
    else:
        plan = millpond.plan_rollback(pond, savepoint=arguments[0])
    steps = 0

    def count(event: str, _: Any) -> None:
        nonlocal steps
        if event in _STEPS:
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    plan.run()
    print(steps)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
