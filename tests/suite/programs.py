"""Programs that a test starts: they end with the test, however it ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from suite.waiting import PATIENCE_SECONDS


@contextmanager
def started(args: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a program; it must have ended, or end by itself, soon after the block.

    `subprocess.Popen` as a context waits for the end without a limit: a failure in the block then hangs the whole run, for
    example if the program waits in turn for somebody who reads what it writes.

    options:  of `subprocess.Popen`
    Raises:   TimeoutExpired if it goes on; it is killed then, as it is after an error of the block.
    """
    with subprocess.Popen(args, **options) as running:
        try:
            yield running
            if running.stdin is not None:
                running.stdin.close()
            running.wait(PATIENCE_SECONDS)
        finally:
            if running.poll() is None:
                running.kill()
