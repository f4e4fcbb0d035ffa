"""Questions about what is measured of jobs, and their answers, declared once: each class is a JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

from millpond.operate.alerts.evaluate import Alert
from millpond.operate.sample import Sample
from millpond.wire.answers import ErrorJson
from millpond.wire.declare import says
from millpond.wire.rows import JsonRow


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job: how far its replica is, and its newest sample."""

    job: str
    job_state: str
    batch: Annotated[int | None, says("The batch that answers reflect; null if nothing can be read.")]
    behind_batches: int | None
    behind_seconds: float | None
    tables: Annotated[list[str], says("Its tables, as this server names them.")]
    sample: Annotated[Sample | None, says("Null if nobody has measured it.")]
    error: Annotated[ErrorJson | None, says("Why it can't be read or followed.")]


class JobsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs."""

    jobs: list[JobSummary]


class ListSamples(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was measured of a job, over time."""

    since: Annotated[str | None, says("From this time on; without it, from the first that is kept.")] = None
    until: Annotated[str | None, says("Before this time; without it, until now.")] = None
    limit: Annotated[int | None, says("The largest number of samples.", minimum=1)] = None


class SamplesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a job, oldest first."""

    job: str
    samples: list[Sample]
    found: Annotated[int, says("How many there are; if these are more, several stand in one.")]


class OperatorPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an operator, by partition."""

    operator: int
    name: str
    partitions: Annotated[list[int], says("By number.")]
    state_bytes: Annotated[list[int], says("Of each of them: the files that Spark would load.")]


class PartitionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job, by operator and partition."""

    job: str
    batch: int | None
    measured_ms: int
    operators: list[OperatorPartitions]


class HotKeyJson(msgspec.Struct, frozen=True, kw_only=True):
    """A group that gets a large share of the rows."""

    key: Annotated[JsonRow | None, says("Null until a batch has named it.")]
    share: float
    found_in_batch: int


class HotKeysAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The hot keys that a job has found."""

    job: str
    hot_keys: list[HotKeyJson]


class AlertJson(Alert, frozen=True, kw_only=True):
    """A rule that fires for a job, and what to do."""

    runbook: Annotated[str, says("What to do, as the manual has it.")]
    silenced: Annotated[str | None, says("Why nobody is to be told; null if somebody is.")]


class UnwatchedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose alerts aren't known."""

    job: str
    error: ErrorJson


class AlertsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that fire, and the jobs of which that isn't known."""

    alerts: list[AlertJson]
    unknown: list[UnwatchedJob]


def thinned(samples: Sequence[Sample], most: int) -> list[Sample]:
    """At most so many samples, over the same time: of each stretch the newest one.

    It counts the batches of all that it stands for, and has the longest batch and the longest wait of them.
    """
    if len(samples) <= most:
        return list(samples)
    edges = [len(samples) * place // most for place in range(most + 1)]
    return [_merged(samples[begin:end]) for begin, end in pairwise(edges)]


def _merged(samples: Sequence[Sample]) -> Sample:
    longest = [sample.longest_batch_seconds for sample in samples if sample.longest_batch_seconds is not None]
    waits = [sample.waiting_seconds for sample in samples if sample.waiting_seconds is not None]
    return msgspec.structs.replace(
        samples[-1],
        batches=sum(sample.batches for sample in samples),
        longest_batch_seconds=max(longest, default=None),
        waiting_seconds=max(waits, default=None),
    )
