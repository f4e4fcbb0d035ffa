"""What is wrong with the logs that a restart reads: offsets/N-1 and N, commits/N, `metadata`, and file sources' logs.

1. Hadoop's checksums beside them, where they are.
2. The plan of the batch before, which Spark reads as well.
3. A plan that ends before the one before it, and was planned before it.  An edit may move offsets
   back, and a clock may be set back: both at once show another batch's plan.
4. Entries of file sources' logs that are other ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.checkpoint.files.sidecars import verify_file
from millpond.checkpoint.log import BatchPlan, CommittedBatch, read_plan
from millpond.checkpoint.offset_order import fallen
from millpond.checkpoint.position import Batch
from millpond.errors import CheckpointError
from millpond.savepoint.repair.logs import source_problems
from millpond.storage import Storage

_HINT = "Restore the file from a copy; millpond repair shows what else is wrong."


def log_problems(storage: Storage, batch: CommittedBatch) -> Iterator[CheckpointError]:
    """Each as an error that names the file.  A lost file isn't named here.  Raises what the storage raises."""
    number = batch.batch
    logs = ["metadata", f"offsets/{number}", f"commits/{number}", *([f"offsets/{number - 1}"] if number else [])]
    for path in logs if not storage.is_remote else ():  # 1
        if storage.stamp(path) is not None:
            try:
                verify_file(storage, path)
            except CheckpointError as error:
                yield error
    plans = {}
    for each in (number, number - 1, number - 2):
        if storage.stamp(f"offsets/{each}") is not None:
            try:
                plans[each] = read_plan(storage, Batch(each))
            except CheckpointError as error:
                if each >= number - 1:  # 2
                    yield error
    earlier = plans.get(number - 1)
    if earlier is not None and len(earlier.offsets) < len(batch.offsets) and all(name.isdecimal() for name in batch.offsets):
        path = f"offsets/{number - 1}"  # sources with names may come and go
        what = f"{path} names {len(earlier.offsets)} of {len(batch.offsets)} sources."
        yield CheckpointError("INCOMPLETE_FILE", what, hint=_HINT, path=f"{storage.uri}/{path}")
    for later in (number - 1, number):  # 3
        plan, before = plans.get(later), plans.get(later - 1)
        if plan is not None and before is not None and plan.started_ms < before.started_ms and _has_fallen(before, plan):
            path = f"offsets/{later}"
            what = f"{path} ends before offsets/{later - 1}, and was planned before it: it is another batch's."
            yield CheckpointError("CORRUPT_FILE", what, hint=_HINT, path=f"{storage.uri}/{path}")
    for source, offset in batch.offsets.items():  # 4
        for found in source_problems(storage, source, offset, later=False).values():
            if found.condition != "FILE_GONE":
                yield found


def _has_fallen(before: BatchPlan, plan: BatchPlan) -> bool:
    return any(fallen(before.offsets.get(source), end) for source, end in plan.offsets.items())
