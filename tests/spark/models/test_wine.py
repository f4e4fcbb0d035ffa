"""The example that serves wine models: every result is scikit-learn's own prediction with the model in its row."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import millpond

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[3]
WINES = Path(os.environ.get("MILLPOND_DATA", ROOT / ".." / "shared" / "data")) / "winequality_red.csv"
pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.skipif(not WINES.exists(), reason=f"{WINES} isn't there (MILLPOND_DATA names its folder)"),
]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("serve_wine", ROOT / "examples" / "serve_wine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve_wine"] = module
    spec.loader.exec_module(module)
    return module


def test_every_wine_is_scored_as_scikit_learn_would(
    spark: SparkSession, tmp_path: Path, example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    models, rows = example.train(WINES), example.read_wines(WINES)
    predicted = {name: model.predict(rows[:, :-1].astype(np.float32)) for name, (_, model) in models.items()}
    contents = {name: example.to_onnx(model) for name, (_, model) in models.items()}
    wines, published, pond = tmp_path / "wines", tmp_path / "published", tmp_path / "pond"
    wines.mkdir()
    published.mkdir()
    out: list[Any] = []

    def collect(frame: DataFrame, batch: int) -> None:
        out.extend((batch, r.place, r.model, r.model_version, r.result, r.error) for r in frame.collect())

    served = example.serve(spark, wines, published, pond)
    with millpond.start(served, table="wine", pond=pond, output_mode="append", partitions=2, sink=collect) as job:
        for number, name in enumerate(["linear", "forest", "linear"]):
            millpond.publish_model(published, contents[name], name=name, description=models[name][0])
            job.query.processAllAvailable()
            example.write_wines(WINES, wines, number)
            job.query.processAllAvailable()
        with millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60) as reader:
            reader.catch_up(60)
            statistics = {r["version"]: r for r in reader["wine_statistics"].scan()}
            at = [reader["wine_versions"].get(version=v) for v in (1, 2, 3)]
            example.show(reader)
    assert len(out) == 3 * len(rows)
    assert {(model, version) for _, _, model, version, _, _ in out} == {("linear", 1), ("forest", 2), ("linear", 3)}
    for _, place, model, _, result, error in out:
        assert error is None
        assert result == pytest.approx(predicted[model][place], rel=1e-5, abs=1e-4)
    assert [(r["usage"], r["errors"]) for r in statistics.values()] == [(len(rows), 0)] * 3
    # The versions since their batches, in time.
    assert [r["name"] for r in at] == ["linear", "forest", "linear"]
    assert at[0]["since"] < at[1]["since"] < at[2]["since"]
    assert at[0]["sha256"] == at[2]["sha256"] != at[1]["sha256"]
    assert len(list((pond / "models").iterdir())) == 2
    shown = capsys.readouterr().out
    assert shown.count("linear") == 2
    assert "50 trees" in shown
