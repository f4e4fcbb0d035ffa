"""Advice in SARIF 2.1.0, which code hosts and editors show beside the lines.

Advice on a state has no line: its location is a logical one, the job with the operator or column.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

from millpond.operate.doctor.advice import Advice, Diagnosis
from millpond.operate.doctor.rules.rules import RULES

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0-rtm.5.json"
_PLACES = {rule.id: place for place, rule in enumerate(RULES)}


def to_sarif(found: Diagnosis, version: str) -> dict[str, Any]:
    """A log with one run.

    version:  of Millpond
    """
    driver = {
        "name": "millpond doctor",
        "version": version,
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.title},
                "help": {"text": f"docs/doctor.md, section {rule.id}"},
                "defaultConfiguration": {"level": "warning"},
            }
            for rule in RULES
        ],
    }
    notes = [{"level": "note", "message": {"text": sentence}} for sentence in found.unseen]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "results": [_result(advice) for advice in found.advice],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(advice: Advice) -> dict[str, Any]:
    lines = (
        advice.title,
        f"Where: {advice.place}",
        f"Evidence: {advice.evidence}",
        f"Costs: {advice.cost}",
        f"Change: {advice.change}",
    )
    properties = {"job": advice.job, "cost_bytes": advice.cost_bytes, "cost_ms": advice.cost_ms}
    made: dict[str, Any] = {
        "ruleId": advice.rule,
        "ruleIndex": _PLACES[advice.rule],
        "level": "warning",
        "message": {"text": "\n".join(lines)},
        "locations": [_location(advice)],
        "properties": {name: value for name, value in properties.items() if value is not None},
    }
    if advice.ignored is not None:
        kind = "inSource" if advice.ignored_in_code else "external"
        made["suppressions"] = [{"kind": kind, "justification": advice.ignored}]
    return made


def _location(advice: Advice) -> dict[str, Any]:
    if advice.file is None:
        return {"logicalLocations": [{"name": advice.job, "fullyQualifiedName": f"{advice.job}, {advice.place}"}]}
    place = {"artifactLocation": {"uri": _uri(advice.file)}, "region": {"startLine": advice.line or 1}}
    return {"physicalLocation": place}


def _uri(file: str) -> str:
    """A file by its path from the working directory; one elsewhere by a whole URI."""
    path, here = os.path.abspath(file), os.getcwd()
    inside = os.path.relpath(path, here)
    is_below = os.path.commonpath([path, here]) == here
    return quote(inside, errors="surrogateescape") if is_below else "file://" + quote(path, errors="surrogateescape")
