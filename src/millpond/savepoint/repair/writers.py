"""Signs that something else than one job wrote a checkpoint.

Sound, from contents alone:

1. A source's offset goes back from one batch to the next: one of the plans is of another run.  This
   is said only of sources whose order is known (`checkpoint/offset_order.py`).  Kafka's goes back
   once, and then on, if the topic was made anew: that is no sign of a second job.
2. A setting by which state is written changes from one batch to the next.  Spark keeps them; an
   older Spark drops those that it doesn't know.
3. In checkpoint format 2, the change log of a batch names the ids of the versions before it: these
   are the ids that their commits name.

From times, only if these are the times of Spark's writes, and not of a copy:

4. A plan is younger than its commit, or a change file of a committed batch is younger than the
   commit, or older than the plan: each is written once, between them (`checkpoint/write_times.py`).

What can't be found: a second job that ran whole batches alone, one after the other with the first.
Its files look like those of a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise

from millpond.checkpoint.files.records import parse_changelog_header
from millpond.checkpoint.log import BatchPlan, StateSettings
from millpond.checkpoint.offset_order import Place, fallen, is_by_topic
from millpond.checkpoint.state import unpack
from millpond.checkpoint.write_times import BATCHES, OutOfPlace, changes_out_of_place, read_times, slack_ns
from millpond.errors import CheckpointError
from millpond.savepoint.repair.finding import Finding
from millpond.savepoint.repair.logs import Logs
from millpond.settings import CheckpointSettings
from millpond.storage import Storage

_LIMITS = CheckpointSettings()
_REMEDY = "Find out which jobs write here, and stop all but one; then repair, or restore a savepoint."


def signs_of_others(storage: Storage, logs: Logs) -> Iterator[Finding]:
    """What the logs and the newest state files show.  Raises what the storage raises."""
    plans = [logs.plans[number] for number in sorted(logs.plans)]
    yield from _gone_back(plans)  # 1
    yield from _settings(plans)  # 2
    if logs.is_format_2:
        yield from _lineage(storage, logs)  # 3
    yield from _by_times(storage, logs)  # 4


def _gone_back(plans: list[BatchPlan]) -> Iterator[Finding]:
    for source in plans[-1].offsets if plans else ():
        yield from _source_gone_back(plans, source)
    for before, plan in pairwise(plans):
        seconds = (before.started_ms - plan.started_ms) / 1000
        if seconds > _LIMITS.clock_tolerance_ms / 1000:
            yield Finding(
                kind="went_back",
                path=f"offsets/{plan.batch}",
                what=f"Batch {plan.batch} was planned {seconds:.0f} s before batch {before.batch}.",
                effect="none",
                means="Spark doesn't look at it. Either the driver's clock was set back, or two jobs wrote here.",
                remedy=_REMEDY,
            )


def _source_gone_back(plans: list[BatchPlan], source: str) -> Iterator[Finding]:
    """Where a source's offset falls, if the order of its offsets is known."""
    ends = [plan.offsets.get(source) for plan in plans]
    falls = {n: places for n in range(1, len(plans)) if (places := fallen(ends[n - 1], ends[n]))}
    for n, places in falls.items():
        before, plan = plans[n - 1], plans[n]
        path = f"offsets/{plan.batch}"
        what = f"Source {source} ends at {ends[n]}, and batch {before.batch} ended at {ends[n - 1]}."
        # A single plan that names too much was damaged; Spark reads only the two newest ones.
        if not fallen(ends[n - 1], ends[-1]):
            means = "Spark doesn't read these plans any more."
            yield Finding(kind="went_back", path=path, what=what, effect="none", means=means, remedy="Nothing needs to be done.")
        elif is_by_topic(ends[n]) and not any(_topics(places) & _topics(falls[m]) for m in falls if m != n):
            topics = ", ".join(sorted(_topics(places)))
            yield Finding(
                kind="reset",
                path=path,
                what=f"The source was reset at batch {plan.batch}: {topics} was made anew, or cut. {what}",
                effect="none",
                means="Spark goes on from the new offsets. Records that were lost with the old topic are in no batch.",
                remedy="Nothing needs to be done.",
            )
        else:
            means = "Spark reads a part of the source twice, or refuses to start."
            yield Finding(kind="went_back", path=path, what=what, effect="wrong", means=means, remedy=_REMEDY, batch=plan.batch)


def _topics(places: list[Place]) -> set[str]:
    return {place[0] for place in places}


def _settings(plans: list[BatchPlan]) -> Iterator[Finding]:
    """A change that is still in force, after at least two batches that agree: else one plan is damaged."""
    try:
        settings = [replace(plan.settings, partitions=1) for plan in plans]  # a repartition changes these
    except CheckpointError:  # a provider of somebody's own
        return
    changes = [n for n in range(1, len(plans)) if settings[n] != settings[n - 1]]
    if not changes:
        return
    n = changes[-1]
    was, found, before, plan = settings[n - 1], settings[n], plans[n - 1], plans[n]
    if n < 2 or settings[n - 2] != was or (len(changes) > 1 and settings[changes[-2] - 1] == found):
        return
    changed = [f.name for f in fields(StateSettings) if getattr(was, f.name) != getattr(found, f.name)]
    lost = sorted(before.conf.keys() - plan.conf.keys())
    why = f" It lacks {', '.join(lost)}: an older Spark wrote it." if lost else ""
    values = ", ".join(f"{name} {getattr(was, name)!r} to {getattr(found, name)!r}" for name in changed)
    yield Finding(
        kind="settings",
        path=f"offsets/{plan.batch}",
        what=f"Settings of the state changed with batch {plan.batch}: {values}.{why}",
        effect="wrong",
        means="Spark reads state that was written in another way.",
        remedy=f"A repaired copy goes on after batch {before.batch}, if it is whole; use the newer Spark.",
        batch=plan.batch,
    )


def _lineage(storage: Storage, logs: Logs) -> Iterator[Finding]:
    for number in sorted(logs.commits)[-BATCHES:]:
        plan = logs.plans.get(number)
        for operator, partitions in logs.commits[number].state_ids.items() if plan is not None else ():
            for partition, stores in enumerate(partitions):
                # All stores of a partition are committed together: the first one shows it, if it is
                # in the folder itself.
                path = f"state/{operator}/{partition}/{number + 1}_{stores[0]}.changelog" if stores else ""
                if not path or len(stores) > 1 or storage.stamp(path) is None or plan is None:
                    continue
                try:
                    lineage = dict(parse_changelog_header(unpack(storage, path, plan.settings.codec)).lineage)
                except CheckpointError:  # found elsewhere, if Spark needs it
                    continue
                for version, found in lineage.items():
                    commit = logs.commits.get(version - 1)
                    named = commit.state_ids.get(operator, ()) if commit is not None and version <= number else ()
                    if partition < len(named) and named[partition] and named[partition][0] != found:
                        yield Finding(
                            kind="rewritten",
                            path=path,
                            what=f"It follows on {version}_{found}; batch {version - 1} committed {version}_{named[partition][0]}.",
                            effect="wrong",
                            means="Spark goes on with the state of one of two jobs.",
                            remedy=_REMEDY,
                            batch=number,
                        )
                        return


def _by_times(storage: Storage, logs: Logs) -> Iterator[Finding]:
    started = {number: plan.started_ms for number, plan in logs.plans.items() if number in logs.commits}
    times = read_times(storage, started)
    if not times.plans:
        return
    if times.are_before_their_batches:
        yield Finding(
            kind="copied",
            path=f"offsets/{max(times.plans)}",
            what="The files are older than their batches: they were copied, and got other times.",
            effect="none",
            means="Spark doesn't go by them.",
            remedy="Nothing needs to be done. A copy that keeps times (cp -p, rsync -t) shows when batches were committed.",
        )
    for number in times.of_spark:
        if times.plans[number] > times.commits[number] + slack_ns(storage):
            yield _rewritten(OutOfPlace(path=f"offsets/{number}", batch=number, age="younger", than=f"commits/{number}"))
    for found in changes_out_of_place(storage, times):
        yield _rewritten(found)


def _rewritten(found: OutOfPlace) -> Finding:
    is_young = found.age == "younger"
    return Finding(
        kind="rewritten",
        path=found.path,
        what=f"It is {found.age} than {found.than}, and is written once, {'before' if is_young else 'after'} that.",
        effect="wrong",
        means=f"Two jobs wrote batch {found.batch}: the state may be that of either."
        if is_young
        else f"It isn't the file that batch {found.batch} wrote: the state is wrong, or Spark can't read it.",
        remedy=_REMEDY if is_young else "Restore the file from a copy; or a repaired copy goes on from the batch before.",
        batch=found.batch,
    )
