"""Spark still refuses what COMPATIBILITY.md says that it refuses: this test tries each again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_files.golden import load_script
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
SEEN = json.loads((HERE / "refused.json").read_text())


def test_what_was_seen_is_all_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.syspath_prepend(str(HERE))
    tried = {name: condition for name, (_, condition) in load_script("make_operators").REFUSED.items()}
    assert SEEN["refused"] == tried


@pytest.mark.parametrize("name", a_few(SEEN["refused"], 4))
def test_spark_refuses_it_again(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from pyspark import cloudpickle

    assert SEEN["spark"] == spark.version
    monkeypatch.syspath_prepend(str(HERE))
    script = load_script("make_operators")
    # Spark's Python workers can't import it.
    cloudpickle.register_pickle_by_value(script)
    try:
        assert script.see_refused(spark, name) == SEEN["refused"][name]
    finally:
        cloudpickle.unregister_pickle_by_value(script)
