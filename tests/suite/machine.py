"""What the tests would miss on this machine: `python -m suite.machine` says it in one line, before any test runs.

`make test` has found or installed a Java by then; tools/java.sh says in one line what it could not get.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from servers.ports import ports_in_use

CHECKOUT = Path(__file__).parents[2]
NEEDED_BYTES = 4 << 30
NEEDED_FILES = 200_000
NEEDED_PORTS = 1_000


def missing() -> str | None:
    """The first thing that is missing, None if nothing is."""
    for folder in dict.fromkeys((Path(tempfile.gettempdir()), CHECKOUT)):
        if (free := shutil.disk_usage(folder).free) < NEEDED_BYTES:
            left = f"{free / 2**30:.1f} GiB left, and the tests need {NEEDED_BYTES >> 30}"
            return f"The disk of {folder} has {left}: free some, or set TMPDIR."
        state = os.statvfs(folder)
        if state.f_files and state.f_favail < NEEDED_FILES:
            return f"The disk of {folder} has room for {state.f_favail:,} more files, and the tests need {NEEDED_FILES:,}."
    ports, used = ports_in_use()
    if len(ports) - len(used) < NEEDED_PORTS:
        return (
            f"Of the ports {ports[0]} to {ports[-1]} on 127.0.0.1, {len(used):,} are in use, {used[0]} first, "
            f"and the tests need {NEEDED_PORTS:,}: `ss -ltnp` shows who listens."
        )
    return None


if __name__ == "__main__":
    sys.exit(missing())
