"""When a rule fires: what its number has been at each sample, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millpond.operate.alerts.rules import RULES, Rule
from millpond.operate.sample import Sample

# A rule that fires ends below this part of its threshold.
_ENDS = 0.9
# Nothing is known of a time without samples that is longer.
_GAP_MS = 300_000
# Rules look back a day at most; a day more shows since when they fire.
LOOK_BACK_SECONDS = 2 * 86_400


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that fires for a job.

    since_ms:   from when on the rule has been met, milliseconds since 1970
    value:      the rule's newest known number
    """

    job: str
    rule: str
    title: str
    value: float
    threshold: float
    unit: str
    since_ms: int
    advice: str


def firing(job: str, samples: Sequence[Sample], thresholds: Mapping[str, float] | None = None) -> list[Alert]:
    """The rules that fire for a job at its newest sample.

    samples:     oldest first
    thresholds:  rule -> its threshold, where it is another than the rule's own
    """
    return judge(job, samples, thresholds)[0]


def judge(job: str, samples: Sequence[Sample], thresholds: Mapping[str, float] | None = None) -> tuple[list[Alert], set[str]]:
    """The same; and the rules that are met, but not yet for long enough."""
    given, alerts, met = thresholds or {}, list[Alert](), set[str]()
    for rule in RULES:
        alert, is_met = _fires(job, rule, samples, given.get(rule.id, rule.threshold))
        if alert is not None:
            alerts.append(alert)
        elif is_met:
            met.add(rule.id)
    return alerts, met


def _fires(job: str, rule: Rule, samples: Sequence[Sample], threshold: float) -> tuple[Alert | None, bool]:
    met_since: int | None = None
    below_since: int | None = None
    fires, value, first = False, 0.0, 0
    measure = rule.measure()
    for number, sample in enumerate(samples):
        if number and sample.at_ms - samples[number - 1].at_ms > _GAP_MS:
            met_since, below_since, fires, first = None, None, False, number
        while samples[first].at_ms < sample.at_ms - rule.window_seconds * 1000:
            first += 1
        found = measure(samples, first, number + 1)
        if found is None:
            continue
        value = found
        is_met = value > threshold
        ended = value <= threshold * _ENDS
        if fires:
            below_since = (below_since or sample.at_ms) if ended else None
            if below_since is not None and sample.at_ms - below_since >= rule.for_seconds * 1000:
                met_since, below_since, fires = None, None, False
        elif is_met:
            met_since = met_since or sample.at_ms
            fires = sample.at_ms - met_since >= rule.for_seconds * 1000
        else:
            met_since = None
    if not fires or met_since is None:
        return None, met_since is not None
    alert = Alert(
        job=job,
        rule=rule.id,
        title=rule.title,
        value=value,
        threshold=threshold,
        unit=rule.unit,
        since_ms=met_since,
        advice=rule.advice,
    )
    return alert, True
