"""Rules of state as advice, with thresholds and silences."""

from __future__ import annotations

import datetime as dt

from msgspec.structs import replace

from millpond.catalogue import JobFolder
from millpond.operate.config import RuleConfig
from millpond.operate.doctor.advice import Advice, Diagnosis, Unseen
from millpond.operate.doctor.rules.rules import RULES
from millpond.operate.doctor.state import StateFacts, read_state


def advice_of_state(facts: StateFacts, config: RuleConfig) -> list[Advice]:
    """The rules that a job's state meets."""
    thresholds = config.thresholds_of(facts.job)
    return [
        silenced(
            Advice(
                job=facts.job,
                rule=rule.id,
                title=rule.title,
                place=found.place,
                evidence=found.evidence,
                cost=found.cost,
                cost_bytes=found.cost_bytes,
                cost_ms=found.cost_ms,
                change=found.change,
            ),
            config,
        )
        for rule in RULES
        if rule.of_state is not None
        for found in rule.of_state(facts, thresholds.get(rule.id, rule.threshold or 0.0))
    ]


def silenced(advice: Advice, config: RuleConfig) -> Advice:
    """The advice, with the reason of the silence that covers it."""
    now = dt.datetime.now(dt.UTC)
    reason = next((silence.reason for silence in config.silences if silence.covers(advice, now)), None)
    return advice if reason is None else replace(advice, ignored=reason)


def diagnose_state(folder: JobFolder, config: RuleConfig) -> Diagnosis:
    """The rules that the state of one job meets.  Raises as `read_state`."""
    unseen = Unseen()
    return unseen.diagnosis(advice_of_state(read_state(folder, unseen), config))
