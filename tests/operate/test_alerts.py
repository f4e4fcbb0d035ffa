"""Each rule fires where it should and nowhere else, by samples and by Prometheus alike; and not again and again."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from millpond.catalogue import create_job, find_job
from millpond.errors import MillpondError
from millpond.operate.alerts.evaluate import firing
from millpond.operate.alerts.prometheus import rule_file
from millpond.operate.alerts.rules import BY_ID, RULES
from millpond.operate.alerts.runbook import RUNBOOK
from millpond.operate.config import read_config
from millpond.operate.sample import OperatorSize, Sample
from millpond.operate.sample_log import SampleLog
from millpond.serve.metrics.samples import SampleFacts
from millpond.settings import SampleSettings
from servers.prometheus import program
from spark_files.checkpoint import WrittenCheckpoint

MINUTE, GIB = 60_000, 2**30
BEGIN = 1_000_000_020_000
Facts = dict[str, Any]


def size(state_bytes: int, largest: int = 1, median: int = 1) -> Facts:
    operator = OperatorSize(
        operator=0, name="stateStoreSave", partitions=3, state_bytes=state_bytes, changed_bytes=0, largest_partition=0,
        largest_bytes=largest, median_bytes=median,
    )  # fmt: skip
    return {"operators": (operator,), "sized_ms": 0}


def files(minute: int, since: int) -> Facts:
    """Files that wait, the oldest of them since that minute."""
    return {"waiting_files": 40 + minute, "oldest_file_ms": BEGIN + since * MINUTE}


def made(minutes: int, facts: Callable[[int], Facts], begin: int = BEGIN) -> list[Sample]:
    """A sample each minute, of a job that goes on well but for what `facts` says of a minute."""
    found = []
    for minute in range(minutes):
        at = begin + minute * MINUTE
        usual: Facts = {"job_state": "running", "batch": minute, "committed_ms": at - 1000, "watermark_ms": at - 5000}
        usual |= {"longest_batch_seconds": 2.0, "behind_records": 0, **size(GIB)}
        found.append(Sample(at_ms=at, **{**usual, **facts(minute)}))
    return found


STOPPED = {"job_state": "stopped", "longest_batch_seconds": None}
# rule, and how if there are several ways -> (minutes, what fires it); and the same that doesn't.
FIRES: dict[str, tuple[int, Callable[[int], Facts]]] = {
    "state-large": (3, lambda _: size(11 * GIB)),
    "state-fills": (600, lambda minute: size(GIB + minute * GIB // 800)),
    "batch-slow": (6, lambda _: {"longest_batch_seconds": 75.0}),
    "batch-failed": (6, lambda _: {**STOPPED, "batch": 4, "waiting_seconds": 30.0}),
    "batch-failed: an error, and the job runs again": (12, lambda minute: {"failures": 3 if minute < 6 else 4}),
    "job-down": (6, lambda _: {**STOPPED, "batch": 4}),
    "recovery-slow": (
        14,
        lambda minute: {"batch": 4, "committed_ms": BEGIN, **(STOPPED if minute < 5 else {"waiting_seconds": 30.0})},
    ),
    "batch-waits": (4, lambda minute: {"batch": 4, "waiting_seconds": 700.0 + minute * 60}),
    "behind": (30, lambda minute: {"behind_records": 1000 + minute * 10}),
    "files-wait": (40, lambda minute: {"behind_records": None, **files(minute, since=2)}),
    "files-wait: a job that stops for a minute now and then": (40, lambda minute: files(minute, since=2) if minute % 8 else {}),
    "watermark-still": (15, lambda _: {"watermark_ms": BEGIN}),
    "partition-skew": (8, lambda _: size(GIB, largest=60 << 20, median=10 << 20)),
    "state-slow": (5, lambda _: {"get_seconds": 0.15}),
    "late-rows": (6, lambda minute: {"late_rows": 0 if minute < 4 else 7}),
    "restarts-often": (40, lambda minute: {"starts": 3 + minute // 8}),
    "savepoint-overdue": (20, lambda minute: {"savepoint_ms": BEGIN - 9 * MINUTE, "savepoint_every_seconds": 600.0}),
    "drill-failed": (3, lambda minute: {"drill_failed": 1}),
    "replica-failing": (6, lambda minute: {"readable": int(minute < 2)}),
    "replica-failing: far behind": (6, lambda minute: {"readable": 1, "behind_seconds": 0.0 if minute < 2 else 70.0}),
    "backups-failing": (9, lambda minute: {"backups_failing": int(minute > 2)}),
}
QUIET: dict[str, tuple[int, Callable[[int], Facts]]] = {
    "nothing is wrong": (30, lambda _: {}),
    "a state below its limit": (3, lambda _: size(10 * GIB)),
    "a state that grows slowly": (600, lambda minute: size(GIB + minute * GIB // 8000)),
    "growth seen for an hour only": (60, lambda minute: size(GIB + minute * GIB // 800)),
    "one slow batch": (6, lambda minute: {"longest_batch_seconds": 75.0 if minute == 3 else 2.0}),
    "a restart of a moment": (6, lambda minute: STOPPED if minute == 5 else {}),
    "a job that began again and commits": (14, lambda minute: {**STOPPED, "batch": 5} if minute < 5 else {}),
    "records behind, and fewer": (30, lambda minute: {"behind_records": 1000 - minute * 10}),
    "behind now and then": (30, lambda minute: {"behind_records": 0 if minute % 10 == 0 else minute * 10}),
    "files that wait, and are caught up with": (40, lambda minute: files(minute, since=2 * minute - 40)),
    "files that wait for twelve minutes": (40, lambda minute: files(minute, since=minute - 12)),
    "no file waits": (40, lambda _: {"waiting_files": 0}),
    "a watermark without batches": (15, lambda _: {"watermark_ms": BEGIN, "batch": 4, "committed_ms": BEGIN}),
    "a small skewed state": (8, lambda _: size(GIB, largest=6000, median=10)),
    "late rows long ago": (40, lambda minute: {"late_rows": 0 if minute < 4 else 7}),
    "late rows of the run before": (12, lambda minute: {"late_rows": 9 if minute < 4 else 0}),
    "starts that are counted anew": (20, lambda minute: {"starts": 20 if minute < 10 else 1}),
    "two restarts": (40, lambda minute: {"starts": 3 + minute // 15}),
    "a savepoint of every batch": (
        20,
        lambda minute: {"savepoint_ms": BEGIN - 9 * MINUTE, "savepoint_every_seconds": 600.0, "committed_ms": BEGIN - 10 * MINUTE},
    ),
    "a savepoint that comes soon": (9, lambda _: {"savepoint_ms": BEGIN - 9 * MINUTE, "savepoint_every_seconds": 600.0}),
    "a drill that went well": (3, lambda _: {"drill_failed": 0, "drill_seconds": 12.0}),
    "an error long ago": (30, lambda minute: {"failures": 3 if minute < 6 else 4}),
    "failures that are counted anew": (12, lambda minute: {"failures": 9 if minute < 6 else 1}),
    "a replica of a job without batches": (6, lambda _: {"readable": 0, "batch": None, "committed_ms": None, "watermark_ms": None}),
    "a replica that is behind for a minute": (6, lambda minute: {"readable": 1, "behind_seconds": 70.0 if minute == 5 else 0.1}),
    "a server that has gone": (12, lambda minute: {"readable": 0, "backups_failing": 1} if minute < 2 else {}),
    "a savepoint that went wrong once": (9, lambda minute: {"backups_failing": int(2 < minute < 6)}),
    "an old job that nobody reports of": (15, lambda _: {"job_state": "unknown"}),
}
# A job that is down has other rules met as well.
ALSO = {"batch-failed": {"job-down"}}


@pytest.mark.parametrize("way", FIRES)
def test_a_rule_fires(way: str) -> None:
    samples, rule = made(*FIRES[way]), way.partition(":")[0]
    found = {alert.rule: alert for alert in firing("views", samples)}
    assert found.keys() == {rule} | ALSO.get(way, set())
    alert = found[rule]
    assert alert.value > alert.threshold == BY_ID[rule].threshold
    assert BEGIN <= alert.since_ms <= samples[-1].at_ms - BY_ID[rule].for_seconds * 1000


@pytest.mark.parametrize("name", QUIET)
def test_nothing_fires(name: str) -> None:
    assert firing("views", made(*QUIET[name])) == []


def test_every_rule_is_tried() -> None:
    assert {way.partition(":")[0] for way in FIRES} == BY_ID.keys() == {rule.id for rule in RULES}
    page = (Path(__file__).parents[2] / "docs/alerts.md").read_text()
    titles = set(re.findall(r"^### (\S+)$", page, re.MULTILINE))
    named = {rule["alert"] for rule in yaml.safe_load(rule_file())["groups"][0]["rules"]}
    assert titles == named


def test_a_number_near_its_threshold_fires_once() -> None:
    """It goes up and down around the threshold; the alert ends only when it is well below for as long as it takes to fire."""
    draw = random.Random(8)
    near = [63.0] * 5 + [draw.uniform(55.0, 65.0) for _ in range(120)]
    samples = made(len(near), lambda minute: {"longest_batch_seconds": near[minute]})
    for end in range(5, len(samples)):
        (alert,) = firing("views", samples[:end])
        assert alert.since_ms == BEGIN
    calm = [*near, *[20.0] * 10]
    ended = made(len(calm), lambda minute: {"longest_batch_seconds": calm[minute]})
    states = [bool(firing("views", ended[:end])) for end in range(len(near), len(ended) + 1)]
    assert states == [True] * 3 + [False] * (len(states) - 3)


def test_a_gap_without_samples_begins_anew() -> None:
    before = made(6, lambda _: {"longest_batch_seconds": 75.0})
    after = made(3, lambda _: {"longest_batch_seconds": 75.0}, begin=BEGIN + 60 * MINUTE)
    assert firing("views", before)
    assert not firing("views", [*before, *after[:2]])
    (alert,) = firing("views", [*before, *after])
    assert alert.since_ms == after[0].at_ms


def test_thresholds_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text("[thresholds]\nbatch-slow = 80\n[jobs.views.thresholds]\nbatch-slow = 70\n")
    config, samples = read_config(file), made(*FIRES["batch-slow"])
    assert [alert.threshold for alert in firing("views", samples, config.thresholds_of("views"))] == [70]
    assert firing("other", samples, config.thresholds_of("other")) == []
    assert "longest_batch_seconds > 80" in rule_file(config)


@pytest.mark.parametrize(
    "text",
    [
        "thresholds = 3", "[thresholds]\nbatch-slwo = 3", "[thresholds]\nbatch-slow = 'x'", "[[silences]]\nrule = 'job-down'",
        "[[silences]]\nreason = 'r'\nrule = 'no'", "[[silences]]\nreason = 'r'\nuntil = 2026-01-01T00:00:00", "a = [", "more = 1",
        "[jobs.a]\nthreshold = 3",
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "alerts.toml").write_text(text)
    with pytest.raises(MillpondError) as error:
        read_config(tmp_path / "alerts.toml")
    assert error.value.condition == "INVALID_CONFIG"
    with pytest.raises(MillpondError) as error:
        read_config(tmp_path / "nothing.toml")
    assert error.value.condition == "FILE_MISSING"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "millpond.cli", *map(str, words)], capture_output=True, text=True, timeout=60)


def test_the_command(tmp_path: Path) -> None:
    for name in ("views", "calm"):
        create_job(tmp_path / "pond", name)
        job = WrittenCheckpoint(tmp_path / "pond/jobs" / name / "checkpoint", name)
        job.plan([("k", 1)], snapshot=False)
        job.commit()
    begin = int(time.time() * 1000) - 5 * MINUTE
    log = SampleLog(find_job(tmp_path / "pond", "views"), SampleSettings(sample_seconds=0))
    for sample in made(5, lambda _: {"longest_batch_seconds": 75.0}, begin=begin):
        log.add(sample)
    done = run("alerts", tmp_path / "pond")
    assert done.returncode == 1
    assert done.stdout.startswith("views: batch-slow: Batches take long.\n  measured ")
    assert "calm" not in done.stdout
    (found,) = [json.loads(line) for line in run("alerts", tmp_path / "pond", "--json").stdout.splitlines()]
    assert (found["job"], found["rule"], found["since_ms"]) == ("views", "batch-slow", begin)
    calm = run("alerts", tmp_path / "pond", "--job", "calm")
    assert (calm.returncode, calm.stdout) == (0, "")

    config, ends = tmp_path / "alerts.toml", (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
    config.write_text(f'[[silences]]\njob = "views"\nreason = "a backfill"\nuntil = {ends}\n')
    silenced = run("alerts", tmp_path / "pond", "--config", config)
    assert (silenced.returncode, silenced.stdout) == (0, "")
    assert "a backfill" in silenced.stderr
    config.write_text(config.read_text().replace(ends, "2020-01-01T00:00:00Z"))
    assert run("alerts", tmp_path / "pond", "--config", config).returncode == 1


def series_of(samples: list[Sample]) -> list[dict[str, str]]:
    """The metrics that a scrape each minute gets, as promtool reads them."""
    values: dict[str, list[str]] = {}
    for number, sample in enumerate(samples):
        found = {
            s.name + json.dumps(s.labels): s.value
            for family in SampleFacts({"views": sample}, now=sample.at_ms / 1000).collect()
            for s in family.samples
        }
        if sample.behind_seconds is not None:
            found['millpond_behind_seconds{"job": "views"}'] = sample.behind_seconds
        if sample.job_state != "unknown":
            found['millpond_job_running{"job": "views"}'] = int(sample.job_state == "running")
        for name, value in found.items():
            values.setdefault(name, ["_"] * number).append(repr(float(value)))
        for known in values.values():
            known += ["_"] * (number + 1 - len(known))
    return [
        {"series": re.sub(r'"(\w+)": ', r"\1=", name), "values": " ".join(found)} for name, found in values.items()
    ]  # fmt: skip


@pytest.mark.long
def test_prometheus_fires_the_same(tmp_path: Path) -> None:
    """promtool evaluates the rule file over the metrics of the same samples."""
    (tmp_path / "rules.yml").write_text(rule_file())
    tool = program("promtool")
    subprocess.run([tool, "check", "rules", str(tmp_path / "rules.yml")], check=True, capture_output=True)
    tests = []
    for minutes, facts in [*FIRES.values(), *QUIET.values()]:
        # Its clock begins at 1970.
        samples = made(minutes, lambda minute, facts=facts: _at_zero(facts(minute)), begin=0)  # type: ignore[misc]
        fires = {alert.rule for alert in firing("views", samples)}
        rules = [rule["alert"] for rule in yaml.safe_load(rule_file())["groups"][0]["rules"]]
        checks = [
            {"eval_time": f"{minutes - 1}m", "alertname": rule, "exp_alerts": [] if rule not in fires else [_expected(rule)]}
            for rule in rules
        ]
        tests.append({"interval": "1m", "input_series": series_of(samples), "alert_rule_test": checks})
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([tool, "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_runbook_is_the_manuals() -> None:
    page = (Path(__file__).parents[2] / "docs/alerts.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\S+)\n(.+?)(?=^###|\Z)", page.partition("## What to do")[2], re.MULTILINE | re.DOTALL))
    assert RUNBOOK.keys() == BY_ID.keys()
    for rule, text in RUNBOOK.items():
        # The manual's links are named in brackets; a link that is its page's own name stands alone.
        said = re.sub(
            r"\[([^]]*)\]\(([^)]*)\)", lambda link: link[1] if link[1] == link[2] else f"{link[1]} ({link[2]})", sections[rule]
        )
        assert text == " ".join(said.split()), rule


def _at_zero(facts: Facts) -> Facts:
    return {name: value - BEGIN if name.endswith("_ms") and value else value for name, value in facts.items()}


def _expected(rule: str) -> dict[str, Any]:
    labels = {"job": "views"}
    if rule == "partition-skew":
        labels |= {"operator": "0", "kind": "stateStoreSave"}
    found = next(r for r in yaml.safe_load(rule_file())["groups"][0]["rules"] if r["alert"] == rule)
    annotations = {name: text.replace("{{ $labels.job }}", "views") for name, text in found["annotations"].items()}
    return {"exp_labels": labels, "exp_annotations": annotations}
