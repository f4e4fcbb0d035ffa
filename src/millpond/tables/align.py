"""Jobs that read the same streams, at the same point of their input.

Answers of two jobs name two batches.  If both keep history, each can be read as of the batch whose
input ended at the same offsets.  Only the streams (Kafka's topics) that all of the jobs read count.

1. Find the job's position with exactly these offsets.  The number of its batch doesn't matter.
2. If there are several, take the newest: batches without input only move the watermark.
3. Ignore offsets that mean something in one job only: a file source counts the entries of its own
                                                       log, a rate source the seconds since it
                                                       began.  Refuse a job that has no other
                                                       offsets.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from millpond.errors import ReplicaError
from millpond.replica.history.as_of import iter_positions
from millpond.replica.record import ReplicaRecord
from millpond.replica.replica import View
from millpond.tables.job.offsets import describe, is_own

if TYPE_CHECKING:
    from millpond.tables.table import Table

Offsets = Mapping[str, Any]
Ends = dict[str, list[str]]
"""Stream -> where each of its readings ends, as JSON."""


def align(tables: Mapping[str, Table], offsets: Offsets | None) -> dict[str, Table]:
    """The same tables as of one point of their jobs' input.

    offsets:  where the input ends; if None, at the newest offsets that all jobs have
    Raises:   NOT_ALIGNED, HISTORY_GONE; as `Table.get`.
    """
    with ExitStack() as opened:
        jobs = {table.job_reads: table.job for table in tables.values()}
        views = [(name, reads, opened.enter_context(reads.replica.snapshot())) for reads, name in jobs.items()]
        ends = _ends(offsets, "who asks") if offsets is not None else _newest_common([(name, view) for name, _, view in views])
        batches = {reads: _batch_ending_at(view, ends, name) for name, reads, view in views}
    return {name: table.at(batch=batches[table.job_reads]) for name, table in tables.items()}


def _batch_ending_at(view: View, ends: Ends, job: str) -> int:
    """The newest batch of a job that ends here in the streams that it reads.

    Raises:  NOT_ALIGNED if no batch does.
    """
    positions = list(_positions(view))
    mine = _ends(view.record.offsets, job).keys() & ends
    wanted = _of(ends, mine)
    found = [record.batch for record in positions if mine and _of(_ends(record.offsets, job), mine) == wanted]
    if found:
        return found[-1]
    raise ReplicaError(
        "NOT_ALIGNED",
        f"No batch of {job} from {positions[0].batch} to {positions[-1].batch} ends at these offsets: {_describe_ends(ends)}.",
        hint="Give the offsets of an answer of a job that reads the same streams, or none for the newest that all have.",
        job=job,
        first=positions[0].batch,
        newest=positions[-1].batch,
    )


def _newest_common(views: Sequence[tuple[str, View]]) -> Ends:
    """The newest ends of the common streams at which each job has a batch.  Raises NOT_ALIGNED."""
    shared = set.intersection(*(set(_ends(view.record.offsets, job)) for job, view in views))
    common: dict[str, Ends] | None = None
    for job, view in views:
        ends = [_of(_ends(record.offsets, job), shared) for record in _positions(view)] if shared else []
        mine = {json.dumps(each, sort_keys=True): each for each in ends if len(each) == len(shared)}
        # In the order of the first job, whose newest come last.
        common = {name: each for name, each in (mine if common is None else common).items() if name in mine}
    if not common:
        jobs = [job for job, _ in views]
        raise ReplicaError(
            "NOT_ALIGNED",
            f"No kept positions of {', '.join(jobs)} end at the same offsets.",
            hint="Align only jobs that read the same topics and whose batches sometimes end at the same offsets.",
            jobs=jobs,
        )
    return common[next(reversed(common))]


def _ends(offsets: Offsets, job: str) -> Ends:
    """Where each stream ends: by topic, or by the names of its parts if an offset has no topics.

    A topic that is read twice has an end for each reading, in no order.
    Raises:  NOT_ALIGNED if none of the offsets mean anything to another job.
    """
    found: dict[str, set[str]] = {}
    for offset in offsets.values():
        if is_own(offset):  # 3
            continue
        has_topics = all(isinstance(ends, dict) for ends in offset.values())
        for stream, ends in offset.items() if has_topics else [(", ".join(sorted(offset)), offset)]:
            found.setdefault(stream, set()).add(json.dumps(ends, sort_keys=True))
    if not found and any(offset is not None for offset in offsets.values()):
        raise ReplicaError(
            "NOT_ALIGNED",
            f"The offsets of {job} mean nothing to another job: {describe(offsets)}.",
            hint="Align jobs whose sources number their own records, as Kafka does; others by time: table.at(time=…).",
            job=job,
        )
    return {stream: sorted(ends) for stream, ends in found.items()}


def _of(ends: Ends, streams: Collection[str]) -> Ends:
    return {stream: each for stream, each in ends.items() if stream in streams}


def _describe_ends(ends: Ends) -> str:
    return describe({stream: json.loads(each[0]) if len(each) == 1 else each for stream, each in ends.items()})


def _positions(view: View) -> Iterator[ReplicaRecord]:
    return (record for record in iter_positions(view.rows) if record.batch <= view.record.batch)
