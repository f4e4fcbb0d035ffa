"""The rules as a file for Prometheus, over the metrics of `millpond serve`."""

from __future__ import annotations

import json

from millpond.operate.alerts.rules import RULES, Rule
from millpond.operate.config import RuleConfig

_RUNBOOK = "docs/alerts.md"
# Of the server itself: no sample has these.
_OF_SERVER = (
    ("replica-failing", "The server can't follow the job.", "millpond_readable == 0 or millpond_behind_seconds > 60", 120),
    ("backups-failing", "Savepoints or an archive go wrong.", "millpond_backups_failing > 0", 300),
    ("samples-missing", "Nobody measures the job any more.", "time() - millpond_job_sample_timestamp_seconds > 200", 60),
)


def rule_file(config: RuleConfig | None = None) -> str:
    """YAML of one group of alerting rules.

    config:  whose thresholds are taken; those of single jobs and silences aren't: Alertmanager has its own
    """
    given = (config or RuleConfig()).thresholds
    lines = ["groups:", "  - name: millpond", "    rules:"]
    for rule in RULES:
        lines += _rule(rule.id, rule.title, expression_of(rule, given.get(rule.id, rule.threshold)), rule.for_seconds, rule.advice)
    for name, title, expression, seconds in _OF_SERVER:
        lines += _rule(name, title, expression, seconds, "Look at the server's log.")
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
