"""Makes savepoints of the job, verifies and restores each, and reads the copy: `python -m chaos.saver POND SCRATCH LOG SEED`.

What a copy has is written to the log as an answer as of its batch, for the judge. A savepoint that doesn't verify is wrong.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import uuid
from pathlib import Path

import millpond
from millpond.errors import MillpondError
from millpond.storage import open_storage
from soak.orphans import end_with_parent
from soak.reader import TABLE, Log, found_of, source_of

_KEPT = 2


def main(pond: str, scratch: str, path: str, seed: str) -> None:
    """One after the other, until a signal ends it."""
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    log, chance = Log(Path(path)), random.Random(f"{seed}/saver/{os.getpid()}")
    while not ending:
        try:
            save(pond, scratch, log)
        except MillpondError as error:
            log.write(op="error", condition=error.condition, message=str(error))
        until = time.monotonic() + chance.uniform(1, 6)
        while time.monotonic() < until and not ending:
            time.sleep(0.1)


def save(pond: str, scratch: str, log: Log) -> None:
    """Make a savepoint, and look at it."""
    name = f"s{uuid.uuid4().hex[:12]}"
    copy = f"{scratch}/{name}"
    try:
        saved = millpond.plan_savepoint(pond, name).run()
        problems = millpond.verify_savepoint(saved).problems
        if problems:
            log.write(op="wrong", what=f"savepoint {name} of batch {saved.manifest.batch}: {problems}")
        millpond.plan_restore(pond, name, copy).run()
        with millpond.open(copy, replica_dir="memory://") as restored:
            rows = restored[TABLE].live().scan()
            if rows.batch != saved.manifest.batch or rows.position.offsets != saved.manifest.offsets:
                log.write(
                    op="wrong", what=f"savepoint {name} says {saved.manifest.batch}, {saved.manifest.offsets}", **source_of(rows)
                )
            log.write(op="at", page=None, reverse=False, rows=[found_of(row) for row in rows], **source_of(rows))
    finally:
        open_storage(copy).delete_all()
    millpond.plan_prune(pond, keep_last=_KEPT).run()


if __name__ == "__main__":
    end_with_parent(group=False)
    main(*sys.argv[1:])
