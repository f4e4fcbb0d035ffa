"""What is wrong with the logs that a restart reads: offsets/N-1 and N, commits/N, `metadata`, and file sources' logs.

1. Hadoop's checksums beside them, where they are.
2. The plan of the batch before, which Spark reads as well.
3. A plan that ends before the one before it, and was planned before it.  An edit may move offsets
   back, and a clock may be set back: both at once show another batch's plan.
4. Entries of file sources' logs that are other ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from millpond.checkpoint.files.sidecars import verify_file
from millpond.checkpoint.log import BatchPlan, CommittedBatch, read_plan
from millpond.checkpoint.offset_order import fallen
from millpond.checkpoint.position import Batch
from millpond.errors import CheckpointError
from millpond.savepoint.repair.logs import lacks_sources, source_problems
from millpond.storage import Storage

_LOST = "FILE_GONE"
_HINT = "Restore the file from a copy; millpond repair shows what else is wrong."


def log_problems(storage: Storage, batch: CommittedBatch) -> Iterator[CheckpointError]:
    """Each as an error that names the file.  A lost file isn't named here.  Raises what the storage raises."""
    number = batch.batch
    logs = ["metadata", f"commits/{number}", f"offsets/{number}", f"offsets/{number - 1}"]
    for path in logs if not storage.is_remote else ():  # 1
        try:
            verify_file(storage, path)
        except CheckpointError as error:
            if error.condition != _LOST:
                yield error
    plans: dict[int, BatchPlan | CommittedBatch] = {number: batch}
    for before in range(max(0, number - 2), number):
        try:
            plans[before] = found = read_plan(storage, Batch(before))
        except CheckpointError as error:
            if before == number - 1 and error.condition != _LOST:  # 2
                yield error
        else:
            if before == number - 1 and (cut := lacks_sources(found, len(batch.offsets))) is not None:
                yield cut
    for was, plan in pairwise(plans[each] for each in sorted(plans)):  # 3
        if plan.batch == was.batch + 1 and plan.started_ms < was.started_ms and _has_fallen(was, plan):
            path = f"offsets/{plan.batch}"
            what = f"{path} ends before offsets/{was.batch}, and was planned before it: it is another batch's."
            yield CheckpointError("CORRUPT_FILE", what, hint=_HINT, path=f"{storage.uri}/{path}")
    for source, offset in batch.offsets.items():  # 4
        wrong = source_problems(storage, source, offset, later=False).values()
        yield from (error for error in wrong if error.condition != _LOST)


def _has_fallen(before: BatchPlan | CommittedBatch, plan: BatchPlan | CommittedBatch) -> bool:
    return any(fallen(before.offsets.get(source), end) for source, end in plan.offsets.items())
