"""SARIF by its own schema, with every field of the advice; and any texts, which must not break it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from millpond import __version__
from millpond.cli import main
from millpond.operate.doctor.advice import Advice, Diagnosis
from millpond.operate.doctor.rules.rules import BY_ID
from millpond.operate.doctor.sarif import to_sarif
from spark_files.golden import GOLDEN

SCHEMA = json.loads((Path(__file__).parents[2] / "inputs" / "sarif-2.1.0-rtm.5.json").read_text())
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)


def advice_of(**more: Any) -> Advice:
    usual: dict[str, Any] = {
        "job": "views",
        "rule": "hot-key",
        "title": "t",
        "place": "p",
        "evidence": "e",
        "cost": "c",
        "change": "x",
    }
    return Advice(**{**usual, **more})


def result_of(advice: Advice) -> dict[str, Any]:
    log = to_sarif(Diagnosis(advice=(advice,)), "1")
    VALIDATOR.validate(log)
    (result,) = log["runs"][0]["results"]
    assert isinstance(result, dict)
    return result


def test_advice_on_code_has_a_line() -> None:
    result = result_of(advice_of(file="jobs/my job.py", line=7, cost_bytes=8))
    (location,) = result["locations"]
    assert location["physicalLocation"] == {"artifactLocation": {"uri": "jobs/my%20job.py"}, "region": {"startLine": 7}}
    assert result["properties"] == {"job": "views", "cost_bytes": 8}
    assert "suppressions" not in result


def test_files_are_named_from_the_working_directory_or_by_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file, uri in {
        "jobs/a.py": "jobs/a.py",
        "./jobs/../a b.py": "a%20b.py",
        str(tmp_path / "jobs/a.py"): "jobs/a.py",
        "../a.py": f"file://{tmp_path.parent}/a.py",
        f"{tmp_path}2/é.py": f"file://{tmp_path}2/%C3%A9.py",
        "c:d.py": "c%3Ad.py",
    }.items():
        (location,) = result_of(advice_of(file=file, line=1))["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_advice_on_a_state_has_a_job() -> None:
    (location,) = result_of(advice_of(cost_ms=1.5))["locations"]
    assert location == {"logicalLocations": [{"name": "views", "fullyQualifiedName": "views, p"}]}


def test_what_is_ignored_is_suppressed_with_its_reason() -> None:
    kinds = [result_of(advice_of(ignored="why", ignored_in_code=code))["suppressions"] for code in (True, False)]
    assert kinds == [[{"kind": "inSource", "justification": "why"}], [{"kind": "external", "justification": "why"}]]


@given(st.text(), st.text(), st.sampled_from(sorted(BY_ID)), st.one_of(st.none(), st.text(min_size=1)), st.integers(1, 10**6))
def test_any_texts(words: str, place: str, rule: str, file: str | None, line: int) -> None:
    found = advice_of(rule=rule, evidence=words, place=place, file=file, line=line if file else None)
    log = json.loads(json.dumps(to_sarif(Diagnosis(advice=(found,), unseen=(words,)), "1")))
    VALIDATOR.validate(log)
    (run,) = log["runs"]
    assert run["tool"]["driver"]["rules"][run["results"][0]["ruleIndex"]]["id"] == rule
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == words


def test_the_command(tmp_path: Path) -> None:
    golden = GOLDEN / "counts-rocksdb-snapshots" / "checkpoint"
    done = CliRunner().invoke(main, ["doctor", str(golden), "--sarif"])
    assert done.exit_code == 1
    log = json.loads(done.stdout)
    VALIDATOR.validate(log)
    assert [result["ruleId"] for result in log["runs"][0]["results"]] == ["snapshots-only"]
    assert log["runs"][0]["tool"]["driver"]["version"] == __version__
    both = CliRunner().invoke(main, ["doctor", str(golden), "--sarif", "--json"])
    assert (both.exit_code, both.stdout) == (2, "")
    none = CliRunner().invoke(main, ["doctor", str(tmp_path), "--sarif"])
    assert (none.exit_code, none.stdout) == (2, "")
