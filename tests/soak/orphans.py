"""Ends the processes of a soak when the soak ends, however that happens."""

from __future__ import annotations

import os
import signal
import threading
import time


def end_with_parent(*, group: bool) -> None:
    """End this process as soon as its parent is gone; with `group`, its whole process group, such as Spark's JVM."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        if group:
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
