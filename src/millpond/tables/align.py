"""Jobs that read the same sources, at the same point of their input.

Answers of two jobs name two batches; where both keep history, each can be read as of the batch whose input ended at the same
offsets.

1. A job's position with exactly these offsets, whatever number its batch has.
2. Of several, the newest: batches without input only move the watermark.
3. Offsets that mean something in one job only are refused: a file source counts the entries of its own log, a rate source the
   seconds since it began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from millpond.errors import ReplicaError
from millpond.replica.history import iter_positions
from millpond.replica.record import ReplicaRecord
from millpond.replica.replica import View
from millpond.tables.offsets import describe

if TYPE_CHECKING:
    from millpond.tables.table import Table

Offsets = Mapping[str, Any]


def align(tables: Mapping[str, Table], offsets: Offsets | None) -> dict[str, Table]:
    """The same tables as of one point of their jobs' input.

    offsets:  where it ends, the newest that all have where there are none
    Raises:   NOT_ALIGNED, HISTORY_GONE; as `Table.get`.
    """
    with ExitStack() as opened:
        jobs = {table.job_reads: table.job for table in tables.values()}
        views = [(name, reads, opened.enter_context(reads.replica.snapshot())) for reads, name in jobs.items()]
        end = offsets if offsets is not None else newest_common((name, view) for name, _, view in views)
        batches = {reads: batch_ending_at(view, end, name) for name, reads, view in views}
    return {name: table.at(batch=batches[table.job_reads]) for name, table in tables.items()}


def batch_ending_at(view: View, offsets: Offsets, job: str) -> int:
    """The newest batch of a job whose input ends at these offsets.  Raises NOT_ALIGNED where it has none, or none is known."""
    _check_comparable(offsets, job)
    wanted, positions = _name(offsets), list(_positions(view))
    found = [record.batch for record in positions if _name(record.offsets) == wanted]
    if found:
        return found[-1]
    raise ReplicaError(
        "NOT_ALIGNED",
        f"No batch of {job} from {positions[0].batch} to {positions[-1].batch} ends at these offsets: {describe(offsets)}.",
        hint="Give the offsets of an answer's position, of a job with the same sources, or none for the newest that all have.",
        job=job,
        first=positions[0].batch,
        newest=positions[-1].batch,
    )


def newest_common(views: Iterable[tuple[str, View]]) -> Offsets:
    """The newest offsets at which a batch of every one of these jobs ends.  Raises NOT_ALIGNED where there are none."""
    common: dict[str, Offsets] | None = None
    jobs = []
    for job, view in views:
        jobs.append(job)
        _check_comparable(view.record.offsets, job)
        mine: dict[str, Offsets] = {_name(record.offsets): record.offsets for record in _positions(view)}
        # In the order of the first job, whose newest come last.
        common = {name: offsets for name, offsets in (mine if common is None else common).items() if name in mine}
    if not common:
        raise ReplicaError(
            "NOT_ALIGNED",
            f"There are no offsets at which a batch of each of {', '.join(jobs)} ends, as far as their positions are kept.",
            hint="Align jobs that read the same sources in the same order, and whose batches end at the same offsets now and then.",
            jobs=jobs,
        )
    return common[next(reversed(common))]


def _check_comparable(offsets: Offsets, job: str) -> None:  # 3
    for offset in offsets.values():
        if offset is not None and (not isinstance(offset, dict) or offset.keys() == {"logOffset"}):
            raise ReplicaError(
                "NOT_ALIGNED",
                f"The offsets of {job} mean nothing to another job: {describe(offsets)}.",
                hint="Align jobs whose sources have offsets of their own, such as Kafka's; others by time: table.at(time=…).",
                job=job,
            )


def _positions(view: View) -> Iterator[ReplicaRecord]:
    return (record for record in iter_positions(view.rows) if record.batch <= view.record.batch)


def _name(offsets: Offsets) -> str:
    """The same text for the same offsets."""
    return json.dumps([offsets[source] for source in sorted(offsets)], sort_keys=True)
