"""The rules as a file for Prometheus, over the metrics of `millpond serve`."""

from __future__ import annotations

import json

from millpond.operate.alerts.rules import RULES, Rule
from millpond.operate.config import RuleConfig

_RUNBOOK = "docs/alerts.md"
# No sample can have it.
_SAMPLES_MISSING = (
    "samples-missing",
    "Nobody measures the job any more.",
    "time() - millpond_job_sample_timestamp_seconds > 200",
    60,
)


def rule_file(config: RuleConfig | None = None) -> str:
    """YAML of one group of alerting rules.

    config:  whose thresholds are taken; those of single jobs and silences aren't: Alertmanager has its own
    """
    given = (config or RuleConfig()).thresholds
    lines = ["groups:", "  - name: millpond", "    rules:"]
    for rule in RULES:
        lines += _rule(rule.id, rule.title, expression_of(rule, given.get(rule.id, rule.threshold)), rule.for_seconds, rule.advice)
    lines += _rule(*_SAMPLES_MISSING, "Look at the server's log.")
    return "\n".join(lines) + "\n"


def expression_of(rule: Rule, threshold: float) -> str:
    """The rule's expression with a threshold."""
    return rule.expression.format(threshold=f"{threshold:.0f}" if threshold == int(threshold) else repr(threshold))


def _rule(name: str, title: str, expression: str, seconds: float, advice: str) -> list[str]:
    """YAML takes the strings of JSON."""
    return [
        f"      - alert: {json.dumps(name)}",
        f"        expr: {json.dumps(expression)}",
        *([f"        for: {seconds:.0f}s"] if seconds else []),
        "        annotations:",
        f"          summary: {json.dumps(f'{{{{ $labels.job }}}}: {title}')}",
        f"          description: {json.dumps(advice)}",
        f"          runbook: {json.dumps(f'{_RUNBOOK}#{name}')}",
    ]
