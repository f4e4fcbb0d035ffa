"""A real Prometheus scrapes a real server: every panel of the dashboard has data, and every rule can be evaluated."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from millpond.operate.alerts.prometheus import rule_file
from millpond.operate.config import RuleConfig
from servers.prometheus import prometheus
from servers.serving import serving, wait_until_ready
from spark_files.batches import Batches
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/millpond.json"


class Committing(Batches):
    """A job with a watermark that commits batches all the time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0.2)
        self.checkpoint = WrittenCheckpoint(folder / "views")
        self.batch()

    def batch(self) -> None:
        """Commit one."""
        job = self.checkpoint
        job.clock = job.watermark_ms = int(time.time() * 1000)
        job.plan([(f"k{job.next_batch % 50}", job.next_batch)], snapshot=job.next_batch % 10 == 0)
        job.commit()


def panels() -> list[Any]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel.get("targets")]


def test_panels_have_numbers_titles_and_places_of_their_own() -> None:
    found = panels()
    assert len({panel["id"] for panel in found}) == len({panel["title"] for panel in found}) == len(found)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in found)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


@pytest.mark.long
def test_every_panel_and_every_rule(tmp_path: Path) -> None:
    job = Committing(tmp_path)
    rules = rule_file(RuleConfig(thresholds={"state-large": 1}))
    (tmp_path / "rules.yml").write_text(rules)
    job.start()
    try:
        with serving(job.checkpoint.path, home=tmp_path / "home") as (url, _), httpx.Client(timeout=60) as client:
            with httpx.Client(base_url=url, timeout=60) as own:
                wait_until_ready(own)
            scrape = {"job_name": "millpond", "honor_labels": True, "static_configs": [{"targets": [url.removeprefix("http://")]}]}
            often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
            config = {"global": often, "rule_files": ["rules.yml"], "scrape_configs": [scrape]}
            (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
            with prometheus(tmp_path / "prometheus.yml", tmp_path) as address:
                wanted = {
                    (panel["title"], target["expr"].replace("$job", ".*")) for panel in panels() for target in panel["targets"]
                }
                # The job runs without `start`: nobody knows whether it runs.
                wanted -= {pair for pair in wanted if "millpond_job_running" in pair[1]}
                missing = set(wanted)

                def has_all() -> bool:
                    missing.difference_update([pair for pair in missing if _query(client, address, pair[1])])
                    assert not missing, missing
                    return True

                wait_until(has_all, "data for each panel", ignoring=(AssertionError,))

                def rules_by_name() -> dict[str, Any]:
                    groups = client.get(f"{address}/api/v1/rules").json()["data"]["groups"]
                    return {rule["name"]: rule for group in groups for rule in group["rules"]}

                wait_until(lambda: rules_by_name()["state-large"]["state"] == "firing", "the alert of the rule `state-large`")
                found = rules_by_name()
                assert {name: rule["lastError"] for name, rule in found.items() if rule["health"] == "err"} == {}
                assert len(found) == rules.count("- alert:")
                assert found["state-large"]["state"] == "firing"
                assert {name for name, rule in found.items() if rule["state"] == "firing"} == {"state-large"}
                (alert,) = found["state-large"]["alerts"]
                assert alert["labels"]["job"] == "views"
    finally:
        job.end()


def _query(client: httpx.Client, address: str, expression: str) -> list[Any]:
    try:
        found = client.get(f"{address}/api/v1/query", params={"query": expression})
    except httpx.TransportError:
        return []  # it begins
    if found.status_code == 503:
        return []  # it has begun, and reads its files
    answer = found.json()
    assert answer["status"] == "success", (expression, answer)
    result: list[Any] = answer["data"]["result"]
    return result
