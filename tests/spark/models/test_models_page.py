"""The console shows what a job that serves models has: what runs, all versions, their use, what was refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import millpond
from inputs.event_file import write_event_file
from inputs.small_models import linear
from servers.chromium import chromium, obstacles
from servers.serving import serving, wait_until_ready

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]
MARKUP = "<b>the first one</b>"


def test_models_with_their_versions_and_statistics(spark: SparkSession, tmp_path: Path) -> None:
    published, pond = tmp_path / "published", tmp_path / "pond"
    (tmp_path / "records").mkdir()
    published.mkdir()

    def read(frame: DataFrame, _batch: int) -> None:
        frame.count()

    def batch(number: int) -> None:
        rows = [{"id": 100 * number + place, "kind": "r", "a": place * 0.5, "b": -1.0 * place} for place in range(20)]
        write_event_file(tmp_path / "records", number, rows)
        records = spark.readStream.schema("id long, kind string, a double, b double").json(str(tmp_path / "records"))
        models = millpond.read_models(spark, published)
        scored = millpond.serve_models(records, models, pond=pond, inputs=["a", "b"], type_column="kind", shards=2, partitions=2)
        with millpond.start(
            scored, table="wine", pond=pond, trigger="available-now", output_mode="append", sink=read, partitions=2
        ) as job:
            assert job.wait_for_end(120)

    millpond.publish_model(published, linear([2.0, 1.0], 0.5), name="first", type="r", description=MARKUP)
    batch(1)
    millpond.publish_model(published, linear([0.0, 3.0], 0.0), name="second", type="r")
    millpond.publish_model(published, b"no model", name="broken", type="r")
    batch(2)
    with serving(pond, "--no-samples", home=tmp_path / "home") as (url, _), chromium() as browser:
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
            names = [table["table"] for table in client.get("/tables").json()["tables"]]
        assert {"wine_models", "wine_statistics", "wine_versions", "wine_model_errors"} <= set(names)
        page = browser.new_page()
        page.goto(f"{url}/#/models")
        page.wait_for_selector("main:not([aria-busy]) h1")
        shown = {
            re.sub(r"^wine: ", "", section.locator("h2").inner_text()): section.locator("tbody tr").all_inner_texts()
            for section in page.locator("section").all()
        }
        assert list(shown) == ["What runs", "Use and speed", "All versions", "Refused models"]
        assert ["second" in row for row in shown["What runs"]] == [True]
        assert sorted(row.split("\t")[1] for row in shown["Use and speed"]) == ["first", "second"]
        assert len(shown["All versions"]) == 2
        assert len(shown["Refused models"]) == 1
        assert any(MARKUP in row for row in shown["Use and speed"])
        assert page.locator("main b").count() == 0
        assert obstacles(page) == []
