"""What a job has read, in steps: its batches, with the time and the watermarks of each.

1. A batch whose plan is there, and the plan of the batch before, is a step of its own.  Its events
   are those between the two ends, and its time and watermarks are known.
2. Spark removes the plans of old batches (by default all but 100), and a savepoint has only two.
   What was read before is known from the first end that is left.  A file source's log says which
   files came together, so each of its entries is a step.  Of other sources all is one step.
3. Of such a step the time and the watermark are known as a span only: a batch began after its files
   were written, and before the first plan that is left.

Source:  MicroBatchExecution, FileStreamSourceLog, KafkaSourceInitialOffsetWriter, Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from millpond.checkpoint.log import BatchPlan, planned_batches, read_plan
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import log_offset
from millpond.checkpoint.source_files import iter_logged
from millpond.errors import CheckpointError, SavepointError
from millpond.savepoint.create import find_batches
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage

Span = tuple[int, int]
"""at least, at most; equal if it is known"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the input that one step has read.

    source:  the number of the source
    name:    a file's URI, or `topic:partition`
    first, end:  its offsets, from the first one to before the end; None for a file
    """

    source: int
    name: str
    first: int | None = None
    end: int | None = None

    def words(self) -> str:
        """For people."""
        return self.name if self.end is None else f"{self.name}:{self.first}-{self.end - 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A batch, or what was read before the plans that are left.

    number:         its place among the steps, from 0
    first_batch, batch:  the batches that it may stand for
    clock_ms:       the time of the batch
    watermark_ms:   with which it was planned
    before_ms:      that of the batch before
    is_one:         whether it was one batch
    parts:          what it has read
    """

    number: int
    first_batch: int
    batch: int
    clock_ms: Span
    watermark_ms: Span
    before_ms: Span
    is_one: bool = True
    parts: tuple[Part, ...] = field(repr=False)

    @property
    def is_exact(self) -> bool:
        """Whether its batch, time and watermarks are known."""
        return self.first_batch == self.batch

    @property
    def batches(self) -> str:
        """For people."""
        return f"batch {self.batch}" if self.is_exact else f"batches {self.first_batch} to {self.batch}"


def read_steps(storage: Storage, since: int | None, until: int | None) -> list[Step]:
    """The steps of a checkpoint.

    since:   the first batch; None for all that the job has read
    until:   the last batch; None for the newest committed one
    Raises:  NO_COMMITTED_BATCH; BATCH_GONE if the plans of these batches aren't there; UNSUPPORTED
             for sources other than files and Kafka; what damaged files raise.
    """
    committed = find_batches(storage, until)
    last = int(committed[-1]) if until is None else until
    planned = {int(number) for number in planned_batches(storage)}
    oldest = last
    while oldest > 0 and oldest - 1 in planned:
        oldest -= 1
    # The first batch whose plan is there, with that of the batch before.
    start = 0 if oldest == 0 else oldest + 1
    if since is not None:
        if not start <= since <= last:
            raise SavepointError(
                "BATCH_GONE",
                f"The plans of batches {since} to {last}, and that of the batch before, aren't all in {storage.uri}.",
                hint=f"Name batches from {start} to {committed[-1]}.",
                batch=since,
            )
        start = since
    plans = {number: read_plan(storage, Batch(number)) for number in range(min(max(start - 1, 0), last), last + 1)}
    steps: list[Step] = []
    if since is None and oldest > 0:
        steps += _before(storage, plans[oldest])
    inputs = _Inputs(storage, plans[last])
    for number in range(start, last + 1):
        plan, before = plans[number], plans.get(number - 1)
        mark = before.watermark_ms if before is not None else 0
        steps.append(
            Step(
                number=len(steps),
                first_batch=number,
                batch=number,
                clock_ms=(plan.started_ms, plan.started_ms),
                watermark_ms=(plan.watermark_ms, plan.watermark_ms),
                before_ms=(mark, mark),
                parts=tuple(inputs.between(None if before is None else before.offsets, plan.offsets)),
            )
        )
    return steps


def _before(storage: Storage, end: BatchPlan) -> Iterator[Step]:  # 2
    """What was read up to the end of the oldest plan that is left."""
    inputs = _Inputs(storage, end)
    parts = list(inputs.between(None, end.offsets))
    is_log = len(end.offsets) == 1 and all(log_offset(offset) is not None for offset in end.offsets.values())
    groups = [list(each) for _, each in groupby(parts, key=inputs.entry_of)] if is_log else [parts]
    began = 0
    for number, group in enumerate(groups):
        began = max([began, *(inputs.written_ms(part) for part in group)])
        yield Step(
            number=number,
            first_batch=0,
            batch=int(end.batch),
            clock_ms=(min(began, end.started_ms), end.started_ms),
            watermark_ms=(0, end.watermark_ms),
            before_ms=(0, end.watermark_ms),
            is_one=is_log,
            parts=tuple(group),
        )


class _Inputs:
    """What lies between two ends of a checkpoint's sources."""

    def __init__(self, storage: Storage, last: BatchPlan) -> None:
        self._storage = storage
        self._files = {
            source: sorted(iter_logged(storage, source, upto=upto), key=lambda file: (file.entry, file.path))
            for source, offset in last.offsets.items()
            if (upto := log_offset(offset)) is not None
        }
        self._entries = {(i, f.path): f for i, source in enumerate(last.offsets) for f in self._files.get(source, ())}

    def entry_of(self, part: Part) -> int:
        return self._entries[part.source, part.name].entry

    def written_ms(self, part: Part) -> int:
        file = self._entries.get((part.source, part.name))
        return 0 if file is None else file.timestamp_ms

    def between(self, begin: Mapping[str, Any] | None, end: Mapping[str, Any]) -> Iterator[Part]:
        for number, (source, offset) in enumerate(end.items()):
            before = None if begin is None else begin.get(source)
            upto = log_offset(offset)
            if offset is None:
                continue
            if upto is not None:
                after = -1 if before is None else log_offset(before)
                assert after is not None, "a source stays of one kind"
                for file in self._files[source]:
                    if after < file.entry <= upto:
                        yield Part(source=number, name=file.path)
                continue
            if before is None:
                before = _initial(self._storage, source)
            yield from _records(number, source, before, offset)


def _records(number: int, source: str, begin: Any, end: Any) -> Iterator[Part]:
    if not (isinstance(end, Mapping) and all(isinstance(each, Mapping) for each in end.values())):
        raise CheckpointError(
            "UNSUPPORTED",
            f"What source {source} has read can't be read again: its offset is {end!r:.80}.",
            hint="Aggregates of files and of Kafka can be audited.",
            source=source,
        )
    for topic, partitions in end.items():
        there = begin.get(topic, {}) if isinstance(begin, Mapping) else {}
        for partition, upto in sorted(partitions.items(), key=lambda each: int(each[0])):
            first = int(there.get(partition, 0))
            if upto > first:
                yield Part(source=number, name=f"{topic}:{partition}", first=first, end=int(upto))


def _initial(storage: Storage, source: str) -> Any:
    """Where a source began, as Kafka's writes it; None if it didn't."""
    path = f"sources/{source}/0"
    if storage.stamp(path) is None:
        return None
    text = storage.read(path, FileBounds().log_bytes).lstrip(b"\0")
    try:
        return parse_json(text.partition(b"\n")[2])
    except DAMAGE as broken:
        raise CheckpointError(
            "CORRUPT_FILE", f"{path}: it isn't JSON: {broken!r:.80}.", hint="Restore the file from a copy.", path=path
        ) from broken
