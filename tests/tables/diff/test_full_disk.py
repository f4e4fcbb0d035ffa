"""A disk without room for the rows of both sides is an error, and no file stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.native.library import library
from spark_files.checkpoint import WrittenCheckpoint

SCRIPT = """
import subprocess, sys
from pathlib import Path
import millpond
from millpond.errors import MillpondError

disk = Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
try:
    millpond.read_diff(sys.argv[1], "@0", "@0")
except MillpondError as refused:
    print(refused.condition, [path.name for path in disk.rglob("*")])
"""


@pytest.mark.long
def test_a_full_disk(tmp_path: Path) -> None:
    if library() is None:
        pytest.skip("without the compiled library, rows are sorted in memory")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting isn't allowed here")
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([(f"{n} " + "x" * 400, n) for n in range(40_000)], snapshot=False)
    job.commit()
    (tmp_path / "home").mkdir()
    command = ["unshare", "-m", sys.executable, "-c", SCRIPT, str(job.path), str(tmp_path / "home")]
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "DISK_FULL ['sort']\n"), done.stderr
